//! The metrics: names, help texts and types. Each is exported as `tidegate_NAME`, counters with the
//! suffix `_total`. Dashboards and alerts depend on them: after a release they are only added to.

use prometheus_client::metrics::MetricType;

pub const PREFIX: &str = "tidegate";

/// One metric; its labels come with its values.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: MetricType::Counter }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help, kind: MetricType::Gauge }
}

pub const BUILD: Metric =
    Metric { name: "build", help: "Version of the program", kind: MetricType::Info };

pub const DECISIONS: Metric = counter("decisions", "Requests decided, by listener and outcome");
pub const DECISION_SECONDS: Metric = Metric {
    name: "decision_seconds",
    help: "Time from the parsed request to the response, by listener",
    kind: MetricType::Histogram,
};
pub const VERDICTS: Metric = counter(
    "verdicts",
    "Descriptors decided: locally, by another owner, from granted hits, from the negative cache, \
     by on_unavailable, blocked by hand, for a peer",
);
pub const NOT_OWNER: Metric =
    counter("not_owner", "Forwarded checks received for keys that this node does not own");
pub const FORWARD_RETRIES: Metric =
    counter("forward_retries", "Forwarding attempts after the first for one verdict");
pub const FORWARD_COMBINED: Metric =
    counter("forward_combined", "Checks that left for their owner in one call with others");
pub const FORWARD_DUPLICATES: Metric =
    counter("forward_duplicates", "Duplicate forwarded checks, not counted again");
pub const FORWARD_EXPIRED: Metric =
    counter("forward_expired", "Forwarded checks that were read after their deadline, not counted");
pub const UNCONFIRMED: Metric =
    counter("unconfirmed", "Hits counted but not confirmed by a replica in time");
pub const RESERVATIONS: Metric = counter(
    "reservations",
    "Reservations and commits of clients of this node, by what became of them",
);
pub const GRANTS_HELD_HITS: Metric = counter(
    "grant_hits",
    "Hits that owners granted to this node, by fate: those received were spent, given back, \
     recalled, came too late, or are held",
);
pub const GRANTS_HELD: Metric =
    gauge("grant_hits_held", "Hits that owners granted to this node and it may still spend");
pub const GRANTS_MADE_HITS: Metric = counter(
    "grants_made_hits",
    "Hits that this node granted to others, and those of them that it took back unspent",
);

pub const CONNECTIONS: Metric = gauge("connections", "Open connections, by listener");
pub const CONNECTIONS_ACCEPTED: Metric =
    counter("connections_accepted", "Connections accepted, by listener");
pub const CONNECTIONS_AT_BOUND: Metric = counter(
    "connections_at_bound",
    "Times a listener stopped accepting because limits.connections_max was reached",
);
pub const ACCEPTS_FAILED: Metric = counter(
    "accepts_failed",
    "Times a connection could not be accepted, for lack of open files or memory",
);
pub const CONNECTIONS_REFUSED: Metric = counter(
    "connections_refused",
    "Connections closed at once because their address had limits.connections_per_address_max",
);
pub const CONNECTIONS_ABORTED: Metric = counter(
    "connections_aborted",
    "Connections closed by the listener: slow, no TLS handshake, idle, or drained",
);
pub const BAD_REQUESTS: Metric =
    counter("bad_requests", "Requests refused as malformed or out of bounds, by listener");
pub const PROXY_FAILURES: Metric = counter(
    "proxy_failures",
    "Requests of the proxy without a response of the application, by reason",
);
pub const PROXY_CONCURRENCY_LIMIT: Metric = gauge(
    "proxy_concurrency_limit",
    "Requests that the servers of the application may have at a time, together, when adapted",
);
pub const PROXY_EJECTIONS: Metric = counter(
    "proxy_ejections",
    "Times that a server of the application was left out: failures in a row, failed checks",
);
pub const ACCESS_LOG_DROPPED: Metric = counter(
    "access_log_dropped",
    "Requests that are not in the access log, because it was not written fast enough",
);
pub const LOG_LINES_DROPPED: Metric =
    counter("log_lines_dropped", "Lines of the log that were not written, because 8,192 waited");
pub const TRACE_SPANS: Metric = counter(
    "trace_spans",
    "Spans of requests: taken by the receiver, dropped because too many waited, not taken",
);
pub const OVERRIDES_IGNORED: Metric =
    counter("overrides_ignored", "Descriptors with a limit override that was ignored");

pub const MESH_CALLS: Metric = counter("mesh_calls", "Calls to peers: sent, timed out, not sent");
pub const MESH_PEERS_UP: Metric = gauge("mesh_peers_up", "Connected peers that answer");
pub const EDGES: Metric = gauge("edges", "Edges that are connected to this core");
pub const EDGE_FOLLOWS: Metric = gauge("edge_follows", "Cores that this edge follows");
pub const EDGE_CUT_OFF: Metric =
    gauge("edge_cut_off", "1 while no core answers this edge: on_unavailable answers for owners");
