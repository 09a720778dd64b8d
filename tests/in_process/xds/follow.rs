//! The client: its requests, its ACKs and NACKs, and which rules are in force.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate::config::Xds;
use tidegate::reload::current::{Handle, Status};
use tidegate::xds::Client;
use tidegate_cluster::environment::Entropy;
use tidegate_limiter::units::Span;
use tidegate_proto::google::protobuf::value::Kind;
use tidegate_proto::xds::{DiscoveryRequest, DiscoveryResponse, TYPE_URL};
use tidegate_rules::load;
use tidegate_rules::rule::Rule;
use tidegate_rules::stats::RuleStats;
use tidegate_testkit::wait::in_time;
use tidegate_testkit::xds::{Server, mistaken_rules, rules, state};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn each_state_of_the_world_replaces_the_one_before_and_is_confirmed() {
    let mut server = Server::start().await;
    let follower = Follower::of(server.addr);
    let mut stream = server.accept().await;
    assert_eq!(fields(&stream.request().await), ("", "", None));
    assert_eq!(follower.status(), Status::default());

    let answer = stream.exchange(state("1", &[rules("a", 5), rules("b", 6)])).await;
    assert_eq!(fields(&answer), ("1", "n1", None));
    // What was confirmed is in force.
    assert_eq!((follower.limit("a"), follower.limit("b")), (Some(5), Some(6)));

    let answer = stream.exchange(state("2", &[rules("b", 7)])).await;
    assert_eq!(fields(&answer), ("2", "n2", None));
    assert_eq!((follower.limit("a"), follower.limit("b")), (None, Some(7)));
    assert_eq!(follower.status(), Status { loads_ok: 2, ..Status::default() });

    let answer = stream.exchange(state("3", &[])).await;
    assert_eq!(fields(&answer), ("3", "n3", None));
    assert_eq!(follower.handle.book().domains().count(), 0);
    follower.stop().await;
}

#[tokio::test]
async fn one_bad_resource_refuses_them_all_and_the_old_rules_stay() {
    let mut server = Server::start().await;
    let follower = Follower::of(server.addr);
    let mut stream = server.accept().await;
    stream.request().await;
    stream.exchange(state("1", &[rules("a", 5)])).await;

    let answer = stream.exchange(state("2", &[rules("a", 9), mistaken_rules("b")])).await;
    let reason = "b-config: invalid rate limit unit 'UNKNOWN'";
    assert_eq!(fields(&answer), ("1", "n2", Some(reason)));
    assert_eq!((follower.limit("a"), follower.limit("b")), (Some(5), None));
    let status = follower.status();
    assert_eq!((status.loads_ok, status.loads_failed), (1, 1));
    assert!(status.error.unwrap().contains("invalid rate limit unit 'UNKNOWN'"));

    let answer = stream.exchange(state("3", &[rules("a", 9)])).await;
    assert_eq!(fields(&answer), ("3", "n3", None));
    assert_eq!((follower.limit("a"), follower.status().error), (Some(9), None));
    follower.stop().await;
}

#[tokio::test]
async fn statistics_go_on_through_an_update() {
    let mut server = Server::start().await;
    let follower = Follower::of(server.addr);
    let mut stream = server.accept().await;
    stream.request().await;
    stream.exchange(state("1", &[rules("a", 5)])).await;
    let before = follower.rule("a").unwrap();
    RuleStats::add(&before.stats.allowed, 3);

    stream.exchange(state("2", &[rules("a", 6)])).await;
    let after = follower.rule("a").unwrap();
    assert_eq!(after.stats.allowed.load(Ordering::Relaxed), 3);
    follower.stop().await;
}

#[tokio::test]
async fn a_broken_stream_is_reopened_and_subscribes_to_everything() {
    let mut server = Server::start().await;
    let follower = Follower::of(server.addr);
    let mut stream = server.accept().await;
    stream.request().await;
    stream.exchange(state("1", &[rules("a", 5)])).await;

    stream.break_off().await;
    let mut stream = server.accept().await;
    assert_eq!(fields(&stream.request().await), ("", "", None));
    let error = follower.status().error.unwrap();
    assert!(error.contains("the stream broke") && error.contains("restarting"), "{error}");
    assert_eq!(follower.limit("a"), Some(5), "the rules stay while the server is away");

    // A server that was restarted may begin with the same version again.
    let answer = stream.exchange(state("1", &[rules("a", 8)])).await;
    assert_eq!(fields(&answer), ("1", "n1", None));
    assert_eq!((follower.limit("a"), follower.status().error), (Some(8), None));

    drop(stream);
    let mut stream = server.accept().await;
    assert_eq!(fields(&stream.request().await), ("", "", None));
    let error = follower.status().error.unwrap();
    assert!(error.contains("the server ended the stream"), "{error}");
    follower.stop().await;
}

