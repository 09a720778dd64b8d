//! Connections that fail because one side does not accept the other's certificate, in words that
//! tell an operator what to do; and a bound on how often that is logged.
//!
//! In TLS 1.3 a dialer is connected before the acceptor has verified its certificate. So the side
//! that refuses knows its reason from the handshake, and the other one has an alert: the acceptor
//! at the end of the handshake, the dialer only during the hello.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::ConnectionError;
use tidegate_ownership::identity::NodeId;
use tokio::time::Instant;

use super::hello;
use super::wire::Refusal;

/// Why a connection failed, if it is for a certificate or another cause of the TLS handshake.
pub(super) fn refusal(error: &ConnectionError) -> Option<String> {
    let (is_here, code, reason) = match error {
        ConnectionError::TransportError(error) => (true, error.code, error.reason.clone()),
        ConnectionError::ConnectionClosed(close) => {
            (false, close.error_code, String::from_utf8_lossy(&close.reason).into_owned())
        }
        _ => return None,
    };
    let alert =
        u64::from(code).checked_sub(CRYPTO_ERROR).and_then(|alert| u8::try_from(alert).ok());
    let (problem, fix) = match (alert?, is_here) {
        (EXPIRED, true) => {
            ("its certificate is out of its dates", "issue it a new one, or set the clocks")
        }
        (EXPIRED, false) => (
            "it refuses this node's certificate as out of its dates",
            "issue this node a new one, or set the clocks",
        ),
        (CERTIFICATE_REQUIRED, true) => ("it presented no certificate", "it is no node"),
        (NO_PROTOCOL, _) => ("it speaks another protocol", "only nodes may use this port"),
        (_, true) => (
            "its certificate is not of an authority in tls.ca of this node",
            "issue it with one of them, or add its authority to tls.ca",
        ),
        (_, false) => (
            "it refuses this node's certificate: the authority is not in its tls.ca",
            "issue this node one of an authority there, or add this one's",
        ),
    };
    let cause = if reason.is_empty() { format!("alert {}", alert?) } else { reason };
    Some(format!("{problem} ({cause}); {fix}"))
}

/// The first code of QUIC for TLS alerts (RFC 9001, 4.8).
const CRYPTO_ERROR: u64 = 0x100;
/// Alerts of TLS (RFC 8446, 6). Every other one means that a certificate is not acceptable: of
/// another authority `bad_certificate`, `unknown_ca` or `decrypt_error`.
const EXPIRED: u8 = 45;
const CERTIFICATE_REQUIRED: u8 = 116;
const NO_PROTOCOL: u8 = 120;

/// Which refusals were logged of late: by the peer's address in each direction, and of a revoked
/// node by its name, because it may come from another port each time, and is dialed too.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    incoming: LogLimit<SocketAddr>,
    dialed: LogLimit<SocketAddr>,
    revoked: LogLimit<NodeId>,
}

impl RefusalLog {
    /// Whether the end of an incoming connection is to be logged now. Then it is counted as logged.
    pub(super) fn admits_incoming(&self, error: &hello::Error, addr: SocketAddr) -> bool {
        self.admits(error, addr, &self.incoming)
    }

    /// The same of a dial.
    pub(super) fn admits_dial(&self, error: &hello::Error, addr: SocketAddr) -> bool {
        self.admits(error, addr, &self.dialed)
    }

    fn admits(
        &self,
        error: &hello::Error,
        addr: SocketAddr,
        addresses: &LogLimit<SocketAddr>,
    ) -> bool {
        match error {
            hello::Error::Refused(Refusal::Revoked(node)) => self.revoked.admits(node.clone()),
            _ => error.needs_operator() && addresses.admits(addr),
        }
    }
}

/// What was logged of late.
///
/// **Bound:** [`LOGGED_MAX`] a [`PAUSE`], each once.
#[derive(Debug)]
struct LogLimit<K>(Mutex<BTreeMap<K, Instant>>);

const LOGGED_MAX: usize = 64;
const PAUSE: Duration = Duration::from_secs(60);

impl<K> Default for LogLimit<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> LogLimit<K> {
    fn admits(&self, key: K) -> bool {
        let mut logged = self.0.lock();
        let now = Instant::now();
        logged.retain(|_, at| now.duration_since(*at) < PAUSE);
        let is_new = logged.len() < LOGGED_MAX && !logged.contains_key(&key);
        if is_new {
            logged.insert(key, now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_logged_once_a_minute_and_so_are_64_at_most() {
        let log = RefusalLog::default();
        let admits = |port| log.admits_incoming(&hello::Error::Refused(Refusal::Secret), at(port));
        assert!(admits(1));
        assert!(!admits(1));
        assert_eq!((2..200).filter(|port| admits(*port)).count(), LOGGED_MAX - 1);
        tokio::time::advance(PAUSE).await;
        assert!(admits(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_revoked_node_is_logged_once_a_minute_from_whichever_port_it_comes() {
        let log = RefusalLog::default();
        let revoked =
            |name: &str| hello::Error::Refused(Refusal::Revoked(NodeId::new(name).expect("an id")));
        let lines = |name: &str| {
            let error = revoked(name);
            let incoming = (1..200).filter(|port| log.admits_incoming(&error, at(*port)));
            incoming.count() + usize::from(log.admits_dial(&error, at(1)))
        };
        assert_eq!((lines("n4"), lines("n4"), lines("n5")), (1, 0, 1));
        assert_eq!((6..200).map(|number| lines(&format!("n{number}"))).sum::<usize>(), 62);
        tokio::time::advance(PAUSE).await;
        assert_eq!(lines("n4"), 1);
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }
}