pub const MESH_ADMITTED: Metric = counter("mesh_admitted", "Hellos of peers accepted");
pub const MESH_REFUSED: Metric =
    counter("mesh_refused", "Connections refused in handshake or hello");
pub const MESH_DIALS_FAILED: Metric = counter("mesh_dials_failed", "Failed dials");
pub const MESH_DROPPED: Metric =
    counter("mesh_dropped", "One-way messages dropped: stream full or peer not connected");
pub const MESH_SENT_MESSAGES: Metric =
    counter("mesh_sent_messages", "Calls and replies sent to peers, by kind");
pub const MESH_SENT_BYTES: Metric =
    counter("mesh_sent_bytes", "Bytes of these, without those that QUIC adds");
pub const MESH_MALFORMED: Metric =
    counter("mesh_malformed", "Malformed frames and out-of-bounds calls from peers");
pub const CERTIFICATE_EXPIRES: Metric = gauge(
    "certificate_expires_seconds",
    "Time until this node's certificate expires and its peers refuse it",
);
pub const CERTIFICATE_RENEWAL_DUE: Metric = gauge(
    "certificate_renewal_due",
    "1 in the last third of the time of this node's certificate, and in its last 30 days at most",
);
pub const SIGNER_EXPIRES: Metric = gauge(
    "signer_expires_seconds",
    "Time until the signer of this node expires; 0 if its files cannot be used",
);
pub const CERTIFICATE_OK: Metric =
    gauge("certificate_ok", "1 while the present files of [tls] are in use");
pub const REVOKED_NODES: Metric =
    gauge("revoked_nodes", "Nodes whose certificates are refused, of at most 1,024");
pub const REVOCATIONS_SAVED: Metric =
    gauge("revocations_saved", "1 while revocations are written to node.data_dir");
pub const CERTIFICATE_LOADS: Metric =
    counter("certificate_loads", "Changes of the files of [tls], by outcome");
pub const MESH_UNTRUSTED: Metric = counter(
    "mesh_untrusted",
    "Connections closed because the certificate of the peer was not valid any more",
);
pub const STATES_REJECTED: Metric =
    counter("states_rejected", "Implausible states from peers, rejected");

pub const MEMBERS: Metric = gauge("members", "Members, including this node");
pub const RULE_BOOK_AGREES: Metric =
    gauge("rule_book_agrees", "1 while every member has the same rules as this node");
pub const RULES_OK: Metric =
    gauge("rules_ok", "1 while the newest rules are in use; 0 after changed ones were rejected");
pub const READY: Metric = gauge("ready", "1 while /readyz says that this node may get traffic");
pub const CLOCK_ERROR_MS: Metric = gauge(
    "clock_error_ms",
    "Offset of the corrected system clock from the decision clock, milliseconds",
);
pub const CLOCK_OFFSET_MS: Metric =
    gauge("clock_offset_max_ms", "Largest clock offset of a peer, milliseconds");
pub const CLOCK_MEDIAN_MS: Metric =
    gauge("clock_median_ms", "Offset of the members' median clock from this node's, milliseconds");
pub const CLOCK_SKEWED: Metric = gauge(
    "clock_skewed",
    "1 while this node's clock differs from the members' median by more than cluster.max_skew, or \
     half of the clocks from the other half",
);

pub const SYNC_KEYS: Metric =
    counter("sync_keys", "Eventual keys sent to peers, received from peers, and rejected");
pub const SYNC_ANNOUNCEMENTS: Metric = counter(
    "sync_announcements",
    "Messages with counts of eventual keys that were sent at once, because they were large beside \
     what was left of a limit",
);
pub const SYNC_FAILED: Metric =
    counter("sync_failed", "Synchronisation messages without an answer; they are sent again");

pub const SYNC_ACTORS_REFUSED: Metric = counter(
    "sync_actors_refused",
    "Counters of eventual keys that were not merged because their slice has 1,024 of them, each \
     time they were sent",
);

pub const REPLICATION_KEYS: Metric = counter(
    "replication_keys",
    "Strict keys sent to other nodes, received from them, repaired at a replica, and dropped here \
     because their ranges have moved",
);
pub const REPLICATION_FAILED: Metric =
    counter("replication_failed", "Replication messages without an answer; they are sent again");
pub const REPLICATION_LAG_MS: Metric = gauge(
    "replication_lag_ms",
    "Age of the oldest change that is not replicated yet, milliseconds",
);
pub const REPLICATION_CONFIRMS: Metric =
    counter("replication_confirms", "Checks whose answer waited for a replica, by outcome");

pub const LEASE: Metric =
    gauge("lease", "1 while this node has a lease from a majority and may own keys");
pub const REGION_LEASE: Metric =
    gauge("region_lease", "1 while this node's region may decide the global keys at home in it");
pub const GLOBAL_EPOCH_NUMBER: Metric =
    gauge("global_epoch_number", "Epoch of the global map in force");
pub const GLOBAL_COPIED: Metric =
    counter("global_copied", "Counts copied to regions to which their keys have moved");
pub const RING_OWNED_PPM: Metric =
    gauge("ring_owned_ppm", "Share of its region's ring that this node decides, parts per million");
