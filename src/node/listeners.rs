//! The listeners of a node. All addresses are bound before anything else starts, so that a port in
//! use is reported at once.
//!
//! Requests are accepted once the node has joined: before, it would consider itself the owner of
//! every key and admit each limit a second time. Until then connections are refused. The admin,
//! debug and statistics listeners open at once.

use std::future::ready;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::error::Failed;
use super::inspect::View;
use super::measured::Measured;
use super::open_files::{self, Share};
use super::overview::ClusterOverview;
use super::probes::{NodeProbes, Stats};
use crate::admin::{self, Access, DrainReport, WatchBlocked};
use crate::compat::envoy_ratelimit::debug_port::{self, DebugPort};
use crate::compat::envoy_ratelimit::statistics::{Source, prometheus};
use crate::config::{Config, Grpc, UserError};
use crate::enrolment;
use crate::front::bounds::{Bounds, MaxAge};
use crate::front::gubernator::{self, GubernatorListener};
use crate::front::http::{HttpListener, router};
use crate::front::pages::Page;
use crate::front::proxy::{self, AccessLog, Observers, ProxyListener, ServerTls};
use crate::front::resp;
use crate::front::rls::{self, RlsService};
use crate::front::serve::{HttpService, ListenerStats, Protocols, serve};
use crate::front::socket::{Listener as Listening, Socket};
use crate::front::tls::Tls;
use crate::front::traced::{Form, Traced};
use crate::observe::metrics::Listener;

/// Connections waiting to be accepted; `net.core.somaxconn` applies too.
const BACKLOG: u32 = 1_024;

/// Advice when the RESP listener fails.
const RESP_FIX: &str = "raise the limits on threads and open files";

/// The bound addresses.
pub(super) struct Listeners {
    http: Bound,
    grpc: Bound,
    grpc_socket: Bound,
    resp: Bound,
    gubernator_grpc: Bound,
    gubernator_http: Bound,
    proxy: Bound,
    admin: Bound,
    debug: Bound,
    join: Bound,
    tls: ListenerTls,
    access_log: Option<AccessLog>,
}

/// TLS of the listeners that have it, and to servers.
pub(super) struct ListenerTls {
    pub(super) http: Option<Tls>,
    pub(super) grpc: Option<Tls>,
    pub(super) resp: Option<Tls>,
    /// Of both of its listeners.
    pub(super) gubernator: Option<Tls>,
    pub(super) proxy: Option<Tls>,
    pub(super) admin: Option<Tls>,
    /// Of the proxy to the application.
    pub(super) servers: ServerTls,
}

/// The bound address of one listener, if it is configured.
pub(super) struct Bound {
    /// The configuration key of the address.
    key: &'static str,
    socket: Option<Socket>,
    /// The address or path, for people.
    at: String,
    stats: Arc<ListenerStats>,
}

/// What the listeners use.
pub(super) struct Behind<'a> {
    pub(super) core: &'a Core,
    pub(super) probes: Arc<NodeProbes>,
    pub(super) view: Arc<View>,
    pub(super) overview: Arc<ClusterOverview>,
    pub(super) access: Access,
    pub(super) blocked: Option<Arc<dyn WatchBlocked>>,
    pub(super) grpc_health: &'a rls::Health,
    /// Cancelled by the operator to drain the node.
    pub(super) drain: &'a CancellationToken,
    pub(super) drained: watch::Receiver<Option<DrainReport>>,
}

impl Bound {
    pub(super) fn bind(
        key: &'static str,
        addr: Option<SocketAddr>,
        stats: &Arc<ListenerStats>,
    ) -> Result<Self, UserError> {
        let bind =
            |addr| Socket::bind(addr).map_err(|error| UserError::cannot_listen(key, addr, &error));
        let socket = addr.map(bind).transpose()?;
        let bound = socket.as_ref().and_then(Socket::addr);
        let at = bound.map(|addr| addr.to_string()).unwrap_or_default();
        Ok(Self { key, socket, at, stats: stats.clone() })
    }

    /// A Unix socket, if it is configured.
    fn bind_file(
        key: &'static str,
        path: Option<&Path>,
        stats: &Arc<ListenerStats>,
    ) -> Result<Self, UserError> {
        let bind = |path| {
            Socket::bind_file(path).map_err(|error| UserError::cannot_listen_at(key, path, &error))
        };
        let at = path.map(|path| path.display().to_string()).unwrap_or_default();
        Ok(Self { key, socket: path.map(bind).transpose()?, at, stats: stats.clone() })
    }

