//! Limits that regions share while they are 160 ms apart: never over, decided without waiting for
//! another region under a steady load, used up wherever the load is, and decided by a region that
//! is cut off as far as its share goes.
//!
//! `scripts/check-long regions` runs it. What passes between regions goes through relays that delay
//! it, and all nodes read one clock, so windows begin everywhere at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use tidegate_testkit::loadgen::grpc::Grpc;
use tidegate_testkit::loadgen::{Clients, End, Keys, Pace, ReplyStatus, Run, Spread};
use tidegate_testkit::process::{Cluster, ClusterOptions};
use tidegate_testkit::variable;

use tokio::task::JoinHandle;

use crate::TIDEGATE;

/// 80 ms there, and 80 back.
const ROUND_TRIP: Duration = Duration::from_millis(160);
/// A check that took longer has waited for another region; the machine is seldom so slow.
const OCEAN: Duration = Duration::from_millis(40);
const DOMAIN: &str = "far";
/// Connections to each node.
const CONNECTIONS: usize = 4;
/// A load begins so long after its connections are open.
const LEAD: Duration = Duration::from_millis(300);
/// A load is steady after this: at first no node knows its rate, and a window that is half over
/// when it begins may end before hits of other regions arrive.
const STEADY_AFTER: Duration = Duration::from_secs(1);
/// What is admitted later than this after a load has moved is not less than the limit.
const MOVES_WITHIN: Duration = Duration::from_secs(2);

/// A limit: key of its rule, algorithm, hits, window in seconds.
#[derive(Clone, Copy, Debug)]
struct Limit {
    key: &'static str,
    algorithm: &'static str,
    hits: u64,
    seconds: u64,
}

const SECOND: Limit = Limit { key: "second", algorithm: "fixed_window", hits: 1_000, seconds: 1 };
const SMALL: Limit = Limit { key: "small", algorithm: "fixed_window", hits: 100, seconds: 1 };
const TEN: Limit = Limit { key: "ten", algorithm: "fixed_window", hits: 5_000, seconds: 10 };
const SLIDING: Limit =
    Limit { key: "sliding", algorithm: "sliding_window_counter", hits: 5_000, seconds: 10 };
const SLIDING_SECOND: Limit =
    Limit { key: "sliding-second", algorithm: "sliding_window_counter", hits: 1_000, seconds: 1 };
const TOKENS: Limit = Limit { key: "tokens", algorithm: "token_bucket", hits: 1_000, seconds: 1 };
const TOKENS_TEN: Limit =
    Limit { key: "tokens-ten", algorithm: "token_bucket", hits: 5_000, seconds: 10 };
const LIMITS: [Limit; 7] = [SECOND, SMALL, TEN, SLIDING, SLIDING_SECOND, TOKENS, TOKENS_TEN];

const TWO: ClusterOptions<'_> = ClusterOptions {
    nodes: &["n1", "n2", "n3", "m1", "m2"],
    rules: "",
    config: "",
    // On a busy machine a process may stand still for longer than the default.
    sets: &["cluster.deadline=1s", "cluster.global_deadline=2s", "node.threads=1"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[("eu", &["n1", "n2", "n3"]), ("us", &["m1", "m2"])],
};
const THREE: ClusterOptions<'_> = ClusterOptions {
    nodes: &["k1", "n1", "n2", "m1"],
    regions: &[("ap", &["k1"]), ("eu", &["n1", "n2"]), ("us", &["m1"])],
    ..TWO
};

impl Limit {
    fn rule(&self) -> String {
        let Self { key, algorithm, hits, seconds } = self;
        format!(
            "  - key: {key}\n    mode: leased\n    scope: global\n    on_unavailable: deny\n    \
             rate_limit: {{window: {seconds}s, requests_per_unit: {hits}, algorithm: \
             {algorithm}}}\n"
        )
    }

    fn per_second(&self) -> u64 {
        self.hits / self.seconds
    }

    fn window(&self) -> u64 {
        self.seconds * 1_000_000_000
    }

