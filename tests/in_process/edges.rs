//! Edges: they follow cores, decide what they can and call owners for the rest, and no core takes
//! them for a member.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::config::Config;
use tidegate::decide::{
    CarriedCheck, CheckRequest, CheckResponse, CommitRequest, Decide, DecideCarried, Reserve,
    ReserveRequest, VerdictSource,
};
use tidegate_cluster::edge::HOMES;
use tidegate_cluster::mesh::StreamClass;
use tidegate_cluster::mesh::wire::{Call, Group, InterventionCall, MapCall, Reply, Sync, SyncRole};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::engine::Behavior;
use tidegate_limiter::policy::{OnUnavailable, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{Interventions, Settled};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::Epoch;
use tidegate_ownership::cluster_map::ClusterId;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions, cluster_under, settled};
use tidegate_testkit::wait::eventually;

use super::forwarding::bench::{TIMEOUT, holds, source};

const RULES: &str = "
domain: test
descriptors:
  - key: strict
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 30}
  - key: shared
    on_unavailable: local
    rate_limit: {unit: day, requests_per_unit: 30}
  - key: open
    on_unavailable: allow
    rate_limit: {unit: day, requests_per_unit: 30}
  - key: leased
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 300}
  - key: eventual
    mode: eventual
    rate_limit: {window: 1h, requests_per_unit: 30, algorithm: sliding_window_counter}
  - key: world
    scope: global
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 30}
";

const CORES: [(&str, &str); 3] = [("a", "eu"), ("b", "eu"), ("c", "eu")];

async fn edges(authority: &Authority, cores: &[Node], ids: &[&str]) -> Vec<Node> {
    edges_with(authority, &cores[..1], ids, |_| {}).await
}

async fn edges_with(
    authority: &Authority,
    seeds: &[Node],
    ids: &[&str],
    change: fn(&mut Config),
) -> Vec<Node> {
    let seeds: Vec<SocketAddr> = seeds.iter().map(Node::addr).collect();
    let mut edges = Vec::new();
    for id in ids {
        edges.push(Node::start_edge(authority, (id, "eu"), &seeds, RULES, change).await);
    }
    for edge in &edges {
        let is_ready = || edge.edge().is_open.is_cancelled() && edge.edge().follower.has_map();
        eventually("a core has told the edge the map", TIMEOUT, is_ready).await;
    }
    edges
}

fn map_epochs(cores: &[Node]) -> Vec<Epoch> {
    cores.iter().map(|core| core.joined().ownership_driver.map().epoch).collect()
}

/// In turn at each of `nodes`.
async fn admitted(nodes: &[&Node], key: &str, value: &str, checks: usize) -> usize {
    let mut admitted = 0;
    for turn in 0..checks {
        admitted += usize::from(nodes[turn % nodes.len()].check(key, value).await.allowed);
    }
    admitted
}