    fn addr(&self) -> Option<SocketAddr> {
        self.socket.as_ref()?.addr()
    }

    /// Listens once `may_open` completes; `None` when there is no such listener, or the node drains
    /// first.
    async fn open(
        self,
        may_open: impl Future<Output = ()>,
        drain: &CancellationToken,
    ) -> Result<Option<Listening>, UserError> {
        let Self { key, socket, at, .. } = self;
        let cannot_listen = |error| {
            let problem = format!("{key} {at}: {error}");
            UserError::new(problem, "stop what uses it, or set another address")
        };
        let Some(socket) = socket else { return Ok(None) };
        tokio::select! {
            biased;
            () = may_open => {}
            () = drain.cancelled() => return Ok(None),
        }
        socket.listen(BACKLOG).map(Some).map_err(cannot_listen)
    }

    /// Serves HTTP from `may_open` until `drain`, then finishes requests in flight.
    async fn serve(
        self,
        service: impl HttpService,
        protocols: Protocols,
        bounds: &Bounds,
        may_open: impl Future<Output = ()>,
        drain: &CancellationToken,
    ) -> Result<(), UserError> {
        let stats = self.stats.clone();
        if let Some(listener) = self.open(may_open, drain).await? {
            serve(listener, service, protocols, bounds, stats, drain.clone()).await;
        }
        Ok(())
    }
}

/// How listeners close: all others, and then that of `[admin]`, which says until the end what the
/// node does.
#[derive(Clone, Default)]
pub(super) struct Closing {
    /// Ends all but that of `[admin]`.
    pub(super) drain: CancellationToken,
    /// Cancelled when these have closed.
    pub(super) have_closed: CancellationToken,
    pub(super) admin: CancellationToken,
}

impl Listeners {
    /// Binds the configured addresses.
    pub(super) fn bind(
        config: &Config,
        tls: ListenerTls,
        access_log: Option<AccessLog>,
        stats: &Stats,
    ) -> Result<Self, UserError> {
        Ok(Self {
            http: Bound::bind("http.listen", config.http.listen, &stats.http)?,
            grpc: Bound::bind("grpc.listen", config.grpc.listen, &stats.grpc)?,
            grpc_socket: Bound::bind_file(
                "grpc.socket",
                config.grpc.socket.as_deref(),
                &stats.grpc,
            )?,
            resp: Bound::bind("resp.listen", config.resp.listen, &stats.resp)?,
            gubernator_grpc: Bound::bind(
                "gubernator.grpc",
                config.gubernator.grpc,
                &stats.gubernator,
            )?,
            gubernator_http: Bound::bind(
                "gubernator.http",
                config.gubernator.http,
                &stats.gubernator,
            )?,
            proxy: Bound::bind("proxy.listen", config.proxy.listen, &stats.proxy)?,
            admin: Bound::bind("admin.listen", config.admin.listen, &stats.admin)?,
            debug: Bound::bind("debug.listen", config.debug.listen, &stats.debug)?,
            join: Bound::bind("join.listen", config.join.listen, &stats.join)?,
            tls,
            access_log,
        })
    }

    /// The address of the HTTP listener.
    pub(super) fn http_addr(&self) -> Option<SocketAddr> {
        self.http.addr()
    }

    /// The listeners and their addresses in one line.
    pub(super) fn describe(&self) -> String {
        let listening = self.listening().map(|(name, at)| format!("{name} {at}"));
        listening.collect::<Vec<_>>().join(", ")
    }

