//! Several servers: choice, ejection, health checks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::generate_simple_self_signed;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use tidegate_testkit::wait::{eventually, until};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::support::{Table, request};
use super::support::{App, RawApp, app, ok, proxy, proxy_to, read_until};

/// A server that counts, and one path of which tells whether it is healthy.
async fn server(name: &'static str, served: &Arc<AtomicUsize>, healthy: &Arc<AtomicBool>) -> App {
    let (served, healthy) = (served.clone(), healthy.clone());
    app(move |request| {
        let is_check = request.uri().path() == "/healthz";
        if !is_check {
            served.fetch_add(1, Ordering::Relaxed);
        }
        let mut response = ok(name);
        if is_check && !healthy.load(Ordering::Relaxed) {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        async move { response }
    })
    .await
}

fn healthy() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

#[tokio::test]
async fn servers_take_turns_and_a_busy_one_gets_less() {
    let (a, b) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (first, second) = (server("a", &a, &healthy()).await, server("b", &b, &healthy()).await);
    let proxy = proxy(&Table::usual(), &[first.addr, second.addr], "").await;
    for _ in 0..10 {
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 200);
    }
    assert_eq!((a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)), (5, 5));

    // One holds a request, so all further ones go to the other.
    let go_on = CancellationToken::new();
    let waits = go_on.clone();
    let busy = app(move |_| {
        let waits = waits.clone();
        async move {
            waits.cancelled().await;
            ok("busy")
        }
    })
    .await;
    let both = super::support::proxy(&Table::usual(), &[busy.addr, second.addr], "").await;
    let mut held = TcpStream::connect(both.addr()).await.expect("a connection");
    held.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    let arrives = || busy.connections.load(Ordering::Relaxed) == 1;
    eventually("it arrives", Duration::from_secs(10), arrives).await;
    for _ in 0..6 {
        assert_eq!(request(both.addr(), "GET", "/", &[], b"").await.body, "b");
    }
    go_on.cancel();
    read_until(&mut held, "busy").await;
}

#[tokio::test]
async fn a_server_that_fails_in_a_row_is_left_out() {
    let served = Arc::<AtomicUsize>::default();
    let good = server("good", &served, &healthy()).await;
    // It accepts and answers nothing valid.
    let bad = RawApp::start(&[]).await;
    let more = "eject_after = 3\n";
    let proxy = proxy(&Table::usual(), &[bad.addr, good.addr], more).await;
    let mut failed = 0;
    for _ in 0..20 {
        let status = request(proxy.addr(), "GET", "/", &[], b"").await.status;
        failed += usize::from(status == 502);
    }
    assert_eq!((failed, proxy.upstreams.ejections.get()), (3, 1));
    assert_eq!(served.load(Ordering::Relaxed), 17);
}

/// Two servers that restart one after the other: the first is up again before its ten seconds are
/// over.
#[tokio::test]
async fn a_server_that_is_left_out_is_tried_when_no_other_can_be_reached() {
    let answers = AtomicUsize::new(0);
    let restarted = RawApp::with(move |_| match answers.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => String::new(),
        _ => "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nback".to_owned(),
    })
    .await;
    let other = RawApp::with(|_| {
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nother".to_owned()
    })
    .await;
    let servers = [restarted.addr, other.addr];
    let proxy = proxy(&Table::usual(), &servers, "eject_after = 2\n").await;
    let mut bodies = Vec::new();
    for _ in 0..8 {
        let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
        bodies.extend((reply.status == 200).then_some(reply.body));
    }
    assert_eq!((bodies, proxy.upstreams.ejections.get()), (vec!["other".to_owned(); 6], 1));
    let addr = other.addr;
    drop(other);
    until("nothing listens there", Duration::from_secs(10), async || {
        TcpStream::connect(addr).await.map_or(Ok(()), |_| Err("it listens".to_owned()))
    })
    .await;
    for _ in 0..2 {
        let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "back"));
    }
}

