//! The settings of the RESP listener, shared by all its connections.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::policy::Mode;

use super::session::Credentials;
use crate::config::Config;
use crate::front::bounds::Bounds;
use crate::front::stats::ListenerStats;
use crate::front::tls::Tls;

#[derive(Debug)]
pub struct Listener<D> {
    pub decide: Arc<D>,
    pub credentials: Credentials,
    /// The mode of the limits that clients name.
    pub mode: Mode,
    /// Number of workers; 0 is half the cores, at least 1.
    pub threads: usize,
    pub idle_timeout: Duration,
    pub bounds: Bounds,
    pub stats: Arc<ListenerStats>,
    /// `None` for plain text.
    pub tls: Option<Tls>,
}

impl<D> Listener<D> {
    /// The listener that `config` describes.
    pub fn new(
        config: &Config,
        decide: Arc<D>,
        bounds: Bounds,
        stats: Arc<ListenerStats>,
        tls: Option<Tls>,
    ) -> Self {
        let resp = &config.resp;
        Self {
            decide,
            credentials: Credentials {
                username: resp.username.clone(),
                password: resp.password.clone(),
            },
            mode: resp.mode.unwrap_or(config.defaults.mode),
            threads: resp.threads,
            idle_timeout: resp.idle_timeout.to_std(),
            bounds,
            stats,
            tls,
        }
    }
}