    /// The configured listeners and their addresses.
    fn listening(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let tls = &self.tls;
        let name = |plain, secured, tls: &Option<Tls>| if tls.is_some() { secured } else { plain };
        let named = [
            (name("http", "http (TLS)", &tls.http), &self.http),
            (name("grpc", "grpc (TLS)", &tls.grpc), &self.grpc),
            (name("grpc", "grpc (TLS)", &tls.grpc), &self.grpc_socket),
            (name("resp", "resp (TLS)", &tls.resp), &self.resp),
            (
                name("gubernator grpc", "gubernator grpc (TLS)", &tls.gubernator),
                &self.gubernator_grpc,
            ),
            (
                name("gubernator http", "gubernator http (TLS)", &tls.gubernator),
                &self.gubernator_http,
            ),
            (name("proxy", "proxy (TLS)", &tls.proxy), &self.proxy),
            (name("admin", "admin (TLS)", &tls.admin), &self.admin),
            ("debug", &self.debug),
            ("join", &self.join),
        ];
        let is_bound = |bound: &Bound| bound.socket.is_some();
        named
            .into_iter()
            .filter(move |(_, bound)| is_bound(bound))
            .map(|(name, it)| (name, &*it.at))
    }

    /// Opens admin and debug at once and the other listeners after `joined`, serves until they are
    /// to close, then finishes requests in flight.
    pub(super) fn serve(
        self,
        config: &Config,
        behind: Behind<'_>,
        joined: CancellationToken,
        closing: Closing,
    ) -> impl Future<Output = Result<(), UserError>> + Send + 'static {
        let Closing { drain, have_closed, admin: admin_drain } = closing;
        let Behind {
            core,
            probes,
            view,
            overview,
            access,
            blocked,
            grpc_health,
            drain: on_demand,
            drained,
        } = behind;
        let configured = Share {
            connections_max: config.limits.connections_max,
            in_flight_max: config.proxy.listen.map_or(0, |_| config.proxy.in_flight_max),
        };
        let files = open_files::raise_limit();
        let Share { connections_max, in_flight_max } =
            Share::of(files, self.listening().count(), configured);
        let bounds = Bounds { connections_max, ..Bounds::from(config) };
        let grpc_bounds = Bounds { max_age: max_age(config), ..bounds.clone() };
        let Self {
            http,
            grpc,
            grpc_socket,
            resp,
            gubernator_grpc,
            gubernator_http,
            proxy,
            admin,
            debug,
            join,
            tls,
            access_log,
        } = self;
        let metrics = &probes.metrics;
        let decider = |listener: &Listener| {
            Arc::new(Measured::new(core.decider.clone(), listener.clone(), core.clock.clone()))
        };

