//! Readiness and metrics of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::sync::Synchroniser;
use tidegate_limiter::units::Timestamp;

use super::core::Core;
use super::edge::Edge;
use super::join::Joined;
use super::malformed::Malformed;
use super::rulebook::RuleBook;
use super::system::SystemClock;
use crate::compat::envoy_ratelimit::statistics::Source;
use crate::compat::envoy_ratelimit::statistics::prometheus::{Form, collector};
use crate::compat::gubernator::metrics as gubernator_metrics;
use crate::config::Config;
use crate::decide::{BlockedSources, CarriedRules};
use crate::front::proxy::UpstreamStats;
use crate::front::serve::ListenerStats;
use crate::front::stats::Counter;
use crate::front::{Probes, gubernator};
use crate::observe::names::{self, Metric};
use crate::observe::samples::{Readings, RuleSample};
use crate::observe::{Health, Metrics, log};
use crate::reload::certificates;
use crate::storage::Status;
use crate::traces;

/// Readiness and metrics of a node.
pub(super) struct NodeProbes {
    health: Health,
    /// Listeners update those of decisions.
    pub(super) metrics: Metrics,
    /// The statistics under the names of envoyproxy/ratelimit.
    pub(super) statistics: Source,
    /// The listeners of `[gubernator]` update them.
    pub(super) gubernator_calls: Arc<gubernator::Calls>,
    /// The proxy updates them.
    pub(super) upstreams: Arc<UpstreamStats>,
}

/// Statistics per listener, and of the access log.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) http: Arc<ListenerStats>,
    pub(super) grpc: Arc<ListenerStats>,
    pub(super) resp: Arc<ListenerStats>,
    /// Of both listeners.
    pub(super) gubernator: Arc<ListenerStats>,
    pub(super) proxy: Arc<ListenerStats>,
    pub(super) admin: Arc<ListenerStats>,
    pub(super) debug: Arc<ListenerStats>,
    pub(super) join: Arc<ListenerStats>,
    /// Lines that are not in the access log, if there is one.
    pub(super) access_log_dropped: Option<Arc<Counter>>,
}

impl Probes for NodeProbes {
    fn ready(&self) -> Result<(), String> {
        self.health.ready()
    }

    fn metrics(&self) -> String {
        self.metrics.encode()
    }
}

impl NodeProbes {
    pub(super) fn new(
        core: Arc<Core>,
        book: RuleBook,
        certificates: certificates::Handle,
        health: Health,
        stats: Stats,
        clock: Arc<SystemClock>,
        config: &Config,
    ) -> Self {
        let mut metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
        let statistics = Source {
            tallies: core.tallies.clone(),
            latency: metrics.grpc.latency.clone(),
            listener: stats.grpc.clone(),
        };
        if config.stats.prometheus_names {
            let source = statistics.clone();
            metrics.watch_unprefixed(collector(move || source.read(), Form::OpenMetrics));
        }
        let gubernator_calls = Arc::<gubernator::Calls>::default();
        if config.gubernator.grpc.or(config.gubernator.http).is_some() {
            let keys = core.clone();
            let keys = move || keys.store.stats().keys;
            metrics.watch_unprefixed(gubernator_metrics::collector(gubernator_calls.clone(), keys));
        }
        let upstreams = Arc::<UpstreamStats>::default();
        let passed_on = upstreams.clone();
        let (cell, decider, ready) = (core.book.clone(), core.decider.clone(), health.clone());
        let has_carried = config.gubernator.grpc.or(config.gubernator.http).is_some();
        metrics.watch_rules(move || {
            let sample = |rule: &Arc<tidegate_rules::rule::Rule>| RuleSample {
                id: rule.id.clone(),
                counts: rule.stats.read(),
            };
            let CarriedRules { strict, leased } = decider.carried_rules();
            let carried = [strict, leased].into_iter().filter(|_| has_carried);
            carried.chain(cell.load().rules()).map(sample).collect()
        });
        metrics.watch(move || {
            let mut readings = Readings::default();
            listeners(&stats, &mut readings);
            proxy(&passed_on, &mut readings);
            if let Some(dropped) = &stats.access_log_dropped {
                readings.add(names::ACCESS_LOG_DROPPED, dropped.get());
            }
            readings.add(names::LOG_LINES_DROPPED, log::lines_dropped());
            decisions(&core, &mut readings);
            if let Some(spans) = core.decider.recorder().counters() {
                let traces::Counters { sent, dropped, failed } = spans;
                let spans = [("sent", sent), ("dropped", dropped), ("failed", failed)];
                let spans = spans.map(|(outcome, count)| (outcome, read(count)));
                readings.add_each(names::TRACE_SPANS, "outcome", spans);
            }
            let loads = book.handle.status();
            let loads = [("ok", loads.loads_ok), ("failed", loads.loads_failed)];
            readings.add_each(names::RULE_LOADS, "outcome", loads);
            readings.add(names::RULES_OK, book.handle.status().error.is_none());
            readings.add(names::READY, ready.ready().is_ok());
            store(&core, &mut readings);
            if let Some(sources) = &core.blocked_sources {
                blocked_sources(sources, core.clock.now(), &mut readings);
            }
            if let Some(snapshot_task) = &core.snapshot_task {
                storage(&snapshot_task.snapshots.status(), &mut readings);
            }
            readings.add(names::CLOCK_ERROR_MS, clock.error() / 1_000_000);
            if let Some(joined) = &core.joined {
                let Joined { mesh, synchroniser, malformed, .. } = joined;
                cluster(&core, mesh, synchroniser, malformed, &mut readings);
                readings.add(names::EDGES, joined.mesh.edges().len() as u64);
                readings.add(names::STATES_REJECTED, read(&joined.replicator.counters.refused));
                certificate(&core, &joined.mesh, &certificates.status(), &mut readings);
                replication(joined, &mut readings);
                ownership(&core, joined, &mut readings);
            }
            if let Some(edge) = &core.edge {
                let Edge { mesh, synchroniser, malformed, .. } = edge;
                cluster(&core, mesh, synchroniser, malformed, &mut readings);
                readings.add(names::EDGE_FOLLOWS, edge.follower.homes().len() as u64);
                readings.add(names::EDGE_CUT_OFF, edge.is_cut_off());
                certificate(&core, &edge.mesh, &certificates.status(), &mut readings);
            }
            readings
        });
        Self { health, metrics, statistics, gubernator_calls, upstreams }
    }
}

