//! The requests at a server, limited by its response times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::Value;
use tidegate_testkit::http_client::Http;
use tidegate_testkit::wait::{eventually, until, whole_lines};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::support::{Table, request};
use super::support::{App, app, domain, ok, proxy, read_until};
use super::upgrades::{ASK, echo, switched};

const WITHIN: Duration = Duration::from_secs(10);

/// Requests at a server.
#[derive(Debug, Default)]
struct AtServer {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl AtServer {
    /// A request is there until the guard is dropped.
    fn enter(self: Arc<Self>) -> impl Drop {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        scopeguard::guard(self, |it| {
            it.now.fetch_sub(1, Ordering::Relaxed);
        })
    }
}

/// An application that begins to respond at once, and ends when there is a permit.
async fn held(at_server: &Arc<AtServer>, permits: &Arc<Semaphore>) -> App {
    let (at_server, permits) = (at_server.clone(), permits.clone());
    app(move |_| {
        let (at_server, permits) = (at_server.clone(), permits.clone());
        let is_there = at_server.enter();
        let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"begun ")))]);
        let last = futures_util::stream::once(async move {
            permits.acquire().await.expect("it is open").forget();
            drop(is_there);
            Ok(Frame::data(Bytes::from_static(b"done")))
        });
        let body = StreamBody::new(first.chain(last)).boxed_unsync();
        async move { Response::new(body) }
    })
    .await
}

#[tokio::test]
async fn one_more_than_the_limit_of_a_server_is_answered_503() {
    let (at_server, permits) = (Arc::<AtServer>::default(), Arc::new(Semaphore::new(0)));
    let app = held(&at_server, &permits).await;
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("access.log");
    let more = format!(
        "adaptive_concurrency_max = 3\nadaptive_concurrency_min = 3\naccess_log = \"{}\"\n{}",
        path.display(),
        domain("open")
    );
    let proxy = proxy(&Table::usual(), &[app.addr], &more).await;
    assert_eq!(proxy.upstreams.concurrency_limit(), Some(3));
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
        // Its place is that of the whole response.
        read_until(&mut stream, "begun ").await;
        streams.push(stream);
    }
    for _ in 0..2 {
        let refused = request(proxy.addr(), "GET", "/", &[], b"").await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(proxy.upstreams.overloaded.get(), 2);
    let grpc = [("content-type", "application/grpc")];
    let refused = request(proxy.addr(), "POST", "/a.B/C", &grpc, b"").await;
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("14")));

    assert_eq!(at_server.most.load(Ordering::Relaxed), 3);

    // A client leaves, or its response ends: its place is free.
    streams.pop();
    let passes = async || {
        let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
        let head = b"GET / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
        stream.write_all(head).await.expect("sent");
        let reply = read_until(&mut stream, "\r\n\r\n").await;
        if reply.starts_with("HTTP/1.1 200 ") { Ok(stream) } else { Err(reply) }
    };
    let (stream, _) = until("a place", WITHIN, passes).await;
    streams.push(stream);
    permits.add_permits(3);
    for mut stream in streams {
        read_until(&mut stream, "done").await;
    }
    permits.add_permits(1);
    let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
    assert!(reply.status == 200 && reply.body.contains("done"), "{reply:?}");

    // The rule let them pass.
    let logged = async || {
        let lines = whole_lines(&path);
        let lines: Vec<Value> =
            lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let refused = lines.iter().filter(|line| line["failure"] == "overloaded");
        let are_allowed = refused.clone().all(|line| line["verdict"] == "allowed");
        if refused.count() >= 3 && are_allowed { Ok(()) } else { Err(format!("{lines:?}")) }
    };
    until("lines in the log", WITHIN, logged).await;
}

#[tokio::test]
async fn a_request_goes_to_the_server_that_has_a_place() {
    let (at_server, permits) = (Arc::<AtServer>::default(), Arc::new(Semaphore::new(0)));
    let (first, second) = (held(&at_server, &permits).await, held(&at_server, &permits).await);
    let more = "adaptive_concurrency_max = 1\nadaptive_concurrency_min = 1\n";
    let proxy = proxy(&Table::usual(), &[first.addr, second.addr], more).await;
    assert_eq!(proxy.upstreams.concurrency_limit(), Some(2));
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
        read_until(&mut stream, "begun ").await;
        streams.push(stream);
    }
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 503);
}