        let http_router = router(HttpListener {
            decide: decider(&metrics.http),
            probes: probes.clone(),
            bounds: bounds.clone(),
            denied_status: config.http.denied_status,
            auth: config.auth.clone(),
            stats: http.stats.clone(),
            metrics: Page::default(),
        });
        let traces = core.decider.recorder();
        let http_service = Traced::new(http_router, traces.clone(), Form::Http);
        let rls = RlsService {
            decide: decider(&metrics.grpc),
            bounds: bounds.clone(),
            stats: grpc.stats.clone(),
        };
        let grpc_service = Traced::new(rls::routes(rls, grpc_health), traces.clone(), Form::Grpc);
        let resp_listener = resp::Listener::new(
            config,
            decider(&metrics.resp),
            bounds.clone(),
            resp.stats.clone(),
            tls.resp,
        );
        let gubernator = Arc::new(GubernatorListener {
            decide: decider(&metrics.gubernator),
            probes: probes.clone(),
            settings: gubernator::Settings {
                zone: config.gubernator.time_zone.0.clone(),
                quirks: config.gubernator.quirks,
            },
            bounds: bounds.clone(),
            topology: core.topology.clone(),
            advertise: gubernator_grpc.addr().map_or_else(String::new, |addr| addr.to_string()),
            stats: gubernator_http.stats.clone(),
            calls: probes.gubernator_calls.clone(),
            metrics: Page::default(),
        });
        let gubernator_grpc_service =
            Traced::new(gubernator::grpc_routes(gubernator.clone()), traces.clone(), Form::Grpc);
        let gubernator_http_service =
            Traced::new(gubernator::router(gubernator), traces.clone(), Form::Http);
        let proxy_bounds = proxy::bounds(&bounds);
        let observers = Observers {
            listener: proxy.stats.clone(),
            upstreams: probes.upstreams.clone(),
            access_log,
        };
        let proxy_listener = ProxyListener::new(
            config,
            decider(&metrics.proxy),
            &proxy_bounds,
            in_flight_max,
            tls.servers,
            observers,
        );
        let maintenance = proxy_listener.maintenance();
        let proxy_service =
            Traced::new(proxy::service(proxy_listener), traces.clone(), Form::Proxy);
        let proxy_protocols = Protocols::Proxy {
            tls: tls.proxy,
            announcers: config.proxy.proxy_protocol_from.clone().into(),
        };
        let statistics = probes.statistics.clone();
        let debug_router = debug_port::router(DebugPort { book: core.book.clone(), statistics });
        let admin_router = admin::router(admin::AdminState {
            inspect: view.clone(),
            operate: view.clone(),
            keys: view.clone(),
            certificates: view,
            overview,
            access,
            blocked,
            probes,
            drain: on_demand.clone(),
            drained,
            stop: drain.clone(),
        });
        let enrolment = core.issuer.clone().zip(core.mesh().cloned());
        async move {
            let [http_tls, admin_tls] = [tls.http, tls.admin].map(Protocols::Http);
            let grpc_tls = Protocols::Grpc(tls.grpc);
            let gubernator_grpc_tls = Protocols::Grpc(tls.gubernator.clone());
            let gubernator_http_tls = Protocols::Http(tls.gubernator);
            let maintenance = async {
                drain.run_until_cancelled(maintenance).await;
                Ok(())
            };
            let resp = async {
                if let Some(Listening::Tcp(listener)) =
                    resp.open(joined.cancelled(), &drain).await?
                {
                    let served = resp::serve(listener, resp_listener, drain.clone()).await;
                    served.map_err(|error| UserError::new(error.to_string(), RESP_FIX))?;
                }
                Ok(())
            };
            let join = async {
                let Some((issuer, mesh)) = enrolment else { return Ok(()) };
                let tls = Protocols::Http(Some(enrolment::listener_tls(&mesh)?));
                let routes = enrolment::router(issuer, bounds.request_timeout);
                join.serve(routes, tls, &bounds, ready(()), &drain).await
            };
            let others = async {
                tokio::try_join!(
                    join,
                    http.serve(http_service, http_tls, &bounds, joined.cancelled(), &drain),
                    grpc.serve(
                        grpc_service.clone(),
                        grpc_tls.clone(),
                        &grpc_bounds,
                        joined.cancelled(),
                        &drain
                    ),
                    grpc_socket.serve(
                        grpc_service,
                        grpc_tls,
                        &grpc_bounds,
                        joined.cancelled(),
                        &drain
                    ),
                    resp,
                    gubernator_grpc.serve(
                        gubernator_grpc_service,
                        gubernator_grpc_tls,
                        &bounds,
                        joined.cancelled(),
                        &drain
                    ),
                    gubernator_http.serve(
                        gubernator_http_service,
                        gubernator_http_tls,
                        &bounds,
                        joined.cancelled(),
                        &drain
                    ),
                    proxy.serve(
                        proxy_service,
                        proxy_protocols,
                        &proxy_bounds,
                        joined.cancelled(),
                        &drain
                    ),
                    maintenance,
                    debug.serve(debug_router, Protocols::Http(None), &bounds, ready(()), &drain),
                )?;
                have_closed.cancel();
                Ok(())
            };
            let admin = admin.serve(admin_router, admin_tls, &bounds, ready(()), &admin_drain);
            tokio::try_join!(others, admin).map(drop)
        }
    }
}

fn max_age(config: &Config) -> Option<MaxAge> {
    let Grpc { max_connection_age: after, max_connection_age_grace: grace, .. } = config.grpc;
    (!after.is_zero()).then(|| MaxAge { after: after.to_std(), grace: grace.to_std() })
}

/// Serves the statistics on `stats.prometheus_listen` until `stop`. Without an address it returns
/// at `stop`.
pub(super) fn serve_prometheus(
    listener: Bound,
    config: &Config,
    source: Source,
    stop: CancellationToken,
) -> impl Future<Output = Result<(), Failed>> + Send + 'static {
    let bounds = Bounds::from(config);
    let answer = || async move {
        let text = prometheus::render(source.read(), prometheus::Form::Plain);
        ([(CONTENT_TYPE, prometheus::CONTENT_TYPE)], text)
    };
    let router = Router::new().route(&config.stats.prometheus_path, get(answer));
    async move {
        let served = listener.serve(router, Protocols::Http(None), &bounds, ready(()), &stop).await;
        served.map_err(|error| Failed::new(error.to_string()))?;
        stop.cancelled().await;
        Ok(())
    }
}
