//! What a layer and its services share: who is counted, what is exempt, how long to wait.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Extensions, Method};
use smallvec::SmallVec;

use crate::check::{Answer, Check, Descriptor, Limiter};
use crate::client_address::{client_address, group};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The key of the default descriptor.
pub(crate) const REMOTE_ADDRESS: &str = "remote_address";

pub(crate) type Descriptors = SmallVec<[Descriptor; 1]>;
/// The counters of a request; `None` if it cannot be described.
pub(crate) type Described = Option<Descriptors>;

/// Names the counters of a request, of its head and the client's address, if that is known.
///
/// No descriptors: not limited. `None`: the request cannot be described, which leaves it undecided.
pub type Describe = dyn Fn(&Parts, Option<&str>) -> Option<Vec<Descriptor>> + Send + Sync;

/// Finds the address of the peer.
pub(crate) type FindPeer = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

/// What happens to a request that no limiter decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// It passes: a limiter that fails must not fail the service.
    #[default]
    Allow,
    /// It is refused, for limits that protect money.
    Deny,
}

/// Which requests are not counted. Browsers send a preflight request before one of a script, and
/// do not send that if the first is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exempt {
    None,
    /// `OPTIONS` with `Access-Control-Request-Method`.
    #[default]
    Preflight,
    /// Every `OPTIONS`.
    Options,
}

/// Requests without a verdict since the start, for metrics.
#[derive(Debug, Default)]
pub struct Counts {
    undecided: AtomicU64,
    invalid: AtomicU64,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limiter: Arc<dyn Limiter>,
    pub(crate) domain: Arc<str>,
    /// `None`: by the client's address.
    pub(crate) describe: Option<Arc<Describe>>,
    pub(crate) find_peer: Arc<FindPeer>,
    pub(crate) trusted_hops: u8,
    pub(crate) exempt: Exempt,
    pub(crate) deadline: Duration,
    pub(crate) hold_max: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) counts: Arc<Counts>,
}

// === impl Settings ===

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("domain", &self.domain)
            .field("trusted_hops", &self.trusted_hops)
            .field("exempt", &self.exempt)
            .field("deadline", &self.deadline)
            .field("hold_max", &self.hold_max)
            .field("on_unavailable", &self.on_unavailable)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Settings {
    #[inline]
    pub(crate) fn is_exempt(&self, method: &Method, headers: &HeaderMap) -> bool {
        match self.exempt {
            Exempt::None => false,
            Exempt::Preflight => {
                *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            }
            Exempt::Options => *method == Method::OPTIONS,
        }
    }

    /// The counters of a request without a function of the user: its client's.
    #[inline]
    pub(crate) fn by_client(&self, headers: &HeaderMap, extensions: &Extensions) -> Described {
        let client = self.client(headers, extensions)?;
        Some(smallvec::smallvec![Descriptor::new(REMOTE_ADDRESS, client)])
    }

    /// The counters of a request by a function of the user.
    pub(crate) fn by_head(&self, describe: &Describe, head: &Parts) -> Described {
        let client = self.client(&head.headers, &head.extensions);
        describe(head, client.as_deref()).map(Descriptors::from_vec)
    }

    /// The value under which the client is counted.
    #[inline]
    fn client(&self, headers: &HeaderMap, extensions: &Extensions) -> Option<String> {
        let peer = (self.find_peer)(extensions);
        if self.trusted_hops == 0 {
            return peer.map(group);
        }
        let lists = headers.get_all(&X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        client_address(peer, lists, self.trusted_hops).map(group)
    }

    #[inline]
    pub(crate) fn check(&self, descriptors: &[Descriptor], hits: i64) -> Answer {
        self.limiter.check(&Check { domain: &self.domain, descriptors, hits })
    }
}

// === impl Counts ===

impl Counts {
    /// Requests that no limiter decided: [`OnUnavailable`] did.
    pub fn undecided(&self) -> u64 {
        self.undecided.load(Ordering::Relaxed)
    }

    /// Requests whose check the limiter did not take, which were refused with 400.
    pub fn invalid(&self) -> u64 {
        self.invalid.load(Ordering::Relaxed)
    }

    pub(crate) fn add_undecided(&self) {
        self.undecided.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_invalid(&self) {
        self.invalid.fetch_add(1, Ordering::Relaxed);
    }
}