/// Relaxed: statistics need no ordering.
fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn listeners(stats: &Stats, readings: &mut Readings) {
    let mut each = |metric: Metric, read: fn(&ListenerStats) -> u64| {
        let listeners = [
            ("http", read(&stats.http)),
            ("grpc", read(&stats.grpc)),
            ("resp", read(&stats.resp)),
            ("gubernator", read(&stats.gubernator)),
            ("proxy", read(&stats.proxy)),
            ("admin", read(&stats.admin)),
            ("debug", read(&stats.debug)),
            ("join", read(&stats.join)),
        ];
        readings.add_each(metric, "listener", listeners);
    };
    each(names::CONNECTIONS, |stats| stats.accepted.get().saturating_sub(stats.ended.get()));
    each(names::CONNECTIONS_ACCEPTED, |stats| stats.accepted.get());
    each(names::CONNECTIONS_AT_BOUND, |stats| stats.full.get());
    each(names::ACCEPTS_FAILED, |stats| stats.accept_failed.get());
    each(names::CONNECTIONS_REFUSED, |stats| stats.address_full.get());
    each(names::CONNECTIONS_ABORTED, |stats| {
        stats.slow.get() + stats.handshake_failed.get() + stats.idle.get() + stats.dropped.get()
    });
    each(names::BAD_REQUESTS, |stats| stats.refused.get());
    each(names::OVERRIDES_IGNORED, |stats| stats.overrides.get());
}

fn proxy(stats: &UpstreamStats, readings: &mut Readings) {
    let reasons = [
        ("unreachable", stats.unreachable.get()),
        ("broken", stats.broken.get()),
        ("slow", stats.slow.get()),
        ("full", stats.full.get()),
        ("overloaded", stats.overloaded.get()),
        ("client", stats.client.get()),
    ];
    readings.add_each(names::PROXY_FAILURES, "reason", reasons);
    readings.add(names::PROXY_EJECTIONS, stats.ejections.get());
    if let Some(limit) = stats.concurrency_limit() {
        readings.add(names::PROXY_CONCURRENCY_LIMIT, limit);
    }
}

