//! A schedule with clocks, random numbers, and tasks that wait in the order of their arrival.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::fields::{Fields, TIME_MAX};
use crate::recent::Recent;
use crate::schedule::{Permit, SCOPES_MAX, Schedule};

/// The longest time that a request waits by default: two windows of a minute.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

/// Paces the requests of all tasks that share it. [`Pacing`](crate::Pacing) does it for reqwest;
/// with another HTTP client:
///
/// ```
/// # async fn send() -> Result<http::Response<()>, tidegate_client::WaitError> {
/// #     Ok(http::Response::new(()))
/// # }
/// # async fn run(pacer: &tidegate_client::Pacer) -> Result<(), tidegate_client::WaitError> {
/// let permit = pacer.acquire("https://api.example.com", "").await?;
/// let response = send().await?;
/// pacer.observe(permit, response.status(), response.headers());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pacer {
    wait_max: Duration,
    start: Instant,
    shared: Mutex<Shared>,
    /// A response changed the schedule.
    changed: Notify,
}

/// A request would have to wait longer than it may. It was not sent.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{origin} has no room for a request for {wait:?}")]
pub struct WaitError {
    pub origin: String,
    pub wait: Duration,
}

#[derive(Debug)]
struct Shared {
    schedule: Schedule,
    /// By origin and route: held by the task that leaves next, while the others wait in the order
    /// of their arrival. One that is forgotten costs the order and nothing else.
    turns: Recent<(String, String), Arc<tokio::sync::Mutex<()>>>,
}

impl Default for Pacer {
    fn default() -> Self {
        Self::new(WAIT_MAX)
    }
}

impl Pacer {
    /// A request waits for `wait_max` at most, which counts as a day if it is longer.
    pub fn new(wait_max: Duration) -> Self {
        let shared = Shared { schedule: Schedule::default(), turns: Recent::new(SCOPES_MAX) };
        Self {
            wait_max: wait_max.min(TIME_MAX),
            start: Instant::now(),
            shared: Mutex::new(shared),
            changed: Notify::new(),
        }
    }

    pub fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// Waits until a request to an origin, and a route of it if limits differ within the origin,
    /// may leave. Requests that wait leave in the order of their arrival. Cancel-safe: a request
    /// that stops waiting has taken nothing.
    ///
    /// # Errors
    ///
    /// [`WaitError`] as soon as it is known that it takes longer than [`Self::wait_max`].
    pub async fn acquire(&self, origin: &str, route: &str) -> Result<Permit, WaitError> {
        let too_long = |wait| WaitError { origin: origin.into(), wait };
        let deadline = Instant::now() + self.wait_max;
        let turn = self.shared().turn(origin, route);
        let turn = timeout_at(deadline, turn.lock()).await;
        let _turn = turn.map_err(|_| too_long(self.wait_max))?;
        loop {
            // Before the schedule is asked: a change in between must not be missed.
            let changed = self.changed.notified();
            let now = self.now();
            let wait = match self.shared().schedule.poll(origin, route, now) {
                Ok(permit) => return Ok(permit),
                Err(wait) => wait,
            };
            let until = self.start + now + wait;
            if until > deadline {
                return Err(too_long(wait));
            }
            // Whichever of both it was, the schedule knows.
            let _ = timeout_at(until, changed).await;
        }
    }

    /// Learns from a response; a request that got none needs no call. Returns how long requests to
    /// its origin and route are paused if this one was refused.
    pub fn observe(
        &self,
        permit: Permit,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Duration> {
        #[expect(clippy::disallowed_methods, reason = "fields hold dates; a client is no node")]
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fields = Fields::read(headers, wall);
        let (now, random) = (self.now(), fastrand::f64());
        let paused = self.shared().schedule.observe(permit, status.as_u16(), &fields, now, random);
        self.changed.notify_waiters();
        paused
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn turn(&mut self, origin: &str, route: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.turns.get((origin.into(), route.into()), Arc::default).clone()
    }
}
