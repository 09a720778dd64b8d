//! What a statsd server and a scraper get from a running node under the names of
//! envoyproxy/ratelimit.

use std::net::{SocketAddr, TcpListener as Reserved};
use std::path::Path;
use std::time::Duration;

use tidegate::config::{Config, StatsdProtocol};
use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate::node;
use tidegate_limiter::units::Span;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

const CALLS: &str = "ratelimit_server.ShouldRateLimit.total_requests";
const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
";

#[tokio::test]
async fn a_statsd_server_that_was_away_gets_what_was_counted_meanwhile() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = server.local_addr().unwrap();
    let node = Running::start(|config| {
        config.stats.statsd = Some(addr.to_string());
        config.stats.extra_tags = vec!["env:prod".to_owned()];
    })
    .await;
    node.check(3).await;
    let mut lines = Lines::accept(&server).await;
    assert_eq!(lines.sum_to(&format!("{CALLS}.__env=prod"), 3).await, 3);

    drop((lines, server));
    node.check(2).await;
    // The next flush fails; its counts are sent later.
    let server = TcpListener::bind(addr).await.unwrap();
    node.check(2).await;
    let mut lines = Lines::accept(&server).await;
    assert_eq!(lines.sum_to(&format!("{CALLS}.__env=prod"), 4).await, 4);
    node.end().await;
    assert_eq!(lines.rest(&format!("{CALLS}.__env=prod")).await, 0, "nothing is sent twice");
}

#[tokio::test]
async fn a_statsd_server_that_never_comes_neither_delays_answers_nor_the_end() {
    let node = Running::start(|config| config.stats.statsd = Some(free().to_string())).await;
    node.check(3).await;
    node.end().await;
}

#[tokio::test]
async fn dogstatsd_gets_datagrams_with_tags() {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addr = server.local_addr().unwrap();
    let node = Running::start(|config| {
        config.stats.statsd = Some(addr.to_string());
        config.stats.statsd_protocol = StatsdProtocol::Dogstatsd;
        config.stats.extra_tags = vec!["env:prod".to_owned()];
    })
    .await;
    node.check(1).await;
    let wanted = format!("{CALLS}:1|c|#env:prod");
    datagram_with(&server, &wanted).await;
    node.end().await;
}

#[tokio::test]
async fn what_is_counted_while_no_datagram_arrives_is_sent_later() {
    let addr = free();
    let node = Running::start(|config| {
        config.stats.statsd = Some(addr.to_string());
        config.stats.statsd_protocol = StatsdProtocol::Udp;
    })
    .await;
    node.check(3).await;
    // Some flushes go to a port that is closed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let server = UdpSocket::bind(addr).await.unwrap();
    let wanted = format!("{CALLS}:3|c");
    datagram_with(&server, &wanted).await;
    node.end().await;
}

#[tokio::test]
async fn prometheus_gets_the_names_of_envoy_ratelimit_from_both_listeners() {
    let addr = free();
    let node = Running::start(|config| {
        config.stats.prometheus_names = true;
        config.stats.prometheus_listen = Some(addr);
        config.stats.prometheus_path = "/old-metrics".to_owned();
    })
    .await;
    node.check(3).await;
    let calls = "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 3\n";

    let own = get(addr, "/old-metrics").await;
    assert!(own.contains("content-type: text/plain; version=0.0.4"), "{own}");
    assert!(own.contains("# TYPE ratelimit_service_total_requests counter\n"), "{own}");
    assert!(own.contains(calls), "{own}");
    assert!(!own.contains("tidegate_"), "{own}");
    assert!(get(addr, "/metrics").await.starts_with("HTTP/1.1 404"));

    let all = get(node.admin, "/metrics").await;
    assert!(all.contains("# TYPE ratelimit_service_total_requests unknown\n"), "{all}");
    assert!(all.contains(calls), "{all}");
    assert!(all.contains("tidegate_build_info"), "{all}");
    assert!(all.ends_with("# EOF\n"), "{all}");
    node.end().await;
}

#[tokio::test]
async fn the_names_are_not_exported_by_default() {
    let node = Running::start(|_| {}).await;
    node.check(1).await;
    assert!(!get(node.admin, "/metrics").await.contains("ratelimit_service"));
    node.end().await;
}

// === a node ===