#[tokio::test]
async fn tunnels_and_health_checks_take_no_place() {
    let app = echo().await;
    let more = "adaptive_concurrency_max = 1\nadaptive_concurrency_min = 1\n";
    let proxy = proxy(&Table::usual(), &[app.addr], more).await;
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        let mut tunnel = TcpStream::connect(proxy.addr()).await.expect("a connection");
        let head = switched(&mut tunnel, ASK).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        tunnels.push(tunnel);
    }
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.body, "plain");

    // A check that is not answered.
    let is_checked = Arc::<AtomicBool>::default();
    let seen = is_checked.clone();
    let app = super::support::app(move |request| {
        let seen = seen.clone();
        async move {
            if request.uri().path() == "/healthz" {
                seen.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            ok("served")
        }
    })
    .await;
    let more = format!("{more}health_path = \"/healthz\"\nhealth_interval = \"60s\"\n");
    let proxy = super::support::proxy(&Table::usual(), &[app.addr], &more).await;
    eventually("a check arrives", WITHIN, || is_checked.load(Ordering::Relaxed)).await;
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.body, "served");
}

/// Works on so many requests at a time; the others wait in it.
const WORKERS: usize = 8;
const WORK: Duration = Duration::from_millis(20);
const CLIENTS: usize = 64;

/// What clients that repeat at once got in some time, and how many were in the server meanwhile.
#[derive(Debug)]
struct Run {
    served_per_second: f64,
    #[expect(dead_code, reason = "it is printed")]
    refused_per_second: f64,
    /// The limit at the end, if there is one.
    limit: Option<u64>,
    most_in_server: usize,
    mean_ms: f64,
}

async fn run(more: &str) -> Run {
    let (at_server, workers) = (Arc::<AtServer>::default(), Arc::new(Semaphore::new(WORKERS)));
    let (seen, busy) = (at_server.clone(), workers.clone());
    let app = app(move |_| {
        let (seen, busy) = (seen.clone(), busy.clone());
        async move {
            let _is_there = seen.enter();
            let _permit = busy.acquire().await;
            tokio::time::sleep(WORK).await;
            ok("done")
        }
    })
    .await;
    let proxy = proxy(&Table::usual(), &[app.addr], more).await;
    let (addr, ends) = (proxy.addr(), Arc::<AtomicBool>::default());
    let mut clients = JoinSet::new();
    // The first part of the time is for the limit to settle.
    let counts = Arc::<AtomicBool>::default();
    for _ in 0..CLIENTS {
        let (ends, counts) = (ends.clone(), counts.clone());
        clients.spawn(async move {
            let (client, mut served, mut refused, mut took) = (Http::new(), 0, 0, Duration::ZERO);
            while !ends.load(Ordering::Relaxed) {
                let start = Instant::now();
                let status = client.get(addr, "/").await.expect("a response").status;
                let is_counted = counts.load(Ordering::Relaxed);
                match status {
                    200 if is_counted => {
                        served += 1;
                        took += start.elapsed();
                    }
                    503 => {
                        refused += u32::from(is_counted);
                        tokio::time::sleep(WORK).await;
                    }
                    _ => assert_eq!(status, 200),
                }
            }
            (served, refused, took)
        });
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    at_server.most.store(0, Ordering::Relaxed);
    counts.store(true, Ordering::Relaxed);
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    counts.store(false, Ordering::Relaxed);
    let seconds = start.elapsed().as_secs_f64();
    let most_in_server = at_server.most.load(Ordering::Relaxed);
    ends.store(true, Ordering::Relaxed);
    let (mut served, mut refused, mut took) = (0_u32, 0_u32, Duration::ZERO);
    while let Some(client) = clients.join_next().await {
        let (more_served, more_refused, longer) = client.expect("a task");
        (served, refused, took) = (served + more_served, refused + more_refused, took + longer);
    }
    Run {
        served_per_second: f64::from(served) / seconds,
        refused_per_second: f64::from(refused) / seconds,
        limit: proxy.upstreams.concurrency_limit(),
        most_in_server,
        mean_ms: took.as_secs_f64() * 1e3 / f64::from(served.max(1)),
    }
}

/// A server of which the response time grows with the number of requests: the limit settles where
/// it begins to, what is served stays as much, and what is served is served sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_settles_near_what_a_server_works_on_at_a_time() {
    let off = run("").await;
    let on = run("adaptive_concurrency_max = 1000\nadaptive_concurrency_min = 4\n\
         adaptive_concurrency_window = \"50ms\"\n")
    .await;
    println!("off: {off:?}\non:  {on:?}");
    assert_eq!(off.most_in_server, CLIENTS);
    // A machine that stands still for a moment delays responses, too.
    let limit = usize::try_from(on.limit.expect("a limit")).expect("a small number");
    assert!((WORKERS..CLIENTS / 2).contains(&limit), "{limit}");
    assert!(on.most_in_server < CLIENTS * 3 / 4, "{on:?}");
    assert!(on.served_per_second > 0.8 * off.served_per_second, "{on:?} {off:?}");
    assert!(on.mean_ms < 0.7 * off.mean_ms, "{on:?} {off:?}");
}
