//! Arbitrary bytes that a client sends to the proxy in one connection of HTTP/1. Invariants: no
//! panic; a request that may be read in two ways is found in whatever pieces it arrives; what is
//! passed on has no header of the client's connection, and none that speaks for the proxy; and
//! written anew, in one connection to an application, it is exactly as many requests, each with its
//! method, target and body.
//!
//! The parts are those of the listener: hyper, [`Framing`] beside it, and the headers. What one
//! side does not send, as trailers, is not looked at.

#![no_main]

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tidegate::config::auth::Trust;
use tidegate::front::framing::Framing;
use tidegate::front::proxy::headers::{self, Sender};
use tidegate_fuzz::block_on;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::InspectReader;

const CLIENT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// About one connection, or about the limits: no client can say it to the application.
const ENDED: [&str; 13] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "expect",
    "forwarded",
    "x-real-ip",
    "ratelimit",
    "ratelimit-policy",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-soft-breach",
];

/// What is passed on of one request.
#[derive(Debug)]
struct Passed {
    method: Method,
    target: Uri,
    headers: HeaderMap,
    body: Bytes,
    /// That of the body, if it was announced.
    length: Option<u64>,
}

fuzz_target!(|input: &[u8]| {
    // The first byte selects the size of the pieces.
    let Some((size, bytes)) = input.split_first() else { return };
    let size = usize::from(*size) + 1;
    let (whole, pieces) = (Framing::default(), Framing::default());
    whole.read(bytes);
    bytes.chunks(size).for_each(|piece| pieces.read(piece));
    assert_eq!(whole.ambiguity(), pieces.ambiguity());
    // Those begin a connection of HTTP/2.
    if bytes.starts_with(b"PRI ") {
        return;
    }
    let passed = block_on(receive(bytes, size));
    for request in &passed {
        check(&request.headers);
    }
    block_on(pass_on(&passed));
});

/// The requests that a listener passes on.
async fn receive(bytes: &[u8], size: usize) -> Vec<Passed> {
    let (framing, passed) = (Framing::default(), RefCell::new(Vec::new()));
    let service = service_fn(async |request: Request<Incoming>| {
        let (mut parts, body) = request.into_parts();
        let is_refused = framing.ambiguity().is_some() || headers::check(&mut parts).is_err();
        if is_refused {
            return Ok(closing());
        }
        let length = body.size_hint().exact();
        // One whose body ends early reaches the application as one that does.
        let body = body.collect().await?;
        let sender = Sender::new(IpAddr::V4(CLIENT), &Trust::Hops(0), headers::scheme(false));
        headers::pass_request(&mut parts.headers, parts.version, sender);
        // As the client of hyper-util writes it.
        let target = parts.uri.into_parts().path_and_query.filter(|path| path.as_str() != "/");
        let target = target.map_or_else(Uri::default, Uri::from);
        let (method, headers, body) = (parts.method, parts.headers, body.to_bytes());
        passed.borrow_mut().push(Passed { method, target, headers, body, length });
        Ok::<_, hyper::Error>(Response::new(Full::default()))
    });
    let received = InspectReader::new(Pieces { bytes, size }, |bytes| framing.read(bytes));
    let io = TokioIo::new(tokio::io::join(received, tokio::io::sink()));
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
    // It ends in any way.
    let _ = connection.await;
    passed.into_inner()
}

/// The answer after which a connection ends.
fn closing() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Asserts what the application may rely on.
fn check(headers: &HeaderMap) {
    for name in ENDED {
        assert!(!headers.contains_key(name), "{name}: {headers:?}");
    }
    for name in headers.keys().map(header::HeaderName::as_str).filter(|name| name.contains('_')) {
        let read_as = name.replace('_', "-");
        assert!(!ENDED.contains(&&*read_as) && !read_as.starts_with("x-forwarded-"), "{name}");
        assert!(!["host", "content-length", "via"].contains(&&*read_as), "{name}");
    }
    let of = |name| headers.get_all(name).iter().collect::<Vec<_>>();
    assert_eq!(of("x-forwarded-for"), [&CLIENT.to_string()]);
    assert_eq!(of("x-forwarded-proto"), ["http"]);
    assert!(of("host").len() <= 1 && of("content-length").len() <= 1);
    assert_eq!(of("x-forwarded-host"), of("host"));
    assert!(of("te").is_empty() || of("te") == ["trailers"]);
    let via = of("via").last().map(|via| via.as_bytes());
    assert!([Some(&b"1.1 tidegate"[..]), Some(b"1.0 tidegate")].contains(&via), "{via:?}");
}

/// Writes the requests anew in one connection, and reads them as an application does.
async fn pass_on(requests: &[Passed]) {
    let (near, far) = tokio::io::duplex(16 * 1024);
    let (mut sender, writing) =
        hyper::client::conn::http1::handshake(TokioIo::new(near)).await.expect("a connection");
    let (framing, found) = (Framing::default(), RefCell::new(0_usize));
    let service = service_fn(async |request: Request<Incoming>| {
        let sent = &requests[*found.borrow()];
        *found.borrow_mut() += 1;
        assert_eq!(request.method(), sent.method);
        assert_eq!(*request.uri(), sent.target);
        let body = request.into_body().collect().await.expect("a whole body");
        assert_eq!(body.to_bytes(), sent.body);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let (received, answers) = tokio::io::split(far);
    let received = InspectReader::new(received, |bytes| framing.read(bytes));
    let io = TokioIo::new(tokio::io::join(received, answers));
    let reading = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
    let sending = async {
        for request in requests {
            sender.ready().await.expect("an open connection");
            let response = sender.send_request(request.anew()).await.expect("a response");
            response.into_body().collect().await.expect("a body");
        }
        drop(sender);
    };
    let (written, read, ()) = tokio::join!(writing, reading, sending);
    written.expect("it ends in order");
    read.expect("it ends in order");
    assert_eq!((framing.ambiguity(), found.into_inner()), (None, requests.len()));
}

impl Passed {
    fn anew(&self) -> Request<PassedBody> {
        let mut request = Request::new(match self.length {
            Some(_) => PassedBody::Left(Full::new(self.body.clone())),
            None => PassedBody::Right(InPieces(Some(self.body.clone()))),
        });
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target.clone();
        *request.headers_mut() = self.headers.clone();
        headers::frame(request.headers_mut(), self.length);
        request
    }
}

type PassedBody = Either<Full<Bytes>, InPieces>;

/// A body of which nobody knows the length before it ends.
struct InPieces(Option<Bytes>);

impl Body for InPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Bytes that arrive in pieces.
struct Pieces<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let size = self.bytes.len().min(self.size).min(into.remaining());
        let (piece, rest) = self.bytes.split_at(size);
        into.put_slice(piece);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}