/// Waits for a datagram with this line.
async fn datagram_with(server: &UdpSocket, wanted: &str) {
    in_time("a datagram with the line", async {
        let mut bytes = [0; 2_048];
        loop {
            let read = server.recv(&mut bytes).await.unwrap();
            let text = std::str::from_utf8(&bytes[..read]).unwrap();
            if text.lines().any(|line| line == wanted) {
                return;
            }
        }
    })
    .await;
}

/// A standalone node with its listeners.
struct Running {
    grpc: SocketAddr,
    admin: SocketAddr,
    shutdown: CancellationToken,
    node: JoinHandle<Result<(), node::Error>>,
    _rules: tempfile::TempDir,
}

impl Running {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let rules = tempfile::tempdir().unwrap();
        std::fs::write(rules.path().join("edge.yaml"), RULES).unwrap();
        let (grpc, admin) = (free(), free());
        let config = config(rules.path(), grpc, admin, change);
        let shutdown = CancellationToken::new();
        let (front, stop) = (Handle::current(), shutdown.clone());
        let node = tokio::spawn(async move { Box::pin(node::run(config, &front, stop)).await });
        in_time("the listener is up", async {
            while TcpStream::connect(grpc).await.is_err() {
                assert!(!node.is_finished(), "the node ended");
                tokio::task::yield_now().await;
            }
        })
        .await;
        Self { grpc, admin, shutdown, node, _rules: rules }
    }

    async fn check(&self, times: usize) {
        let mut client =
            RlsClient::new(&Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap());
        for _ in 0..times {
            let entry = Entry { key: "user".to_owned(), value: "bob".to_owned() };
            let descriptor =
                RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
            let request = RateLimitRequest {
                domain: "edge".to_owned(),
                descriptors: vec![descriptor],
                hits_addend: 1,
            };
            client.should_rate_limit(request).await.unwrap();
        }
    }

    async fn end(self) {
        self.shutdown.cancel();
        in_time("the node ends", self.node).await.unwrap().unwrap();
    }
}

fn config(
    rules: &Path,
    grpc: SocketAddr,
    admin: SocketAddr,
    change: impl FnOnce(&mut Config),
) -> Config {
    let mut config = Config::standalone();
    rules.clone_into(&mut config.rules.path);
    config.http.listen = Some(free());
    config.grpc.listen = Some(grpc);
    config.resp.listen = None;
    config.admin.listen = Some(admin);
    config.stats.flush_interval = Span::from_millis(100);
    change(&mut config);
    tidegate::config::validate::validate(&config).unwrap();
    config
}

/// An address that is free now.
fn free() -> SocketAddr {
    Reserved::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

// === its readers ===

/// What a statsd server reads from one connection.
struct Lines(tokio::io::Lines<BufReader<TcpStream>>);

impl Lines {
    async fn accept(server: &TcpListener) -> Self {
        let (stream, _) = in_time("the node connects", server.accept()).await.unwrap();
        Self(BufReader::new(stream).lines())
    }

    /// What lines of `counter` add up to, read until it is `wanted` or more.
    async fn sum_to(&mut self, counter: &str, wanted: i64) -> i64 {
        let mut sum = 0;
        in_time("the counter arrives", async {
            while sum < wanted {
                let line = self.0.next_line().await.unwrap().expect("the connection stays open");
                sum += added(&line, counter);
            }
        })
        .await;
        sum
    }

    /// Likewise, until the node closes the connection.
    async fn rest(mut self, counter: &str) -> i64 {
        let mut sum = 0;
        while let Some(line) = in_time("the rest", self.0.next_line()).await.unwrap() {
            sum += added(&line, counter);
        }
        sum
    }
}

fn added(line: &str, counter: &str) -> i64 {
    let Some((name, value)) = line.split_once(':') else { panic!("{line} is no line of statsd") };
    if name == counter { value.strip_suffix("|c").unwrap().parse().unwrap() } else { 0 }
}

/// The whole response, head and body.
async fn get(addr: SocketAddr, path: &str) -> String {
    in_time("an answer", async {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    })
    .await
}

/// Far above what anything here takes: it ends a test that would hang.
async fn in_time<T>(what: &str, done: impl Future<Output = T>) -> T {
    let guard = Duration::from_secs(30);
    tokio::time::timeout(guard, done).await.unwrap_or_else(|_| panic!("{what}: it hangs"))
}
