//! The listener of `stats.prometheus_listen`.

use axum::Router;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

use super::core::Failed;
use super::sockets::{bind, open_after};
use crate::compat::envoy_ratelimit::statistics::{Source, prometheus};
use crate::config::{Config, Limits, UserError};
use crate::front::bounds::Bounds;
use crate::front::serve::{Protocols, serve};

/// The bound socket, if the listener is configured.
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

    /// Serves until `stop`. Without an address it returns at `stop`.
    pub(super) fn serve(
        self,
        limits: &Limits,
        source: Source,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), Failed>> + Send + 'static {
        let bounds = Bounds::from(limits);
        let answer = move || async move {
            let text = prometheus::render(source.read(), prometheus::Form::Plain);
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
                    let stats = std::sync::Arc::default();
                    serve(listener, router, Protocols::Http, &bounds, stats, stop).await;
                }
                None => stop.cancelled().await,
            }
            Ok(())
        }
    }
}
