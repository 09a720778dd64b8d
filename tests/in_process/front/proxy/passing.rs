//! Requests that pass, and their responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tidegate_testkit::wait::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::super::support::{Table, in_time, parse, request, send};
use super::support::{OK, RawApp, app, channel, domain, http2, ok, proxy, read_until};

#[tokio::test]
async fn a_request_passes_with_the_headers_of_one_hop_and_its_path_byte_for_byte() {
    let app = RawApp::start(&["HTTP/1.1 201 Made\r\ncontent-length: 2\r\nx-own: 1\r\n\
        connection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\nratelimit: \"own\"\r\n\r\nok"])
    .await;
    let proxy = proxy(&Table::usual(), &[app.addr], &domain("open")).await;
    let target = "/a%2fb//c/../%7Ed;x?q=%41+b&c";
    let headers = [
        ("x-forwarded-for", "1.1.1.1"),
        ("keep-alive", "timeout=9"),
        ("te", "trailers"),
        ("accept", "*/*"),
    ];
    let reply = request(proxy.addr(), "PUT", target, &headers, b"hello").await;
    assert_eq!((reply.status, reply.body.as_str()), (201, "ok"));
    assert_eq!(reply.header("x-own"), Some("1"));
    assert_eq!(reply.header("x-hop"), None);
    assert_eq!(reply.header("keep-alive"), None);
    assert_eq!(reply.header("via"), Some("1.1 tidegate"));
    assert_eq!(reply.header("ratelimit"), Some("\"login\";r=7;t=12"));
    let received = app.text();
    let (head, body) = received.split_once("\r\n\r\n").expect("a head");
    let mut lines: Vec<&str> = head.lines().collect();
    lines[1..].sort_unstable();
    assert_eq!(
        lines,
        [
            &format!("PUT {target} HTTP/1.1"),
            "accept: */*",
            "content-length: 5",
            "host: test",
            "te: trailers",
            "via: 1.1 tidegate",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: test",
            "x-forwarded-proto: http",
        ]
    );
    assert_eq!(body, "hello");
}

#[tokio::test]
async fn a_response_with_two_lengths_is_passed_on_with_one() {
    for length in ["5", "50", "0", "many"] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n");
        let chunks = "transfer-encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n";
        let answer = format!("{head}{chunks}");
        let app = RawApp::start(&[&answer, &answer]).await;
        let proxy = proxy(&Table::usual(), &[app.addr], "").await;
        let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
        let framing = (reply.header("content-length"), reply.header("transfer-encoding"));
        assert_eq!(framing, (None, Some("chunked")), "{length}");
        assert_eq!(reply.body, "A\r\n0123456789\r\n0\r\n\r\n", "{length}");
        let mut client = http2::<Full<Bytes>>(proxy.addr()).await;
        let get = Request::get("http://shop/").body(Full::default()).expect("a request");
        let response = client.send_request(get).await.expect("a response");
        assert_eq!(response.headers().get("content-length"), None);
        let body = response.into_body().collect().await.expect("the whole");
        assert_eq!(body.to_bytes(), "0123456789", "{length}");
    }
    // Without a body there is nothing by which the right one could be found.
    for status in ["200 OK", "204 No Content", "304 Not Modified"] {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n");
        let [six, five] = [6, 5].map(|length| format!("{head}content-length: {length}\r\n\r\n"));
        let app = RawApp::start(&[&six, &five]).await;
        let proxy = proxy(&Table::usual(), &[app.addr], "").await;
        assert_eq!(request(proxy.addr(), "HEAD", "/", &[], b"").await.status, 502, "{status}");
        let reply = request(proxy.addr(), "HEAD", "/", &[], b"").await;
        assert_eq!(reply.status.to_string(), status[..3]);
    }
}

