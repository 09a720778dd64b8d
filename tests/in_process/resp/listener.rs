//! The RESP listener in front of a node, and a client that sends bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::config::Config;
use tidegate::decide::Decider;
use tidegate::front::bounds::Bounds;
use tidegate::front::resp::{Listener, serve};
use tidegate::front::serve::ListenerStats;
use tidegate::front::tls::Tls;
use tidegate::node::{self, Core};
use tidegate_limiter::units::Timestamp;
use tidegate_rules::book::Book;
use tidegate_testkit::clock::ManualClock;
use tidegate_testkit::in_process::standalone;
use tidegate_testkit::rules::book;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: soft, rate_limit: {unit: hour, requests_per_unit: 3, soft_limit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: both, rate_limit: {unit: hour, requests_per_unit: 5}, descriptors: [{key: path,
      rate_limit: {unit: minute, requests_per_unit: 1}}]}
";

/// A running listener.
pub(crate) struct Open {
    pub(crate) addr: SocketAddr,
    pub(crate) stats: Arc<ListenerStats>,
    /// The node lives as long as its listener.
    _core: Arc<Core>,
    pub(crate) drain: CancellationToken,
    pub(crate) served: JoinHandle<()>,
    clock: Arc<ManualClock>,
}

/// A listener with the default configuration.
pub(crate) async fn open() -> Open {
    open_with(|_| {}).await
}

/// A listener with a changed configuration.
pub(crate) async fn open_with(change: impl FnOnce(&mut Config)) -> Open {
    open_within(change, |_| {}).await
}

/// A listener with a changed configuration and changed bounds.
pub(crate) async fn open_within(
    change: impl FnOnce(&mut Config),
    change_bounds: impl FnOnce(&mut Bounds),
) -> Open {
    open_tls(change, change_bounds, None).await
}

/// The same, in plain text or under TLS.
pub(crate) async fn open_tls(
    change: impl FnOnce(&mut Config),
    change_bounds: impl FnOnce(&mut Bounds),
    tls: Option<Tls>,
) -> Open {
    let mut config = Config::default();
    change(&mut config);
    let (mut environment, _) = node::system_environment();
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    environment.clock = clock.clone();
    let book = if config.rules.required {
        book(RULES)
    } else {
        Arc::new(Arc::new(Book::unloaded()).into())
    };
    let core = standalone(config.clone(), book, environment).await;
    let decide: Arc<Decider> = Arc::new(core.decider.clone());
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = socket.local_addr().unwrap();
    let stats = Arc::<ListenerStats>::default();
    let mut bounds = Bounds::from(&config);
    change_bounds(&mut bounds);
    let listener = Listener::new(&config, decide, bounds, stats.clone(), tls);
    let drain = CancellationToken::new();
    let token = drain.clone();
    let served = tokio::spawn(async move { serve(socket, listener, token).await.unwrap() });
    Open { addr, stats, _core: core, drain, served, clock }
}

impl Open {
    pub(crate) async fn client(&self) -> Client {
        Client { stream: TcpStream::connect(self.addr).await.unwrap() }
    }

    pub(crate) fn later(&self, nanos: u64) {
        self.clock.advance(nanos);
    }
}

/// Sends bytes and reads bytes.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

/// Far above what any exchange takes: it ends a test that would hang.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Client {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Fails unless exactly `expected` arrives.
    pub(crate) async fn expect(&mut self, expected: &str) {
        let wanted = expected.replace('|', "\r\n");
        let mut found = vec![0; wanted.len()];
        let read = tokio::time::timeout(TIMEOUT, self.stream.read_exact(&mut found)).await;
        let found = String::from_utf8_lossy(&found).replace("\r\n", "|");
        assert!(matches!(read, Ok(Ok(_))), "{read:?} after {found:?}, expected {expected:?}");
        assert_eq!(found, expected);
    }

    /// One inline command and its reply.
    pub(crate) async fn exchange(&mut self, command: &str, reply: &str) {
        self.send(format!("{command}\r\n")).await;
        self.expect(reply).await;
    }

    /// `CL.THROTTLE` and its five integers.
    pub(crate) async fn throttles(&mut self, arguments: &str, five: [i64; 5]) {
        let reply = format!("*5|:{}|", five.map(|number| number.to_string()).join("|:"));
        self.exchange(&format!("CL.THROTTLE {arguments}"), &reply).await;
    }

    /// Everything until the other side closes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(TIMEOUT, self.stream.read_to_end(&mut rest)).await;
        assert!(read.is_ok(), "it did not close, after {rest:?}");
        String::from_utf8_lossy(&rest).replace("\r\n", "|")
    }
}

/// A command as clients send it.
pub(crate) fn array(words: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}