pub const EPOCH_NUMBER: Metric = gauge("epoch_number", "Epoch of the cluster map in force");
pub const MAP_SAVED: Metric =
    gauge("map_saved", "1 while the cluster map is written to node.data_dir");
pub const MEMBERS_LOST: Metric = gauge("members_lost", "Voters that are no members");
pub const LEASES_LOST: Metric = counter("leases_lost", "Leases that expired");
pub const CLOCK_STANDSTILLS: Metric = counter(
    "clock_standstills",
    "Leases that began anew because the clock of this node had stood still",
);
pub const EVICTIONS: Metric = counter(
    "evictions",
    "Times that the voters evicted this node, so that it dropped all owned ranges",
);
pub const HANDOFF_RANGES: Metric = counter(
    "handoff_ranges",
    "Ranges handed to another node, received from one, and releases refused",
);
pub const HANDOFF_COPIED: Metric =
    counter("handoff_copied", "Counters copied to their next owner before a handoff");
pub const HANDOFF_FAILED: Metric =
    counter("handoff_failed", "Handoff steps that failed and were restarted");
pub const HANDOFF_REJECTED: Metric = counter(
    "handoff_rejected",
    "Times that a handoff waited because the next owner refused some of the counts",
);

pub const TAKEOVERS: Metric =
    counter("takeovers", "Evicted members of which this node took ranges over");
pub const TAKEOVER_RANGES: Metric =
    counter("takeover_ranges", "Ranges taken over from evicted members, by copy: left, none");
pub const TAKEOVER_KEYS: Metric = counter(
    "takeover_keys",
    "Counters of which there were copies in ranges taken over from evicted members",
);

pub const RULE_LOADS: Metric =
    counter("rule_loads", "Rule loads from the folder or the management server, by outcome");
pub const RULE_HITS: Metric = counter("rule_hits", "Hits by rule and outcome");
pub const RULE_SOFT_LIMITED: Metric =
    counter("rule_soft_limited", "Hits admitted above a soft limit, by rule");
pub const RULE_UNAVAILABLE: Metric =
    counter("rule_unavailable", "Checks decided by on_unavailable, by rule");
pub const RULE_VERDICTS: Metric = counter(
    "rule_verdicts",
    "Checks by rule and by where they were decided; as tidegate_verdicts, and alone: an eventual \
     rule, decided by a node without a lease",
);
pub const RULE_ADMITTED_BY_OWNER: Metric = counter(
    "rule_admitted_by_owner",
    "Checks admitted by another node, the owner of their key, by rule: those that waited",
);
pub const RULE_REFUSED_EARLY: Metric = counter(
    "rule_refused_early",
    "Checks of leased rules refused while another node held granted hits, by rule; some of them \
     too early",
);
pub const RULE_GRANT_HITS: Metric =
    counter("rule_grant_hits", "Hits that owners granted to this node, by rule and fate");
pub const RULE_GRANT_HITS_HELD: Metric =
    gauge("rule_grant_hits_held", "Hits granted to this node that it may still spend, by rule");
pub const RULE_FULL_HITS: Metric = counter(
    "rule_full_hits",
    "Limits of windows of eventual rules that this node has seen used up, summed by rule",
);
pub const RULE_OVER_HITS: Metric =
    counter("rule_over_hits", "Hits over the limit in windows of tidegate_rule_full_hits, by rule");

pub const STORE_KEYS: Metric = gauge("store_keys", "Counters in the store");
pub const STORE_BYTES: Metric = gauge("store_bytes", "Bytes used by the store");
pub const STORE_FINE_KEYS: Metric = gauge(
    "store_fine_keys",
    "Counters with a fine window, those near a sliding_window_counter limit",
);
pub const STORE_EXPIRED: Metric =
    counter("store_expired", "Counters removed from the store after expiry");
pub const STORE_FULL: Metric =
    counter("store_full", "New counters in a full store, by outcome, once for each attempt");
pub const DOMAIN_FULL: Metric = counter(
    "domain_full",
    "New counters of requests whose domain has limits.domain_keys_max, in a store that is not full",
);

pub const STORAGE_OK: Metric =
    gauge("storage_ok", "1 while counts of long windows are written to node.data_dir");
pub const STORAGE_KEYS: Metric = gauge("storage_keys", "Counters of long windows in node.data_dir");
pub const STORAGE_WRITTEN: Metric = counter("storage_written", "Counters written to the file");
pub const STORAGE_SKIPPED: Metric =
    counter("storage_skipped", "Counters of the file that were invalid at startup or did not fit");
pub const STORAGE_FAILED: Metric = counter("storage_failed", "Snapshot rounds that failed");

pub const BLOCKED_SOURCES: Metric =
    gauge("blocked_sources", "Sources that stayed far over their limit, for a firewall to drop");
pub const SOURCES_BLOCKED: Metric =
    counter("sources_blocked", "Times that a source was blocked that was not");
pub const SOURCES_UNWATCHED: Metric = counter(
    "sources_unwatched",
    "Refusals of sources that were not watched, because too many others were",
);
