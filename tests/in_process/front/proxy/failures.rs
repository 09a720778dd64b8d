//! Applications that cannot be reached, say nothing valid, or say it too late.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::Incoming;
use tidegate_testkit::wait::{until, whole_lines};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::super::support::{Table, in_time, open_stream, parse, request, send};
use super::support::{
    DATA, END_STREAM, HEADERS, OK, PREFACE, RST_STREAM, RawApp, SETTINGS, app, byte_server,
    channel, frame, http2, ok, proxy, read_until, until_frame,
};

/// An address at which no process listens.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("an address")
}

/// A listener whose queue of connections is full, and what fills it.
async fn full() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let listener = socket.listen(1).expect("it listens");
    let addr = listener.local_addr().expect("an address");
    let mut waiting = Vec::new();
    let short = Duration::from_millis(200);
    while let Ok(Ok(stream)) = tokio::time::timeout(short, TcpStream::connect(addr)).await {
        waiting.push(stream);
    }
    (listener, waiting)
}

#[tokio::test]
async fn failures_of_the_application_are_told_apart() {
    let (full, _waiting) = full().await;
    let full = full.local_addr().expect("an address");
    let garbage = RawApp::start(&["SSH-2.0-x\r\n\r\n"]).await;
    let silent = app(|_| async { std::future::pending().await }).await;
    let closing = RawApp::start(&[""]).await;
    let switching =
        RawApp::start(&["HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"]);
    let switching = switching.await;
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: ";
    let broken_chunk = RawApp::start(&[&format!("{head}chunked\r\n\r\nzz\r\n")]).await;
    let gzip = RawApp::start(&[&format!("{head}gzip\r\n\r\nx"), ""]).await;
    let chunks = format!("{head}gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
    let gzip_chunks = RawApp::start(&[&chunks]).await;
    for (name, addr, code, part) in [
        ("nobody", nobody().await, 502, "cannot be reached"),
        ("full", full, 504, "did not accept"),
        ("garbage", garbage.addr, 502, "no HTTP"),
        ("closing", closing.addr, 502, "closed the connection"),
        ("silent", silent.addr, 504, "not responded"),
        ("switching", switching.addr, 502, "no HTTP"),
        ("broken chunk", broken_chunk.addr, 502, "no HTTP"),
        ("gzip alone", gzip.addr, 502, "no HTTP"),
        ("gzip in chunks", gzip_chunks.addr, 502, "no HTTP"),
    ] {
        let more = "connect_timeout = \"200ms\"\nresponse_timeout = \"200ms\"\n";
        let proxy = proxy(&Table::usual(), &[addr], more).await;
        let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
        assert_eq!(reply.status, code, "{name}");
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        assert!(reply.body.contains(part), "{name}: {}", reply.body);
        let upstreams = &proxy.upstreams;
        let failed = upstreams.unreachable.get() + upstreams.broken.get() + upstreams.slow.get();
        assert_eq!(failed, 1, "{name}");
    }
}

/// What clients and logs see of a response that ends before its end.
#[tokio::test]
async fn a_response_that_breaks_off_is_a_failure() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello";
    let app = RawApp::start(&[head]).await;
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("access.log");
    let more = format!("access_log = \"{}\"\n", path.display());
    let proxy = proxy(&Table::usual(), &[app.addr], &more).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    read_until(&mut stream, "hello").await;
    drop(app);
    let mut rest = Vec::new();
    in_time("it is cut off", stream.read_to_end(&mut rest)).await.expect("an end");
    let line = until("a line", Duration::from_secs(10), async || {
        whole_lines(&path).pop().ok_or_else(|| "none".to_owned())
    });
    let (line, _) = line.await;
    assert!(line.contains("\"status\":200") && line.contains("\"failure\":\"broken\""), "{line}");
    assert_eq!(proxy.upstreams.broken.get(), 1);
}

#[tokio::test]
async fn grpc_clients_get_a_status_of_grpc() {
    let proxy = proxy(&Table::usual(), &[nobody().await], "").await;
    let mut client = http2(proxy.addr()).await;
    let request = Request::post("http://shop/s/m")
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::from("\0\0\0\0\0")))
        .expect("a request");
    let response = client.send_request(request).await.expect("a response");
    assert_eq!(
        (response.status().as_u16(), &response.headers()["grpc-status"]),
        (200, &"14".parse().unwrap())
    );
}

