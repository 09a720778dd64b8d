//! Header, idle and send timeouts of one HTTP connection.
//!
//! hyper's header timeout runs from the end of one request to the end of the next header, so it
//! would also cut a proxy's pooled connection that is only idle. Here the two are separate:
//!
//! - a header that has **begun** must be complete within `header_timeout`, otherwise the connection
//!   is cut;
//! - a connection with nothing in flight for `idle_timeout` is shut down gracefully. Bytes that are
//!   no request (pings, half a frame) do not count as use;
//! - a client that does not take a response within `send_timeout` is cut: HTTP/2 lets it request
//!   hundreds and read none. It may take twice that long, see below.
//!
//! *Usage*: call [`Timeouts::read`] for all bytes that arrive, [`Timeouts::begin`] at each request
//! (its guard lives as long as the response), [`InFlight::sends`] when the response is ready, and
//! [`Timeouts::check`] at the instant that the
//! previous check returned. A check never waits longer than `header_timeout`, so a header that
//! begins right after it is still measured from the time it began.
//!
//! *Cost*: HTTP/2 connections carry thousands of requests a second, and each costs two additions. A
//! check only needs to know whether there were any since the previous one, so the idle time is
//! accurate to one check, at most `header_timeout`, and no request reads a clock. Responses are
//! counted by the period, of one `send_timeout`, in which they were ready; when a period ends,
//! those of the period before must have been taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::bounds::Bounds;

/// What an HTTP/2 connection starts with (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug)]
pub(super) struct Timeouts {
    header_timeout: Duration,
    idle_timeout: Duration,
    send_timeout: Duration,
    /// The whole preface has arrived: header times are no longer measured.
    is_http2: AtomicBool,
    in_flight: AtomicUsize,
    /// Responses that are not sent yet, by the parity of the period in which they were ready.
    sending: [AtomicUsize; 2],
    /// The parity of the present period.
    period: AtomicUsize,
    /// A request ended since the last check.
    was_used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the first byte of a header arrived that is not complete yet.
    header_since: Option<Instant>,
    idle_since: Instant,
    period_ends: Instant,
    protocol: Protocol,
}

#[derive(Debug, PartialEq, Eq)]
enum Protocol {
    /// So far only this many bytes of the preface have arrived.
    Unknown(usize),
    Http1,
    /// Its headers are frames among others: only the idle time is measured.
    Http2,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Check again at this instant.
    Wait(Instant),
    /// A header took too long, or the client did not take a response.
    Cut,
    /// The connection was idle for too long.
    Close,
}

/// Guard of a request in flight, and of each part of its response that is not sent yet.
#[derive(Debug)]
pub(super) struct InFlight {
    timeouts: Arc<Timeouts>,
    /// The parity of the period in which the response was ready.
    sending: Option<usize>,
}

impl Timeouts {
    pub(super) fn new(bounds: &Bounds, now: Instant) -> Self {
        let Bounds { header_timeout, idle_timeout, send_timeout, .. } = *bounds;
        let state = State {
            header_since: None,
            idle_since: now,
            period_ends: now + send_timeout,
            protocol: Protocol::Unknown(0),
        };
        Self {
            header_timeout,
            idle_timeout,
            send_timeout,
            is_http2: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            sending: Default::default(),
            period: AtomicUsize::new(0),
            was_used: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Whether [`Timeouts::read`] still has an effect: not after the protocol turned out to be
    /// HTTP/2.
    pub(super) fn measures_headers(&self) -> bool {
        !self.is_http2.load(Ordering::Relaxed)
    }

    pub(super) fn read(&self, bytes: &[u8], now: Instant) {
        let mut state = self.state.lock();
        if let Protocol::Unknown(seen) = state.protocol {
            let n = bytes.len().min(PREFACE.len() - seen);
            state.protocol = if bytes[..n] != PREFACE[seen..seen + n] {
                Protocol::Http1
            } else if seen + n == PREFACE.len() {
                state.header_since = None;
                self.is_http2.store(true, Ordering::Relaxed);
                Protocol::Http2
            } else {
                Protocol::Unknown(seen + n)
            };
        }
        let is_idle = self.in_flight.load(Ordering::Relaxed) == 0;
        if state.protocol != Protocol::Http2 && is_idle && !bytes.is_empty() {
            state.header_since.get_or_insert(now);
        }
    }

    /// The header of a request is complete; the request lasts until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        if self.measures_headers() {
            self.state.lock().header_since = None;
        }
        InFlight { timeouts: Arc::clone(self), sending: None }
    }

    pub(super) fn check(&self, now: Instant) -> Next {
        let mut state = self.state.lock();
        let soon = now + self.header_timeout.min(self.send_timeout);
        if now >= state.period_ends {
            let next = 1 - self.period.load(Ordering::Relaxed);
            if self.sending[next].load(Ordering::Relaxed) > 0 {
                return Next::Cut;
            }
            self.period.store(next, Ordering::Relaxed);
            state.period_ends = now + self.send_timeout;
        }
        // In this order: a request that ends in between is seen either in flight or as use.
        let is_used = self.in_flight.load(Ordering::Acquire) > 0;
        if self.was_used.swap(false, Ordering::Relaxed) {
            state.idle_since = now;
        }
        if is_used {
            return Next::Wait(soon);
        }
        if let Some(since) = state.header_since {
            let deadline = since + self.header_timeout;
            return if now >= deadline { Next::Cut } else { Next::Wait(deadline) };
        }
        let deadline = state.idle_since + self.idle_timeout;
        if now >= deadline { Next::Close } else { Next::Wait(deadline.min(soon)) }
    }
}

