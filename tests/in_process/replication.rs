//! Copies of strict counts: the node that would take over a key has its count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::config::Config;
use tidegate::decide::{CommitRequest, Reserve, ReserveRequest, VerdictSource};
use tidegate::node::{GivenUp, Left};
use tidegate_cluster::mesh::StreamClass;
use tidegate_cluster::mesh::wire::{Call, Check, Digest, Reply, STATE_ENTRIES_MAX, StateEntry};
use tidegate_cluster::ownership::{Leases, OwnedRanges, OwnerTerm};
use tidegate_cluster::replication::{Replicator, SettledMap};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::engine::State;
use tidegate_limiter::engine::reservation::REMEMBERED;
use tidegate_limiter::policy::{Durability, Scope};
use tidegate_limiter::store::{Cursor, KeyHash, MergeOutcome, Settled, StoredCounter};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;
use tidegate_ownership::{HandoffReply, MemberId};
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::in_process::{Node, NodeOptions, cluster, cluster_under, settled};
use tidegate_testkit::relay::{Link, Relay};
use tidegate_testkit::wait::{eventually, until};
use tokio::time::Instant;

use super::forwarding::bench::check;

const RULES: &str = "
domain: test
descriptors:
  - key: plain
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: durable
    durability: replicated
    rate_limit: {unit: day, requests_per_unit: 100}
";

/// Between continents, and below the time after which a peer counts as unreachable.
const ROUND_TRIP: Duration = Duration::from_millis(150);
/// Above what anything here needs.
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_owner_counted_is_at_its_replica_and_nowhere_else() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "eu")], RULES, |_| {}).await;
    let values: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    for (n, value) in values.iter().enumerate() {
        let answer = nodes[n % 3].check_hits("plain", value, 7).await;
        assert!(answer.allowed && answer.statuses[0].source != VerdictSource::Fallback);
    }
    for value in &values {
        let token = token(&nodes[0], "plain", value);
        let topology = nodes[0].core.topology.load();
        let holders = topology.region_ring("eu").unwrap().replicas(token, 1);
        assert_eq!(holders.len(), 2);
        eventually("the replica holds the count", TIMEOUT, || {
            let copies = nodes.iter().filter(|node| holders.contains(&&id_of(node)));
            let copies: Vec<_> = copies.map(|node| held(node, "plain", value)).collect();
            copies[0].as_ref().is_some_and(|one| copies[1].as_ref() == Some(one) && used(one) == 7)
        })
        .await;
        let third = nodes.iter().find(|node| !holders.contains(&&id_of(node))).unwrap();
        assert_eq!(held(third, "plain", value), None);
    }
    for node in &nodes {
        eventually("nothing waits", TIMEOUT, || replicator(node).lag().is_zero()).await;
    }
}