#[tokio::test]
async fn what_may_have_been_sent_is_not_sent_again() {
    // It reads a request and closes. A GET on a new connection, and a POST on a kept one.
    let app = RawApp::start(&[OK, "", OK]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    assert_eq!(request(proxy.addr(), "GET", "/first", &[], b"").await.status, 200);
    assert_eq!(request(proxy.addr(), "POST", "/lost", &[], b"x").await.status, 502);
    assert_eq!(app.text().matches("POST /lost").count(), 1);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_replaced_by_another() {
    let app = app(|request| async { ok(request.into_body().collect().await.unwrap().to_bytes()) });
    let app = app.await;
    let proxy = proxy(&Table::usual(), &[nobody().await, app.addr, nobody().await], "").await;
    for n in 0..6 {
        let body = format!("body {n}");
        let reply = request(proxy.addr(), "POST", "/", &[], body.as_bytes()).await;
        assert_eq!((reply.status, reply.body), (200, body));
    }
    assert_eq!(proxy.upstreams.unreachable.get(), 0);
}

#[tokio::test]
async fn requests_beyond_the_bound_are_answered_at_once() {
    let go_on = CancellationToken::new();
    let waits = go_on.clone();
    let arrived = Arc::<Notify>::default();
    let arrives = arrived.clone();
    let app = app(move |_| {
        let (waits, arrives) = (waits.clone(), arrives.clone());
        async move {
            arrives.notify_one();
            waits.cancelled().await;
            ok("done")
        }
    })
    .await;
    let proxy = proxy(&Table::usual(), &[app.addr], "in_flight_max = 1\n").await;
    let mut first = TcpStream::connect(proxy.addr()).await.expect("a connection");
    first.write_all(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("sent");
    in_time("it arrives", arrived.notified()).await;
    let reply = request(proxy.addr(), "GET", "/", &[], b"").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert_eq!(proxy.upstreams.full.get(), 1);
    // The place is free once the response has ended.
    go_on.cancel();
    read_until(&mut first, "done").await;
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 200);
}

#[tokio::test]
async fn a_client_that_stops_sending_is_told_so() {
    let app = app(|request| async { ok(request.into_body().collect().await.unwrap().to_bytes()) });
    let app = app.await;
    let proxy = proxy(&Table::usual(), &[app.addr], "response_timeout = \"200ms\"\n").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    let head = "POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 10\r\n\r\nabc";
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut reply = Vec::new();
    let _ = in_time("it is closed", stream.read_to_end(&mut reply)).await;
    assert_eq!(parse(&reply).status, 408);
    assert_eq!(proxy.upstreams.client.get(), 1);
}

#[tokio::test]
async fn a_long_upload_does_not_run_into_the_time_for_a_response() {
    let app = app(|request| async { ok(request.into_body().collect().await.unwrap().to_bytes()) });
    let app = app.await;
    let proxy = proxy(&Table::usual(), &[app.addr], "response_timeout = \"400ms\"\n").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    let head = "POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 8\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("sent");
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(b"x").await.expect("sent");
    }
    read_until(&mut stream, "xxxxxxxx").await;
}

#[tokio::test]
async fn a_response_that_stops_is_cut_and_not_ended() {
    // A length is promised, and the whole never comes: the client must notice.
    let app = RawApp::start(&["HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"]).await;
    let proxy = proxy(&Table::usual(), &[app.addr], "idle_timeout = \"200ms\"\n").await;
    let mut client = http2(proxy.addr()).await;
    let request = Request::get("http://shop/").body(Full::<Bytes>::default()).expect("a request");
    let response = client.send_request(request).await.expect("a response");
    assert_eq!(response.status().as_u16(), 200);
    in_time("it is cut", response.into_body().collect()).await.expect_err("not the whole");
}

#[tokio::test]
async fn a_client_with_a_broken_body_ejects_no_server() {
    let respond = |request: Request<Incoming>| async {
        let body = request.into_body().collect().await;
        ok(body.map_or(Bytes::from_static(b"broken"), Collected::to_bytes))
    };
    for protocol in ["http1", "h2c"] {
        let (first, second) = (app(respond).await, app(respond).await);
        let more = format!("protocol = \"{protocol}\"\neject_after = 1\n");
        let proxy = proxy(&Table::usual(), &[first.addr, second.addr], &more).await;
        for _ in 0..4 {
            let bytes = b"POST / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n\
                          5\r\nhello\r\nZZ\r\n\r\n";
            assert_eq!(parse(&send(proxy.addr(), bytes).await).status, 400, "{protocol}");
        }
        let upstreams = &proxy.upstreams;
        let counted = (upstreams.client.get(), upstreams.broken.get(), upstreams.ejections.get());
        assert_eq!(counted, (4, 0, 0), "{protocol}");
    }
}

/// A reset without an error says that the rest is not needed, and a response has no such rest.
#[tokio::test]
async fn a_stream_that_is_reset_before_its_end_is_no_whole_response() {
    let begun = [frame(HEADERS, 4, &[0x88]), frame(DATA, 0, b"part")].concat();
    let whole = [frame(HEADERS, 4, &[0x88]), frame(DATA, END_STREAM, b"part")].concat();
    for (code, answer, is_whole) in
        [(0_u8, &begun, false), (8, &begun, false), (2, &begun, false), (0, &whole, true)]
    {
        let name = format!("{code} {is_whole}");
        let broken = u64::from(!is_whole);
        let answer = [&answer[..], &frame(RST_STREAM, 0, &[0, 0, 0, code])].concat();
        let (addr, _running) = byte_server(true, answer.clone(), true).await;
        let over_http2 = proxy(&Table::usual(), &[addr], "protocol = \"h2c\"\n").await;
        // It does not vanish either: the head reaches the client, and what has come.
        let mut client = http2(over_http2.addr()).await;
        let get = Request::get("http://shop/").body(Full::<Bytes>::default()).expect("a request");
        let response = client.send_request(get).await.expect("a response");
        assert_eq!(response.status(), 200, "{name}");
        let body = in_time("its end", response.into_body().collect()).await;
        assert_eq!(body.is_ok(), is_whole, "{name}");
        assert_eq!(over_http2.upstreams.broken.get(), broken, "{name}");

        // The server answers the first request of a connection alone.
        let (addr, _running) = byte_server(true, answer, true).await;
        let over_http1 = proxy(&Table::usual(), &[addr], "protocol = \"h2c\"\n").await;
        let get = "GET / HTTP/1.1\r\nhost: t\r\n";
        let get = format!("{get}{}\r\n", if is_whole { "connection: close\r\n" } else { "" });
        let reply = parse(&send(over_http1.addr(), get.as_bytes()).await);
        let ends = reply.body.ends_with("\r\n0\r\n\r\n");
        assert_eq!((reply.status, ends), (200, is_whole), "{name} {reply:?}");
        assert!(reply.body.contains("part"), "{name} {reply:?}");
        assert_eq!(over_http1.upstreams.broken.get(), broken, "{name}");
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_at_once_has_a_head() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nok".to_vec();
    let (addr, _running) = byte_server(false, answer, false).await;
    let proxy = proxy(&Table::usual(), &[addr], "").await;
    for _ in 0..20 {
        let reply = send(proxy.addr(), b"GET / HTTP/1.1\r\nhost: t\r\n\r\n").await;
        let reply = parse(&reply);
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
        let mut client = http2(proxy.addr()).await;
        let get = Request::get("http://shop/").body(Full::<Bytes>::default()).expect("a request");
        let response = client.send_request(get).await.expect("a head");
        in_time("it is cut", response.into_body().collect()).await.expect_err("not the whole");
    }
    assert_eq!(proxy.upstreams.broken.get(), 40);
}

#[tokio::test]
async fn an_upload_whose_stream_is_reset_is_not_whole_for_the_application() {
    let (ends, mut ended) = mpsc::channel(1);
    // It responds before it has read the whole.
    let app = app(move |request| {
        let (ends, (sender, body)) = (ends.clone(), channel());
        tokio::spawn(async move {
            let read = request.into_body().collect().await;
            let _ = ends.send(read.map(Collected::to_bytes).map_err(drop)).await;
            drop(sender);
        });
        async { Response::new(body.boxed_unsync()) }
    })
    .await;
    let proxy = proxy(&Table::usual(), &[app.addr], "").await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    let upload = [PREFACE, SETTINGS, &open_stream(1, "/"), &frame(DATA, 0, b"abc")].concat();
    stream.write_all(&upload).await.expect("sent");
    in_time("a response", until_frame(&mut stream, HEADERS)).await.expect("a head");
    stream.write_all(&frame(RST_STREAM, 0, &[0; 4])).await.expect("sent");
    let read = in_time("an end", ended.recv()).await.expect("an end");
    assert_eq!(read, Err(()), "half of it");
}