    fn is_bucket(&self) -> bool {
        self.algorithm == "token_bucket"
    }
}

fn rules() -> String {
    let rules: String = LIMITS.iter().map(Limit::rule).collect();
    format!("domain: {DOMAIN}\ndescriptors:\n{rules}")
}

/// Running regions.
struct Far {
    cluster: Cluster,
    options: ClusterOptions<'static>,
    last_key: u64,
}

/// What one region is asked, from a time on.
#[derive(Clone, Copy, Debug)]
struct Demand {
    region: &'static str,
    per_second: u64,
    after: Duration,
    time: Duration,
}

/// A check with the times at which it was to be sent and was answered, in nanoseconds of the clock
/// that the nodes read.
#[derive(Clone, Copy, Debug)]
struct Check {
    sent: u64,
    answered: u64,
    is_admitted: bool,
}

impl Check {
    fn took(&self) -> Duration {
        Duration::from_nanos(self.answered - self.sent)
    }
}

impl Far {
    async fn start(options: ClusterOptions<'static>) -> Self {
        let rules = String::leak(rules());
        let options = ClusterOptions { rules, ..options };
        let cluster = Cluster::start_apart(TIDEGATE, options, ROUND_TRIP).await;
        // Until the nodes have seen how far the others are, and replicas are where they belong.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Self { cluster, options, last_key: 0 }
    }

    fn regions(&self) -> impl Iterator<Item = &'static str> {
        self.options.regions.iter().map(|(name, _)| *name)
    }

    /// Checks of a new value of the limit's key in an open loop; those of each demand, and when the
    /// first was to be sent.
    async fn load(&mut self, limit: Limit, demands: &[Demand]) -> (u64, Vec<Vec<Check>>) {
        self.load_from(Instant::now() + LEAD, limit, demands).await
    }

    /// The same, from the begin of a window on.
    async fn load_from_window(&mut self, limit: Limit, demands: &[Demand]) -> Vec<Vec<Check>> {
        let earliest = Instant::now() + LEAD;
        let left = limit.window() - unix_ns(earliest) % limit.window();
        self.load_from(earliest + Duration::from_nanos(left), limit, demands).await.1
    }

    async fn load_from(
        &mut self,
        begin: Instant,
        limit: Limit,
        demands: &[Demand],
    ) -> (u64, Vec<Vec<Check>>) {
        self.last_key += 1;
        let number = self.last_key;
        let load = |demand: &Demand| {
            let nodes = self.cluster.in_region(&self.options, Some(demand.region));
            let addrs: Vec<SocketAddr> = nodes.map(|node| node.grpc).collect();
            let demand = *demand;
            tokio::task::spawn_blocking(move || checks(&addrs, limit, number, demand, begin))
        };
        let loads: Vec<JoinHandle<Vec<Check>>> = demands.iter().map(load).collect();
        let mut done = Vec::new();
        for load in loads {
            done.push(load.await.unwrap());
        }
        (unix_ns(begin), done)
    }

    async fn verdicts(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for source in ["grant", "local", "owner", "remembered", "policy"] {
            sums.insert(source, self.cluster.verdicts(source).await);
        }
        sums
    }
}

fn checks(
    addrs: &[SocketAddr],
    limit: Limit,
    number: u64,
    demand: Demand,
    begin: Instant,
) -> Vec<Check> {
    let protocol = || Box::new(Grpc::new(DOMAIN, limit.key)) as _;
    let connections = CONNECTIONS * addrs.len();
    let mut clients = Clients::connect(addrs, connections, &protocol).unwrap();
    // A new connection answers its first request late. Of a key that nobody measures.
    let warm_up = Run {
        keys: Keys::Random(1 << 32),
        pace: Pace::Closed { depth: 1 },
        end: End::AfterRequests(4 * connections as u64),
        spread: Spread::Even,
    };
    clients.run(&warm_up, |_| {}).unwrap();
    let run = Run {
        keys: Keys::One(number + (1 << 33)),
        pace: Pace::Open { per_second: demand.per_second, burst: 1 },
        end: End::After(demand.time),
        spread: Spread::Even,
    };
    let begin = begin + demand.after;
    assert!(Instant::now() < begin, "the machine is too slow");
    std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    let mut checks = Vec::new();
    let result = clients
        .run(&run, |reply| {
            let (sent, answered) = (unix_ns(reply.started), unix_ns(reply.at));
            let is_admitted = reply.status == ReplyStatus::Admitted;
            checks.push(Check { sent, answered, is_admitted });
        })
        .unwrap();
    assert_eq!(result.failed, 0, "{demand:?}");
    checks
}

