//! Limits that regions share over an ocean: never over, mostly without waiting for it, and used up
//! wherever the load is.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::config::Config;
use tidegate::decide::{CheckResponse, VerdictSource};
use tidegate_limiter::engine::Retry;
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::shares;
use tidegate_testkit::in_process::Node;
use tidegate_testkit::regions::Regions;
use tidegate_testkit::variable;
use tokio::time::Instant;

use super::forwarding::bench::{TIMEOUT, remaining, source, token};

/// 80 ms there, and 80 back.
const ROUND_TRIP: Duration = Duration::from_millis(160);
/// A check that took so long has waited for another region.
const OCEAN: Duration = Duration::from_millis(120);
const LIMIT: usize = 300;
/// Of the windows of `WINDOW`.
const STEADY: usize = 2_000;
const WINDOW: Duration = Duration::from_secs(5);
const RULES: &str = "
domain: test
descriptors:
  - key: fixed
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 300}
  - key: tokens
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 300, algorithm: token_bucket}
  - key: layered
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit:
      - {unit: day, requests_per_unit: 300}
      - {window: 2d, requests_per_unit: 400, algorithm: sliding_window_counter}
  - key: one
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: log
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit: {window: 1d, requests_per_unit: 10, algorithm: sliding_window_log}
  - key: steady
    mode: leased
    scope: global
    on_unavailable: deny
    rate_limit: {window: 5s, requests_per_unit: 2000}
  - key: brief
    mode: leased
    scope: global
    on_unavailable: local
    rate_limit: {window: 1s, requests_per_unit: 300}
  - key: near
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

fn far(config: &mut Config) {
    config.cluster.deadline = Span::from_secs(1);
    config.cluster.global_deadline = Span::from_secs(2);
}

/// What became of the checks of one region.
#[derive(Clone, Debug, Default)]
struct Load {
    /// Those that were admitted, when they were sent and answered.
    admitted: Vec<(Span, Span)>,
    times: Vec<Duration>,
    /// Those that waited for another region: when in a window, and how long, in milliseconds. A
    /// check at the same time, which asks no other region, did not wait.
    waits: Vec<(u128, u128)>,
    refused: usize,
}

impl Load {
    /// How many of a thousand checks waited for another region.
    fn waited_per_mille(&self) -> usize {
        self.waits.len() * 1_000 / self.times.len().max(1)
    }

