//! Uploads that go on when their response has ended.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Frame;
use tidegate_testkit::wait::until;
use tokio::sync::mpsc;

use super::super::support::{Table, in_time, request};
use super::support::{OK, Proxy, RawApp, channel, http2, proxy};

/// An application that refuses the first upload once it has seen its head, and still reads it.
async fn refusing() -> RawApp {
    RawApp::start(&["HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\nno", OK]).await
}

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
async fn an_upload_that_outlives_its_response_is_cut_off_after_a_time() {
    let app = refusing().await;
    let more = "in_flight_max = 1\nresponse_timeout = \"300ms\"\n";
    let proxy = proxy(&Table::usual(), &[app.addr], more).await;
    let upload = half_sent(&proxy).await;
    in_time("it is cut off", upload.closed()).await;
    passes_again(&proxy).await;
}