/// With windows of a day each change of the members would leave further copies of all keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_keys_that_have_moved_are_dropped_and_no_others() {
    let authority = authority();
    let names = [("a", "eu"), ("b", "eu"), ("c", "eu")];
    let mut nodes = cluster_under(&authority, &names, RULES, |_| {}).await;
    let values: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    for value in &values {
        assert!(nodes[0].check_hits("plain", value, 7).await.allowed);
    }
    let (seeds, id) = ([nodes[0].addr()], "d");
    let identity = identity(&authority, &authority, id, "eu");
    let options =
        NodeOptions { id, region: "eu", seeds: &seeds, identity, rules: RULES, change: |_| {} };
    nodes.push(Node::start(options).await);
    settled(&nodes.iter().collect::<Vec<_>>()).await;
    let topology = nodes[0].core.topology.load_full();
    let holds = |node: &Node, value: &str| held(node, "plain", value).is_some();
    let should_hold = |node: &Node, value: &str| {
        let token = token(node, "plain", value);
        topology.region_ring("eu").unwrap().replicas(token, 1).contains(&&id_of(node))
    };
    let all_pairs = || nodes.iter().flat_map(|node| values.iter().map(move |it| (node, it)));
    eventually("the owners and replicas have all counts", TIMEOUT, || {
        all_pairs().all(|(node, value)| holds(node, value) || !should_hold(node, value))
    })
    .await;
    let strays =
        || all_pairs().filter(|(node, value)| holds(node, value) && !should_hold(node, value));
    let before = strays().count() as u64;
    assert!(before > 0, "no key has moved");
    let mut dropped = 0;
    let deadline = Instant::now() + TIMEOUT;
    while dropped < before && Instant::now() < deadline {
        for node in &nodes {
            let settled = || {
                let epoch = node.joined().ownership_driver.settled_epoch()?;
                Some(SettledMap { epoch, reach_losses: Vec::new() })
            };
            dropped += replicator(node).drop_stray_copies(settled, Duration::ZERO).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((dropped, strays().count()), (before, 0));
    assert!(all_pairs().all(|(node, value)| holds(node, value) == should_hold(node, value)));
    for value in &values {
        let answer = nodes[0].check_hits("plain", value, 0).await;
        assert_eq!(answer.statuses[0].verdicts[0].remaining, 93, "{value}");
    }
}

/// Messages that arrived and were forgotten are the worst kind of loss: nothing failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_a_copy_gets_it_again() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [a, b] = &nodes[..] else { unreachable!() };
    let values = owned_by(a, "plain", 20);
    for value in &values {
        a.check("plain", value).await;
    }
    let is_copied = |value: &String| held(b, "plain", value) == held(a, "plain", value);
    eventually("all are copied", TIMEOUT, || values.iter().all(is_copied)).await;
    for value in &values[..7] {
        let lost = held(b, "plain", value).unwrap();
        assert!(b.core.store.remove(lost.key).is_some());
    }
    eventually("what was lost is there again", TIMEOUT, || values.iter().all(is_copied)).await;
    assert!(read(&replicator(a).counters.repaired) >= 7);
}

