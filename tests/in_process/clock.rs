//! A node whose clock is off counts in the windows of the others, and reports its skew.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::config::Config;
use tidegate::decide::VerdictSource;
use tidegate::node;
use tidegate_cluster::environment::{Clock, Environment};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions, settled};
use tidegate_testkit::relay::{Link, Relay};
use tidegate_testkit::wait::eventually;
use tokio_util::sync::CancellationToken;

const RULES: &str = "
domain: test
descriptors:
  - key: user
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 20, algorithm: sliding_window_log}
  - key: hourly
    on_unavailable: deny
    rate_limit: {unit: hour, requests_per_unit: 20, algorithm: sliding_window_log}
";
const OFF: Span = Span::from_secs(30);
/// A clock in use follows this at once.
const HALF_AN_HOUR: Span = Span::from_secs(1_800);
/// More than a clock in use follows.
const TWO_HOURS: Span = Span::from_secs(7_200);
const FIVE_HOURS: Span = Span::from_secs(5 * 3_600);
/// Two clocks that agree may differ by this much on a busy machine.
const ALIKE: Span = Span::from_secs(5);
const WITHIN: Duration = Duration::from_secs(30);

/// A clock that is ahead of the one inside, which gets its corrections.
#[derive(Debug)]
struct Ahead(Arc<dyn Clock>, Span);

impl Clock for Ahead {
    fn monotonic(&self) -> Monotonic {
        self.0.monotonic()
    }

    fn now(&self) -> Timestamp {
        self.0.now().plus(self.1)
    }

    fn system(&self) -> Timestamp {
        self.0.system().plus(self.1)
    }

    fn slew(&self, correction_ns: i64) {
        self.0.slew(correction_ns);
    }

    fn step(&self, correction_ns: i64) {
        self.0.step(correction_ns);
    }
}

/// The clock of a node in use whose machine was set ahead: the decision clock goes on as before.
#[derive(Debug)]
struct SetWhileInUse(Arc<dyn Clock>, Span);

