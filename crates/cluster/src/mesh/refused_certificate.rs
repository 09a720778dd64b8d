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
use tokio::time::Instant;

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

/// Which addresses were logged of late.
///
/// **Bound:** [`ADDRESSES_MAX`] addresses a [`PAUSE`], each once.
#[derive(Debug, Default)]
pub(super) struct LogLimit(Mutex<BTreeMap<SocketAddr, Instant>>);

const ADDRESSES_MAX: usize = 64;
const PAUSE: Duration = Duration::from_secs(60);

impl LogLimit {
    /// Whether a refusal of `addr` is to be logged now. Then it is counted as logged.
    pub(super) fn admits(&self, addr: SocketAddr) -> bool {
        let mut logged = self.0.lock();
        let now = Instant::now();
        logged.retain(|_, at| now.duration_since(*at) < PAUSE);
        let is_new = logged.len() < ADDRESSES_MAX && !logged.contains_key(&addr);
        if is_new {
            logged.insert(addr, now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_logged_once_a_minute_and_so_are_64_at_most() {
        let limit = LogLimit::default();
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(limit.admits(addr(1)));
        assert!(!limit.admits(addr(1)));
        assert_eq!((2..200).filter(|port| limit.admits(addr(*port))).count(), ADDRESSES_MAX - 1);
        tokio::time::advance(PAUSE).await;
        assert!(limit.admits(addr(1)));
    }
}
