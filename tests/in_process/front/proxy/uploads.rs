//! Uploads that go on when their response has ended.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Frame;
use tidegate_testkit::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::super::support::{Table, in_time, request};
use super::support::{
    END_HEADERS, END_STREAM, HEADERS, OK, PREFACE, Proxy, RawApp, SETTINGS, channel, frame, http2,
    proxy, read_until, until_frame,
};

/// An application that refuses the first upload once it has seen its head, and still reads it.
async fn refusing() -> RawApp {
    RawApp::start(&[REFUSED, OK]).await
}

const REFUSED: &str = "HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\nno";

/// Sends half of an upload of six bytes and reads its response; the other half is open.
async fn half_sent(proxy: &Proxy) -> mpsc::Sender<Frame<Bytes>> {
    let (sender, body) = channel();
    let mut client = http2(proxy.addr()).await;
    let post = Request::post("http://shop/").header("content-length", "6");
    let post = post.body(body).expect("a request");
    let responding = tokio::spawn(async move { client.send_request(post).await });
    sender.send(Frame::data(Bytes::from_static(b"abc"))).await.expect("taken");
    let response = in_time("a response", responding).await.expect("a task").expect("a response");
    assert_eq!(response.status(), 401);
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "no");
    sender
}

async fn passes_again(proxy: &Proxy) {
    until("there is a place", Duration::from_secs(20), async || {
        match request(proxy.addr(), "GET", "/", &[], b"").await.status {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_outlives_its_response_counts_as_a_request() {
    let app = refusing().await;
    let proxy = proxy(&Table::usual(), &[app.addr], "in_flight_max = 1\n").await;
    let upload = half_sent(&proxy).await;
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 503);
    // It may go on.
    upload.send(Frame::data(Bytes::from_static(b"def"))).await.expect("taken");
    drop(upload);
    passes_again(&proxy).await;
    assert!(app.text().contains("abcdef"), "{}", app.text());
}

#[tokio::test]
async fn an_upload_that_outlives_its_response_counts_at_its_server() {
    let refusing = || {
        RawApp::with(|head| {
            let is_upload = head.starts_with("POST ");
            String::from(if is_upload { REFUSED } else { OK })
        })
    };
    let (first, second) = (refusing().await, refusing().await);
    let proxy = proxy(&Table::usual(), &[first.addr, second.addr], "").await;
    let upload = half_sent(&proxy).await;
    let sent = || [&first, &second].map(|app| app.text().matches("GET ").count());
    for _ in 0..6 {
        request(proxy.addr(), "GET", "/", &[], b"").await;
    }
    let at_busy = if first.text().contains("POST") { sent()[0] } else { sent()[1] };
    assert_eq!((at_busy, sent().iter().sum::<usize>()), (0, 6));
    drop(upload);
}

#[tokio::test]
async fn an_upload_that_outlives_its_response_has_the_place_of_its_server() {
    let app = refusing().await;
    let more = "adaptive_concurrency_max = 1\nadaptive_concurrency_min = 1\n";
    let proxy = proxy(&Table::usual(), &[app.addr], more).await;
    let upload = half_sent(&proxy).await;
    assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 503);
    assert_eq!(proxy.upstreams.overloaded.get(), 1);
    upload.send(Frame::data(Bytes::from_static(b"def"))).await.expect("taken");
    drop(upload);
    passes_again(&proxy).await;
}

/// A server that answers at the head of a request, and reads nothing more from its connection.
async fn deaf(is_http2: bool) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let running = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            if is_http2 {
                stream.read_exact(&mut [0; PREFACE.len()]).await.expect("a preface");
                stream.write_all(SETTINGS).await.expect("sent");
                until_frame(&mut stream, HEADERS).await.expect("a request");
                // `:status: 200`, and the end of the stream.
                stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, &[0x88])).await
            } else {
                read_until(&mut stream, "\r\n\r\n").await;
                stream.write_all(OK.as_bytes()).await
            }
            .expect("sent");
            open.push(stream);
        }
    });
    (addr, AbortOnDropHandle::new(running))
}

/// Begins an upload without an end, and waits for its response. Completes when it is cut off.
async fn endless(proxy: &Proxy) -> impl Future<Output = ()> + use<> {
    let (sender, body) = channel();
    let mut client = http2(proxy.addr()).await;
    let post = Request::post("http://shop/").body(body).expect("a request");
    let responding = tokio::spawn(async move {
        let response = client.send_request(post).await.expect("a response");
        (response.status(), response.into_body().collect().await, client)
    });
    let part = Bytes::from(vec![b'x'; 64 * 1024]);
    let sending = async move { while sender.send(Frame::data(part.clone())).await.is_ok() {} };
    let sending = AbortOnDropHandle::new(tokio::spawn(sending));
    let (status, body, client) = in_time("a response", responding).await.expect("a task");
    assert_eq!((status.as_u16(), body.is_ok()), (200, true));
    async move {
        sending.await.expect("a task");
        drop(client);
    }
}

#[tokio::test]
async fn a_server_that_reads_no_more_of_an_upload_holds_no_place() {
    // Over HTTP/2 the next request is on the connection that is not read.
    for (is_http2, protocol, next) in [(false, "http1", 200), (true, "h2c", 504)] {
        let (addr, _running) = deaf(is_http2).await;
        let more =
            format!("in_flight_max = 1\nresponse_timeout = \"2s\"\nprotocol = \"{protocol}\"\n");
        let proxy = proxy(&Table::usual(), &[addr], &more).await;
        let cut = endless(&proxy).await;
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, 503);
        in_time("it is cut off", cut).await;
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").await.status, next);
    }
}

#[tokio::test]
async fn an_upload_that_outlives_its_response_is_cut_off_after_a_time() {
    let app = refusing().await;
    let more = "in_flight_max = 1\nresponse_timeout = \"300ms\"\n";
    let proxy = proxy(&Table::usual(), &[app.addr], more).await;
    let upload = half_sent(&proxy).await;
    in_time("it is cut off", upload.closed()).await;
    passes_again(&proxy).await;
}