/// The core closes the connection, as only edges dial. No other check dials in place of this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_sends_a_check_again_whose_owner_has_another_certificate() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    let edge = edges(&authority, &cores, &["e"]).await.remove(0);
    for value in 0..20 {
        let key = format!("user-{value}");
        let (core, (id, region)) = (&cores[value % cores.len()], CORES[value % CORES.len()]);
        let replaces = async {
            let again = identity(&authority, &authority, id, region);
            core.mesh().replace_identity(again).unwrap();
        };
        let checks = async {
            for _ in 0..30 {
                let answer = edge.check("strict", &key).await;
                assert_eq!((source(&answer), answer.allowed), (VerdictSource::Owner, true));
            }
        };
        tokio::join!(checks, replaces);
        assert!(!edge.check("strict", &key).await.allowed, "each check counts");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edges_decide_with_the_cores_and_are_in_no_map() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    let before = map_epochs(&cores);
    let edges = edges(&authority, &cores, &["e1", "e2"]).await;
    let all: Vec<&Node> = cores.iter().chain(&edges).collect();
    for value in ["x", "y", "z"] {
        assert_eq!(admitted(&all, "strict", value, 60).await, 30, "{value}");
    }
    let answer = edges[0].check("strict", "x").await;
    assert!(!answer.allowed && source(&answer) != VerdictSource::Fallback, "{answer:?}");
    assert_eq!(source(&edges[0].check("strict", "unused").await), VerdictSource::Owner);
    assert_eq!(source(&edges[0].check("eventual", "unused").await), VerdictSource::Local);
    for core in &cores {
        let topology = core.core.topology.load();
        assert_eq!((topology.view.members().len(), topology.owners_in("eu")), (3, 3));
        assert_eq!(core.joined().gossip.views().borrow().members().len(), 3);
    }
    let followed = cores.iter().map(|core| core.mesh().edges().len()).sum::<usize>();
    assert!(followed >= HOMES * edges.len(), "{followed}");
    for edge in edges {
        edge.stop().await;
    }
    let are_gone = || cores.iter().all(|core| core.mesh().edges().is_empty());
    eventually("the edges have left", TIMEOUT, are_gone).await;
    assert_eq!(map_epochs(&cores), before, "they came and went without a change of the map");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_admits_leased_hits_on_the_spot_and_never_over_the_limit() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    let edges = edges(&authority, &cores, &["e1", "e2", "e3"]).await;
    let all: Vec<&Node> = cores.iter().chain(&edges).collect();
    let (mut admitted, mut granted) = (0, 0);
    for turn in 0..900 {
        let answer = all[turn % all.len()].check("leased", "x").await;
        admitted += usize::from(answer.allowed);
        let is_at_edge = turn % all.len() >= cores.len();
        granted += usize::from(is_at_edge && source(&answer) == VerdictSource::Grant);
    }
    assert!(granted > 20, "{granted} hits were admitted by edges from what they held");
    assert!(admitted <= 300, "{admitted}");
    // What others hold comes back, and is admitted.
    let is_used_up = async {
        while admitted < 300 {
            for node in &all {
                admitted += usize::from(node.check("leased", "x").await.allowed);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, is_used_up).await.expect("all of the limit is admitted");
    for node in &all {
        assert!(!node.check("leased", "x").await.allowed);
    }
}

/// When the leave of an edge is over its owners have what it held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_that_leaves_gives_its_grants_back() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    let patient = |config: &mut Config| config.cluster.deadline = Span::from_secs(2);
    let values: Vec<String> = (0..20).map(|n| format!("v{n}")).collect();
    let mut sent = 0;
    for name in ["e1", "e2", "e3"] {
        let edge = edges_with(&authority, &cores[..1], &[name], patient).await.remove(0);
        for value in &values {
            assert_eq!(admitted(&[&edge], "leased", value, 10).await, 10);
        }
        assert!(edge.core.decider.granted_hits().1 > 0, "it holds some");
        edge.core.leave().await.expect("an edge has nothing to hand over");
        let (hits, held) = edge.core.decider.granted_hits();
        let hits = hits.read();
        sent += hits.given_back + hits.recalled + hits.late;
        let at = |core: &Node| core.core.decider.counters().taken_back.load(Ordering::Relaxed);
        assert_eq!((cores.iter().map(at).sum::<u64>(), held), (sent, 0), "{hits:?}");
        edge.stop().await;
    }
}

/// It does not know what the owner before has granted, so it asks all nodes for what they hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_at_a_new_owner_asks_edges_for_what_they_hold() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    let edge = edges(&authority, &cores, &["e1"]).await.remove(0);
    let c = &cores[2];
    let topology = c.core.topology.load_full();
    let keys_of = |owner: &str| {
        let is_its = |key: &String| {
            let token = c.core.hasher.carried("requests", key, [0; 3]).token();
            topology.owner(Scope::Region, token).is_some_and(|id| id.as_str() == owner)
        };
        (0..).map(|n| format!("k{n}")).filter(is_its).take(8).collect::<Vec<_>>()
    };
    let (keys, of_c) = (keys_of("b"), keys_of("c"));
    carried(&edge, &of_c[0], 1, false).await;
    eventually("c is connected", TIMEOUT, || !c.mesh().edges().is_empty()).await;
    let end = tokio::time::Instant::now() + TIMEOUT;
    let held = || edge.core.decider.granted_hits().1;
    while held() < 100 {
        assert!(tokio::time::Instant::now() < end, "{} hits are granted", held());
        for key in &keys {
            carried(&edge, key, 1, false).await;
        }
    }
    holds(c, Ranges::all(), None);
    for key in &keys {
        carried(c, key, 0, true).await;
    }
    eventually("the edge holds nothing", TIMEOUT, || held() == 0).await;
    let hits = edge.core.decider.granted_hits().0.read();
    assert!(hits.recalled > 0, "{hits:?}");
    edge.stop().await;
}

