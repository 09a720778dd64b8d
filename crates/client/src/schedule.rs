//! When the next request may leave: pure, without a clock, a lock or a source of randomness, for
//! any runtime.
//!
//! # The idea
//!
//! A server that says "r requests are left for t seconds" is not asked for more: requests leave
//! `t / r` apart. Each that leaves takes one of `r`, so tasks that share the schedule share the
//! quota. A response says what the server counted; requests that left after the one it answers are
//! subtracted, and a response that was overtaken by a newer one is ignored.
//!
//! - **Refills.** A sliding window or a bucket gives back before `t` is over. So requests are no
//!   further apart than `w / q` while a tenth of the quota `q` remains.
//! - **The end of a window.** `t` is rounded up, so each response is an upper bound of the end, and
//!   the lowest one counts. With a known quota `q` and window `w` the next window is assumed to
//!   follow, with all of `q`, its first request at a random point of its first interval.
//! - **Nothing left.** With `r = 0` nothing leaves before `t`. If that is 0 too, it counts as a
//!   second and a random part of another.
//! - **Refused** (429, or 503 with `Retry-After`). Nothing of the scope leaves for
//!   `max(Retry-After or t, 1 s) + random × min(60 s, 2ⁿ⁻¹ s)` after `n` refusals in a row (full
//!   jitter). Requests that were under way together are refused together, and count once.
//! - **Nothing known.** One request a second, until the first response. A server without such
//!   fields is not paced.
//!
//! A *scope* is an origin and a route of it. The policies in its newest response apply to it; all
//! routes of an origin share policies of one name and partition.
//!
//! # Example
//!
//! With `"a";r=10;t=20` at second 0, requests leave at 2, 3.8, 5.6, ... If no request comes until
//! second 11, eight remain for nine seconds, and the next ones are 1.125 s apart.
//!
//! ```
//! use std::time::Duration;
//! use http::HeaderMap;
//! use tidegate_client::fields::Fields;
//! use tidegate_client::schedule::Schedule;
//!
//! let (mut schedule, origin) = (Schedule::default(), "https://api.example.com");
//! let second = Duration::from_secs_f64;
//! let permit = schedule.poll(origin, "", second(0.0)).unwrap();
//!
//! let mut headers = HeaderMap::new();
//! headers.insert("RateLimit", r#""a";r=10;t=20"#.parse()?);
//! let fields = Fields::read(&headers, Duration::ZERO);
//! let random = 0.5;
//! assert_eq!(schedule.observe(permit, 200, &fields, second(0.0), random), None);
//!
//! assert_eq!(schedule.poll(origin, "", second(0.0)).unwrap_err(), second(2.0));
//! assert!(schedule.poll(origin, "", second(2.0)).is_ok());
//! assert_eq!(schedule.poll(origin, "", second(2.0)).unwrap_err(), second(1.8));
//! assert!(schedule.poll(origin, "", second(3.8)).is_ok());
//! assert!(schedule.poll(origin, "", second(11.0)).is_ok());
//! assert_eq!(schedule.poll(origin, "", second(11.0)).unwrap_err(), second(1.125));
//! # Ok::<(), http::header::InvalidHeaderValue>(())
//! ```

use std::time::Duration;

use crate::fields::Fields;
use crate::policy::{FLOOR, Policy};
use crate::recent::Recent;

/// The most scopes, which are origins and routes of them. Beyond them the one that was not used for
/// the longest is forgotten, and learned anew.
pub const SCOPES_MAX: usize = 1024;

/// The most policies of all origins; beyond them as with [`SCOPES_MAX`].
pub const POLICIES_MAX: usize = 1024;

/// The most random time on top of the least wait after a refusal.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);

const TOO_MANY_REQUESTS: u16 = 429;
const SERVICE_UNAVAILABLE: u16 = 503;

/// How long to wait after `refusals` in a row, at least 1; `random` is in [0, 1).
pub fn backoff(refusals: u32, least: Duration, random: f64) -> Duration {
    /// 2⁶ s is more than [`BACKOFF_MAX`].
    const DOUBLINGS_MAX: u32 = 6;
    let doublings = refusals.saturating_sub(1).min(DOUBLINGS_MAX);
    let most = Duration::from_secs(1 << doublings).min(BACKOFF_MAX);
    least.max(FLOOR) + most.mul_f64(random)
}

/// The schedule of all requests that share limits. `now` is always the time since one fixed moment,
/// by a monotonic clock.
#[derive(Debug)]
pub struct Schedule {
    scopes: Recent<ScopeKey, Scope>,
    policies: Policies,
    /// How many requests left.
    granted: u64,
}

/// The permission to send one request. [`Schedule::observe`] takes it with the response. A request
/// without a response still counts against the limits.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    scope: ScopeKey,
    /// Its number among all of the schedule.
    number: u64,
    taken: Vec<Taken>,
}

impl Default for Schedule {
    fn default() -> Self {
        let policies = Policies { known: Recent::new(POLICIES_MAX), created: 0 };
        Self { scopes: Recent::new(SCOPES_MAX), policies, granted: 0 }
    }
}

