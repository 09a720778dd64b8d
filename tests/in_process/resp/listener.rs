//! A door with a node behind it, and a client that speaks in bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::config::Config;
use tidegate::decide::Decider;
use tidegate::front::bounds::Bounds;
use tidegate::front::resp::{Listener, serve};
use tidegate::front::serve::ListenerStats;
use tidegate::node::{self, Core, Setup};
use tidegate_cluster::environment::Clock;
use tidegate_limiter::units::Timestamp;
use tidegate_ownership::identity::NodeId;
use tidegate_rules::load::{Options, Source, parse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: both, rate_limit: {unit: hour, requests_per_unit: 5}, descriptors: [{key: path,
      rate_limit: {unit: minute, requests_per_unit: 1}}]}
";

/// A door that is open.
pub(crate) struct Open {
    pub(crate) addr: SocketAddr,
    pub(crate) stats: Arc<ListenerStats>,
    /// The node, which lives as long as the door.
    _core: Arc<Core>,
    pub(crate) drain: CancellationToken,
    pub(crate) served: JoinHandle<()>,
    clock: Arc<SetClock>,
}

#[derive(Debug)]
struct SetClock(AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn system(&self) -> Timestamp {
        self.now()
    }

    fn steer(&self, _correction_ns: i64) {}

    fn set(&self, _correction_ns: i64) {}
}

/// A door as it is without any configuration.
pub(crate) async fn open() -> Open {
    open_with(|_| {}).await
}

/// A door with its configuration changed.
pub(crate) async fn open_with(change: impl FnOnce(&mut Config)) -> Open {
    let mut config = Config::default();
    change(&mut config);
    let (mut environment, _) = node::outside();
    let clock = Arc::new(SetClock(AtomicU64::new(1_700_000_000 * 1_000_000_000)));
    environment.clock = clock.clone();
    let source = Source { name: "rules.yaml".into(), bytes: RULES.into() };
    let book = Arc::new(ArcSwap::from_pointee(parse(&[source], &Options::default()).unwrap()));
    let node = NodeId::new("alone").unwrap();
    let setup = Setup { config: config.clone(), node, identity: None, book, http: None };
    let (core, _) = Core::build(setup, environment).await.unwrap();
    let decide: Arc<Decider> = Arc::new(core.decider.clone());
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = socket.local_addr().unwrap();
    let stats = Arc::<ListenerStats>::default();
    let listener = Listener::new(&config, decide, Bounds::from(&config.limits), stats.clone());
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
        self.clock.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// Sends bytes and reads bytes.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

/// Far above what anything here takes: a guard against hanging.
const PATIENCE: Duration = Duration::from_secs(20);

impl Client {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Exactly what is expected, or a failure that shows what came.
    pub(crate) async fn expect(&mut self, expected: &str) {
        let wanted = expected.replace('|', "\r\n");
        let mut found = vec![0; wanted.len()];
        let read = tokio::time::timeout(PATIENCE, self.stream.read_exact(&mut found)).await;
        let found = String::from_utf8_lossy(&found).replace("\r\n", "|");
        assert!(matches!(read, Ok(Ok(_))), "{read:?} after {found:?}, expected {expected:?}");
        assert_eq!(found, expected);
    }

    /// One inline command and its reply.
    pub(crate) async fn says(&mut self, command: &str, reply: &str) {
        self.send(format!("{command}\r\n")).await;
        self.expect(reply).await;
    }

    /// `CL.THROTTLE` and its five integers.
    pub(crate) async fn throttles(&mut self, arguments: &str, five: [i64; 5]) {
        let reply = format!("*5|:{}|", five.map(|number| number.to_string()).join("|:"));
        self.says(&format!("CL.THROTTLE {arguments}"), &reply).await;
    }

    /// All that still comes until the other side closes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await;
        assert!(read.is_ok(), "it did not close, after {rest:?}");
        String::from_utf8_lossy(&rest).replace("\r\n", "|")
    }
}

/// A command as clients send it.
pub(crate) fn array(words: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}
