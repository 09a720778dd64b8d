//! Checks of one key that leave for their owner together: few calls, and every check decided by
//! itself.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate_cluster::mesh::StreamClass;
use tidegate_cluster::mesh::wire::{
    COMBINED_VERDICTS_MAX, Call, Check, CombinedCheck, CombinedVerdicts, Reply,
};
use tidegate_limiter::policy::Durability;
use tidegate_limiter::units::Hits;
use tidegate_testkit::in_process::{Node, cluster};

use super::bench::{RULES, TIMEOUT, check, count, id, patient, remaining, value_of};

/// Calls with checks that this node has sent.
fn calls(node: &Node) -> u64 {
    let sent = node.joined().mesh.counters.traffic.read();
    sent.into_iter().filter(|(kind, ..)| kind.name() == "checks").map(|(_, calls, _)| calls).sum()
}

fn further(hits: impl IntoIterator<Item = i64>) -> SmallVec<[Hits; 1]> {
    hits.into_iter().map(Hits::new).collect()
}

/// On one thread all checks have begun before a reply can be read, however busy the machine is.
#[tokio::test]
async fn checks_of_one_key_at_once_are_two_calls_and_exact() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, patient).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let key = value_of(a, "bucket", "b");
    let before = calls(a);
    let answers = join_all((0..60).map(|_| a.check("bucket", &key))).await;
    assert_eq!(answers.iter().filter(|answer| answer.allowed).count(), 20);
    // The first, and all that were sent while it was on its way.
    assert_eq!(calls(a) - before, 2);
    assert_eq!(count(b, |counters| &counters.served), 60);
    assert_eq!(remaining(&b.check_hits("bucket", &key, 0).await), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_check_of_a_call_is_admitted_or_refused_by_itself_and_once() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, patient).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let key = value_of(a, "bucket", "b");
    let first = check(a, 1 << 40, "bucket", &key, 15);
    let call = CombinedCheck { first, further: further([10, 5, 0, 1, -3, 2]), ask: None };
    let send = async |call: &CombinedCheck| {
        let call = Call::CombinedCheck(call.clone());
        a.joined().mesh.call(&id("b"), StreamClass::Checks, call, TIMEOUT).await.unwrap()
    };
    let reply = send(&call).await;
    let Reply::CombinedVerdicts(CombinedVerdicts { verdicts, is_confirmed: true, .. }) = &reply
    else {
        panic!("{reply:?}")
    };
    let decided: Vec<_> = verdicts.iter().map(|it| (it.allowed, it.remaining)).collect();
    let (passes, refused) = (true, false);
    // A look at an exhausted limit is allowed, with nothing left; three hits are given back.
    assert_eq!(
        decided,
        [
            (passes, 5),
            (refused, 5),
            (passes, 0),
            (passes, 0),
            (refused, 0),
            (passes, 3),
            (passes, 1)
        ]
    );
    assert_eq!(send(&call).await, reply, "it came twice");
    assert_eq!(count(b, |counters| &counters.deduplicated), 7);
    assert_eq!(remaining(&b.check_hits("bucket", &key, 0).await), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_with_more_checks_than_its_bound_is_malformed() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, patient).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let key = value_of(a, "bucket", "b");
    let first = check(a, 1 << 40, "bucket", &key, 0);
    let full = further(std::iter::repeat_n(0, COMBINED_VERDICTS_MAX));
    let call = Call::CombinedCheck(CombinedCheck { first, further: full, ask: None });
    let mesh = &a.joined().mesh;
    let reply = mesh.call(&id("b"), StreamClass::Checks, call, TIMEOUT).await.unwrap();
    assert_eq!(reply, Reply::Malformed);
    assert_eq!(count(b, |counters| &counters.served), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_confirms_all_checks_of_a_call_at_once() {
    let nodes = cluster(&[("a", "eu"), ("b", "eu")], RULES, patient).await;
    let [a, b] = &nodes[..] else { unreachable!("two nodes") };
    let key = value_of(a, "kept", "b");
    let replicated = Durability::Replicated;
    let first = Check { durability: replicated, ..check(a, 1 << 40, "kept", &key, 15) };
    let call = Call::CombinedCheck(CombinedCheck { first, further: further([10, 5]), ask: None });
    let mesh = &a.joined().mesh;
    let reply = mesh.call(&id("b"), StreamClass::Checks, call, TIMEOUT).await.unwrap();
    let Reply::CombinedVerdicts(CombinedVerdicts { verdicts, is_confirmed, .. }) = reply else {
        panic!("{reply:?}")
    };
    assert!(is_confirmed, "a stores the copies of b");
    assert_eq!(b.joined().replicator.counters.confirmed.load(Ordering::Relaxed), 1);
    assert_eq!(verdicts.iter().map(|it| it.allowed).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(remaining(&b.check_hits("kept", &key, 0).await), 0);
}
