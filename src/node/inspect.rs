//! The cluster as seen by this node, for `tidegate status`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_cluster::mesh::Peer;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::units::NANOS_PER_SEC;
use tidegate_ownership::membership::{self, Member};
use tidegate_ownership::route::Topology;
use tokio::time::Instant;

use super::core::Core;
use super::ownership;
use super::rulebook::RuleBook;
use crate::admin::Inspect;
use crate::admin::report::{
    ClockReport, MemberReport, MemberState, NodeReport, OwnerOf, OwnerReport, RuleBookReport,
    StatusReport, StorageReport, StoreReport,
};
use crate::config::Config;
use crate::observe::Health;

/// The data behind `/status` and `/owner`.
pub(super) struct View {
    core: Arc<Core>,
    book: RuleBook,
    health: Health,
    cluster: String,
    zone: String,
    keys_max: usize,
    start: Instant,
}

impl View {
    pub(super) fn new(core: Arc<Core>, book: RuleBook, health: Health, config: &Config) -> Self {
        Self {
            core,
            book,
            health,
            cluster: config.cluster.name.clone(),
            zone: config.node.zone.clone(),
            keys_max: config.limits.keys_max,
            start: Instant::now(),
        }
    }
}

impl Inspect for View {
    fn status(&self) -> StatusReport {
        let topology = self.core.topology.load();
        let book = self.core.book.load();
        let peers: BTreeMap<String, Arc<Peer>> = match &self.core.joined {
            Some(joined) => {
                joined.mesh.peers().into_iter().map(|peer| (peer.id.to_string(), peer)).collect()
            }
            None => BTreeMap::new(),
        };
        let fingerprint = book.fingerprint();
        let stats = self.core.store.stats();
        let members = topology.view.members();
        StatusReport {
            node: NodeReport {
                id: topology.me.to_string(),
                region: topology.region.clone(),
                zone: self.zone.clone(),
                generation: self.core.incarnation.generation().0,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                uptime_s: self.start.elapsed().as_secs(),
            },
            cluster: self.cluster.clone(),
            epoch: hex(topology.view.epoch()),
            not_ready: self.health.ready().err(),
            members: members
                .iter()
                .map(|member| {
                    let peer = peers.get(member.id.as_str()).map(|peer| &**peer);
                    report(member, peer, &topology, fingerprint)
                })
                .collect(),
            rule_book: RuleBookReport {
                fingerprint: hex(fingerprint),
                rules: book.rules().count(),
                last_error: self.book.status().error.map(|error| error.to_string()),
                agrees: members
                    .iter()
                    .all(|member| member.id == topology.me || member.rule_book == fingerprint),
            },
            store: StoreReport {
                keys: stats.keys as u64,
                keys_max: self.keys_max as u64,
                bytes: stats.bytes as u64,
                shared: stats.overflowed,
                refused: stats.refused,
            },
            ownership: ownership::report(&self.core),
            clock: ClockReport {
                median_ms: self.core.skew().median_ns / 1_000_000,
                is_skewed: self.core.skew().is_beyond,
            },
            storage: self.core.snapshot_task.as_ref().map(|snapshot_task| {
                let status = snapshot_task.snapshots.status();
                let now = snapshot_task.clock.now();
                StorageReport {
                    path: status.path.display().to_string(),
                    problem: status.problem,
                    written_s_ago: status
                        .written_at
                        .map(|at| now.since(at).as_nanos() / NANOS_PER_SEC),
                    keys: status.keys,
                    loaded: status.loaded,
                    skipped: status.skipped,
                    written: status.written,
                    rounds: status.rounds,
                    failed: status.failed,
                }
            }),
        }
    }

    fn owner(&self, domain: &str, entries: &[(String, String)]) -> OwnerReport {
        let topology = self.core.topology.load();
        let entries: Vec<Entry<'_>> =
            entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let book = self.core.book.load();
        let found = book.find(domain, &entries);
        let shared = found.as_ref().and_then(|found| found.counted_as(&entries));
        let counted_as = shared.as_deref().unwrap_or(&entries);
        let token = self.core.hasher.descriptor(domain, counted_as).token();
        let rule = found.as_ref().map(|found| found.rule);
        let is_strict = rule.is_some_and(|rule| rule.mode == Mode::Strict);
        let scope = rule.filter(|_| is_strict).map(|rule| rule.scope);
        let owners = if scope == Some(Scope::Global) {
            let owner = topology.global_ring().owner(token);
            owner
                .map(|node| OwnerOf { region: "*".to_owned(), node: node.to_string() })
                .into_iter()
                .collect()
        } else {
            topology
                .regions()
                .filter_map(|region| {
                    let node = topology.region_owner(region, token)?.to_string();
                    Some(OwnerOf { region: region.to_owned(), node })
                })
                .collect()
        };
        OwnerReport {
            token: hex(token),
            rule: rule.map(|rule| rule.id.to_string()),
            mode: rule.map(|rule| {
                if rule.mode == Mode::Strict { "strict" } else { "eventual" }.to_owned()
            }),
            scope: scope
                .map(|scope| if scope == Scope::Global { "global" } else { "region" }.to_owned()),
            owners,
        }
    }
}

fn report(
    member: &Member,
    peer: Option<&Peer>,
    topology: &Topology,
    own_book: u64,
) -> MemberReport {
    let is_me = member.id == topology.me;
    let state = match (member.state, peer) {
        (membership::MemberState::Draining, _) => MemberState::Draining,
        (membership::MemberState::Up, _) if is_me => MemberState::This,
        (membership::MemberState::Up, Some(_)) => MemberState::Up,
        (membership::MemberState::Up, None) => MemberState::Joining,
    };
    let share = topology.region_ring(&member.region).map_or(0, |ring| ring.share_ppm(&member.id));
    MemberReport {
        id: member.id.to_string(),
        region: member.region.clone(),
        zone: member.zone.clone(),
        generation: member.generation.0,
        addr: Some(member.addr.to_string()).filter(|_| member.addr.port() != 0),
        http: member.http.map(|addr| addr.to_string()),
        state,
        rule_book: Some(hex(if is_me { own_book } else { member.rule_book })),
        clock_offset_ms: match peer {
            Some(peer) => Some(peer.offset_ns() / 1_000_000),
            None if is_me => Some(0),
            None => None,
        },
        ring_share: f64::from(share) / 1_000_000.0,
        rtt_us: peer.map(|peer| peer.rtt_ns() / 1_000).filter(|rtt| *rtt > 0),
    }
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}
