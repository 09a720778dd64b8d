//! `concurrency` of a rule, over three nodes with a proxy each in front of one application.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate_testkit::http_client::Http;
use tidegate_testkit::ports;
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tidegate_testkit::wait::{eventually, until};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::TIDEGATE;

const LIMIT: usize = 20;
const RULES: &str = "
domain: http
descriptors:
  - {key: remote_address, concurrency: 20, durability: replicated, on_unavailable: deny}
";

/// An application that knows how many requests it has.
struct App {
    addr: SocketAddr,
    gauge: Arc<Gauge>,
    /// Whether `/held` responds.
    open: watch::Sender<bool>,
    _running: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
    served: AtomicUsize,
}

/// A request at the application, until it is answered or its connection is gone.
struct Here(Arc<Gauge>);

impl Here {
    fn new(gauge: &Arc<Gauge>) -> Self {
        let now = 1 + gauge.now.fetch_add(1, Ordering::SeqCst);
        gauge.most.fetch_max(now, Ordering::SeqCst);
        Self(gauge.clone())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl App {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let gauge = Arc::<Gauge>::default();
        let (open, is_open) = watch::channel(false);
        let count = gauge.clone();
        let running = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (count, is_open) = (count.clone(), is_open.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (here, mut is_open) = (Here::new(&count), is_open.clone());
                    async move {
                        if request.uri().path() == "/held" {
                            let _ = is_open.wait_for(|is_open| *is_open).await;
                        } else {
                            sleep(Duration::from_millis(20)).await;
                        }
                        here.0.served.fetch_add(1, Ordering::SeqCst);
                        drop(here);
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("ok"))))
                    }
                });
                let io = TokioIo::new(stream);
                connections.spawn(http1::Builder::new().serve_connection(io, service));
            }
        });
        Self { addr, gauge, open, _running: AbortOnDropHandle::new(running) }
    }
}

/// Three nodes, and their proxies.
async fn start(app: &App) -> (Cluster, Vec<SocketAddr>) {
    let upstream = format!("proxy.upstream=[\"http://{}\"]", app.addr);
    let sets = &["cluster.deadline=1000ms"];
    let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..ClusterOptions::default() };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let mut proxies = Vec::new();
    for node in &mut cluster.nodes {
        let addr = ports::free();
        node.set(&format!("proxy.listen={addr}"));
        node.set(&upstream);
        node.terminate();
        assert_eq!(node.exit_code(Duration::from_secs(30)).await, Some(0));
        node.start();
        node.ready(3).await;
        proxies.push(addr);
    }
    cluster.one_view().await;
    (cluster, proxies)
}

/// Requests until `end`; every fifth client goes away before its response.
async fn worker(number: usize, proxies: Vec<SocketAddr>, end: Instant) -> (usize, usize) {
    let (mut passed, mut refused) = (0, 0);
    for turn in number.. {
        if Instant::now() >= end {
            break;
        }
        // A client of its own has a connection of its own.
        let client = Http::new();
        let get = client.get(proxies[turn % proxies.len()], "/");
        let patience = Duration::from_millis(if turn % 5 == 0 { 10 } else { 5_000 });
        match timeout(patience, get).await {
            Ok(Ok(reply)) if reply.status == 200 => passed += 1,
            Ok(Ok(reply)) => {
                assert_eq!(reply.status, 429, "{reply:?}");
                refused += 1;
                sleep(Duration::from_millis(5)).await;
            }
            // The client has gone, or the node was killed.
            _ => sleep(Duration::from_millis(5)).await,
        }
    }
    (passed, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_are_in_flight_and_never_one_more() {
    let app = App::start().await;
    let (mut cluster, proxies) = start(&app).await;
    let end = Instant::now() + Duration::from_secs(6);
    let mut workers = JoinSet::new();
    for number in 0..3 * LIMIT {
        workers.spawn(worker(number, proxies.clone(), end));
    }
    sleep(Duration::from_secs(2)).await;
    cluster.nodes[2].kill();
    let results = workers.join_all().await;
    let (passed, refused) = results.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let most = app.gauge.most.load(Ordering::SeqCst);
    println!("{passed} passed, {refused} were refused; at most {most} were in flight");
    assert!(most <= LIMIT, "{most} were in flight");
    assert!(most > LIMIT / 2 && passed > 10 * LIMIT && refused > LIMIT, "there was no load");

    // All places are free again, those of the node that was killed too.
    let (held, proxy) = (Http::new(), proxies[0]);
    let mut waiting = JoinSet::new();
    let gauge = app.gauge.clone();
    eventually("no request is left", Duration::from_secs(10), || {
        gauge.now.load(Ordering::SeqCst) == 0
    })
    .await;
    let all_enter = async || {
        while waiting.len() < LIMIT {
            let held = held.clone();
            waiting.spawn(async move { held.get(proxy, "/held").await.unwrap().status });
        }
        sleep(Duration::from_millis(100)).await;
        while let Some(refused) = waiting.try_join_next() {
            assert_eq!(refused.unwrap(), 429);
        }
        let now = app.gauge.now.load(Ordering::SeqCst);
        if now == LIMIT { Ok(()) } else { Err(format!("{now} are in flight")) }
    };
    until("all places are free", Duration::from_secs(20), all_enter).await;
    // They are renewed for as long as they last.
    sleep(Duration::from_secs(12)).await;
    for proxy in &proxies[..2] {
        let refused = held.get(*proxy, "/").await.unwrap();
        assert_eq!(refused.status, 429, "the twenty-first");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    app.open.send_replace(true);
    while let Some(passed) = waiting.join_next().await {
        assert_eq!(passed.unwrap(), 200);
    }
    let free = async || match held.get(proxy, "/").await {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    until("a place is free", Duration::from_secs(5), free).await;
    assert!(app.gauge.most.load(Ordering::SeqCst) <= LIMIT);
}