fn decisions(core: &Core, readings: &mut Readings) {
    let counters = core.decider.counters();
    let sources = [
        ("local", read(&counters.local)),
        ("owner", read(&counters.forwarded)),
        ("grant", read(&counters.granted)),
        ("remembered", read(&counters.cached)),
        ("policy", read(&counters.fallback)),
        ("blocked", read(&counters.blocked)),
        ("peer", read(&counters.served)),
    ];
    readings.add_each(names::VERDICTS, "source", sources);
    readings.add(names::NOT_OWNER, read(&counters.not_owner));
    readings.add(names::FORWARD_RETRIES, read(&counters.retried));
    readings.add(names::FORWARD_COMBINED, read(&counters.combined));
    readings.add(names::FORWARD_DUPLICATES, read(&counters.deduplicated));
    readings.add(names::FORWARD_EXPIRED, read(&counters.expired));
    readings.add(names::UNCONFIRMED, read(&counters.unconfirmed));
    let reservations = &counters.reservations;
    let outcomes = [
        ("reserved", read(&reservations.reserved)),
        ("refused", read(&reservations.refused)),
        ("committed", read(&reservations.committed)),
        ("released", read(&reservations.released)),
        ("repeated", read(&reservations.repeated)),
        ("reported", read(&reservations.reported)),
        ("unlimited", read(&reservations.unlimited)),
    ];
    readings.add_each(names::RESERVATIONS, "outcome", outcomes);
    let (hits, held) = core.decider.granted_hits();
    let hits = hits.read();
    let fates = [
        ("received", hits.received),
        ("refunded", hits.refunded),
        ("spent", hits.spent),
        ("given_back", hits.given_back),
        ("recalled", hits.recalled),
        ("late", hits.late),
    ];
    readings.add_each(names::GRANTS_HELD_HITS, "fate", fates);
    readings.add(names::GRANTS_HELD, held);
    let fates =
        [("granted", read(&counters.hits_granted)), ("taken_back", read(&counters.taken_back))];
    readings.add_each(names::GRANTS_MADE_HITS, "fate", fates);
}

fn store(core: &Core, readings: &mut Readings) {
    let stats = core.store.stats();
    readings.add(names::STORE_KEYS, stats.keys as u64);
    readings.add(names::STORE_BYTES, stats.bytes as u64);
    readings.add(names::STORE_FINE_KEYS, stats.fine_keys as u64);
    readings.add(names::STORE_EXPIRED, stats.expired);
    let outcomes = [("shared", stats.overflowed), ("refused", stats.refused)];
    readings.add_each(names::STORE_FULL, "outcome", outcomes);
    readings.add(names::DOMAIN_FULL, stats.in_full_domains);
    readings.add(names::SYNC_ACTORS_REFUSED, stats.actors_refused);
}

fn storage(status: &Status, readings: &mut Readings) {
    readings.add(names::STORAGE_OK, status.problem.is_none());
    readings.add(names::STORAGE_KEYS, status.keys);
    readings.add(names::STORAGE_WRITTEN, status.written);
    readings.add(names::STORAGE_SKIPPED, status.skipped);
    readings.add(names::STORAGE_FAILED, status.failed);
}

/// What a core and an edge have in common.
fn cluster(
    core: &Core,
    mesh: &Mesh,
    synchroniser: &Synchroniser,
    malformed: &Malformed,
    readings: &mut Readings,
) {
    let members = core.topology.load().view.members().len();
    let peers = mesh.peers();
    let offset =
        peers.iter().map(|peer| peer.offset_ns(&*core.clock).unsigned_abs()).max().unwrap_or(0);
    let mesh = &mesh.counters;
    let sync = &synchroniser.counters;

    readings.add(names::MEMBERS, members as u64);
    readings.add(names::RULE_BOOK_AGREES, core.rule_books_agree());
    readings.add(names::CLOCK_OFFSET_MS, offset / 1_000_000);
    readings.add(names::CLOCK_MEDIAN_MS, core.skew().median_ns / 1_000_000);
    readings.add(names::CLOCK_SKEWED, core.skew().is_reported());
    let up = peers.iter().filter(|peer| !peer.is_unreachable()).count();
    readings.add(names::MESH_PEERS_UP, up as u64);
    let calls = [
        ("sent", read(&mesh.calls)),
        ("timeout", read(&mesh.timeouts)),
        ("unsent", read(&mesh.unsent)),
    ];
    readings.add_each(names::MESH_CALLS, "outcome", calls);
    readings.add(names::MESH_ADMITTED, read(&mesh.admitted));
    readings.add(names::MESH_REFUSED, read(&mesh.refused));
    readings.add(names::MESH_DIALS_FAILED, read(&mesh.dials_failed));
    readings.add(names::MESH_DROPPED, read(&mesh.dropped));
    let sent = mesh.traffic.read();
    let messages = sent.map(|(kind, messages, _)| (kind.name(), messages));
    readings.add_each(names::MESH_SENT_MESSAGES, "kind", messages);
    let bytes = sent.map(|(kind, _, bytes)| (kind.name(), bytes));
    readings.add_each(names::MESH_SENT_BYTES, "kind", bytes);
    readings.add(names::MESH_MALFORMED, malformed.total());
    readings.add(names::SYNC_ANNOUNCEMENTS, read(&sync.announcements));
    readings.add(names::SYNC_FAILED, read(&sync.failed));
    let keys = [
        ("sent", read(&sync.sent)),
        ("received", read(&sync.received)),
        ("rejected", read(&sync.rejected)),
    ];
    readings.add_each(names::SYNC_KEYS, "outcome", keys);
}