impl Schedule {
    /// Asks for the permission to send a request to an origin, and a route of it if limits differ
    /// within the origin.
    ///
    /// # Errors
    ///
    /// How long to wait before asking again; a response may make it shorter.
    pub fn poll(&mut self, origin: &str, route: &str, now: Duration) -> Result<Permit, Duration> {
        let key = ScopeKey { origin: origin.into(), route: route.into() };
        let scope = self.scopes.get(key.clone(), || Scope::new(now));
        let mut wait = scope.paused.saturating_sub(now);
        if let Some(probe) = &mut scope.probe {
            wait = wait.max(probe.wait(now));
        }
        for policy in &scope.policies {
            wait = wait.max(self.policies.get(policy, now).policy.wait(now));
        }
        if !wait.is_zero() {
            return Err(wait);
        }
        self.granted += 1;
        if let Some(probe) = &mut scope.probe {
            probe.take(now);
        }
        let taken = scope.policies.iter().map(|key| {
            let entry = self.policies.get(key, now);
            Taken { of: entry.id, number: entry.policy.take(now) }
        });
        Ok(Permit { scope: key, number: self.granted, taken: taken.collect() })
    }

    /// Learns from the response to a permitted request; `random` is in [0, 1). Returns how long its
    /// scope is paused if the request was refused.
    ///
    /// # Panics
    ///
    /// If `random` is no such number.
    pub fn observe(
        &mut self,
        permit: Permit,
        status: u16,
        fields: &Fields,
        now: Duration,
        random: f64,
    ) -> Option<Duration> {
        assert!((0.0..1.0).contains(&random), "{random} is not in [0, 1)");
        let is_refused = status == TOO_MANY_REQUESTS
            || status == SERVICE_UNAVAILABLE && fields.retry_after.is_some();
        let origin = permit.scope.origin.clone();
        let scope = self.scopes.get(permit.scope, || Scope::new(now));
        if !fields.limits.is_empty() {
            let instead = fields.retry_after.filter(|_| is_refused);
            scope.probe = None;
            scope.policies.clear();
            for limit in &fields.limits {
                let key = PolicyKey {
                    origin: origin.clone(),
                    name: limit.name.clone(),
                    partition: limit.partition.clone(),
                };
                let entry = self.policies.get(&key, now);
                let taken = permit.taken.iter().find(|taken| taken.of == entry.id);
                let number = taken.map(|taken| taken.number);
                entry.policy.observe(limit, number, instead, now, random);
                scope.policies.push(key);
            }
        } else if is_refused && scope.policies.is_empty() && scope.probe.is_none() {
            // The server names no policy: after the pause one request finds out.
            scope.probe = Some(Policy::new(now));
        } else if !is_refused && scope.is_unknown {
            scope.probe = None;
        }
        scope.is_unknown = false;

        let is_newer = permit.number > scope.granted_at_refusal;
        if !is_refused {
            if is_newer {
                scope.refusals = 0;
            }
            return None;
        }
        if is_newer {
            scope.refusals = scope.refusals.saturating_add(1);
            scope.granted_at_refusal = self.granted;
        }
        let used_up = fields.limits.iter().filter(|limit| limit.remaining == 0);
        let reset = used_up.filter_map(|limit| limit.reset).max();
        let least = fields.retry_after.or(reset).unwrap_or_default();
        scope.paused = scope.paused.max(now + backoff(scope.refusals, least, random));
        Some(scope.paused.saturating_sub(now))
    }
}

// === scopes ===

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct ScopeKey {
    origin: String,
    route: String,
}

#[derive(Debug)]
struct Scope {
    /// One request a second, where no policy is known.
    probe: Option<Policy>,
    /// Those of the newest response.
    policies: Vec<PolicyKey>,
    /// No response has arrived.
    is_unknown: bool,
    paused: Duration,
    /// In a row.
    refusals: u32,
    /// Requests up to this number were under way at the latest refusal that counts.
    granted_at_refusal: u64,
}

impl Scope {
    fn new(now: Duration) -> Self {
        Self {
            probe: Some(Policy::new(now)),
            policies: Vec::new(),
            is_unknown: true,
            paused: now,
            refusals: 0,
            granted_at_refusal: 0,
        }
    }
}

// === policies ===

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct PolicyKey {
    origin: String,
    name: String,
    partition: Vec<u8>,
}

#[derive(Debug)]
struct Policies {
    known: Recent<PolicyKey, Known>,
    created: u64,
}

#[derive(Debug)]
struct Known {
    /// Of all that were created: one that was forgotten and is learned anew counts from zero again.
    id: u64,
    policy: Policy,
}

/// What a permit took from a policy.
#[derive(Debug)]
struct Taken {
    of: u64,
    number: u64,
}

impl Policies {
    fn get(&mut self, key: &PolicyKey, now: Duration) -> &mut Known {
        let created = &mut self.created;
        self.known.get(key.clone(), || {
            *created += 1;
            Known { id: *created, policy: Policy::new(now) }
        })
    }
}
