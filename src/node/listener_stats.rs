//! The statistics of every listener.

use std::sync::Arc;

use crate::front::serve::ListenerStats;

/// Statistics per listener.
#[derive(Clone, Debug, Default)]
pub(super) struct Stats {
    pub(super) http: Arc<ListenerStats>,
    pub(super) grpc: Arc<ListenerStats>,
    pub(super) resp: Arc<ListenerStats>,
    pub(super) admin: Arc<ListenerStats>,
    pub(super) debug: Arc<ListenerStats>,
}
