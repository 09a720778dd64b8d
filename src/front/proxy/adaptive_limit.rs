//! The requests that one server may have at a time, adapted to its response times
//! ([`gradient`](super::gradient)): places, and what was seen of those who had one.
//!
//! A request has a place until its response and its own body have ended, or its client has left;
//! for the body of a request that has its response there is a limit of time. Its time counts from
//! its last byte to the head of the response, which is what depends on the server: how fast a
//! client sends and reads does not. Health checks take no place, and tunnels give theirs back once
//! the server has switched.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::gradient::{Gradient, Window};
use crate::config::proxy::AdaptiveConcurrency;

/// The limit of one server; clones share it.
#[derive(Clone, Debug)]
pub(super) struct AdaptiveLimit(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    gradient: Gradient,
    in_flight: u32,
    window: Window,
    window_ends: Instant,
    window_length: Duration,
}

/// The place of one request, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    limit: AdaptiveLimit,
    /// Requests at the server when this one came, with itself.
    in_flight: u32,
}

/// What a response says about the load of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    /// The server, or one behind it, could not take the request or was too late.
    Dropped,
    /// It may be quicker or slower than a success for reasons of its own.
    Other,
}

impl AdaptiveLimit {
    pub(super) fn new(config: AdaptiveConcurrency, now: Instant) -> Self {
        let AdaptiveConcurrency { min, max, window } = config;
        Self(Arc::new(Mutex::new(State {
            gradient: Gradient::new(min, max),
            in_flight: 0,
            window: Window::default(),
            window_ends: now + window,
            window_length: window,
        })))
    }

    /// A place for one more request, if there is one.
    pub(super) fn enter(&self) -> Option<Slot> {
        let mut state = self.0.lock();
        if state.in_flight >= state.gradient.limit() {
            return None;
        }
        state.in_flight += 1;
        Some(Slot { limit: self.clone(), in_flight: state.in_flight })
    }

    pub(super) fn get(&self) -> u32 {
        self.0.lock().gradient.limit()
    }
}

impl Slot {
    /// The response began `rtt` after the request was sent.
    pub(super) fn responded(&self, outcome: Outcome, rtt: Duration, now: Instant) {
        let in_flight = self.in_flight;
        let mut state = self.limit.0.lock();
        match outcome {
            Outcome::Success => state.window.succeeded(rtt, in_flight),
            Outcome::Dropped => state.window.dropped(in_flight),
            Outcome::Other => {}
        }
        state.update(now);
    }

    /// There was no response.
    pub(super) fn failed(&self, now: Instant) {
        self.responded(Outcome::Dropped, Duration::ZERO, now);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.limit.0.lock().in_flight -= 1;
    }
}

impl State {
    /// Computes the limit anew when the window is over and has enough in it; otherwise it goes on.
    fn update(&mut self, now: Instant) {
        if now >= self.window_ends && self.window.is_enough() {
            self.gradient.update(&std::mem::take(&mut self.window));
            self.window_ends = now + self.window_length;
        }
    }
}

impl Outcome {
    pub(super) fn of<B>(response: &Response<B>) -> Self {
        match response.status() {
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Self::Dropped,
            status if status.is_success() || status.is_redirection() => {
                Self::of_grpc(response.headers())
            }
            _ => Self::Other,
        }
    }

    /// A gRPC server that fails before its first message says so in the head.
    fn of_grpc(headers: &HeaderMap) -> Self {
        match headers.get(super::rejection::GRPC_STATUS).map(HeaderValue::as_bytes) {
            None | Some(b"0") => Self::Success,
            // UNAVAILABLE.
            Some(b"14") => Self::Dropped,
            Some(_) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(min: u32, max: u32) -> AdaptiveLimit {
        let window = Duration::from_secs(1);
        AdaptiveLimit::new(AdaptiveConcurrency { min, max, window }, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_free_again_when_its_request_has_ended() {
        let limit = limit(2, 2);
        let (first, second) = (limit.enter(), limit.enter());
        assert!(first.is_some() && second.is_some() && limit.enter().is_none());
        drop(first);
        let third = limit.enter();
        assert!(third.is_some() && limit.enter().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_goes_on_until_its_time_is_over_and_ten_have_responded() {
        let limit = limit(1, 50);
        let responded = |outcome| {
            let slot = limit.enter().expect("a place");
            slot.responded(outcome, Duration::from_millis(10), Instant::now());
        };
        (0..20).for_each(|_| responded(Outcome::Success));
        assert_eq!(limit.get(), 1, "its time is not over");
        tokio::time::advance(Duration::from_secs(1)).await;
        responded(Outcome::Other);
        assert_eq!(limit.get(), 1, "1.8");
        tokio::time::advance(Duration::from_secs(5)).await;
        (0..9).for_each(|_| responded(Outcome::Success));
        (0..9).for_each(|_| responded(Outcome::Other));
        assert_eq!(limit.get(), 1, "nine are no mean");
        responded(Outcome::Success);
        assert_eq!(limit.get(), 2, "2.6");
    }

    #[test]
    fn a_response_that_is_no_success_has_no_time() {
        for (status, grpc, outcome) in [
            (200, None, Outcome::Success),
            (304, None, Outcome::Success),
            (404, None, Outcome::Other),
            (429, None, Outcome::Other),
            (500, None, Outcome::Other),
            (502, None, Outcome::Dropped),
            (503, None, Outcome::Dropped),
            (504, None, Outcome::Dropped),
            (101, None, Outcome::Other),
            (200, Some("0"), Outcome::Success),
            (200, Some("5"), Outcome::Other),
            (200, Some("14"), Outcome::Dropped),
        ] {
            let mut response = Response::builder().status(status);
            if let Some(grpc) = grpc {
                response = response.header("grpc-status", grpc);
            }
            let response = response.body(()).expect("a response");
            assert_eq!(Outcome::of(&response), outcome, "{status} {grpc:?}");
        }
    }
}