fn blocked_sources(sources: &BlockedSources, now: Timestamp, readings: &mut Readings) {
    readings.add(names::BLOCKED_SOURCES, sources.blocked(now).len() as u64);
    readings.add(names::SOURCES_BLOCKED, read(&sources.counters.blocked));
    readings.add(names::SOURCES_UNWATCHED, read(&sources.counters.unwatched));
}

fn certificate(core: &Core, mesh: &Mesh, status: &certificates::Status, readings: &mut Readings) {
    let left = mesh.identity().validity.not_after.since(core.clock.system());
    readings.add(names::CERTIFICATE_EXPIRES, left.as_nanos() / 1_000_000_000);
    let is_due = mesh.identity().validity.is_renewal_due(core.clock.system());
    readings.add(names::CERTIFICATE_RENEWAL_DUE, is_due);
    readings.add(names::CERTIFICATE_OK, status.problem.is_none());
    let loads = [("ok", status.loads_ok), ("failed", status.loads_failed)];
    readings.add_each(names::CERTIFICATE_LOADS, "outcome", loads);
    readings.add(names::MESH_UNTRUSTED, read(&mesh.counters.untrusted));
    readings.add(names::REVOKED_NODES, mesh.revocations.count() as u64);
    if let Some(are_saved) = mesh.revocations.is_kept() {
        readings.add(names::REVOCATIONS_SAVED, are_saved);
    }
    if let Some(issuer) = &core.issuer {
        let left = issuer.signer_left(core.clock.system());
        readings.add(names::SIGNER_EXPIRES, left.as_nanos() / 1_000_000_000);
    }
}

fn replication(joined: &Joined, readings: &mut Readings) {
    let counters = &joined.replicator.counters;
    let keys = [
        ("sent", read(&counters.sent)),
        ("received", read(&counters.received)),
        ("repaired", read(&counters.repaired)),
        ("dropped", read(&counters.dropped)),
    ];
    readings.add_each(names::REPLICATION_KEYS, "outcome", keys);
    readings.add(names::REPLICATION_FAILED, read(&counters.failed));
    let confirms =
        [("confirmed", read(&counters.confirmed)), ("unconfirmed", read(&counters.unconfirmed))];
    readings.add_each(names::REPLICATION_CONFIRMS, "outcome", confirms);
    readings.add(names::REPLICATION_LAG_MS, joined.replicator.lag().as_millis_ceil());
}

fn ownership(core: &Core, joined: &Joined, readings: &mut Readings) {
    let counters = &joined.ownership_driver.counters;
    let lost = joined.ownership_driver.lost_voters();
    readings.add(names::LEASE, core.ownership.has_lease());
    if let Some(global) = &joined.global {
        readings.add(names::REGION_LEASE, core.ownership.has_region_lease());
        readings.add(names::GLOBAL_EPOCH_NUMBER, global.membership.maps().borrow().epoch.0);
        readings.add(names::GLOBAL_COPIED, read(&global.copied));
    }
    readings.add(names::RING_OWNED_PPM, core.decided_ppm());
    let epoch = core.ownership.owned_ranges().epoch;
    readings.add(names::EPOCH_NUMBER, epoch.0);
    let global = joined.global.as_ref().map(|global| &global.membership);
    let maps = [Some(&joined.membership), global].into_iter().flatten();
    if let Some(is_saved) = maps.filter_map(|map| map.is_saving()).min() {
        readings.add(names::MAP_SAVED, is_saved);
    }
    readings.add(names::MEMBERS_LOST, lost.len() as u64);
    readings.add(names::LEASES_LOST, read(&counters.leases_lost));
    readings.add(names::CLOCK_STANDSTILLS, read(&counters.standstills));
    readings.add(names::EVICTIONS, read(&counters.evictions));
    readings.add(names::HANDOFF_COPIED, read(&counters.copied));
    readings.add(names::HANDOFF_FAILED, read(&counters.failed));
    readings.add(names::HANDOFF_REJECTED, read(&counters.rejected));
    readings.add(names::TAKEOVERS, read(&counters.takeovers));
    let (all, none) =
        (read(&counters.takeover_ranges), read(&counters.takeover_ranges_without_copy));
    let copies = [("left", all.saturating_sub(none)), ("none", none)];
    readings.add_each(names::TAKEOVER_RANGES, "copy", copies);
    readings.add(names::TAKEOVER_KEYS, read(&counters.takeover_keys));
    let ranges = [
        ("given", read(&counters.handed_over)),
        ("taken", read(&counters.taken_over)),
        ("refused", read(&counters.refused)),
    ];
    readings.add_each(names::HANDOFF_RANGES, "direction", ranges);
}
