//! Where the statistics of envoyproxy/ratelimit are read, and the door that tells Prometheus about
//! them alone.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use tidegate_rules::tally::Tallies;
use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

use super::core::Failed;
use super::listeners::{bind, open_after};
use crate::config::{Config, Limits, UserError};
use crate::front::bounds::Bounds;
use crate::front::serve::{ListenerStats, Protocols, serve};
use crate::observe::latency::Latency;
use crate::observe::statistics::{Statistics, prometheus};

/// What the statistics are read from.
#[derive(Clone, Debug)]
pub(super) struct VerdictSource {
    pub(super) tallies: Arc<Tallies>,
    /// Of the gRPC door's decisions.
    pub(super) latency: Latency,
    /// The gRPC door, which knows of the calls that came to no decision.
    pub(super) listener: Arc<ListenerStats>,
}

impl VerdictSource {
    pub(super) fn read(&self) -> Statistics {
        let times = self.latency.read();
        let calls = times.count().saturating_add(self.listener.refused.get());
        Statistics::read(&self.tallies, calls, times)
    }
}

/// `stats.prometheus_listen`, bound.
pub(super) struct PrometheusListener {
    socket: Option<TcpSocket>,
    path: String,
}

const KEY: &str = "stats.prometheus_listen";

impl PrometheusListener {
    pub(super) fn bind(config: &Config) -> Result<Self, UserError> {
        let socket = bind(KEY, config.stats.prometheus_listen)?;
        Ok(Self { socket, path: config.stats.prometheus_path.clone() })
    }

    /// Answers from now on until `stop`; without an address it only waits for that.
    pub(super) fn serve(
        self,
        limits: &Limits,
        source: VerdictSource,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), Failed>> + Send + 'static {
        let bounds = Bounds::from(limits);
        let answer = move || async move {
            let text = prometheus::render(&source.read(), prometheus::Form::Plain);
            ([(CONTENT_TYPE, prometheus::CONTENT_TYPE)], text)
        };
        async move {
            let router = Router::new().route(&self.path, get(answer));
            let at_once = CancellationToken::new();
            at_once.cancel();
            let listener = open_after(KEY, self.socket, &at_once, &stop)
                .await
                .map_err(|error| Failed::new(error.to_string()))?;
            match listener {
                Some(listener) => {
                    let stats = Arc::default();
                    serve(listener, router, Protocols::Http, &bounds, stats, stop).await;
                }
                None => stop.cancelled().await,
            }
            Ok(())
        }
    }
}
