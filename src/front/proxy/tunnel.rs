//! Connections that switch to another protocol, such as WebSocket: bytes in both directions.
//!
//! A client asks with `Upgrade`. Until the application has answered 101 the connection is one of
//! HTTP and is read as such: bytes that a client sends ahead wait, and if the answer is another one
//! the connection ends after it. So no byte is ever passed on past a request that was not
//! switched. Only what the client named is switched to; an upgrade to another version of HTTP is
//! not passed on, because its requests would pass unseen.
//!
//! A limit counts the request, and what passes in the tunnel is not looked at.
//!
//! Source: RFC 9110, 7.8.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Request, Version};
use hyper::body::{Body, Incoming};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::time::Instant;
use tokio_util::io::InspectReader;

use super::in_flight::InFlight;

/// A client that wants to switch.
#[derive(Debug)]
pub(super) struct Switch {
    /// What it names: `websocket`.
    pub(super) protocols: HeaderValue,
    pub(super) client: OnUpgrade,
}

impl Switch {
    /// That of a request, if it is one that may be passed on.
    pub(super) fn of(request: &mut Request<Incoming>) -> Option<Self> {
        let headers = request.headers();
        let is_plain = request.version() == Version::HTTP_11 && request.body().is_end_stream();
        let names_upgrade =
            list(headers, &CONNECTION).any(|it| it.eq_ignore_ascii_case(b"upgrade"));
        let mut values = headers.get_all(UPGRADE).iter();
        let protocols = values.next().filter(|_| values.next().is_none())?.clone();
        let is_known = !list(headers, &UPGRADE).any(is_of_http);
        if !(is_plain && names_upgrade && is_known) {
            return None;
        }
        Some(Self { protocols, client: hyper::upgrade::on(request) })
    }

    /// Puts the wish into the headers of the request to the application.
    pub(super) fn ask(protocols: &HeaderValue, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocols.clone());
    }

    /// The protocol that the application has switched to, if it is one that was asked for.
    pub(super) fn agreed(protocols: &HeaderValue, headers: &HeaderMap) -> Option<HeaderValue> {
        let agreed = headers.get(UPGRADE)?;
        let mut asked = protocols.as_bytes().split(|byte| *byte == b',');
        let is_asked = asked.any(|it| it.trim_ascii().eq_ignore_ascii_case(agreed.as_bytes()));
        is_asked.then(|| agreed.clone())
    }
}

/// Carries bytes until both sides have ended, one of them fails, or neither has sent anything for
/// `idle_timeout`.
pub(super) async fn run(
    client: OnUpgrade,
    server: OnUpgrade,
    idle_timeout: Duration,
    mut in_flight: InFlight,
) {
    let (Ok(client), Ok(server)) = join(client, server).await else { return };
    let last = Arc::new(Mutex::new(Instant::now()));
    let watched = |side: Upgraded| {
        let last = Arc::clone(&last);
        InspectReader::new(TokioIo::new(side), move |_: &[u8]| *last.lock() = Instant::now())
    };
    let (mut client, mut server) = (watched(client), watched(server));
    let is_idle = async {
        loop {
            let until = *last.lock() + idle_timeout;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    };
    tokio::select! {
        // How it ended was told to the side that is still there.
        ended = copy_bidirectional(&mut client, &mut server) => if ended.is_ok() {
            in_flight.is_done();
        },
        () = is_idle => tracing::debug!("closed a tunnel after proxy.idle_timeout"),
    }
    drop(in_flight);
}

/// Whether a connection would go on with HTTP, unseen: `h2c`, `HTTP/2.0`, `TLS/1.0`.
fn is_of_http(protocol: &[u8]) -> bool {
    let starts = |with: &[u8]| {
        protocol.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    starts(b"h2") || starts(b"h3") || starts(b"http") || starts(b"tls") || protocol.is_empty()
}

/// The elements of a header that is a list.
fn list<'a>(
    headers: &'a HeaderMap,
    name: &http::HeaderName,
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let values = headers.get_all(name).iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}