impl Clock for SetWhileInUse {
    fn monotonic(&self) -> Monotonic {
        self.0.monotonic()
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn system(&self) -> Timestamp {
        self.0.system().plus(self.1)
    }

    fn slew(&self, correction_ns: i64) {
        self.0.slew(correction_ns);
    }

    /// To the machine's time.
    fn step(&self, correction_ns: i64) {
        self.0.step(correction_ns.saturating_add_unsigned(self.1.as_nanos()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_half_a_minute_ahead_counts_in_the_windows_of_the_others() {
    let authority = authority();
    let options = |id, seeds| options(&authority, id, seeds);
    let first = Node::start(options("n1", &[])).await;
    let seeds = [first.joined().mesh.advertise];
    let second = Node::start(options("n2", &seeds)).await;
    connected(&second, 1).await;

    let (outside, right, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(Ahead(outside.clock, OFF));
    let environment = Environment { clock: clock.clone(), ..outside };
    assert!(clock.now().since(right.system()) > ALIKE, "it is ahead before it joins");
    let both = [seeds[0], second.joined().mesh.advertise];
    let late = Node::start_in(options("n3", &both), environment, stop).await;
    connected(&late, 2).await;
    eventually("its skew is known", WITHIN, || late.core.skew().is_beyond).await;

    let median_s = late.core.skew().median_ns / 1_000_000_000;
    assert!((-35..=-25).contains(&median_s), "{median_s} s");
    let (here, there) = (clock.now(), right.system());
    assert!(here.since(there) < ALIKE && there.since(here) < ALIKE, "{here:?}, {there:?}");
    assert!(clock.system().since(right.system()) > ALIKE, "peers get its uncorrected clock");
    for node in [&first, &second] {
        assert!(!node.core.skew().is_beyond, "one wrong clock of three moves no other");
    }
}

/// The log of a sliding window holds times, and a peer's times of the distant future are not
/// merged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_of_unequal_clocks_hands_over_every_count() {
    let authority = authority();
    let options = |id, seeds| options(&authority, id, seeds);
    let first = Node::start(options("n1", &[])).await;
    let (outside, _, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(Ahead(outside.clock, OFF));
    let environment = Environment { clock, ..outside };
    let seeds = [first.addr()];
    let second = Node::start_in(options("n2", &seeds), environment, stop).await;
    are_a_pair(&first, &second).await;

    hands_over_every_count(second, &first).await;
}

/// The machines' clocks are set ahead while a node decides, which it ignores. A node that starts
/// then has to count in the windows of that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_after_all_clocks_were_set_follows_those_that_decide() {
    let authority = authority();
    let options = |id, seeds| options(&authority, id, seeds);
    let (outside, right, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(SetWhileInUse(outside.clock.clone(), TWO_HOURS));
    let first = Node::start_in(options("n1", &[]), Environment { clock, ..outside }, stop).await;
    settled(&[&first]).await;

    let (outside, _, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(Ahead(outside.clock.clone(), TWO_HOURS));
    let environment = Environment { clock: clock.clone(), ..outside };
    let seeds = [first.addr()];
    let second = Node::start_in(options("n2", &seeds), environment, stop).await;
    are_a_pair(&first, &second).await;
    let (here, there) = (clock.now(), right.now());
    assert!(here.since(there) < ALIKE && there.since(here) < ALIKE, "{here:?}, {there:?}");
    assert!(there.since(right.system()) < ALIKE, "the first one was set ahead");
    for node in [&first, &second] {
        assert!(!node.core.skew().is_reported(), "the machines agree");
    }

    hands_over_every_count(second, &first).await;
}

/// The clock of the machine is set back while the node is stopped. The hits on its disk are of the
/// future then, and still use up their limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_from_the_time_of_its_counts() {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    let authority = authority();
    let change: fn(&mut Config) = |config| config.node.data_dir = Some(FOLDER.path().to_owned());
    let options = || NodeOptions { change, ..options(&authority, "n1", &[]) };
    let (outside, _, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(Ahead(outside.clock.clone(), OFF));
    let before = Node::start_in(options(), Environment { clock, ..outside }, stop).await;
    settled(&[&before]).await;
    assert!(before.check_hits("user", "alice", 20).await.allowed);
    before.stop().await;

    let after = Node::start(options()).await;
    settled(&[&after]).await;
    let answer = after.check("user", "alice").await;
    assert!(!answer.allowed, "it is counted anew: {answer:?}");
    fs::remove_dir_all(FOLDER.path()).expect("removed");
}

/// A node that is alone in its region starts two hours ahead of those that decide elsewhere. By its
/// own clock what it has counted on its disk is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_on_the_disk_are_judged_by_the_time_of_the_members() {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    let authority = authority();
    let identity = identity(&authority, &authority, "n2", "us");
    let other = NodeOptions { region: "us", identity, ..options(&authority, "n2", &[]) };
    let other = Node::start(other).await;
    other.wait_for_view("itself", |view| view.owners().count() == 1).await;
    let seeds = [other.addr()];
    let change: fn(&mut Config) = |config| config.node.data_dir = Some(FOLDER.path().to_owned());
    let options = || NodeOptions { change, ..options(&authority, "n1", &seeds) };
    let before = Node::start(options()).await;
    connected(&before, 1).await;
    settled(&[&before]).await;
    assert!(before.check_hits("hourly", "alice", 20).await.allowed);
    before.stop().await;

    let (outside, _, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(Ahead(outside.clock.clone(), TWO_HOURS));
    let after = Node::start_in(options(), Environment { clock, ..outside }, stop).await;
    connected(&after, 1).await;
    settled(&[&after]).await;
    let answer = after.check("hourly", "alice").await;
    assert!(!answer.allowed, "it is counted anew: {answer:?}");
    fs::remove_dir_all(FOLDER.path()).expect("removed");
}

/// A node has counted by a clock that was five hours ahead, and is corrected while it is stopped.
/// Those who decide never get there: its counts would refuse hits for hours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_a_future_that_nobody_follows_are_dropped() {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    let authority = authority();
    let change: fn(&mut Config) = |config| config.node.data_dir = Some(FOLDER.path().to_owned());
    let (outside, _, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(Ahead(outside.clock.clone(), FIVE_HOURS));
    let before = NodeOptions { change, ..options(&authority, "n1", &[]) };
    let before = Node::start_in(before, Environment { clock, ..outside }, stop).await;
    settled(&[&before]).await;
    assert!(before.check_hits("hourly", "alice", 20).await.allowed);
    before.stop().await;

    let identity = identity(&authority, &authority, "n2", "us");
    let other = NodeOptions { region: "us", identity, ..options(&authority, "n2", &[]) };
    let other = Node::start(other).await;
    settled(&[&other]).await;
    let seeds = [other.addr()];
    let after = NodeOptions { change, ..options(&authority, "n1", &seeds) };
    let after = Node::start(after).await;
    connected(&after, 1).await;
    settled(&[&after]).await;
    let answer = after.check_hits("hourly", "alice", 20).await;
    assert!(answer.allowed, "it is refused for five hours: {answer:?}");
    fs::remove_dir_all(FOLDER.path()).expect("removed");
}

/// Two members decide by different times, as when one of them went on from later counts on its
/// disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_follows_one_of_its_region_that_decides_by_a_later_time() {
    let authority = authority();
    let options = |id, seeds| options(&authority, id, seeds);
    let (outside, right, stop) = synchronised();
    let first = Node::start_in(options("n1", &[]), outside, stop).await;
    let (outside, late, stop) = synchronised();
    let seeds = [first.addr()];
    let second = Node::start_in(options("n2", &seeds), outside, stop).await;
    are_a_pair(&first, &second).await;

    late.step(HALF_AN_HOUR.as_nanos().try_into().expect("it fits"));
    let differ_by = || right.now().since(late.now()).max(late.now().since(right.now()));
    eventually("they decide by one time", WITHIN, || differ_by() < ALIKE).await;
    assert!(right.now().plus(ALIKE).since(right.system()) > HALF_AN_HOUR, "the later one");

    hands_over_every_count(second, &first).await;
}

/// The machine of one node of three is half an hour ahead, and the others are stopped in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_member_keeps_the_correction_of_its_machines_clock() {
    let authority = authority();
    let options = |id, seeds| options(&authority, id, seeds);
    let first = Node::start(options("n1", &[])).await;
    let seeds = [first.addr()];
    let second = Node::start(options("n2", &seeds)).await;
    are_a_pair(&first, &second).await;
    let (outside, right, stop) = synchronised();
    let clock: Arc<dyn Clock> = Arc::new(Ahead(outside.clock.clone(), HALF_AN_HOUR));
    let environment = Environment { clock: clock.clone(), ..outside };
    let last = Node::start_in(options("n3", &seeds), environment, stop).await;
    settled(&[&first, &second, &last]).await;
    first.stop().await;
    second.stop().await;
    settled(&[&last]).await;

    // Founding a cluster takes some comparisons of the clocks. Its machine shows the wrong time
    // too.
    let seeds = [last.addr()];
    let identity = identity(&authority, &authority, "w1", "us");
    let (outside, _, stop) = synchronised();
    let wrong: Arc<dyn Clock> = Arc::new(Ahead(outside.clock.clone(), HALF_AN_HOUR));
    let other = NodeOptions { region: "us", identity, ..options("w1", &seeds) };
    let other = Node::start_in(other, Environment { clock: wrong, ..outside }, stop).await;
    settled(&[&other]).await;
    assert!(clock.now().since(right.system()) < ALIKE, "it follows its machine");
    assert!(last.core.skew().is_beyond, "it has forgotten what the others showed");
}

/// A node of another cluster, which it founded itself, is half an hour ahead, and a peer by
/// mistake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_follows_no_clock_of_another_cluster() {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    let authority = authority();
    let options = |id, seeds| options(&authority, id, seeds);
    let (outside, right, stop) = synchronised();
    let first = Node::start_in(options("n1", &[]), outside, stop).await;
    settled(&[&first]).await;

    // Else it would join.
    let relay = Relay::start(first.addr(), Link::long(Duration::ZERO)).await;
    relay.link.cut(true);
    let seeds = [relay.front];
    let change: fn(&mut Config) = |config| {
        config.node.data_dir = Some(FOLDER.path().to_owned());
        config.cluster.bootstrap_expect = 0;
        config.cluster.founders = [NodeId::new("f1").expect("a valid id")].into();
    };
    let (outside, wrong, stop) = synchronised();
    let foreign = NodeOptions { change, ..options("f1", &seeds) };
    let foreign = Node::start_in(foreign, outside, stop).await;
    settled(&[&foreign]).await;
    relay.link.cut(false);
    wrong.step(HALF_AN_HOUR.as_nanos().try_into().expect("it fits"));
    let is_told = || {
        let peers = first.joined().mesh.peers();
        let times = peers.iter().filter_map(|peer| peer.decision_clock(right.monotonic()));
        times.max().is_some_and(|time| time.since(right.system()) > ALIKE)
    };
    eventually("it is told by what time the other decides", WITHIN, is_told).await;

    // Founding a cluster takes some comparisons of the clocks.
    let seeds = [first.addr()];
    let identity = identity(&authority, &authority, "n2", "us");
    let second = Node::start(NodeOptions { region: "us", identity, ..options("n2", &seeds) }).await;
    settled(&[&second]).await;
    assert!(is_told());
    assert!(right.now().since(right.system()) < ALIKE, "it has followed the other cluster");
    settled(&[&first]).await;
    foreign.stop().await;
    fs::remove_dir_all(FOLDER.path()).expect("removed");
}

/// The environment of a real node, and its clock, which follows the machine's until the token is
/// cancelled.
fn synchronised() -> (Environment, Arc<dyn Clock>, CancellationToken) {
    let (environment, clock) = node::system_environment();
    let stop = CancellationToken::new();
    tokio::spawn(clock.run(stop.clone()));
    let clock = environment.clock.clone();
    (environment, clock, stop)
}

async fn are_a_pair(first: &Node, second: &Node) {
    for node in [first, second] {
        node.wait_for_view("both", |view| view.owners().count() == 2).await;
    }
    settled(&[first, second]).await;
}

/// Limits that were used up at `from` are used up at `to` once `from` has left.
async fn hands_over_every_count(from: Node, to: &Node) {
    let users: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
    for user in &users {
        assert!(from.check_hits("user", user, 20).await.allowed, "{user}");
    }
    from.stop().await;
    for user in &users {
        let answer = to.check("user", user).await;
        assert!(!answer.allowed, "{user} is counted anew: {answer:?}");
        assert_eq!(answer.statuses[0].source, VerdictSource::Local);
    }
}

fn options<'a>(authority: &Authority, id: &'a str, seeds: &'a [SocketAddr]) -> NodeOptions<'a> {
    let identity = identity(authority, authority, id, "eu");
    NodeOptions { id, region: "eu", seeds, identity, rules: RULES, change: |_: &mut Config| {} }
}

async fn connected(node: &Node, peers: usize) {
    let mesh = &node.joined().mesh;
    eventually("it is connected", WITHIN, || mesh.peers().len() == peers).await;
}