fn unix_ns(at: Instant) -> u64 {
    static BASE: LazyLock<(Instant, u64)> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        (Instant::now(), u64::try_from(since.as_nanos()).unwrap())
    });
    let (base, unix) = *BASE;
    let after = u64::try_from(at.saturating_duration_since(base).as_nanos()).unwrap();
    let before = u64::try_from(base.saturating_duration_since(at).as_nanos()).unwrap();
    unix + after - before
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

/// The hits admitted in each window that they were certainly in, and those that may have been.
fn by_window<'a>(
    checks: impl IntoIterator<Item = &'a Check>,
    window: u64,
) -> BTreeMap<u64, (u64, u64)> {
    let mut windows = BTreeMap::<u64, (u64, u64)>::new();
    for check in checks.into_iter().filter(|check| check.is_admitted) {
        let (first, last) = (check.sent / window, check.answered / window);
        if first == last {
            windows.entry(first).or_default().0 += 1;
        }
        for window in first..=last {
            windows.entry(window).or_default().1 += 1;
        }
    }
    windows
}

/// The most that a limit was exceeded by, in hits: in a window, of a bucket in any stretch of time.
/// A sliding window weighs the window before, so that two windows are looked at.
fn excess(limit: Limit, loads: &[Vec<Check>]) -> i64 {
    const GRID: u64 = 20_000_000;
    let all = || loads.iter().flatten();
    let signed = |hits: u64| i64::try_from(hits).unwrap();
    if !limit.is_bucket() {
        let windows = by_window(all(), limit.window());
        let over = windows.values().map(|(certain, _)| signed(*certain) - signed(limit.hits));
        return over.max().unwrap_or(i64::MIN);
    }
    let mut admitted: Vec<&Check> = all().filter(|check| check.is_admitted).collect();
    admitted.sort_by_key(|check| check.answered);
    let Some(first) = admitted.iter().map(|check| check.sent).min() else { return i64::MIN };
    let last = admitted.last().unwrap().answered;
    let mut most = i64::MIN;
    for from in (first..last).step_by(usize::try_from(GRID).unwrap()) {
        let mut passed = 0;
        for check in admitted.iter().filter(|check| check.sent >= from) {
            passed += 1;
            let time = u128::from(check.answered - from);
            let refilled = time * u128::from(limit.hits) / u128::from(limit.window());
            most = most.max(passed - signed(limit.hits) - i64::try_from(refilled).unwrap());
        }
    }
    most
}

fn assert_never_over(what: &str, limit: Limit, loads: &[Vec<Check>]) {
    let excess = excess(limit, loads);
    let windows = by_window(loads.iter().flatten(), limit.window());
    println!("{what}: over by {excess}; by window {:?}", windows.values().collect::<Vec<_>>());
    assert!(excess <= 0, "{what}: over by {excess} of {limit:?}");
}