/// Changes are sent once an hour here, so that only the answer itself can have brought the copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_answer_means_that_a_replica_holds_the_count() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, slow_stream).await;
    let [a, b] = &nodes[..] else { unreachable!() };
    for value in owned_by(a, "durable", 5) {
        let answer = b.check_hits("durable", &value, 3).await;
        assert_eq!((answer.allowed, answer.statuses[0].source), (true, VerdictSource::Owner));
        assert_eq!(used(&held(b, "durable", &value).unwrap()), 3);
        let answer = b.check_hits("durable", &value, 0).await;
        assert!(answer.allowed);
        // A fixed window counts what it refuses, but a refusal does not wait for a replica.
        assert!(!b.check_hits("durable", &value, 98).await.allowed);
    }
    let counters = &replicator(a).counters;
    assert_eq!((read(&counters.confirmed), read(&counters.unconfirmed)), (5, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_count_that_no_replica_has_room_for_is_answered_by_policy() {
    let (a, b) = pair(slow_stream, room_for_one_key).await;
    let values = owned_by(&a, "durable", 2);
    assert_eq!(b.check("durable", &values[0]).await.statuses[0].source, VerdictSource::Owner);
    assert_eq!(b.check("durable", &values[1]).await.statuses[0].source, VerdictSource::Fallback);
    let counters = &replicator(&a).counters;
    assert_eq!((read(&counters.confirmed), read(&counters.unconfirmed)), (1, 1));
}

/// It is counted in the counter that new keys share, which is never copied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_count_that_its_owner_has_no_room_for_is_answered_by_policy() {
    let (a, b) = pair(room_for_one_key, slow_stream).await;
    let values = owned_by(&a, "durable", 2);
    assert_eq!(b.check("durable", &values[0]).await.statuses[0].source, VerdictSource::Owner);
    for asked in [&a, &b] {
        let answer = asked.check("durable", &values[1]).await;
        assert_eq!(answer.statuses[0].source, VerdictSource::Fallback);
    }
    // There is nothing to give back, and so nothing to copy.
    let unused = owned_by(&a, "durable", 3).pop().unwrap();
    let answer = b.check_hits("durable", &unused, -1).await;
    assert_eq!(answer.statuses[0].source, VerdictSource::Owner);
    let counters = &replicator(&a).counters;
    assert_eq!((read(&counters.confirmed), read(&counters.unconfirmed)), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_confirmed_by_a_replica_that_is_cut_off_and_it_catches_up() {
    let (a, b, relay) = behind_a_relay(slow_stream).await;
    let values = owned_by(&a, "plain", 2);
    for value in &values {
        a.check("plain", value).await;
    }
    let keys: Vec<KeyHash> =
        values.iter().map(|value| held(&a, "plain", value).unwrap().key).collect();
    assert!(replicator(&a).confirm(&keys[..1], Hits::ONE, TIMEOUT).await);
    assert_eq!(held(&b, "plain", &values[0]), held(&a, "plain", &values[0]));
    relay.link.cut(true);
    assert!(!replicator(&a).confirm(&keys[1..], Hits::ONE, Duration::from_millis(200)).await);
    assert_eq!(held(&b, "plain", &values[1]), None);
    relay.link.cut(false);
    eventually("it gets the copy", TIMEOUT, || held(&b, "plain", &values[1]).is_some()).await;
}

/// Another node may have decided meanwhile; of its counts and these the larger one hides the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_confirms_no_hit_of_an_owner_that_lost_the_key_after_it() {
    fn patient(config: &mut Config) {
        slow_stream(config);
        config.cluster.deadline = Span::from_secs(20);
        // The cut of the link below is no reason to evict.
        config.cluster.down_after = Span::from_secs(60);
    }
    let (a, b, relay) = behind_a_relay(patient).await;
    let (decider, ownership) = (&a.core.decider, &a.core.ownership);
    let values = owned_by(&a, "durable", 2);
    let from = (&id_of(&b), b.core.incarnation.generation());
    let forwarded = Check {
        durability: Durability::Replicated,
        ..check(&a, 1 << 40, "durable", &values[0], 1)
    };
    let reply_of = async |(reply, owner_term): (Reply, Option<OwnerTerm>)| {
        let confirmed = decider.confirmation(from, &forwarded, &[], (&reply, owner_term));
        confirmed.expect("it waits for a replica").await
    };
    relay.link.cut(true);
    let interrupted = decider.decide_for_peer(from, &forwarded, &[], None);
    let of_a_client = a.check("durable", &values[1]);
    let lost = async {
        let right = ownership.right();
        // Evicted, and admitted anew.
        let member = Some(MemberId(u64::MAX));
        let again = OwnedRanges { member, ..OwnedRanges::clone(&right.owned_ranges) };
        ownership.publish(right.leases, again);
        relay.link.cut(false);
    };
    let (of_a_client, ()) = tokio::join!(of_a_client, lost);
    assert_eq!(of_a_client.statuses[0].source, VerdictSource::Fallback);
    assert_eq!(reply_of(interrupted).await, Reply::Unconfirmed);
    let repeated = decider.decide_for_peer(from, &forwarded, &[], None);
    assert_eq!(reply_of(repeated).await, Reply::Unconfirmed, "decided before it was lost");
    let anew = a.check("durable", &values[1]).await;
    assert_eq!(anew.statuses[0].source, VerdictSource::Local);
}

/// Its lease ends while a commit waits for the replica. No other node takes over: it goes on. One
/// does: it is taken back, and counts at the next owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_outlasts_a_lease_and_not_the_loss_of_its_key() {
    fn patient(config: &mut Config) {
        slow_stream(config);
        config.cluster.down_after = Span::from_secs(60);
    }
    let (a, b, relay) = behind_a_relay(patient).await;
    let (decider, ownership) = (&a.core.decider, &a.core.ownership);
    let values = owned_by(&a, "durable", 2);
    for (value, is_lost) in values.iter().zip([false, true]) {
        let entries = vec![Entry { key: "durable", value }];
        let descriptors = &[Descriptor { entries, hits: None, limit: None }];
        let (domain, amount) = ("test", 40);
        let request = ReserveRequest { domain, descriptors, amount, ttl: None, id: None };
        let id = decider.reserve(request).await.id;
        assert!(id.is_some());
        let commit = || CommitRequest { domain, descriptors, id, cost: 30 };
        relay.link.cut(true);
        tokio::select! {
            _ = decider.commit(commit()) => panic!("no replica has it"),
            // The client goes.
            _ = eventually("it is counted", TIMEOUT, || used_of(&a, value) == Some(30)) => {}
        }
        let right = ownership.right();
        if is_lost {
            let (member, owned) = (Some(MemberId(u64::MAX)), right.owned_ranges.clone());
            ownership.publish(right.leases, OwnedRanges { member, ..OwnedRanges::clone(&owned) });
            let is_taken_back = || used_of(&a, value).unwrap_or(0) == 0;
            eventually("it is taken back", TIMEOUT, is_taken_back).await;
        } else {
            ownership.renew(Leases::default());
            eventually("the lease begins anew", TIMEOUT, || ownership.has_lease()).await;
        }
        relay.link.cut(false);
        let again = until("a replica confirms it", TIMEOUT, async || {
            decider.commit(commit()).await.map_err(|error| format!("{error:?}"))
        });
        let settled = again.await.0.settled;
        assert_eq!(settled, Some(if is_lost { Settled::Committed } else { Settled::Again }));
        assert_eq!((used_of(&a, value), used_of(&b, value)), (Some(30), Some(30)));
    }
}

/// A node ends while it is cut off. Its last commit is sent again, to the next owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_keeps_no_commit_that_no_replica_has() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().to_path_buf();
    let authority = authority();
    let options = |id| {
        let identity = identity(&authority, &authority, id, "eu");
        let change: fn(&mut Config) = |config| {
            slow_stream(config);
            config.cluster.down_after = Span::from_secs(60);
        };
        NodeOptions { id, region: "eu", seeds: &[], identity, rules: RULES, change }
    };
    let on_disk = |config: &mut Config| config.node.data_dir = Some(data_dir.clone());
    let a = Node::start_with(options("a"), on_disk).await;
    let (_b, relay) = second_behind_a_relay(&a, options("b"), quick()).await;
    let values = owned_by(&a, "durable", 2);
    let (domain, amount) = ("test", 40);
    for (value, is_confirmed) in values.iter().zip([true, false]) {
        let entries = vec![Entry { key: "durable", value }];
        let descriptors = &[Descriptor { entries, hits: None, limit: None }];
        let request = ReserveRequest { domain, descriptors, amount, ttl: None, id: None };
        let id = a.core.decider.reserve(request).await.id;
        assert!(id.is_some());
        let commit = a.core.decider.commit(CommitRequest { domain, descriptors, id, cost: 30 });
        if is_confirmed {
            commit.await.expect("the replica has it");
            continue;
        }
        relay.link.cut(true);
        tokio::select! {
            _ = commit => panic!("no replica has it"),
            _ = eventually("it is counted", TIMEOUT, || used_of(&a, value) == Some(30)) => {}
        }
    }
    a.stop_with(Duration::ZERO).await;
    let a = Node::start_with(options("a"), on_disk).await;
    let counted = [&values[0], &values[1]].map(|value| used_of(&a, value).unwrap_or(0));
    assert_eq!(counted, [30, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_is_sent_what_is_there_and_every_change_until_it_stops() {
    fn without_copies(config: &mut Config) {
        config.cluster.replicas = 0;
        // The cut of the link below is no reason to evict.
        config.cluster.down_after = Span::from_secs(60);
    }
    let (a, b, relay) = behind_a_relay(without_copies).await;
    let (to, replicator) = (id_of(&b), replicator(&a));
    let values = owned_by(&a, "plain", 40);
    for value in &values[..30] {
        a.check("plain", value).await;
    }
    assert_eq!(replicator.flush(&to).await, Ok(()), "it follows nothing");
    replicator.subscribe(to.clone(), Ranges::all());
    let wanted: Vec<u64> = values[..20].iter().map(|value| token(&a, "plain", value)).collect();
    let copied = AtomicU64::new(0);
    let is_wanted = |key: KeyHash| wanted.contains(&key.token);
    assert_eq!(replicator.copy(&to, is_wanted, &copied).await, Ok(()));
    assert_eq!(read(&copied), 20);
    for (n, value) in values.iter().enumerate().take(30) {
        assert_eq!(held(&b, "plain", value).is_some(), n < 20);
    }
    for value in &values[10..40] {
        a.check("plain", value).await;
    }
    assert_eq!(replicator.flush(&to).await, Ok(()));
    assert!(values.iter().all(|value| held(&b, "plain", value) == held(&a, "plain", value)));

    relay.link.cut(true);
    a.check("plain", &values[0]).await;
    assert!(replicator.flush(&to).await.is_err(), "it cannot have answered");
    assert!(replicator.copy(&to, |_| true, &copied).await.is_err(), "nor to these");
    relay.link.cut(false);
    eventually("it gets the copy after all", TIMEOUT, || {
        held(&b, "plain", &values[0]) == held(&a, "plain", &values[0]) && replicator.lag().is_zero()
    })
    .await;
    replicator.unsubscribe(&to);
    a.check("plain", &values[0]).await;
    assert_eq!(replicator.flush(&to).await, Ok(()));
    assert_eq!(used(&held(&b, "plain", &values[0]).unwrap()), 2);
}

/// Stop-and-wait would move one message of states per round trip. The round trips are counted on
/// the same link, one call after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_messages_are_on_their_way_over_a_long_link() {
    const MESSAGES: usize = 100;
    let change = |config: &mut Config| config.cluster.replicas = 0;
    let (a, b, _relay) = behind_a_relay_over(Link::long(ROUND_TRIP), change).await;
    count_keys(&a, MESSAGES * STATE_ENTRIES_MAX, |_| true);
    let (to, replicator) = (id_of(&b), replicator(&a));
    let mesh = &a.joined().mesh;
    let copied = AtomicU64::new(0);
    let copy = replicator.copy(&to, |_| true, &copied);
    tokio::pin!(copy);
    let mut round_trips = 0;
    loop {
        let nothing = Call::States(Vec::new());
        tokio::select! {
            result = &mut copy => break assert_eq!(result, Ok(())),
            reply = mesh.call(&to, StreamClass::Checks, nothing, TIMEOUT) => {
                assert_eq!(reply, Ok(Reply::Done));
                round_trips += 1;
            }
        }
    }
    assert_eq!(all(&b).len(), MESSAGES * STATE_ENTRIES_MAX);
    assert!(round_trips * 3 < MESSAGES, "{round_trips} round trips for {MESSAGES} messages");
}

/// The window begins with one message and grows to 32, so this copy takes at least nine round
/// trips and the drain longer than the patience. A fixed time would end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_goes_on_as_long_as_counts_arrive() {
    const KEYS: usize = 150 * STATE_ENTRIES_MAX;
    const PATIENCE: Duration = Duration::from_millis(1_200);
    let change = |config: &mut Config| config.cluster.replicas = 0;
    let (a, b, _relay) = behind_a_relay_over(Link::long(ROUND_TRIP), change).await;
    let topology = a.core.topology.load_full();
    count_keys(&a, KEYS, |token| topology.owns(Scope::Region, token));
    let start = Instant::now();
    assert_eq!(a.core.leave_with(PATIENCE).await, Ok(Left::Majority));
    assert!(start.elapsed() > PATIENCE, "too short a drain to show anything");
    let arrived = all(&b);
    assert_eq!(arrived.len(), KEYS);
    assert!(arrived.iter().all(|counted| used(counted) == 5));
    assert_eq!(b.core.ownership.owned_ranges().decides, Ranges::all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_makes_no_progress_is_given_up() {
    let (a, _b, relay) = behind_a_relay(|_| {}).await;
    relay.link.cut(true);
    let patience = Duration::from_millis(100);
    assert_eq!(a.core.leave_with(patience).await, Err(GivenUp::Stalled(patience)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_given_up_when_its_time_is_over() {
    let change = |config: &mut Config| config.cluster.handover_timeout = Span::from_millis(100);
    let (a, _b, relay) = behind_a_relay(change).await;
    relay.link.cut(true);
    let timeout = Duration::from_millis(100);
    assert_eq!(a.core.leave_with(TIMEOUT).await, Err(GivenUp::Timeout(timeout)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn implausible_states_are_refused_and_counted() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu"), ("c", "us")], RULES, |_| {}).await;
    let a = replicator(&nodes[0]);
    let now = nodes[0].core.clock.now();
    let entry = |tag, secs: u32| {
        let index = u32::try_from(now.as_secs() / 60).unwrap() + secs / 60;
        let expires = Timestamp::from_secs(u64::from(index + 1) * 60);
        let state = State::FixedWindow { index, used: 5 };
        StateEntry { key: KeyHash { token: 9, tag }, state, expires }
    };
    let (owned, eventual, share, global) = (16, 16 | 1, 16 | 4, 16 | 2);
    let id = |id| NodeId::new(id).unwrap();
    for (from, entry) in [
        (id("b"), entry(owned, 3_600)),
        (id("b"), StateEntry { expires: Timestamp::NEVER, ..entry(owned, 0) }),
        (id("b"), StateEntry { state: tat_in(now, 200), ..entry(owned, 0) }),
        (id("b"), entry(eventual, 0)),
        (id("b"), entry(share, 0)),
        (id("c"), entry(owned, 0)),
        (id("c"), entry(global, 0)),
    ] {
        assert_eq!(a.receive(&from, vec![entry.clone()]), Reply::Unconfirmed, "{from}: {entry:?}");
    }
    let later = Reply::Handoff(HandoffReply::Later);
    assert_eq!(a.receive(&id("d"), vec![entry(global, 0)]), later, "no member");
    assert_eq!(read(&a.counters.refused), 8);
    assert!(all(&nodes[0]).is_empty());
    let many = vec![entry(owned, 0); STATE_ENTRIES_MAX + 1];
    assert_eq!(a.receive(&id("b"), many), Reply::Malformed);
    let outside = vec![Digest { segment: 4_096, sum: 1 }];
    assert_eq!(a.compare_digests(&id("b"), outside).await, Reply::Malformed);

    assert_eq!(a.receive(&id("b"), vec![entry(owned, 0)]), Reply::Done);
    assert_eq!(a.receive(&id("b"), vec![entry(global, 0)]), Reply::Done);
    assert_eq!(all(&nodes[0]).len(), 2);
}

/// It is late, of a node that has lost the key since: what that counted would be hidden in what is
/// counted here, or hide it. A replica takes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_takes_no_end_of_a_live_reservation_from_another_node() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, |_| {}).await;
    let [a, b] = &nodes[..] else { unreachable!() };
    let now = a.core.clock.now();
    let until = now.plus(Span::from_secs(60));
    for (owner, is_taken) in [(a, false), (b, true)] {
        let token = token(a, "durable", &owned_by(owner, "durable", 1)[0]);
        let reservation = |is_settled| StateEntry {
            key: KeyHash { token, tag: 16 | 8 },
            state: State::Reservation { until, amount: 5, is_settled },
            expires: if is_settled { until.plus(REMEMBERED) } else { until },
        };
        let index = u32::try_from(now.as_secs() / 86_400).unwrap();
        let counter = StateEntry {
            key: KeyHash { token, tag: 16 },
            state: State::FixedWindow { index, used: 5 },
            expires: Timestamp::from_secs(u64::from(index + 1) * 86_400),
        };
        let receives = |entries| replicator(a).receive(&id_of(b), entries);
        assert_eq!(receives(vec![reservation(false)]), Reply::Done);
        let expected = if is_taken { Reply::Done } else { Reply::Unconfirmed };
        assert_eq!(receives(vec![counter.clone(), reservation(true)]), expected);
        assert_eq!(a.core.store.get(counter.key, now).is_some(), is_taken);
        assert_eq!(a.core.store.is_reserved(reservation(true).key, now), !is_taken);
        // The counter alone, as of any hits.
        assert_eq!(receives(vec![counter.clone()]), Reply::Done);
    }
}

// === nodes ===

/// Two nodes of one region that have divided the ring.
async fn pair(change_a: fn(&mut Config), change_b: fn(&mut Config)) -> (Node, Node) {
    let authority = authority();
    let options = |id, seeds, change| {
        let identity = identity(&authority, &authority, id, "eu");
        NodeOptions { id, region: "eu", seeds, identity, rules: RULES, change }
    };
    let a = Node::start(options("a", &[], change_a)).await;
    let seeds = [a.addr()];
    let b = Node::start(options("b", &seeds, change_b)).await;
    for node in [&a, &b] {
        node.wait_for_view("both", |view| view.owners().count() == 2).await;
    }
    settled(&[&a, &b]).await;
    (a, b)
}

fn room_for_one_key(config: &mut Config) {
    slow_stream(config);
    config.limits.keys_max = 1;
}

fn slow_stream(config: &mut Config) {
    config.cluster.replication_interval = Span::from_secs(3_600);
}

/// Puts this many strict keys, of those with these tokens, with a count into the store of a node.
fn count_keys(node: &Node, keys: usize, is_included: impl Fn(u64) -> bool) {
    let parts = &node.core;
    let now = parts.clock.now();
    let tokens = (0..).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for token in tokens.filter(|token| is_included(*token)).take(keys) {
        let key = KeyHash { token, tag: 16 };
        let index = u32::try_from(now.as_secs() / 86_400).unwrap();
        let expires = Timestamp::from_secs(u64::from(index + 1) * 86_400);
        let state = State::FixedWindow { index, used: 5 };
        let merged = parts.store.merge(StoredCounter { key, state, expires }, now);
        assert_eq!(merged, MergeOutcome::Merged { changed: true });
    }
}

fn tat_in(now: Timestamp, years: u64) -> State {
    let tat = now.plus(Span::from_secs(years * 365 * 86_400));
    State::Tat(tidegate_limiter::engine::Tat::new(tat.as_nanos(), 0))
}

/// Two nodes; whatever goes to or from the second passes a relay.
async fn behind_a_relay(change: fn(&mut Config)) -> (Node, Node, Relay) {
    behind_a_relay_over(quick(), change).await
}

fn quick() -> Link {
    Link::new(7, 0, 0, Duration::ZERO)
}

async fn behind_a_relay_over(link: Link, change: fn(&mut Config)) -> (Node, Node, Relay) {
    let authority = authority();
    let options = |id, seeds| {
        let identity = identity(&authority, &authority, id, "eu");
        NodeOptions { id, region: "eu", seeds, identity, rules: RULES, change }
    };
    let a = Node::start(options("a", &[])).await;
    let (b, relay) = second_behind_a_relay(&a, options("b", &[]), link).await;
    (a, b, relay)
}

async fn second_behind_a_relay(a: &Node, options: NodeOptions<'_>, link: Link) -> (Node, Relay) {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let relay = Relay::start(port, link).await;
    // It never dials, so that there is no way around the relay.
    let b = Node::start_behind(options, port, relay.front).await;
    let reaches = a.joined().mesh.clone();
    eventually("both are up", TIMEOUT, || {
        reaches.request_dial(relay.front);
        reaches.peers().len() == 1
    })
    .await;
    for node in [a, &b] {
        node.wait_for_view("both", |view| view.owners().count() == 2).await;
    }
    settled(&[a, &b]).await;
    (b, relay)
}

fn id_of(node: &Node) -> NodeId {
    node.core.topology.load().me.clone()
}

fn replicator(node: &Node) -> &Replicator {
    &node.joined().replicator
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn token(node: &Node, key: &str, value: &str) -> u64 {
    node.core.hasher.descriptor("test", &[Entry { key, value }]).token()
}

/// Values whose keys `node` owns.
fn owned_by(node: &Node, key: &str, count: usize) -> Vec<String> {
    let topology = node.core.topology.load();
    let is_own = |value: &String| topology.owns(Scope::Region, token(node, key, value));
    (0..).map(|n: u32| n.to_string()).filter(is_own).take(count).collect()
}

/// All strict states that a node holds.
fn all(node: &Node) -> Vec<StoredCounter> {
    let parts = &node.core;
    let (mut found, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = from {
        let now = parts.clock.now();
        from = parts.store.scan(cursor, now, 1_000, KeyHash::is_owned, &mut found);
    }
    found
}

fn held(node: &Node, key: &str, value: &str) -> Option<StoredCounter> {
    let token = token(node, key, value);
    all(node).into_iter().find(|counted| counted.key.token == token)
}

/// What is used of the limit of `durable`, beside its reservations.
fn used_of(node: &Node, value: &str) -> Option<u32> {
    let token = token(node, "durable", value);
    let used = |it: &StoredCounter| match it.state {
        State::FixedWindow { used, .. } => Some(used),
        _ => None,
    };
    all(node).iter().filter(|it| it.key.token == token).find_map(used)
}

fn used(counted: &StoredCounter) -> u32 {
    let State::FixedWindow { used, .. } = counted.state else { panic!("{counted:?}") };
    used
}
