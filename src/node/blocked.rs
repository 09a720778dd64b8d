//! The sources that a firewall may drop, as the admin listener reports them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;

use super::core::Core;
use crate::admin::{BlockedReport, BlockedSource, WatchBlocked};
use crate::config::Config;
use crate::decide::{Blocked, BlockedSources};

/// The data behind `/blocked`.
pub(super) struct BlockedView {
    core: Arc<Core>,
    sources: Arc<BlockedSources>,
    /// The addresses of this node that are known from its configuration.
    own: Vec<SocketAddr>,
}

impl BlockedView {
    /// None where no sources are watched.
    pub(super) fn of(core: &Arc<Core>, config: &Config) -> Option<Arc<dyn WatchBlocked>> {
        let sources = core.blocked_sources.clone()?;
        let Config { http, grpc, resp, gubernator, proxy, admin, cluster, .. } = config;
        let own = [
            http.listen,
            grpc.listen,
            resp.listen,
            gubernator.grpc,
            gubernator.http,
            proxy.listen,
            admin.listen,
        ];
        let own = own.into_iter().chain([cluster.listen, cluster.advertise]).flatten().collect();
        Some(Arc::new(Self { core: core.clone(), sources, own }))
    }
}

impl WatchBlocked for BlockedView {
    fn report(&self) -> BlockedReport {
        let now = self.core.clock.now();
        let topology = self.core.topology.load();
        let members = topology.view.members().iter();
        let addresses = members.flat_map(|member| [Some(member.addr), member.http]).flatten();
        // Edges are in no view.
        let edges = self.core.mesh().map(|mesh| mesh.edges());
        let edges = edges.iter().flat_map(|edges| edges.iter());
        let mut addresses: Vec<IpAddr> = addresses
            .chain(edges.flat_map(|edge| [edge.advertise, edge.address()]))
            .chain(self.own.iter().copied())
            .map(|addr| addr.ip().to_canonical())
            .filter(|addr| !addr.is_unspecified())
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        let report = |blocked: Blocked| BlockedSource {
            source: blocked.source,
            rule: blocked.rule.to_string(),
            expires_in_ms: blocked.until.since(now).as_millis_ceil(),
        };
        BlockedReport {
            node: topology.me.to_string(),
            addresses,
            sources: self.sources.blocked(now).into_iter().map(report).collect(),
        }
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.sources.changes()
    }
}
