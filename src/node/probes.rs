//! Readiness and metrics of a node.

use std::sync::Arc;

use tidegate_cluster::replication::Replicator;

use super::core::Core;
use super::joined::Joined;
use super::listener_stats::Stats;
use super::outside::SystemClock;
use super::ownership;
use super::readings::{counter, gauge, labelled, read, signed};
use super::rulebook::RuleBook;
use crate::compat::envoy_ratelimit::statistics::Source;
use crate::compat::envoy_ratelimit::statistics::prometheus::{Form, collector};
use crate::front::Probes;
use crate::front::serve::ListenerStats;
use crate::observe::samples::{Kind, Reading, RuleSample};
use crate::observe::{Health, Metrics, names};
use crate::storage::Status;

/// Readiness and metrics of a node.
#[derive(Debug)]
pub(super) struct NodeProbes {
    health: Health,
    metrics: Metrics,
    statistics: Source,
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
        health: Health,
        stats: Stats,
        clock: Arc<SystemClock>,
        prometheus_names: bool,
    ) -> Self {
        let mut metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
        let statistics = Source {
            tallies: core.tallies.clone(),
            latency: metrics.grpc.latency.clone(),
            listener: stats.grpc.clone(),
        };
        if prometheus_names {
            let source = statistics.clone();
            metrics.watch_unprefixed(collector(move || source.read(), Form::OpenMetrics));
        }
        let cell = book.cell();
        metrics.watch_rules(move || {
            let sample = |rule: &Arc<tidegate_rules::rule::Rule>| RuleSample {
                id: rule.id.clone(),
                allowed: read(&rule.stats.allowed),
                denied: read(&rule.stats.denied),
                shadowed: read(&rule.stats.shadowed),
                unavailable: read(&rule.stats.unavailable),
            };
            cell.load().rules().map(sample).collect()
        });
        metrics.watch(move || {
            let mut readings = Vec::new();
            listeners(&stats, &mut readings);
            decisions(&core, &mut readings);
            rules(&book, &mut readings);
            store(&core, &mut readings);
            if let Some(snapshot_task) = &core.snapshot_task {
                storage(&snapshot_task.snapshots.status(), &mut readings);
            }
            readings.push(gauge(
                names::CLOCK_ERROR_MS,
                "Offset of the corrected system clock from the decision clock, milliseconds",
                clock.error() / 1_000_000,
            ));
            if let Some(joined) = &core.joined {
                cluster(&core, joined, &mut readings);
            }
            readings
        });
        Self { health, metrics, statistics }
    }

    /// The statistics under the names of envoyproxy/ratelimit.
    pub(super) fn statistics(&self) -> Source {
        self.statistics.clone()
    }

    /// The metrics that listeners update.
    pub(super) fn measures(&self) -> &Metrics {
        &self.metrics
    }
}

fn listeners(stats: &Stats, readings: &mut Vec<Reading>) {
    let listeners = [
        ("http", &stats.http),
        ("grpc", &stats.grpc),
        ("resp", &stats.resp),
        ("admin", &stats.admin),
        ("debug", &stats.debug),
    ];
    let mut family = |name, text, kind, read: fn(&ListenerStats) -> u64| {
        for (listener, stats) in listeners {
            let value = signed(read(stats));
            readings.push(Reading { name, text, kind, label: Some(("listener", listener)), value });
        }
    };
    family(names::CONNECTIONS, "Open connections, by listener", Kind::Gauge, |listener| {
        listener.accepted.get().saturating_sub(listener.ended.get())
    });
    family(
        names::CONNECTIONS_ACCEPTED,
        "Connections accepted, by listener",
        Kind::Counter,
        |listener| listener.accepted.get(),
    );
    family(
        names::CONNECTIONS_AT_BOUND,
        "Times a listener stopped accepting because limits.connections_max was reached",
        Kind::Counter,
        |listener| listener.full.get(),
    );
    family(
        names::CONNECTIONS_ABORTED,
        "Connections closed by the listener: slow, no TLS handshake, idle, or drained",
        Kind::Counter,
        |listener| {
            listener.slow.get()
                + listener.handshake_failed.get()
                + listener.idle.get()
                + listener.dropped.get()
        },
    );
    family(
        names::BAD_REQUESTS,
        "Requests refused as malformed or out of bounds, by listener",
        Kind::Counter,
        |listener| listener.refused.get(),
    );
    family(
        names::OVERRIDES_IGNORED,
        "Descriptors with a limit override that was ignored",
        Kind::Counter,
        |listener| listener.overrides.get(),
    );
}