/// A leased check of a limit that comes with it, or a reset of that limit.
async fn carried(node: &Node, unique_key: &str, hits: i64, resets: bool) {
    let quota = Quota::simple(Algorithm::FirstHitWindow, 1_000_000, Span::from_secs(3_600));
    let check = CarriedCheck {
        name: "requests",
        unique_key,
        part: [0; 3],
        quota: quota.expect("valid"),
        hits: Hits::new(hits),
        behavior: Behavior::default(),
        at: None,
        resets,
        is_leased: !resets,
    };
    node.core.decider.decide_carried(&[check]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eventual_counts_of_edges_reach_all() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    let edges = edges(&authority, &cores, &["e1", "e2"]).await;
    let all: Vec<&Node> = cores.iter().chain(&edges).collect();
    for value in ["x", "y", "z"] {
        assert_eq!(admitted(&all, "eventual", value, 10).await, 10);
        // A refused check counts nothing, and shows that the others' hits are known.
        let is_full = async {
            let mut counted = 10;
            while counted < 30 {
                counted += admitted(&all, "eventual", value, 5).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            counted
        };
        let counted = tokio::time::timeout(TIMEOUT, is_full).await.expect("it is used up");
        assert!(counted <= 34, "{counted} of 30, in turns that are further apart than a round");
        for node in &all {
            let refuses = async {
                while node.check("eventual", value).await.allowed {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::time::timeout(TIMEOUT, refuses).await.expect("every node knows");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_with_the_name_of_a_core_is_refused() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    for (name, is_accepted) in [("a", false), ("b", false), ("e", true)] {
        let seeds = [cores[1].addr()];
        let edge = Node::start_edge(&authority, (name, "eu"), &seeds, RULES, |_| {}).await;
        let core = NodeId::new("b").expect("a valid id");
        let connected = edge.mesh().connect(&core, cores[1].addr()).await;
        assert_eq!(connected.is_some(), is_accepted, "{name}");
        assert_eq!(cores[1].mesh().edges().is_empty(), !is_accepted, "{name}");
    }
}

/// It follows two cores, and calls the third as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_reserves_at_cores_that_it_does_not_follow() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES, RULES, |_| {}).await;
    let patient = |config: &mut Config| config.cluster.deadline = Span::from_secs(2);
    let edges = edges_with(&authority, &cores[..1], &["e"], patient).await;
    let decider = &edges[0].core.decider;
    for value in 0..12 {
        let value = value.to_string();
        let entries = vec![Entry { key: "strict", value: &value }];
        let descriptors = &[Descriptor { entries, hits: None, limit: None }];
        let (domain, amount) = ("test", 30);
        let request = ReserveRequest { domain, descriptors, amount, ttl: None, id: None };
        let id = decider.reserve(request).await.id;
        assert!(id.is_some(), "{value}");
        let commit = CommitRequest { domain, descriptors, id, cost: 10 };
        let committed = decider.commit(commit).await.expect("an owner confirms it");
        assert_eq!(committed.settled, Some(Settled::Committed), "{value}");
        assert_eq!(admitted(&[&edges[0], &cores[0]], "strict", &value, 30).await, 20);
    }
}

/// Without any core an edge goes on by `on_unavailable`, and with the first that is back by the
/// owners.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_without_cores_goes_on_by_on_unavailable() {
    let authority = authority();
    let mut cores = cluster_under(&authority, &[("a", "eu")], RULES, |_| {}).await;
    let short = |config: &mut Config| {
        config.cluster.deadline = Span::from_millis(50);
        config.defaults.on_unavailable = OnUnavailable::Deny;
    };
    let edges = edges_with(&authority, &cores, &["e1"], short).await;
    let edge = &edges[0];
    // A pause of the machine may be longer than the deadline.
    let first = async { while source(&edge.check("strict", "x").await) != VerdictSource::Owner {} };
    tokio::time::timeout(TIMEOUT, first).await.expect("the core decides");
    let core = cores.remove(0);
    let addr = core.addr();
    core.stop().await;
    eventually("the core is gone", TIMEOUT, || edge.mesh().peers().is_empty()).await;
    assert!(!edge.check("strict", "x").await.allowed);
    assert!(edge.check("open", "x").await.allowed);
    let shares = admitted(&[edge], "shared", "x", 30).await;
    assert!((1..30).contains(&shares), "{shares} of 30, as one of the nodes and edges");
    assert!(edge.check("eventual", "x").await.allowed);
    // As the rule whose limit is replaced, and by the default where none is.
    for (key, allowed) in [("strict", false), ("open", true), ("unruled", false)] {
        let answer = check_with_limit(edge, key, 30).await;
        assert_eq!((answer.allowed, source(&answer)), (allowed, VerdictSource::Fallback), "{key}");
    }
    assert!(edge.edge().is_open.is_cancelled());

    let options = NodeOptions {
        id: "a",
        region: "eu",
        seeds: &[],
        identity: identity(&authority, &authority, "a", "eu"),
        rules: RULES,
        change: |_| {},
    };
    // Without a disk it founds another cluster.
    let again = Node::start_with(options, |config| config.cluster.listen = Some(addr)).await;
    settled(&[&again]).await;
    let is_back = async {
        while source(&edge.check("strict", "y").await) != VerdictSource::Owner {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, is_back).await.expect("the edge finds it again");
}

/// A request of Envoy that has a limit of its own.
async fn check_with_limit(node: &Node, key: &str, limit: u32) -> CheckResponse {
    let limit = Quota::simple(Algorithm::FixedWindow, limit, Span::from_secs(86_400));
    let entries = [Entry { key, value: "x" }].into_iter().collect();
    let descriptor = Descriptor { entries, hits: None, limit: limit.ok() };
    let descriptors = [descriptor];
    let check = CheckRequest {
        domain: "test",
        descriptors: &descriptors,
        hits: Hits::ONE,
        for_envoy: true,
    };
    node.core.decider.decide(check).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_follows_two_cores_and_connects_to_others_when_it_uses_them() {
    let authority = authority();
    let ids = [("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "eu"), ("e", "eu")];
    let cores = cluster_under(&authority, &ids, RULES, |_| {}).await;
    let edges = edges(&authority, &cores, &["edge"]).await;
    let edge = &edges[0];
    let follows = || edge.edge().follower.homes().len() == HOMES;
    eventually("it follows two", TIMEOUT, follows).await;
    assert!(edge.mesh().peers().len() <= HOMES + 1, "its homes, and the seed");
    for value in 0..50 {
        let answer = edge.check("strict", &value.to_string()).await;
        assert!(answer.allowed && source(&answer) == VerdictSource::Owner, "{answer:?}");
    }
    assert_eq!(edge.mesh().peers().len(), ids.len(), "the owners of all keys");
}

/// A member that joins owns keys; the edge learns it, and no check is lost or counted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_learns_of_a_new_owner() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES[..2], RULES, |_| {}).await;
    let edges = edges(&authority, &cores, &["edge"]).await;
    let values: Vec<String> = (0..20).map(|n| format!("v{n}")).collect();
    for value in &values {
        assert_eq!(admitted(&[&edges[0]], "strict", value, 10).await, 10);
    }
    let options = NodeOptions {
        id: "c",
        region: "eu",
        seeds: &[cores[0].addr()],
        identity: identity(&authority, &authority, "c", "eu"),
        rules: RULES,
        change: |_| {},
    };
    let joins = |config: &mut Config| {
        config.cluster.bootstrap_expect = 0;
        config.cluster.regions = BTreeSet::from(["eu".to_owned()]);
    };
    let joined = Node::start_with(options, joins).await;
    for value in &values {
        assert_eq!(admitted(&[&edges[0]], "strict", value, 10).await, 10, "during the change");
    }
    settled(&cores.iter().chain([&joined]).collect::<Vec<_>>()).await;
    let knows = || edges[0].core.topology.load().owners_in("eu") == 3;
    eventually("the edge knows the third core", TIMEOUT, knows).await;
    for value in &values {
        assert_eq!(admitted(&[&edges[0]], "strict", value, 20).await, 10, "{value}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_forwards_global_keys_to_their_home() {
    let authority = authority();
    let ids = [("a", "eu"), ("x", "us")];
    let cores = cluster_under(&authority, &ids, RULES, |_| {}).await;
    let patient = |config: &mut Config| config.cluster.global_deadline = Span::from_secs(2);
    let edges = edges_with(&authority, &cores[..1], &["edge"], patient).await;
    let has_both = || edges[0].core.topology.load().owners_in("us") == 1;
    eventually("the edge knows the other region", TIMEOUT, has_both).await;
    for value in 0..8 {
        let all = [&cores[0], &cores[1], &edges[0]];
        assert_eq!(admitted(&all, "world", &value.to_string(), 45).await, 30);
    }
    assert!(edges[0].mesh().peers().iter().any(|peer| peer.region == "us"));
}

/// Its certificate is for an edge, so it cannot say who is a member, what others count, or hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_has_no_say_in_what_cores_hold() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES[..1], RULES, |_| {}).await;
    let edges = edges(&authority, &cores, &["edge"]).await;
    let core = NodeId::new("a").unwrap();
    let role = SyncRole::Owner;
    let key = cores[0].core.hasher.descriptor("d", &[Entry { key: "k", value: "v" }]);
    let now = Timestamp::from_secs(1);
    let blocked = Interventions::default().block(key, Timestamp::NEVER, now);
    for call in [
        Call::Gossip(vec![1, 2, 3]),
        Call::States(Vec::new()),
        Call::Digests(Vec::new()),
        Call::Sync(Sync { role, urgent: false, entries: Vec::new() }),
        Call::Refunded { token: 1 },
        Call::Map(Group::Region, MapCall::Fetch { cluster: ClusterId(0), epoch: Epoch(0) }),
        Call::Map(Group::Global, MapCall::Fetch { cluster: ClusterId(0), epoch: Epoch(0) }),
        Call::Interventions(InterventionCall::Announce(blocked)),
    ] {
        let name = format!("{call:?}");
        let reply = edges[0].mesh().call(&core, StreamClass::Bulk, call, TIMEOUT).await;
        assert_eq!(reply.unwrap(), Reply::Malformed, "{name}");
    }
    let edge = NodeId::new("edge").unwrap();
    let states = Call::States(Vec::new());
    let reply = cores[0].mesh().call(&edge, StreamClass::Bulk, states, TIMEOUT).await;
    assert_eq!(reply.unwrap(), Reply::Malformed, "an edge holds no states");
}

/// One that names another edge as its core finds none there, and answers without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_takes_no_edge_for_a_core() {
    let authority = authority();
    let cores = cluster_under(&authority, &CORES[..1], RULES, |_| {}).await;
    let first = edges(&authority, &cores, &["e1"]).await;
    let seeds = [first[0].mesh().advertise];
    let second = Node::start_edge(&authority, ("e2", "eu"), &seeds, RULES, |_| {}).await;
    eventually("it answers", TIMEOUT, || second.edge().is_open.is_cancelled()).await;
    assert!(second.mesh().peers().is_empty() && first[0].mesh().edges().is_empty());
    assert!(!second.check("strict", "x").await.allowed && second.check("open", "x").await.allowed);
}
