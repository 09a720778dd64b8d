//! The listeners of a node. All addresses are bound before anything else starts, so that a port in
//! use is reported at once.
//!
//! Requests are accepted once the node has joined: before, it would consider itself the owner of
//! every key and admit each limit a second time. Until then connections are refused. The admin and
//! debug listeners open at once.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::inspect::View;
use super::listener_stats::Stats;
use super::measured::Measured;
use super::probes::NodeProbes;
use super::sockets::{addr, bind, open_after};
use crate::admin;
use crate::compat::envoy_ratelimit::debug_port::{self, DebugPort};
use crate::config::{Config, UserError};
use crate::front::bounds::Bounds;
use crate::front::http::{HttpListener, router};
use crate::front::resp;
use crate::front::rls::{self, RlsService};
use crate::front::serve::{Protocols, serve};
use crate::front::tls::Tls;

/// The bound addresses.
pub(super) struct Listeners {
    http: Option<TcpSocket>,
    grpc: Option<TcpSocket>,
    resp: Option<TcpSocket>,
    admin: Option<TcpSocket>,
    debug: Option<TcpSocket>,
    /// TLS of the gRPC listener.
    grpc_tls: Option<Tls>,
    stats: Stats,
}

/// What the listeners use.
pub(super) struct Behind<'a> {
    pub(super) core: &'a Core,
    pub(super) probes: Arc<NodeProbes>,
    pub(super) view: Arc<View>,
    pub(super) grpc_health: &'a rls::Health,
    /// Cancelled by the operator to drain the node.
    pub(super) drain: &'a CancellationToken,
}

impl Listeners {
    /// Binds the configured addresses.
    pub(super) fn bind(config: &Config, grpc_tls: Option<Tls>) -> Result<Self, UserError> {
        Ok(Self {
            grpc_tls,
            http: bind("http.listen", config.http.listen)?,
            grpc: bind("grpc.listen", config.grpc.listen)?,
            resp: bind("resp.listen", config.resp.listen)?,
            admin: bind("admin.listen", config.admin.listen)?,
            debug: bind("debug.listen", config.debug.listen)?,
            stats: Stats::default(),
        })
    }

    /// The address of the HTTP listener.
    pub(super) fn http_addr(&self) -> Option<SocketAddr> {
        addr(self.http.as_ref())
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// The listeners and their addresses in one line.
    pub(super) fn describe(&self) -> String {
        let grpc = if self.grpc_tls.is_some() { "grpc (TLS)" } else { "grpc" };
        let named = [
            ("http", &self.http),
            (grpc, &self.grpc),
            ("resp", &self.resp),
            ("admin", &self.admin),
            ("debug", &self.debug),
        ];
        let open = named
            .into_iter()
            .filter_map(|(name, listener)| Some(format!("{name} {}", addr(listener.as_ref())?)));
        open.collect::<Vec<_>>().join(", ")
    }

    /// Opens admin and debug at once and the other listeners after `joined`, serves until `drain`,
    /// then finishes requests in flight.
    pub(super) fn serve(
        self,
        config: &Config,
        behind: Behind<'_>,
        joined: CancellationToken,
        drain: CancellationToken,
    ) -> impl Future<Output = Result<(), UserError>> + Send + 'static {
        let Behind { core, probes, view, grpc_health, drain: on_demand } = behind;
        let bounds = Bounds::from(&config.limits);
        let Self { http, grpc, resp, admin, debug, grpc_tls, stats } = self;
        let metrics = probes.measures();
        let decider = |listener: &crate::observe::metrics::Listener| {
            Arc::new(Measured::new(core.decider.clone(), listener.clone(), core.clock.clone()))
        };

        let http_router = router(HttpListener {
            decide: decider(&metrics.http),
            probes: probes.clone(),
            bounds: bounds.clone(),
            denied_status: config.http.denied_status,
            auth: config.auth.clone(),
            stats: stats.http.clone(),
        });
        let grpc_service = RlsService {
            decide: decider(&metrics.grpc),
            bounds: bounds.clone(),
            stats: stats.grpc.clone(),
        };
        let grpc_routes = rls::routes(grpc_service, grpc_health);
        let resp_listener =
            resp::Listener::new(config, decider(&metrics.resp), bounds.clone(), stats.resp.clone());
        let debug_router = debug_port::router(DebugPort {
            book: core.book.clone(),
            statistics: probes.statistics(),
        });
        let admin_router =
            admin::router(admin::AdminState { inspect: view, probes, drain: on_demand.clone() });
        async move {
            let http = async {
                if let Some(listener) = open_after("http.listen", http, &joined, &drain).await? {
                    let (stats, drain) = (stats.http, drain.clone());
                    serve(listener, http_router, Protocols::Http, &bounds, stats, drain).await;
                }
                Ok(())
            };
            let grpc = async {
                if let Some(listener) = open_after("grpc.listen", grpc, &joined, &drain).await? {
                    let (stats, drain) = (stats.grpc, drain.clone());
                    let protocols = Protocols::Grpc(grpc_tls);
                    serve(listener, grpc_routes, protocols, &bounds, stats, drain).await;
                }
                Ok(())
            };
            let resp = async {
                if let Some(listener) = open_after("resp.listen", resp, &joined, &drain).await? {
                    let served = resp::serve(listener, resp_listener, drain.clone()).await;
                    served.map_err(|error| UserError::new(error.to_string(), RESP_FIX))?;
                }
                Ok(())
            };
            let at_once = CancellationToken::new();
            at_once.cancel();
            let admin = async {
                if let Some(listener) = open_after("admin.listen", admin, &at_once, &drain).await? {
                    let (stats, drain) = (stats.admin, drain.clone());
                    serve(listener, admin_router, Protocols::Http, &bounds, stats, drain).await;
                }
                Ok(())
            };
            let debug = async {
                if let Some(listener) = open_after("debug.listen", debug, &at_once, &drain).await? {
                    let (stats, drain) = (stats.debug, drain.clone());
                    serve(listener, debug_router, Protocols::Http, &bounds, stats, drain).await;
                }
                Ok(())
            };
            tokio::try_join!(http, grpc, resp, admin, debug).map(drop)
        }
    }
}

/// Advice when the RESP listener fails.
const RESP_FIX: &str = "raise the limits on threads and open files";