fn decisions(core: &Core, readings: &mut Vec<Reading>) {
    let counters = core.decider.counters();
    for (source, counter) in [
        ("local", &counters.local),
        ("owner", &counters.forwarded),
        ("remembered", &counters.cached),
        ("policy", &counters.fallback),
        ("peer", &counters.served),
    ] {
        readings.push(labelled(
            names::VERDICTS,
            "Descriptors decided: locally, by another owner, from the negative cache, by \
             on_unavailable, for a peer",
            ("source", source),
            read(counter),
        ));
    }
    for (name, text, value) in [
        (
            names::NOT_OWNER,
            "Forwarded checks received for keys that this node does not own",
            &counters.not_owner,
        ),
        (
            names::FORWARD_RETRIES,
            "Forwarding attempts after the first for one verdict",
            &counters.retried,
        ),
        (
            names::FORWARD_DUPLICATES,
            "Duplicate forwarded checks, not counted again",
            &counters.deduplicated,
        ),
        (
            names::UNCONFIRMED,
            "Hits counted but not confirmed by a replica in time",
            &counters.unconfirmed,
        ),
    ] {
        readings.push(counter(name, text, read(value)));
    }
}

fn rules(book: &RuleBook, readings: &mut Vec<Reading>) {
    let status = book.status();
    for (outcome, value) in [("ok", status.loads_ok), ("failed", status.loads_failed)] {
        let text = "Rule loads from the folder or the management server, by outcome";
        readings.push(labelled(names::RULE_LOADS, text, ("outcome", outcome), value));
    }
}

fn store(core: &Core, readings: &mut Vec<Reading>) {
    let stats = core.store.stats();
    readings.extend([
        gauge(names::STORE_KEYS, "Counters in the store", signed(stats.keys as u64)),
        gauge(names::STORE_BYTES, "Bytes used by the store", signed(stats.bytes as u64)),
        counter(
            names::STORE_EXPIRED,
            "Counters removed from the store after expiry",
            stats.expired,
        ),
    ]);
    for (outcome, value) in [("shared", stats.overflowed), ("refused", stats.refused)] {
        let text = "New keys in a full store, by outcome";
        readings.push(labelled(names::STORE_FULL, text, ("outcome", outcome), value));
    }
}

fn storage(status: &Status, readings: &mut Vec<Reading>) {
    readings.extend([
        gauge(
            names::STORAGE_OK,
            "1 while counts of long windows are written to storage.path",
            i64::from(status.problem.is_none()),
        ),
        gauge(names::STORAGE_KEYS, "Counters in the file of storage.path", signed(status.keys)),
        counter(names::STORAGE_WRITTEN, "Counters written to the file", status.written),
        counter(
            names::STORAGE_SKIPPED,
            "Counters of the file that were invalid at startup or did not fit",
            status.skipped,
        ),
        counter(names::STORAGE_FAILED, "Snapshot rounds that failed", status.failed),
    ]);
}