impl InFlight {
    /// The response is ready, and from now on waits for the client.
    pub(super) fn sends(mut self) -> Self {
        let period = self.timeouts.period.load(Ordering::Relaxed);
        self.timeouts.sending[period].fetch_add(1, Ordering::Relaxed);
        self.sending = Some(period);
        self
    }
}

impl Clone for InFlight {
    fn clone(&self) -> Self {
        self.timeouts.in_flight.fetch_add(1, Ordering::Relaxed);
        if let Some(period) = self.sending {
            self.timeouts.sending[period].fetch_add(1, Ordering::Relaxed);
        }
        Self { timeouts: Arc::clone(&self.timeouts), sending: self.sending }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(period) = self.sending {
            self.timeouts.sending[period].fetch_sub(1, Ordering::Relaxed);
        }
        self.timeouts.was_used.store(true, Ordering::Relaxed);
        self.timeouts.in_flight.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Duration = Duration::from_secs(5);
    const IDLE: Duration = Duration::from_secs(75);
    const SEND: Duration = Duration::from_secs(10);

    fn timeouts() -> (Arc<Timeouts>, Instant) {
        let start = Instant::now();
        let bounds = Bounds {
            header_timeout: HEADER,
            idle_timeout: IDLE,
            send_timeout: SEND,
            ..Bounds::default()
        };
        (Arc::new(Timeouts::new(&bounds, start)), start)
    }

    #[test]
    fn a_header_is_measured_from_its_first_byte() {
        let (timeouts, start) = timeouts();
        assert_eq!(timeouts.check(start), Next::Wait(start + HEADER));
        let began = start + Duration::from_secs(2);
        timeouts.read(b"G", began);
        timeouts.read(b"ET / HTT", began + Duration::from_secs(3));
        assert_eq!(timeouts.check(start + HEADER), Next::Wait(began + HEADER));
        assert_eq!(timeouts.check(began + HEADER), Next::Cut);
    }

    #[test]
    fn a_complete_header_ends_its_timeout() {
        let (timeouts, start) = timeouts();
        timeouts.read(b"GET / HTTP/1.1\r\n\r\n", start);
        let in_flight = timeouts.begin();
        let late = start + IDLE * 10;
        assert_eq!(timeouts.check(late), Next::Wait(late + HEADER));
        // A body does not begin a header.
        timeouts.read(b"body", late);
        drop(in_flight);
        assert_ne!(timeouts.check(Instant::now() + HEADER), Next::Cut);
    }

    #[test]
    fn an_idle_connection_is_closed_and_not_cut() {
        let (timeouts, start) = timeouts();
        assert_eq!(timeouts.check(start + IDLE), Next::Close);
        let almost = start + IDLE.saturating_sub(Duration::from_secs(1));
        assert_eq!(timeouts.check(almost), Next::Wait(start + IDLE));
    }

    #[test]
    fn pings_do_not_keep_an_http2_connection_open() {
        let (timeouts, start) = timeouts();
        timeouts.read(&PREFACE[..3], start);
        timeouts.read(&PREFACE[3..], start);
        timeouts.read(b"\0\0\x08\x06\0\0\0\0\0pingpong", start + IDLE / 2);
        assert_ne!(timeouts.check(start + HEADER * 2), Next::Cut);
        assert_eq!(timeouts.check(start + IDLE), Next::Close);
    }

    #[test]
    fn half_a_preface_is_a_slow_header() {
        let (timeouts, start) = timeouts();
        timeouts.read(&PREFACE[..10], start);
        assert_eq!(timeouts.check(start + HEADER), Next::Cut);
    }

    #[test]
    fn a_client_has_between_one_and_two_send_timeouts_to_take_a_response() {
        let (timeouts, start) = timeouts();
        let late = |secs| start + Duration::from_secs(secs);
        let unread = timeouts.begin().sends();
        assert_ne!(timeouts.check(late(10)), Next::Cut, "a new period");
        let next = timeouts.begin().sends();
        assert_ne!(timeouts.check(late(19)), Next::Cut);
        assert_eq!(timeouts.check(late(20)), Next::Cut);
        drop(unread);
        assert_ne!(timeouts.check(late(21)), Next::Cut, "a new period");
        assert_eq!(timeouts.check(late(31)), Next::Cut);
        drop(next);
        assert_ne!(timeouts.check(late(31)), Next::Cut);
    }

    #[test]
    fn a_request_without_a_response_waits_for_no_client() {
        let (timeouts, start) = timeouts();
        let _in_flight = timeouts.begin();
        for period in 1..9 {
            assert_ne!(timeouts.check(start + SEND * period), Next::Cut);
        }
    }
}
