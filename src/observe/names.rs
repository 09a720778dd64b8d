//! Names of the metrics. Each is exported as `tidegate_NAME`, counters with the suffix `_total`.
//! Dashboards and alerts depend on them: after a release they are only added to.

pub const PREFIX: &str = "tidegate";

pub const BUILD: &str = "build";

/// Requests decided, by listener and outcome.
pub const DECISIONS: &str = "decisions";
/// Time from the parsed request to the response, by listener.
pub const DECISION_SECONDS: &str = "decision_seconds";
/// Descriptors decided, by source of the verdict.
pub const VERDICTS: &str = "verdicts";
/// Forwarded checks received for keys that this node does not own.
pub const NOT_OWNER: &str = "not_owner";
/// Second and later routing attempts of forwarded checks.
pub const FORWARD_RETRIES: &str = "forward_retries";
/// Forwarded checks received more than once and not counted again.
pub const FORWARD_DUPLICATES: &str = "forward_duplicates";
/// Hits counted without a confirmation by a replica in time.
pub const UNCONFIRMED: &str = "unconfirmed";

/// Open connections, by listener.
pub const CONNECTIONS: &str = "connections";
/// Connections accepted, by listener.
pub const CONNECTIONS_ACCEPTED: &str = "connections_accepted";
/// Times a listener stopped accepting at `limits.connections_max`.
pub const CONNECTIONS_AT_BOUND: &str = "connections_at_bound";
/// Connections closed by the listener: slow header, failed TLS handshake, idle, or drained.
pub const CONNECTIONS_ABORTED: &str = "connections_aborted";
/// Malformed or oversized requests, by listener.
pub const BAD_REQUESTS: &str = "bad_requests";
/// Descriptors with a limit of their own that does not apply.
pub const OVERRIDES_IGNORED: &str = "overrides_ignored";

/// Calls to peers, by outcome.
pub const MESH_CALLS: &str = "mesh_calls";
/// Connected peers.
pub const MESH_PEERS_UP: &str = "mesh_peers_up";
/// Hellos accepted.
pub const MESH_ADMITTED: &str = "mesh_admitted";
/// Connections refused in handshake or hello.
pub const MESH_REFUSED: &str = "mesh_refused";
/// Failed dials.
pub const MESH_DIALS_FAILED: &str = "mesh_dials_failed";
/// One-way messages dropped: the send queue was full or the peer not connected.
pub const MESH_DROPPED: &str = "mesh_dropped";
/// Malformed frames and calls from peers.
pub const MESH_MALFORMED: &str = "mesh_malformed";
/// Counter states from peers rejected as implausible.
pub const STATES_REJECTED: &str = "states_rejected";

/// Members, including this node.
pub const MEMBERS: &str = "members";
/// 1 while every member holds the same rules as this node.
pub const RULE_BOOK_AGREES: &str = "rule_book_agrees";
/// How far the corrected system clock is ahead of the decision clock, milliseconds.
pub const CLOCK_ERROR_MS: &str = "clock_error_ms";
/// Largest clock offset of a peer, milliseconds.
pub const CLOCK_OFFSET_MS: &str = "clock_offset_max_ms";
/// How far the members' median clock is ahead of this node's, milliseconds.
pub const CLOCK_MEDIAN_MS: &str = "clock_median_ms";
/// 1 while this node's clock is beyond `cluster.max_skew` of the members' median.
pub const CLOCK_SKEWED: &str = "clock_skewed";

/// Keys of eventual rules synchronised, by outcome.
pub const SYNC_KEYS: &str = "sync_keys";
/// Unanswered synchronisation messages, which are sent again.
pub const SYNC_FAILED: &str = "sync_failed";

/// Strict counters sent to or received from other nodes, by outcome.
pub const REPLICATION_KEYS: &str = "replication_keys";
/// Unanswered replication messages, which are sent again.
pub const REPLICATION_FAILED: &str = "replication_failed";
/// Age of the oldest change without a copy, milliseconds.
pub const REPLICATION_LAG_MS: &str = "replication_lag_ms";
/// Counts of rules with `durability: replicated`, by whether a replica confirmed them in time.
pub const REPLICATION_CONFIRMS: &str = "replication_confirms";

/// 1 while this node holds its ownership lease.
pub const LEASE: &str = "lease";
/// Parts per million of the region's ring owned by this node.
pub const RING_OWNED_PPM: &str = "ring_owned_ppm";
/// Number of the current epoch.
pub const EPOCH_NUMBER: &str = "epoch_number";
/// Members lost without leaving that still count for the majority.
pub const MEMBERS_LOST: &str = "members_lost";
/// Times that this node lost its lease.
pub const LEASES_LOST: &str = "leases_lost";
/// Times that this node regained its lease after an interruption and dropped all owned ranges.
pub const LEASES_INTERRUPTED: &str = "leases_interrupted";
/// Ranges transferred to or from other nodes.
pub const HANDOFF_RANGES: &str = "handoff_ranges";
/// Counters copied to their new owners before a handoff.
pub const HANDOFF_COPIED: &str = "handoff_copied";
/// Failed steps of handoffs, which are retried.
pub const HANDOFF_FAILED: &str = "handoff_failed";

/// Loads of the rules, by outcome.
pub const RULE_LOADS: &str = "rule_loads";
/// Hits by rule and outcome.
pub const RULE_HITS: &str = "rule_hits";
/// Checks decided by `on_unavailable`, by rule.
pub const RULE_UNAVAILABLE: &str = "rule_unavailable";

/// Counters in the store.
pub const STORE_KEYS: &str = "store_keys";
/// Bytes of the store.
pub const STORE_BYTES: &str = "store_bytes";
/// Expired counters removed from the store.
pub const STORE_EXPIRED: &str = "store_expired";
/// New keys in a full store, by outcome.
pub const STORE_FULL: &str = "store_full";

/// 1 while counters of long windows are written to `storage.path`.
pub const STORAGE_OK: &str = "storage_ok";
/// Counters in the file.
pub const STORAGE_KEYS: &str = "storage_keys";
/// Counters written to the file.
pub const STORAGE_WRITTEN: &str = "storage_written";
/// Counters of the file skipped at start: implausible, or the store was full.
pub const STORAGE_SKIPPED: &str = "storage_skipped";
/// Failed writes of the file.
pub const STORAGE_FAILED: &str = "storage_failed";