fn cluster(core: &Core, joined: &Joined, readings: &mut Vec<Reading>) {
    let topology = core.topology.load();
    let members = topology.view.members();
    let own_book = core.book.load().fingerprint();
    let agrees =
        members.iter().all(|member| member.id == topology.me || member.rule_book == own_book);
    let peers = joined.mesh.peers();
    let offset = peers.iter().map(|peer| peer.offset_ns().unsigned_abs()).max().unwrap_or(0);
    let mesh = &joined.mesh.counters;
    let sync = &joined.synchroniser.counters;
    let replication = &joined.replicator.counters;

    readings.extend([
        gauge(names::MEMBERS, "Members, including this node", signed(members.len() as u64)),
        gauge(
            names::RULE_BOOK_AGREES,
            "1 while every member has the same rules as this node",
            i64::from(agrees),
        ),
        gauge(
            names::CLOCK_OFFSET_MS,
            "Largest clock offset of a peer, milliseconds",
            signed(offset / 1_000_000),
        ),
        gauge(
            names::CLOCK_MEDIAN_MS,
            "Offset of the members' median clock from this node's, milliseconds",
            core.skew().median_ns / 1_000_000,
        ),
        gauge(
            names::CLOCK_SKEWED,
            "1 while this node's clock differs from the members' median by more than cluster.max_skew",
            i64::from(core.skew().is_beyond),
        ),
        gauge(names::MESH_PEERS_UP, "Connected peers", signed(peers.len() as u64)),
    ]);
    for (outcome, counter) in
        [("sent", &mesh.calls), ("timeout", &mesh.timeouts), ("unsent", &mesh.unsent)]
    {
        let text = "Calls to peers: sent, timed out, not sent";
        readings.push(labelled(names::MESH_CALLS, text, ("outcome", outcome), read(counter)));
    }
    for (name, text, value) in [
        (names::MESH_ADMITTED, "Hellos of peers accepted", &mesh.admitted),
        (names::MESH_REFUSED, "Connections refused in handshake or hello", &mesh.refused),
        (names::MESH_DIALS_FAILED, "Failed dials", &mesh.dials_failed),
        (
            names::MESH_DROPPED,
            "One-way messages dropped: stream full or peer not connected",
            &mesh.dropped,
        ),
        (
            names::MESH_MALFORMED,
            "Malformed frames and out-of-bounds calls from peers",
            &joined.refused.malformed,
        ),
        (names::STATES_REJECTED, "Implausible states from peers, rejected", &replication.refused),
        (
            names::SYNC_FAILED,
            "Synchronisation messages without an answer; they are sent again",
            &sync.failed,
        ),
        (
            names::REPLICATION_FAILED,
            "Replication messages without an answer; they are sent again",
            &replication.failed,
        ),
    ] {
        readings.push(counter(name, text, read(value)));
    }
    for (outcome, counter) in
        [("sent", &sync.sent), ("received", &sync.received), ("rejected", &sync.rejected)]
    {
        let text = "Eventual keys sent to peers, received from peers, and rejected";
        readings.push(labelled(names::SYNC_KEYS, text, ("outcome", outcome), read(counter)));
    }
    copies(&joined.replicator, readings);
    ownership::readings(core, readings);
}

fn copies(replicator: &Replicator, readings: &mut Vec<Reading>) {
    let counters = &replicator.counters;
    for (outcome, counter) in [
        ("sent", &counters.sent),
        ("received", &counters.received),
        ("repaired", &counters.repaired),
    ] {
        let text = "Strict keys sent to other nodes, received from them, repaired at a replica";
        readings.push(labelled(names::REPLICATION_KEYS, text, ("outcome", outcome), read(counter)));
    }
    for (outcome, counter) in
        [("confirmed", &counters.confirmed), ("unconfirmed", &counters.unconfirmed)]
    {
        let text = "Checks whose answer waited for a replica, by outcome";
        let label = ("outcome", outcome);
        readings.push(labelled(names::REPLICATION_CONFIRMS, text, label, read(counter)));
    }
    readings.push(gauge(
        names::REPLICATION_LAG_MS,
        "Age of the oldest change that is not replicated yet, milliseconds",
        signed(replicator.lag().as_millis_ceil()),
    ));
}