/// Prints what the checks of a region took; how many of a thousand waited for another region.
fn waited_per_mille(what: &str, limit: Limit, checks: &[Check]) -> usize {
    let mut took: Vec<Duration> = checks.iter().map(Check::took).collect();
    took.sort_unstable();
    let at = |mille: usize| {
        let at = (took.len() * mille / 1_000).min(took.len().saturating_sub(1));
        took.get(at).copied().unwrap_or_default()
    };
    let refused = checks.iter().filter(|check| !check.is_admitted).count();
    let waits = took.iter().filter(|took| **took >= OCEAN).count();
    let per_mille = waits * 1_000 / took.len().max(1);
    println!(
        "{what}: {} checks, {refused} refused, p50 {:.1?}, p99 {:.1?}, max {:.1?}, {waits} waited",
        took.len(),
        at(500),
        at(990),
        at(1_000)
    );
    if waits > 0 {
        let (mut tenths, window) = ([0_usize; 10], limit.window());
        for check in checks.iter().filter(|check| check.took() >= OCEAN) {
            tenths[usize::try_from(check.sent % window * 10 / window).unwrap()] += 1;
        }
        println!("by tenths of a window: {tenths:?}");
    }
    per_mille
}

/// Four fifths of the limit, for as long as some windows take.
async fn steady_loads_wait_for_no_other_region(options: ClusterOptions<'static>) {
    let mut failures = Vec::new();
    let mut far = Far::start(options).await;
    let count = far.regions().count() as u64;
    for limit in LIMITS {
        let time = Duration::from_secs(if limit.seconds == 1 { 5 } else { 12 });
        for split in ["even", "uneven", "one"] {
            let per_second = limit.per_second() * 4 / 5;
            let of_region = |at: u64, region| {
                let per_second = match split {
                    "even" => per_second / count,
                    "uneven" if at + 1 < count => per_second / 8 / (count - 1),
                    "uneven" => per_second * 7 / 8,
                    _ if at + 1 < count => 0,
                    _ => per_second,
                };
                Demand { region, per_second, after: Duration::ZERO, time }
            };
            let demands = (0..).zip(far.regions()).map(|(at, region)| of_region(at, region));
            let demands: Vec<Demand> = demands.filter(|it| it.per_second > 0).collect();
            let before = far.verdicts().await;
            let (begin, loads) = far.load(limit, &demands).await;
            let after = far.verdicts().await;
            let by: Vec<_> = after.iter().map(|(it, n)| (*it, n - before[it])).collect();
            println!("\n{} of {count} regions, {split}: {by:?}", limit.key);
            for (demand, checks) in demands.iter().zip(&loads) {
                let what = format!("{}, {split}, {}", limit.key, demand.region);
                waited_per_mille(&format!("{what}, with its begin"), limit, checks);
                let mut checks = checks.clone();
                checks.retain(|check| check.sent >= begin + nanos(STEADY_AFTER));
                let waited = waited_per_mille(&what, limit, &checks);
                let refused = checks.iter().filter(|check| !check.is_admitted).count();
                // A sliding window of some round trips is documented to wait when one region needs
                // what others have.
                let may_wait = limit.key == SLIDING_SECOND.key && split != "even";
                if waited >= 10 && !may_wait || refused > 0 {
                    failures.push(format!("{what}: {waited} per mille waited, {refused} refused"));
                }
            }
            assert_never_over(&format!("{}, {split}", limit.key), limit, &loads);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steady_load_in_two_regions_waits_for_no_other_region() {
    steady_loads_wait_for_no_other_region(TWO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steady_load_in_three_regions_waits_for_no_other_region() {
    steady_loads_wait_for_no_other_region(THREE).await;
}

/// Three times the limit within half of a window, in all regions at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_in_all_regions_is_never_over() {
    for options in [TWO, THREE] {
        let mut far = Far::start(options).await;
        let count = far.regions().count() as u64;
        for limit in [SMALL, SECOND, TEN, SLIDING, TOKENS, TOKENS_TEN] {
            let time = Duration::from_secs(limit.seconds) / 2;
            let demand = |region| {
                let per_second = limit.per_second() * 6 / count;
                Demand { region, per_second, after: Duration::ZERO, time }
            };
            let demands: Vec<Demand> = far.regions().map(demand).collect();
            let loads = far.load_from_window(limit, &demands).await;
            let what = format!("{} of {count} regions, a burst", limit.key);
            assert_never_over(&what, limit, &loads);
            let admitted = loads.iter().flatten().filter(|it| it.is_admitted).count();
            println!("{what}: {admitted} admitted");
            let is_used_up = admitted * 100 >= usize::try_from(limit.hits).unwrap() * 98;
            assert!(is_used_up, "{what}: {admitted} admitted of {limit:?}");
        }
    }
}

/// Twice the limit, first in one region and then in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_moves_finds_the_limit_in_the_other_region() {
    let mut far = Far::start(TWO).await;
    let mut failures = Vec::new();
    for limit in [SMALL, SECOND, TEN, SLIDING, TOKENS, TOKENS_TEN] {
        let (first, second) = if limit.seconds == 1 { (4, 8) } else { (8, 24) };
        let [first, second] = [first, second].map(Duration::from_secs);
        let per_second = 2 * limit.per_second();
        let demands = [
            Demand { region: "eu", per_second, after: Duration::ZERO, time: first },
            Demand { region: "us", per_second, after: first, time: second },
        ];
        let (begin, loads) = far.load(limit, &demands).await;
        let (mut from, mut to) =
            (begin + nanos(first + MOVES_WITHIN), begin + nanos(first + second));
        if !limit.is_bucket() {
            let window = limit.window();
            (from, to) = (from.div_ceil(window) * window, to / window * window);
        }
        let is_in = |check: &&Check| check.is_admitted && (from..to).contains(&check.sent);
        let admitted = loads[1].iter().filter(is_in).count() as u64;
        let all = u128::from(limit.hits) * u128::from(to - from) / u128::from(limit.window());
        println!("\n{}: {admitted} of {all} admitted after the move", limit.key);
        for (demand, checks) in demands.iter().zip(&loads) {
            waited_per_mille(&format!("{}, {}", limit.key, demand.region), limit, checks);
        }
        assert_never_over(&format!("{}, moving", limit.key), limit, &loads);
        if u128::from(admitted) * 100 < all * 98 {
            failures.push(format!("{}: {admitted} of {all}", limit.key));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// `TIDEGATE_CUT_SECONDS` has another time. In three regions the other two go on together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_is_cut_off_has_its_share_and_no_more() {
    const BEFORE: Duration = Duration::from_secs(3);
    const AFTER: Duration = Duration::from_secs(15);
    let cut = Duration::from_secs(u64::from(variable::number("TIDEGATE_CUT_SECONDS", 60)));
    let mut far = Far::start(TWO).await;
    let time = BEFORE + cut + AFTER;
    // More than its share in each region.
    let demand = |region| Demand { region, per_second: 600, after: Duration::ZERO, time };
    let demands = ["eu", "us"].map(demand);
    let relays = far.cluster.cutter(&far.options, "us");
    let begin = Instant::now() + LEAD;
    let cutting = tokio::spawn(async move {
        tokio::time::sleep_until((begin + BEFORE).into()).await;
        relays.cut(true);
        tokio::time::sleep_until((begin + BEFORE + cut).into()).await;
        relays.cut(false);
    });
    let (begin, loads) = far.load_from(begin, SECOND, &demands).await;
    cutting.await.unwrap();
    assert_never_over("cut off", SECOND, &loads);
    let window = SECOND.window();
    for (demand, checks) in demands.iter().zip(&loads) {
        waited_per_mille(demand.region, SECOND, checks);
        let windows = by_window(checks, window);
        let whole = |from: Duration, to: Duration| {
            let from = (begin + nanos(from)).div_ceil(window);
            from..(begin + nanos(to)) / window
        };
        let admitted = |at| windows.get(&at).map_or(0, |(_, admitted)| *admitted);
        let in_cut = whole(BEFORE + MOVES_WITHIN, BEFORE + cut).map(admitted);
        let least = in_cut.min().unwrap();
        println!("{}: at least {least} a window while it is cut off", demand.region);
        assert!(least * 100 >= SECOND.hits / 2 * 98, "{}: {least}", demand.region);
    }
}
