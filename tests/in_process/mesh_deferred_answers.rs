//! Deferred replies: they do not delay other calls, and their number is bounded.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::node::system_environment;
use tidegate_cluster::incarnation::Incarnation;
use tidegate_cluster::mesh::wire::{Call, PingStatus, PongStatus, Reply, SharedSettings};
use tidegate_cluster::mesh::{self, Mesh, PING_INTERVAL, Peer, Service, ServiceReply, StreamClass};
use tidegate_cluster::pki::Authority;
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::standstill::ClockReading;
use tidegate_testkit::certificates::{authority, identity};
use tidegate_testkit::wait::eventually;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Above what anything here needs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// As `mesh/serve.rs` has it.
const LATER_MAX: usize = 1_024;

/// Answers pings at once, and everything else when it is let go.
struct Waiting {
    go: Arc<Semaphore>,
}

impl Service for Waiting {
    fn handle_call(&self, _: &Peer, call: Call) -> ServiceReply {
        if let Call::Ping { .. } = call {
            let (clock, status) = (Timestamp::EPOCH, PongStatus::default());
            return ServiceReply::Ready(Reply::Pong { clock, decision_clock: None, status });
        }
        let go = self.go.clone();
        ServiceReply::Deferred(Box::pin(async move {
            go.acquire().await.unwrap().forget();
            Reply::Done
        }))
    }

    fn malformed(&self, from: &NodeId) {
        panic!("{from} sent no malformed bytes");
    }

    fn ping_interval(&self, _: &Peer) -> Duration {
        PING_INTERVAL
    }

    fn ping_status(&self, _: &Peer) -> PingStatus {
        PingStatus::default()
    }

    fn pong_received(&self, _: &Peer, _: ClockReading, _: PongStatus) {}
}

async fn start(authority: &Authority, id: &str, go: &Arc<Semaphore>) -> Arc<Mesh> {
    let node = NodeId::new(id).unwrap();
    let options = mesh::Options {
        cluster: "test".into(),
        incarnation: Arc::new(Incarnation::new(node, Timestamp::from_nanos(1_000_000))),
        birth: 1,
        region: "eu".into(),
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        secret: 7,
        names_domains: false,
        shared: SharedSettings {
            vnodes: 128,
            lease: Span::from_millis(600),
            global_lease: Span::from_secs(5),
        },
    };
    let identity = identity(authority, authority, id, "eu");
    let (mesh, tasks) = Mesh::bind(options, &identity, &system_environment().0).await.unwrap();
    let (running, service) = (mesh.clone(), Arc::new(Waiting { go: go.clone() }));
    tokio::spawn(async move { running.run(tasks, service, CancellationToken::new()).await });
    mesh
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_waits_holds_up_no_other_and_only_so_many_wait() {
    let (authority, go) = (authority(), Arc::new(Semaphore::new(0)));
    let a = start(&authority, "a", &go).await;
    let b = start(&authority, "b", &go).await;
    a.request_dial(b.advertise);
    eventually("both are up", TIMEOUT, || a.peers().len() == 1 && b.peers().len() == 1).await;

    let to = NodeId::new("b").unwrap();
    let send = |call| a.call(&to, StreamClass::Bulk, call, TIMEOUT);
    let mut waiting = Box::pin(join_all(
        (0..LATER_MAX + 3).map(|_| send(Call::Refunded { token: 1 })).collect::<Vec<_>>(),
    ));
    let ping = Call::Ping { clock: Timestamp::EPOCH, status: PingStatus::default() };
    // All of them are on their way before the ping, which is answered before any of them.
    let pong = tokio::select! {
        biased;
        _ = &mut waiting => panic!("they were not released"),
        pong = send(ping) => pong,
    };
    assert!(matches!(pong, Ok(Reply::Pong { .. })), "{pong:?}");
    go.add_permits(LATER_MAX);
    let answers = waiting.await;
    let count =
        |wanted: &Reply| answers.iter().filter(|answer| answer.as_ref() == Ok(wanted)).count();
    assert_eq!((count(&Reply::Done), count(&Reply::Unconfirmed)), (LATER_MAX, 3));
}
