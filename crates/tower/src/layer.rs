//! The settings of a layer.
//!
//! # Who is counted
//!
//! By default a request has the descriptor `remote_address`: the address of its connection, or,
//! with [`trusted_hops`](RateLimitLayer::trusted_hops) own proxies, that of the client in
//! `X-Forwarded-For`. [`describe`](RateLimitLayer::describe) replaces it.
//!
//! # When no limiter decides
//!
//! A limiter that does not answer within the [`deadline`](RateLimitLayer::deadline) leaves the
//! request undecided, and so does a request that cannot be described: it passes, or is refused with
//! 503 ([`on_unavailable`](RateLimitLayer::on_unavailable)). Both are counted in [`Counts`].

use std::fmt;
use std::net::IpAddr;
#[cfg(feature = "axum")]
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Extensions, Method};
use tower::Layer;

use crate::check::{Check, Descriptor, Limiter};
use crate::client_address::{client_address, group};
use crate::service::RateLimit;

/// The default deadline. A node in the same network answers within a millisecond; ten leave room
/// for a lost packet, and are little beside the time of a request.
pub const DEADLINE: Duration = Duration::from_millis(10);
/// The default of the longest time that a queue may hold a request.
pub const HOLD_MAX: Duration = Duration::from_secs(10);

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Names the counters of a request, of its head and the client's address, if that is known.
///
/// No descriptors: not limited. `None`: the request cannot be described, which leaves it undecided.
pub type Describe = dyn Fn(&Parts, Option<&str>) -> Option<Vec<Descriptor>> + Send + Sync;

/// Finds the address of the peer.
type FindPeer = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

/// Limits the requests of a service. Cheap to clone; clones share their [`Counts`].
#[derive(Clone)]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
}

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
    limiter: Arc<dyn Limiter>,
    domain: Arc<str>,
    describe: Arc<Describe>,
    find_peer: Arc<FindPeer>,
    trusted_hops: u8,
    exempt: Exempt,
    pub(crate) deadline: Duration,
    pub(crate) hold_max: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) counts: Arc<Counts>,
}

// === impl RateLimitLayer ===

impl RateLimitLayer {
    /// Limits requests by the rules of `domain` at `limiter`.
    pub fn new(limiter: impl Limiter, domain: impl Into<Arc<str>>) -> Self {
        Self::shared(Arc::new(limiter), domain)
    }

    /// The same over a limiter that others use too: other layers, or whoever replaces its rules.
    pub fn shared(limiter: Arc<dyn Limiter>, domain: impl Into<Arc<str>>) -> Self {
        let settings = Settings {
            limiter,
            domain: domain.into(),
            describe: Arc::new(by_address),
            find_peer: Arc::new(peer),
            trusted_hops: 0,
            exempt: Exempt::default(),
            deadline: DEADLINE,
            hold_max: HOLD_MAX,
            on_unavailable: OnUnavailable::default(),
            counts: Arc::default(),
        };
        Self { settings: Arc::new(settings) }
    }

    /// Names the counters of a request. Default [`by_address`].
    ///
    /// ```
    /// use tidegate_tower::{Descriptor, InProcess, RateLimitLayer};
    ///
    /// let rules = "domain: http\ndescriptors: [{key: api_key}]\n";
    /// let layer = RateLimitLayer::new(InProcess::from_yaml(rules)?, "http").describe(
    ///     |head, _client| {
    ///         // Without a key there is nothing to limit here: the service refuses it.
    ///         let Some(key) = head.headers.get("x-api-key") else { return Some(Vec::new()) };
    ///         Some(vec![Descriptor::new("api_key", key.to_str().ok()?)])
    ///     },
    /// );
    /// # let _ = layer;
    /// # Ok::<(), tidegate_tower::rules::Error>(())
    /// ```
    #[must_use]
    pub fn describe(
        self,
        describe: impl Fn(&Parts, Option<&str>) -> Option<Vec<Descriptor>> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.describe = Arc::new(describe))
    }

    /// The number of own proxies that append to `X-Forwarded-For`. Default 0: the address is that
    /// of the connection.
    ///
    /// With fewer proxies than that, clients choose the address under which they are counted.
    #[must_use]
    pub fn trusted_hops(self, trusted_hops: u8) -> Self {
        self.with(|settings| settings.trusted_hops = trusted_hops)
    }

    /// Finds the address of the peer in the extensions of a request, for servers other than those
    /// of axum (`into_make_service_with_connect_info`) and tonic, which are found by default.
    #[must_use]
    pub fn find_peer(
        self,
        find_peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.find_peer = Arc::new(find_peer))
    }

    /// Which requests are not counted. Default [`Exempt::Preflight`].
    #[must_use]
    pub fn exempt(self, exempt: Exempt) -> Self {
        self.with(|settings| settings.exempt = exempt)
    }

    /// The longest that a request waits for a verdict. Default [`DEADLINE`].
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = deadline)
    }

    /// The longest that a queue (`leaky_bucket` with `queue`) may hold a request; it is refused if
    /// that is not enough, and its hits are given back. Default [`HOLD_MAX`].
    #[must_use]
    pub fn hold_max(self, hold_max: Duration) -> Self {
        self.with(|settings| settings.hold_max = hold_max)
    }

    /// What happens to a request that no limiter decides. Default [`OnUnavailable::Allow`].
    #[must_use]
    pub fn on_unavailable(self, on_unavailable: OnUnavailable) -> Self {
        self.with(|settings| settings.on_unavailable = on_unavailable)
    }

    /// Requests without a verdict, of this layer and its clones.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.settings.counts
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, settings: Arc::clone(&self.settings) }
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

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

// === impl Settings ===

impl Settings {
    pub(crate) fn is_exempt(&self, method: &Method, headers: &HeaderMap) -> bool {
        match self.exempt {
            Exempt::None => false,
            Exempt::Preflight => {
                *method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            }
            Exempt::Options => *method == Method::OPTIONS,
        }
    }

    /// The counters of a request.
    pub(crate) fn described(&self, head: &Parts) -> Option<Vec<Descriptor>> {
        let forwarded_for = head.headers.get_all(&X_FORWARDED_FOR).iter();
        let peer = (self.find_peer)(&head.extensions);
        let lists = forwarded_for.map(HeaderValue::as_bytes);
        let client = client_address(peer, lists, self.trusted_hops).map(group);
        (self.describe)(head, client.as_deref())
    }

    pub(crate) fn check(&self, descriptors: &[Descriptor], hits: i64) -> crate::Answer {
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

/// One counter for each client: the descriptor `remote_address`. A request whose client has no
/// known address is undecided.
pub fn by_address(_head: &Parts, client: Option<&str>) -> Option<Vec<Descriptor>> {
    Some(vec![Descriptor::new("remote_address", client?)])
}

/// The peer as axum and tonic know it.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) = extensions.get() {
        let address: &SocketAddr = address;
        return Some(address.ip());
    }
    #[cfg(feature = "grpc")]
    {
        use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

        let plain = extensions.get::<TcpConnectInfo>();
        let tls = extensions.get::<TlsConnectInfo<TcpConnectInfo>>().map(TlsConnectInfo::get_ref);
        if let Some(address) = plain.or(tls).and_then(TcpConnectInfo::remote_addr) {
            return Some(address.ip());
        }
    }
    let _ = extensions;
    None
}