#[tokio::test]
async fn cookies_of_an_http2_client_reach_the_application_in_one_line() {
    let app = RawApp::start(&[OK]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let mut client = http2::<Full<Bytes>>(proxy.addr()).await;
    let get = Request::get("http://shop/").header("cookie", "a=1").header("cookie", "b=2");
    let get = get.body(Full::default()).expect("a request");
    assert_eq!(client.send_request(get).await.expect("a response").status(), 200);
    let text = app.text();
    assert!(text.contains("\r\ncookie: a=1; b=2\r\n"), "{text}");
    assert_eq!(text.matches("cookie:").count(), 1);
}

#[tokio::test]
async fn a_body_without_a_length_passes_whatever_the_method() {
    let app = app(|request| async { ok(request.into_body().collect().await.unwrap().to_bytes()) });
    let app = app.await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    for method in ["GET", "DELETE", "POST"] {
        let chunked = "host: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
                       3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let bytes =
            send(proxy.addr(), format!("{method} / HTTP/1.1\r\n{chunked}").as_bytes()).await;
        assert_eq!(parse(&bytes).body, "abcde", "{method}");
    }
}

#[tokio::test]
async fn without_a_mapping_a_request_is_limited_by_address_path_and_method() {
    let app = RawApp::start(&[OK]).await;
    let table = Table::usual();
    let proxy = proxy(&table, &[app.addr], "").await;
    let headers = [("x-forwarded-for", "1.1.1.1")];
    assert_eq!(request(proxy.addr(), "POST", "/a/../b?c", &headers, b"").await.status, 200);
    let checks = table.checks();
    let shown: Vec<String> = checks[0]
        .descriptors
        .iter()
        .map(|entries| {
            let entries = entries.iter().map(|(key, value)| format!("{key}={value}"));
            entries.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!((checks.len(), checks[0].domain.as_str(), checks[0].hits), (1, "http", 1));
    assert_eq!(
        shown,
        ["remote_address=127.0.0.1", "path=/b", "method=POST remote_address=127.0.0.1"]
    );
}

#[tokio::test]
async fn only_a_proxy_in_front_names_client_and_cost() {
    for (hops, client, hits) in [(0, "127.0.0.1", 1), (1, "203.0.113.7", 5)] {
        let app = RawApp::start(&[OK]).await;
        let table = Table::usual();
        let auth = format!("[auth]\ntrusted_hops = {hops}\nhits = {{ header = \"x-hits\" }}\n");
        let proxy = proxy(&table, &[app.addr], &auth).await;
        let headers = [("x-forwarded-for", "203.0.113.7"), ("x-hits", "5")];
        assert_eq!(request(proxy.addr(), "GET", "/", &headers, b"").await.status, 200);
        let check = &table.checks()[0];
        assert_eq!((check.descriptors[0][0].1.as_str(), check.hits), (client, hits));
    }
}

#[tokio::test]
async fn the_target_of_a_request_for_the_whole_server_stays_an_asterisk() {
    let app = RawApp::start(&[OK]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    assert_eq!(request(proxy.addr(), "OPTIONS", "*", &[], b"").await.status, 200);
    assert!(app.text().starts_with("OPTIONS * HTTP/1.1\r\n"), "{}", app.text());
}

#[tokio::test]
async fn bodies_pass_while_they_arrive() {
    let echo = app(|request| async {
        Response::new(request.into_body().map_err(Into::into).boxed_unsync())
    });
    let echo = echo.await;
    let proxy = proxy(&Table::usual(), &[echo.addr], "").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    let head = "POST / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("sent");
    for part in ["one", "two", "six"] {
        stream.write_all(format!("3\r\n{part}\r\n").as_bytes()).await.expect("sent");
        read_until(&mut stream, &format!("3\r\n{part}\r\n")).await;
    }
    stream.write_all(b"0\r\n\r\n").await.expect("sent");
    read_until(&mut stream, "0\r\n\r\n").await;
    // The connection goes on.
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(b"0\r\n\r\n").await.expect("sent");
    read_until(&mut stream, "0\r\n\r\n").await;
}

/// Far more than sockets and windows hold, and far less than what is sent.
const HELD_MAX: usize = 32 << 20;

/// What a client uploads where the application does not take it.
const ALL: usize = 64 << 20;

/// Waits until `count` stands still.
async fn settled(count: &AtomicUsize) -> usize {
    loop {
        let before = count.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
        if before > 0 && count.load(Ordering::Relaxed) == before {
            return before;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_cannot_send_more_than_the_client_takes() {
    let sent = Arc::<AtomicUsize>::default();
    let count = sent.clone();
    let app = app(move |_| {
        let (sender, body) = channel();
        let count = count.clone();
        tokio::spawn(async move {
            let part = Bytes::from(vec![7; 64 << 10]);
            while sender.send(Frame::data(part.clone())).await.is_ok() {
                count.fetch_add(part.len(), Ordering::Relaxed);
            }
        });
        async { Response::new(body.boxed_unsync()) }
    })
    .await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    let held = in_time("the application waits", settled(&sent)).await;
    assert!(held < HELD_MAX, "{held} bytes");
    // Once the client reads, the application goes on.
    let mut rest = vec![0; held + (1 << 20)];
    in_time("more arrives", stream.read_exact(&mut rest)).await.expect("bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_cannot_send_more_than_the_application_takes() {
    let go_on = Arc::<Notify>::default();
    let waits = go_on.clone();
    let app = app(move |request| {
        let waits = waits.clone();
        async move {
            waits.notified().await;
            let mut body = request.into_body();
            let mut taken = 0;
            while let Some(frame) = body.frame().await {
                taken += frame.expect("a part").into_data().map_or(0, |data| data.len());
            }
            ok(taken.to_string())
        }
    })
    .await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    let (mut reader, mut writer) = stream.into_split();
    let sent = Arc::<AtomicUsize>::default();
    let count = sent.clone();
    let writing = tokio::spawn(async move {
        let head = format!(
            "POST / HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {ALL}\r\n\r\n"
        );
        writer.write_all(head.as_bytes()).await.expect("sent");
        let part = vec![7; 64 << 10];
        while count.load(Ordering::Relaxed) < ALL {
            writer.write_all(&part).await.expect("sent");
            count.fetch_add(part.len(), Ordering::Relaxed);
        }
        writer
    });
    let held = in_time("the client waits", settled(&sent)).await;
    assert!(held < HELD_MAX, "{held} bytes");
    go_on.notify_one();
    let mut reply = Vec::new();
    in_time("the response", reader.read_to_end(&mut reply)).await.expect("a response");
    assert_eq!(parse(&reply).body, ALL.to_string());
    writing.await.expect("all was sent");
}

const TRAILERS: HeaderValue = HeaderValue::from_static("grpc-status, x-end, ratelimit");

#[tokio::test]
async fn trailers_pass_over_http2_and_http1() {
    let grpc = app(|request| async {
        let version = request.version();
        let whole = request.into_body().collect().await.expect("a body");
        let trailer = whole.trailers().and_then(|it| it.get("x-end")).cloned();
        let trailer = trailer.unwrap_or(HeaderValue::from_static("none"));
        let claims = whole.trailers().is_some_and(|it| it.contains_key("x-real-ip"));
        assert!(!claims, "a client says in trailers who it is");
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("x-end", trailer);
        trailers.insert("ratelimit", HeaderValue::from_static("\"own\";r=1;t=1"));
        // Without a length, so that HTTP/1.1 has chunks to put trailers behind.
        let parts = [Frame::data(whole.to_bytes()), Frame::trailers(trailers)];
        let body = StreamBody::new(futures_util::stream::iter(parts.map(Ok))).boxed_unsync();
        let mut response = Response::new(body);
        let version = HeaderValue::try_from(format!("{version:?}")).expect("text");
        response.headers_mut().insert("x-version", version);
        response.headers_mut().insert("trailer", TRAILERS);
        response
    })
    .await;
    let proxy = proxy(&Table::usual(), &[grpc.addr], "").await;

    // gRPC reaches the application over HTTP/2.
    let (sender, body) = channel();
    let mut client = http2(proxy.addr()).await;
    let request = Request::post(format!("http://{}/s/m", proxy.addr()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .expect("a request");
    let responding = tokio::spawn(async move { client.send_request(request).await });
    let mut trailers = HeaderMap::new();
    trailers.insert("x-end", HeaderValue::from_static("1"));
    trailers.insert("x-real-ip", HeaderValue::from_static("1.1.1.1"));
    sender.send(Frame::data(Bytes::from("abc"))).await.expect("taken");
    sender.send(Frame::trailers(trailers)).await.expect("taken");
    drop(sender);
    let response = in_time("a response", responding).await.expect("a task").expect("a response");
    assert_eq!(
        (response.version(), &response.headers()["x-version"]),
        (Version::HTTP_2, &HeaderValue::from_static("HTTP/2.0"))
    );
    let whole = response.into_body().collect().await.expect("a body");
    let trailers = whole.trailers().expect("trailers");
    assert!(!trailers.contains_key("ratelimit"), "{trailers:?}");
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-end"]),
        (&HeaderValue::from_static("0"), &HeaderValue::from_static("1"))
    );
    assert_eq!(whole.to_bytes(), "abc");

    // Everything else over HTTP/1.1.
    let bytes = "POST / HTTP/1.1\r\nhost: t\r\nte: trailers\r\ntrailer: x-end, x-real-ip\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-end: 2\r\nx-real-ip: 1\r\n\r\n";
    let reply = parse(&send(proxy.addr(), bytes.as_bytes()).await);
    assert_eq!(reply.header("x-version"), Some("HTTP/1.1"));
    assert!(reply.body.starts_with("3\r\nabc\r\n0\r\n"), "{reply:?}");
    assert!(reply.body.contains("grpc-status: 0\r\n"), "{reply:?}");
    assert!(reply.body.contains("x-end: 2\r\n"), "{reply:?}");
    assert!(!reply.body.contains("ratelimit"), "{reply:?}");
}

#[tokio::test]
async fn either_version_reaches_an_application_of_either_version() {
    let app = app(|request| async move {
        let authority = request.uri().authority().map(ToString::to_string);
        let host = request.headers().get("host").map(|it| it.to_str().unwrap().to_owned());
        let forwarded = request.headers()["x-forwarded-host"].to_str().unwrap().to_owned();
        ok(format!("{:?} {authority:?} {host:?} {forwarded}", request.version()))
    })
    .await;
    for (protocol, shown) in [
        ("http1", "HTTP/1.1 None Some(\"shop\") shop".to_owned()),
        ("h2c", format!("HTTP/2.0 Some(\"{}\") None shop", app.addr)),
    ] {
        let more = format!("protocol = \"{protocol}\"\n");
        let proxy = proxy(&Table::usual(), &[app.addr], &more).await;
        let mut client = http2::<Full<Bytes>>(proxy.addr()).await;
        let request = Request::get("http://shop/").body(Full::default()).expect("a request");
        let response = client.send_request(request).await.expect("a response");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(String::from_utf8_lossy(&body), shown);
        let bytes = b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";
        assert_eq!(parse(&send(proxy.addr(), bytes).await).body, shown);
    }
}

#[tokio::test]
async fn an_expectation_is_met_once_the_request_is_admitted() {
    let echo = app(|request| async { ok(request.into_body().collect().await.unwrap().to_bytes()) });
    let echo = echo.await;
    let head = "POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    let proxy = proxy(&Table::usual(), &[echo.addr], &domain("open")).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("sent");
    assert_eq!(read_until(&mut stream, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"abc").await.expect("sent");
    read_until(&mut stream, "abc").await;

    let proxy = super::support::proxy(&Table::usual(), &[echo.addr], &domain("limited")).await;
    let reply = send(proxy.addr(), head.as_bytes()).await;
    assert_eq!(parse(&reply).status, 429);
}

#[tokio::test]
async fn connections_are_kept_and_closed_before_the_application_does() {
    let app = app(|_| async { ok("ok") }).await;
    let proxy = proxy(&Table::usual(), &[app.addr], "pool_idle_timeout = \"100ms\"\n").await;
    for _ in 0..5 {
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 200);
    }
    assert_eq!(app.connections.load(Ordering::Relaxed), 1);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 200);
    assert_eq!(app.connections.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_drain_waits_for_requests_in_flight() {
    let go_on = CancellationToken::new();
    let waits = go_on.clone();
    let arrived = Arc::<AtomicUsize>::default();
    let count = arrived.clone();
    let app = app(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let waits = waits.clone();
        async move {
            waits.cancelled().await;
            ok("done")
        }
    })
    .await;
    let mut proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let addr = proxy.addr();
    let mut stream = TcpStream::connect(addr).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    let arrives =
        eventually("it arrives", Duration::from_secs(10), || arrived.load(Ordering::Relaxed) == 1);
    arrives.await;
    proxy.listener.drain.cancel();
    go_on.cancel();
    let reply = read_until(&mut stream, "done").await;
    assert!(reply.contains("connection: close\r\n"), "{reply}");
    drop(stream);
    in_time("it ends", &mut proxy.listener.served).await.expect("a task");
    assert_eq!(proxy.listener.stats.dropped.get(), 0);
}