/// A header chooses what is spoken to a server, so it must not say whether that is used.
#[tokio::test]
async fn a_client_of_grpc_takes_no_server_without_http2_from_others() {
    let both = app(|request| async move { ok(format!("{:?}", request.version())) }).await;
    let old = RawApp::with(|head: &str| {
        let (status, body) =
            if head.starts_with("PRI ") { ("400 Bad Request", "no") } else { ("200 OK", "old") };
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    });
    let old = old.await;
    let proxy = proxy(&Table::usual(), &[old.addr, both.addr], "eject_after = 2\n").await;
    let grpc = [("content-type", "application/grpc")];
    let mut replies = Vec::new();
    for _ in 0..12 {
        replies.push(request(proxy.addr(), "POST", "/a.B/C", &grpc, b"").await);
    }
    let failed = replies.iter().filter(|reply| reply.header("grpc-status") == Some("14")).count();
    let passed = replies.iter().filter(|reply| reply.body == "HTTP/2.0").count();
    assert_eq!((failed, passed, proxy.upstreams.ejections.get()), (2, 10, 1));
    let mut bodies = Vec::new();
    for _ in 0..4 {
        bodies.push(request(proxy.addr(), "GET", "/", &[], b"").await.body);
    }
    bodies.sort();
    assert_eq!(bodies, ["HTTP/1.1", "HTTP/1.1", "old", "old"]);
}

#[tokio::test]
async fn the_last_server_is_never_left_out() {
    let bad = RawApp::start(&[]).await;
    let proxy = proxy(&Table::usual(), &[bad.addr], "eject_after = 1\n").await;
    for _ in 0..3 {
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 502);
    }
    assert_eq!((proxy.upstreams.broken.get(), proxy.upstreams.ejections.get()), (3, 0));
}

#[tokio::test]
async fn a_server_whose_check_fails_is_left_out_until_one_succeeds() {
    let (a, b) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let is_healthy = healthy();
    let (first, second) = (server("a", &a, &is_healthy).await, server("b", &b, &healthy()).await);
    let more = "health_path = \"/healthz\"\nhealth_interval = \"20ms\"\n";
    let proxy = proxy(&Table::usual(), &[first.addr, second.addr], more).await;
    is_healthy.store(false, Ordering::Relaxed);
    let out = || proxy.upstreams.ejections.get() == 1;
    eventually("it is left out", Duration::from_secs(10), out).await;
    for _ in 0..6 {
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.body, "b");
    }
    is_healthy.store(true, Ordering::Relaxed);
    until("it is used again", Duration::from_secs(10), async || {
        match request(proxy.addr(), "GET", "/", &[], b"").await.body.as_str() {
            "a" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
}

/// A server under TLS whose response names the version of HTTP, and its certificate.
async fn tls_server() -> (SocketAddr, String, AbortOnDropHandle<()>) {
    let made = generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.expect("a key"))
        .expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let running = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let acceptor = acceptor.clone();
            tasks.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let respond = service_fn(|request: Request<Incoming>| async move {
                    let body = Full::new(Bytes::from(format!("{:?}", request.version())));
                    Ok::<_, Infallible>(Response::new(body))
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), respond).await;
            });
        }
    });
    (addr, made.cert.pem(), AbortOnDropHandle::new(running))
}

#[tokio::test]
async fn a_server_under_tls_must_show_a_certificate_that_is_trusted() {
    let (addr, pem, _running) = tls_server().await;
    let (_, other, _other_running) = tls_server().await;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("servers.pem");
    std::fs::write(&file, &other).expect("written");
    let more = format!("upstream_ca = \"{}\"\n", file.display());
    let servers = [format!("https://{addr}")];
    let proxy = proxy_to(&Table::usual(), &servers, &more).await;
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 502);
    // A changed file is read without a restart.
    std::fs::write(&file, &pem).expect("written");
    let (body, _) = until("it is trusted", Duration::from_secs(10), async || {
        let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
        if reply.status == 200 { Ok(reply.body) } else { Err(reply.body) }
    })
    .await;
    assert_eq!(body, "HTTP/1.1");
    let grpc = [("content-type", "application/grpc")];
    assert_eq!(request(proxy.addr(), "POST", "/", &grpc, b"").await.body, "HTTP/2.0");
}