    fn p99(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// Checks at `nodes`, in turn, `per_second` in all for so long. None waits for another.
async fn load(
    nodes: &[&Node],
    (key, value): (&str, &str),
    per_second: u32,
    time: Duration,
) -> Load {
    if per_second == 0 {
        tokio::time::sleep(time).await;
        return Load::default();
    }
    let start = Instant::now();
    let mut checks = Vec::new();
    let one = async |node: &Node, due: Instant| {
        tokio::time::sleep_until(due).await;
        let clock = &node.core.clock;
        let (sent, begun) = (clock.now(), Instant::now());
        let since = |at: Timestamp| Span::from_nanos(at.as_nanos());
        let far = async {
            let answer = node.check(key, value).await;
            (answer.allowed, (since(sent), since(clock.now())), begun.elapsed())
        };
        let near = async {
            node.check("near", "x").await;
            begun.elapsed()
        };
        tokio::join!(far, near)
    };
    let count = u64::from(per_second) * u64::try_from(time.as_millis()).unwrap() / 1_000;
    for number in 0..count {
        let due = start + Duration::from_nanos(number * 1_000_000_000 / u64::from(per_second));
        let node = nodes[usize::try_from(number).unwrap() % nodes.len()];
        checks.push(one(node, due));
    }
    let mut load = Load::default();
    for ((allowed, times, took), near_took) in join_all(checks).await {
        if took >= OCEAN && near_took < OCEAN / 2 {
            let at = Duration::from_nanos(times.0.as_nanos()).as_millis() % WINDOW.as_millis();
            load.waits.push((at, took.as_millis()));
        }
        load.times.push(took);
        if allowed {
            load.admitted.push(times);
        } else {
            load.refused += 1;
        }
    }
    load
}

/// The hits admitted in each window that they were certainly in, and those that may have been.
fn by_window(loads: &[Load], window: Duration) -> BTreeMap<u64, (usize, usize)> {
    let window = u64::try_from(window.as_nanos()).unwrap();
    let mut windows = BTreeMap::<u64, (usize, usize)>::new();
    for (sent, answered) in loads.iter().flat_map(|load| &load.admitted) {
        let (first, last) = (sent.as_nanos() / window, answered.as_nanos() / window);
        if first == last {
            windows.entry(first).or_default().0 += 1;
        }
        for window in first..=last {
            windows.entry(window).or_default().1 += 1;
        }
    }
    windows
}

fn assert_never_over(loads: &[Load], window: Duration, limit: usize) {
    let windows = by_window(loads, window);
    println!("by window: {windows:?}");
    assert!(windows.values().all(|(certain, _)| *certain <= limit), "{windows:?} of {limit}");
}

fn three_and_two() -> [(&'static str, &'static str); 5] {
    [("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "us"), ("e", "us")]
}

fn three_regions() -> [(&'static str, &'static str); 4] {
    [("a", "ap"), ("b", "eu"), ("c", "eu"), ("d", "us")]
}

/// Each node sends `checks`, one every two milliseconds.
async fn burst(regions: &Regions, key: &str, value: &str, checks: usize) -> (usize, usize) {
    let of_node = async |node: &Node| {
        let (mut admitted, mut from_others) = (0, 0);
        for _ in 0..checks {
            let begun = Instant::now();
            let answer = node.check(key, value).await;
            if answer.allowed {
                admitted += 1;
                from_others += usize::from(begun.elapsed() >= OCEAN);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        (admitted, from_others)
    };
    let of_each = join_all(regions.nodes.iter().map(of_node)).await;
    of_each.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_in_all_regions_admits_the_limit_and_no_more() {
    for nodes in [&three_and_two()[..], &three_regions()[..]] {
        let regions = Regions::start(nodes, ROUND_TRIP, RULES, far).await;
        for key in ["fixed", "tokens", "layered"] {
            for value in ["x", "y"] {
                let (admitted, waited) = burst(&regions, key, value, 2 * LIMIT).await;
                println!("{key}={value}: {admitted} admitted, {waited} after a wait");
                // An idle bucket loses one term of each share.
                let lost = if key == "tokens" { LIMIT / 128 + nodes.len() } else { 0 };
                assert!((LIMIT - lost..=LIMIT).contains(&admitted), "{key}: {admitted}");
            }
        }
        let (one, _) = burst(&regions, "one", "x", 2).await;
        let (log, _) = burst(&regions, "log", "x", 10).await;
        assert_eq!((one, log), (1, 10));
    }
}

/// Also where one region has most of the load and needs hits of the others, and just after a window
/// has begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steady_load_below_the_limit_waits_for_no_other_region() {
    for nodes in [&three_and_two()[..], &three_regions()[..]] {
        let regions = Regions::start(nodes, ROUND_TRIP, RULES, far).await;
        let [eu, us] = ["eu", "us"].map(|name| regions.of(name).collect::<Vec<_>>());
        let time = 3 * WINDOW;
        for (value, at_eu, at_us) in [("even", 160, 160), ("uneven", 300, 20), ("one", 0, 320)] {
            let key = ("steady", value);
            let (eu, us) = tokio::join!(load(&eu, key, at_eu, time), load(&us, key, at_us, time));
            for (region, load) in [("eu", &eu), ("us", &us)] {
                let waited = load.waited_per_mille();
                println!("{:?}", load.waits.iter().take(100).collect::<Vec<_>>());
                println!(
                    "{value}, {region}: {} checks, {} refused, p99 {:?}, {waited} per mille waited",
                    load.times.len(),
                    load.refused,
                    load.p99()
                );
                assert!(waited < 10, "{value}, {region}: {waited} per mille waited");
                assert_eq!(load.refused, 0, "{value}, {region}");
            }
            assert_never_over(&[eu, us], WINDOW, STEADY);
        }
    }
}

/// The load is twice the limit, first in one region and then in the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_moves_to_another_region_finds_the_limit_there() {
    let regions = Regions::start(&three_and_two(), ROUND_TRIP, RULES, far).await;
    let [eu, us] = ["eu", "us"].map(|name| regions.of(name).collect::<Vec<_>>());
    let key = ("steady", "moving");
    let first = load(&eu, key, 800, 2 * WINDOW).await;
    let moved = us[0].core.clock.now().as_nanos();
    let second = load(&us, key, 800, 3 * WINDOW).await;
    let window = u64::try_from(WINDOW.as_nanos()).unwrap();
    let windows = by_window(std::slice::from_ref(&second), WINDOW);
    println!("{} refused, by window: {windows:?}", second.refused);
    for node in &regions.nodes {
        let (hits, held) = node.core.decider.granted_hits();
        println!("{}: {:?}, {held} held", node.core.topology.load().me, hits.read());
    }
    // Whole windows under load that began two seconds after it had moved, or later.
    let begins = (moved + 2_000_000_000).div_ceil(window);
    let ends = windows.keys().next_back().copied().unwrap();
    for at in begins..ends {
        let (_, admitted) = windows.get(&at).copied().unwrap_or_default();
        assert!(admitted * 100 >= STEADY * 98, "{admitted} of {STEADY} in window {at}");
    }
    assert!(begins < ends, "no whole window");
    assert_never_over(&[first, second], WINDOW, STEADY);
}

/// Each region goes on with its share, for as long as it takes: `TIDEGATE_CUT_SECONDS` has another
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_that_are_cut_off_admit_their_shares_and_no_more() {
    let regions = Regions::start(&three_and_two(), ROUND_TRIP, RULES, far).await;
    let [eu, us] = ["eu", "us"].map(|name| regions.of(name).collect::<Vec<_>>());
    let key = ("brief", "x");
    let seconds = u64::from(variable::number("TIDEGATE_CUT_SECONDS", 6));
    let cut = async {
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        regions.cut(true);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        regions.cut(false);
    };
    let time = Duration::from_secs(seconds + 5);
    let (eu, us, ()) = tokio::join!(load(&eu, key, 500, time), load(&us, key, 500, time), cut);
    let second = Duration::from_secs(1);
    assert_never_over(&[eu.clone(), us.clone()], second, 300);
    for load in [&eu, &us] {
        let shares = by_window(std::slice::from_ref(load), second);
        let whole = shares.values().filter(|(_, admitted)| *admitted >= 148).count();
        assert!(
            whole as u64 >= seconds,
            "each has its share of 150 while it is cut off: {shares:?}"
        );
    }
}

/// At nodes that own the shares of their regions, so that they know what is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_is_told_of_the_whole_limit() {
    let regions = Regions::start(&three_and_two(), ROUND_TRIP, RULES, far).await;
    let [eu, us] = ["eu", "us"].map(|region| owner_in(&regions, region, "fixed", "x"));
    for used in 1..=20 {
        let answer = eu.check("fixed", "x").await;
        let verdict = answer.statuses[0].verdicts[0];
        assert_eq!((verdict.limit as usize, verdict.remaining as usize), (LIMIT, LIMIT - used));
        assert_eq!(source(&answer), VerdictSource::Local);
    }
    assert_eq!(remaining(&eu.check_hits("fixed", "x", 0).await) as usize, LIMIT - 20);
    let refused = eu.check_hits("fixed", "x", 151).await;
    assert_eq!((refused.allowed, refused.statuses[0].verdicts[0].retry), (false, Retry::Never));
    // The share of eu has 130 left, that of us 150.
    admitted_at_last(eu, 150).await;
    let answer = admitted_at_last(us, 130).await;
    assert_eq!(remaining(&answer), 0);
    for node in [eu, us] {
        let begun = Instant::now();
        loop {
            let answer = node.check("fixed", "x").await;
            assert!(!answer.allowed && remaining(&answer) == 0);
            if source(&answer) != VerdictSource::Owner {
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "refusals are cached");
        }
    }
    assert!(us.check_hits("fixed", "x", -3).await.allowed);
    admitted_at_last(eu, 3).await;
    assert!(!us.check("fixed", "x").await.allowed, "it was used in the other region");
}

/// The node of `region` that owns the share of a key there.
fn owner_in<'a>(regions: &'a Regions, region: &str, key: &str, value: &str) -> &'a Node {
    let topology = regions.nodes[0].core.topology.load();
    let token = token(&regions.nodes[0], key, value);
    let shares = shares::of_key(topology.homes().everywhere(), token);
    let share = shares.iter().find(|share| share.region == region).expect("one for each region");
    let owner = topology.region_owner(region, share.token).expect("an owner");
    let mut nodes = regions.nodes.iter();
    nodes.find(|node| node.core.topology.load().me == *owner).expect("one of the nodes")
}

/// Checks until what others hold was given back.
async fn admitted_at_last(node: &Node, hits: i64) -> CheckResponse {
    let begun = Instant::now();
    loop {
        let answer = node.check_hits("fixed", "x", hits).await;
        if answer.allowed {
            return answer;
        }
        assert!(begun.elapsed() < TIMEOUT, "{hits} hits are not there: {answer:?}");
    }
}
