//! Nodes that are offered ten times what they can serve with half a core: none loses its lease,
//! none admits more than a limit, every request is answered in time, and soon after the load has
//! ended the nodes are as fast as before it.
//!
//! `scripts/check-long overload` runs both tests. They need the right to make cgroups.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::cgroup::Cgroup;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::open_loop::{self, Offer, Outcome};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tidegate_testkit::variable;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;

const RULES: &str = "
domain: overload
descriptors:
  - {key: user, rate_limit: {window: 365d, requests_per_unit: 500, on_unavailable: deny}}
  - {key: free, rate_limit: {window: 365d, requests_per_unit: 1000000000, on_unavailable: deny}}
";
const LIMIT: u64 = 500;
/// Enough keys that the overload finds some of their limits unused.
const KEYS: usize = 100;
const PERCENT_OF_A_CORE: u64 = 50;
/// The default number of threads: with `node.threads = 1` requests and peers share one, and an
/// overloaded node may lose its lease.
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: "",
    sets: &[],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
const CONNECTIONS: u32 = 300;
/// More requests a second than any node serves: measures what it serves.
const ANY_RATE: f64 = 1e6;
const MEASURED_FOR: Duration = Duration::from_secs(4);
const OVERLOAD: f64 = 10.0;
/// `TIDEGATE_OVERLOAD_SECONDS` has another number.
const OVERLOADED_FOR_S: u32 = 60;
/// What a listener gives a request for its body and the decision.
const LISTENER_DEADLINE: Duration = Duration::from_secs(5);
const RECOVERS_WITHIN: Duration = Duration::from_secs(5);
/// The p99 may be so much longer than before the load, and is compared from here on.
const P99_RATIO_MAX: u32 = 2;
const P99_FLOOR: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_overloaded_node_of_three_keeps_its_lease() {
    overload(&[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_overloaded_nodes_keep_their_leases() {
    overload(&[0, 1, 2]).await;
}

/// Confines and overloads the nodes at `indexes`.
async fn overload(indexes: &[usize]) {
    let seconds = variable::number("TIDEGATE_OVERLOAD_SECONDS", OVERLOADED_FOR_S);
    // Removed after the nodes.
    let groups: Result<Vec<_>, String> = indexes
        .iter()
        .map(|index| Cgroup::with_percent_of_a_core(THREE[*index], PERCENT_OF_A_CORE))
        .collect();
    let groups = match groups {
        Ok(groups) => groups,
        Err(reason) => {
            println!("SKIPPED: no cgroup can be made here: {reason}");
            return;
        }
    };
    let cluster = Cluster::start_alone(TIDEGATE, OPTIONS).await;
    for (group, index) in groups.iter().zip(indexes) {
        group.add(cluster.nodes[*index].pid());
    }
    let listeners: Vec<SocketAddr> =
        indexes.iter().map(|index| cluster.nodes[*index].http).collect();
    let values: Vec<String> = (0..KEYS).map(|number| format!("user-{number}")).collect();

    let normal = normal_load(&listeners, MEASURED_FOR).await;
    let p99_before = p99(&normal);
    let any = Loops::start(&listeners, "free", &values, &[ANY_RATE; THREE.len()]);
    tokio::time::sleep(MEASURED_FOR).await;
    let served = per_second(any.end().await.responses(), MEASURED_FOR);
    let rate = served * OVERLOAD / f64::from(u32::try_from(listeners.len()).unwrap());
    println!("p99 of a normal load {p99_before:?}; {served:.0} requests/s at most");

    let (lost, epoch) = (leases_lost(&cluster).await, epoch(&cluster).await);
    let policy = cluster.verdicts("policy").await;
    let duration = Duration::from_secs(seconds.into());
    let rates = [rate; THREE.len()];
    let loops = Loops::start(&listeners, "user", &values, &rates);
    tokio::time::sleep(duration).await;
    let (outcome, recovered) = tokio::join!(loops.end(), recovery(&listeners, p99_before));
    let lost = leases_lost(&cluster).await - lost;
    let policy = cluster.verdicts("policy").await - policy;

    let Outcome { denied, refused, lost: unanswered, unsent, micros, .. } = &outcome;
    let late = outcome.later_than(LISTENER_DEADLINE);
    let admitted: u64 = outcome.admitted.iter().sum();
    let answered = outcome.responses();
    let millis = |quantile| micros.value_at_quantile(quantile) / 1_000;
    println!(
        "{seconds} s of {OVERLOAD} times that: {:.0} responses/s: {admitted} admitted, {denied} \
         denied ({policy} by on_unavailable), {refused} refused, {late} after {LISTENER_DEADLINE:?}, {unanswered} \
         without a response; {unsent} not sent; p50 {} ms, p99 {} ms, max {} ms",
        per_second(answered, duration),
        millis(0.5),
        millis(0.99),
        millis(1.0),
    );
    for (index, group) in indexes.iter().zip(&groups) {
        println!("{} was held back in {}", THREE[*index], group.throttled());
    }
    println!("{lost} leases lost; p99 as before the load {recovered:?} after its end");
    assert_eq!(lost, 0, "leases lost");
    assert_eq!(self::epoch(&cluster).await, epoch, "the map changed");
    for (value, admitted) in values.iter().zip(&outcome.admitted) {
        assert!(*admitted <= LIMIT, "{value}: {admitted} of {LIMIT}");
    }
    assert_eq!((late, *unanswered), (0, 0), "late and missing responses");
    assert!(recovered <= RECOVERS_WITHIN, "{recovered:?}");
}

/// Open loops that run.
struct Loops {
    stop: CancellationToken,
    outcomes: JoinSet<Outcome>,
}

impl Loops {
    /// Offers `rates` to `listeners`, one each.
    fn start(listeners: &[SocketAddr], key: &str, values: &[String], rates: &[f64]) -> Self {
        let stop = CancellationToken::new();
        let mut outcomes = JoinSet::new();
        for (listener, rate) in listeners.iter().zip(rates) {
            let (listener, rate, stop) = (*listener, *rate, stop.clone());
            let (key, values) = (key.to_owned(), values.to_vec());
            outcomes.spawn(async move {
                let connections = CONNECTIONS;
                let offer =
                    Offer { connections, rate, domain: "overload", key: &key, values: &values };
                open_loop::run(listener, &offer, &stop).await
            });
        }
        Self { stop, outcomes }
    }

    /// Sends nothing more, and waits for the last responses.
    async fn end(self) -> Outcome {
        self.stop.cancel();
        let mut outcomes = self.outcomes.join_all().await.into_iter();
        let mut sum = outcomes.next().expect("a listener");
        outcomes.for_each(|outcome| sum.add(&outcome));
        sum
    }
}

/// When a response arrived, after the start of the load, and how long it took.
type Sample = (Duration, Duration);

/// Clients that wait for each response, for `duration`.
async fn normal_load(listeners: &[SocketAddr], duration: Duration) -> Vec<Sample> {
    const CLIENTS: usize = 8;
    const INTERVAL: Duration = Duration::from_millis(40);
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS * listeners.len() {
        let listener = listeners[number % listeners.len()];
        clients.spawn(async move {
            let http = Http::new();
            let mut samples = Vec::new();
            let mut turn = tokio::time::interval(INTERVAL);
            while start.elapsed() < duration {
                turn.tick().await;
                let begun = Instant::now();
                let value = format!("normal-{number}");
                let reply = http.check(listener, &check_body("overload", "free", &value)).await;
                assert!([200, 429].contains(&reply.as_ref().unwrap().status), "{reply:?}");
                samples.push((start.elapsed(), begun.elapsed()));
            }
            samples
        });
    }
    let mut samples: Vec<Sample> = clients.join_all().await.into_iter().flatten().collect();
    samples.sort_unstable();
    samples
}

/// How long after its start a normal load is as fast as before: the p99 of the following second.
async fn recovery(listeners: &[SocketAddr], p99_before: Duration) -> Duration {
    const WINDOW: Duration = Duration::from_secs(1);
    const STEP: Duration = Duration::from_millis(100);
    let measured = RECOVERS_WITHIN + 3 * WINDOW;
    let samples = normal_load(listeners, measured).await;
    let permitted = (p99_before * P99_RATIO_MAX).max(P99_FLOOR);
    let mut from = Duration::ZERO;
    while from + WINDOW < measured {
        let window = samples.iter().filter(|(at, _)| (from..from + WINDOW).contains(at));
        let window: Vec<Sample> = window.copied().collect();
        if !window.is_empty() && p99(&window) <= permitted {
            return from;
        }
        from += STEP;
    }
    measured
}

fn p99(samples: &[Sample]) -> Duration {
    let mut took: Vec<Duration> = samples.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    took[(took.len() * 99 / 100).min(took.len() - 1)]
}

fn per_second(count: u64, duration: Duration) -> f64 {
    f64::from(u32::try_from(count).expect("a short load")) / duration.as_secs_f64()
}

async fn leases_lost(cluster: &Cluster) -> u64 {
    let mut lost = 0;
    for node in &cluster.nodes {
        lost += node.metric("tidegate_leases_lost_total").await;
    }
    lost
}

/// That of the map at the first node: it grows when a member is evicted.
async fn epoch(cluster: &Cluster) -> u64 {
    cluster.nodes[0].map().await.unwrap().epoch
}