#[tokio::test]
async fn a_server_that_comes_late_is_found() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let follower = Follower::of(addr);
    let status = follower.changed_since(&Status::default()).await;
    let error = status.error.unwrap();
    assert!(error.starts_with(&format!("xds.server {addr}: connect: ")), "{error}");
    assert_eq!((status.loads_ok, status.loads_failed), (0, 0), "nothing was loaded, well or badly");

    let mut server = Server::start_on(addr, None).await;
    let mut stream = server.accept().await;
    stream.request().await;
    stream.exchange(state("1", &[rules("a", 5)])).await;
    assert_eq!(follower.limit("a"), Some(5));
    follower.stop().await;
}

#[tokio::test]
async fn a_message_beyond_the_bound_is_not_taken() {
    let mut server = Server::start().await;
    let follower = Follower::start(Xds { max_message_bytes: 1_024, ..xds(server.addr) });
    let mut stream = server.accept().await;
    stream.request().await;
    stream.exchange(state("1", &[rules("a", 5)])).await;
    let seen = follower.status();
    let many: Vec<_> = (0..100).map(|n| rules(&format!("domain-{n}"), 5)).collect();
    stream.send(state("2", &many)).await;
    let error = follower.changed_since(&seen).await.error.unwrap();
    assert!(error.contains("1024"), "{error}");
    assert_eq!(follower.limit("a"), Some(5));
    // It is the message that is at fault, not the server.
    let mut stream = server.accept().await;
    assert_eq!(fields(&stream.request().await), ("", "", None));
    follower.stop().await;
}

#[tokio::test]
async fn a_response_about_another_type_is_not_answered() {
    let mut server = Server::start().await;
    let follower = Follower::of(server.addr);
    let mut stream = server.accept().await;
    stream.request().await;
    let other = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    stream.send(DiscoveryResponse { type_url: other.into(), ..state("1", &[]) }).await;
    let answer = stream.exchange(state("2", &[rules("a", 5)])).await;
    assert_eq!(fields(&answer), ("2", "n2", None));
    assert_eq!(follower.status().loads_ok, 1);
    follower.stop().await;
}

#[tokio::test]
async fn the_request_has_the_node_and_its_subscription() {
    let mut server = Server::start().await;
    let follower = Follower::start(Xds {
        node_id: "edge".to_owned(),
        node_metadata: vec!["team=a=b".to_owned()],
        headers: vec!["authorization: Bearer t:1".to_owned(), "x-env:prod".to_owned()],
        ..xds(server.addr)
    });
    let mut stream = server.accept().await;
    let header = |name: &str| stream.metadata.get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!((header("authorization"), header("x-env")), ("Bearer t:1".into(), "prod".into()));

    let request = stream.request().await;
    assert_eq!(request.type_url, TYPE_URL);
    assert!(request.resource_names.is_empty(), "it subscribes to all resources");
    let node = request.node.unwrap();
    let team = node.metadata.unwrap().fields["team"].kind.clone();
    assert_eq!((node.id.as_str(), team), ("edge", Some(Kind::StringValue("a=b".to_owned()))));
    follower.stop().await;
}

// === the client under test ===

/// A client that runs.
pub(crate) struct Follower {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Follower {
    fn of(server: SocketAddr) -> Self {
        Self::start(xds(server))
    }

    pub(crate) fn start(xds: Xds) -> Self {
        let (client, handle) =
            Client::new(xds, load::Options::default(), Arc::new(NoDice)).unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(client.run(stop.clone()));
        Self { handle, stop, running }
    }

    pub(crate) fn status(&self) -> Status {
        self.handle.status()
    }

    pub(crate) async fn changed_since(&self, seen: &Status) -> Status {
        in_time("the status changes", self.handle.changed_since(seen)).await
    }

    fn rule(&self, domain: &str) -> Option<Arc<Rule>> {
        let id = format!("{domain}.k");
        self.handle.book().rules().find(|rule| *rule.id == *id).cloned()
    }

    /// The limit of `k` in a domain.
    pub(crate) fn limit(&self, domain: &str) -> Option<u32> {
        Some(self.rule(domain)?.limits.first()?.limit())
    }

    /// Ends the task, whatever it waits for.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        in_time("the client ends", self.running).await.unwrap();
    }
}

/// A client of `server` that does not wait long.
pub(crate) fn xds(server: SocketAddr) -> Xds {
    Xds {
        server: Some(server.to_string()),
        backoff_initial: Span::from_millis(10),
        backoff_max: Span::from_millis(20),
        ..Xds::default()
    }
}

#[derive(Debug)]
struct NoDice;

impl Entropy for NoDice {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill(0);
        Ok(())
    }
}

fn fields(request: &DiscoveryRequest) -> (&str, &str, Option<&str>) {
    let reason = request.error_detail.as_ref().map(|status| &*status.message);
    (&request.version_info, &request.response_nonce, reason)
}
