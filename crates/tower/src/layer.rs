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
use std::time::Duration;

use http::Extensions;
use http::request::Parts;
use tower::Layer;

use crate::check::{Descriptor, Limiter};
use crate::service::RateLimit;
use crate::settings::{Counts, Exempt, OnUnavailable, REMOTE_ADDRESS, Settings};

/// The default deadline. A node in the same network answers within a millisecond; ten leave room
/// for a lost packet, and are little beside the time of a request.
pub const DEADLINE: Duration = Duration::from_millis(10);
/// The default of the longest time that a queue may hold a request.
pub const HOLD_MAX: Duration = Duration::from_secs(10);

/// Limits the requests of a service. Cheap to clone; clones share their [`Counts`].
#[derive(Clone)]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
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
            describe: None,
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
        self.with(|settings| settings.describe = Some(Arc::new(describe)))
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

/// One counter for each client: the descriptor `remote_address`. A request whose client has no
/// known address is undecided.
pub fn by_address(_head: &Parts, client: Option<&str>) -> Option<Vec<Descriptor>> {
    Some(vec![Descriptor::new(REMOTE_ADDRESS, client?)])
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
