//! The names of the metrics. Dashboards and alerts hang on them: they are never changed, only added
//! to. Each is exported as `tidegate_NAME`, counters with `_total` at the end.

/// What every name begins with.
pub const PREFIX: &str = "tidegate";

/// Version of the program.
pub const BUILD: &str = "build";

/// Requests decided, by door and outcome.
pub const DECISIONS: &str = "decisions";
/// Time from a request read to its answer ready, by door.
pub const DECISION_SECONDS: &str = "decision_seconds";
/// Descriptors decided, by who decided.
pub const VERDICTS: &str = "verdicts";
/// Asks of peers for keys that this node does not own.
pub const NOT_OWNER: &str = "not_owner";
/// Asks after the first for one verdict.
pub const FORWARD_RETRIES: &str = "forward_retries";
/// Checks of peers that came a second time and were not counted again.
pub const FORWARD_REPEATED: &str = "forward_repeated";
/// Decisions that no replica confirmed in time.
pub const UNCONFIRMED: &str = "unconfirmed";

/// Connections open now, by door.
pub const CONNECTIONS: &str = "connections";
/// Connections accepted, by door.
pub const CONNECTIONS_ACCEPTED: &str = "connections_accepted";
/// Times a door stopped accepting because it held `limits.connections_max`.
pub const CONNECTIONS_AT_BOUND: &str = "connections_at_bound";
/// Connections that the door ended, by reason.
pub const CONNECTIONS_CUT: &str = "connections_cut";
/// Requests refused as malformed or out of bounds, by door.
pub const BAD_REQUESTS: &str = "bad_requests";
/// Descriptors that brought along a limit of their own, which does not apply.
pub const OVERRIDES_IGNORED: &str = "overrides_ignored";

/// Calls to peers, by outcome.
pub const MESH_CALLS: &str = "mesh_calls";
/// Peers whose hello was accepted and that are connected now.
pub const MESH_PEERS_UP: &str = "mesh_peers_up";
/// Hellos accepted.
pub const MESH_ADMITTED: &str = "mesh_admitted";
/// Connections refused in handshake or hello.
pub const MESH_REFUSED: &str = "mesh_refused";
/// Dials that found nobody.
pub const MESH_DIALS_FAILED: &str = "mesh_dials_failed";
/// Gossip and notices dropped: the lane was full, or the peer is not connected.
pub const MESH_DROPPED: &str = "mesh_dropped";
/// Frames from peers that could not be read, or calls out of bounds.
pub const MESH_MALFORMED: &str = "mesh_malformed";
/// States of peers refused as implausible.
pub const STATES_REFUSED: &str = "states_refused";

/// Members, this node among them.
pub const MEMBERS: &str = "members";
/// 1 while every member holds the same rules as this node.
pub const RULE_BOOK_AGREES: &str = "rule_book_agrees";
/// How far the system clock is ahead of the decision clock, milliseconds.
pub const CLOCK_ERROR_MS: &str = "clock_error_ms";
/// How far the farthest peer's clock is from this node's, milliseconds.
pub const CLOCK_OFFSET_MS: &str = "clock_offset_max_ms";

/// Keys of eventual rules told or heard, by what became of them.
pub const SYNC_KEYS: &str = "sync_keys";
/// Messages of columns that were not answered and are sent again.
pub const SYNC_FAILED: &str = "sync_failed";

/// States of strict keys sent to other nodes or taken from them, by what became of them.
pub const REPLICATION_KEYS: &str = "replication_keys";
/// Messages of states that were not answered and are sent again.
pub const REPLICATION_FAILED: &str = "replication_failed";
/// How long the oldest change has waited for its copy, milliseconds.
pub const REPLICATION_LAG_MS: &str = "replication_lag_ms";
/// Counts of rules with `durability: replicated`, by whether a replica confirmed them in time.
pub const REPLICATION_CONFIRMS: &str = "replication_confirms";

/// 1 while a majority recognises this node.
pub const LEASE: &str = "lease";
/// Parts per million of its region's ring that this node decides now.
pub const RING_DECIDED_PPM: &str = "ring_decided_ppm";
/// Number of the epoch that this node stands at.
pub const EPOCH_NUMBER: &str = "epoch_number";
/// Members that were lost without leaving and still count for the majority.
pub const MEMBERS_MISSED: &str = "members_missed";
/// Times that no majority recognised this node any more.
pub const LEASES_LOST: &str = "leases_lost";
/// Times that this node was recognised again and had to begin as a newcomer.
pub const TENURES_BROKEN: &str = "tenures_broken";
/// Ranges handed to another node, and taken from one.
pub const HANDOFF_RANGES: &str = "handoff_ranges";
/// Counts copied to their owners before a handover.
pub const HANDOFF_COPIED: &str = "handoff_copied";
/// Steps of handovers that failed and were begun anew.
pub const HANDOFF_FAILED: &str = "handoff_failed";

/// Readings of the rules folder, by outcome.
pub const RULE_LOADS: &str = "rule_loads";
/// Hits by rule and outcome.
pub const RULE_HITS: &str = "rule_hits";
/// Asks answered by `on_unavailable`, by rule.
pub const RULE_UNAVAILABLE: &str = "rule_unavailable";

/// Counters in the store.
pub const STORE_KEYS: &str = "store_keys";
/// Bytes the store holds.
pub const STORE_BYTES: &str = "store_bytes";
/// Counters that left the store because they no longer mattered.
pub const STORE_EXPIRED: &str = "store_expired";
/// Asks for new keys in a full store, by what they got.
pub const STORE_FULL: &str = "store_full";

/// 1 while counts of long windows are written to `storage.path`.
pub const STORAGE_OK: &str = "storage_ok";
/// Counters in the file.
pub const STORAGE_KEYS: &str = "storage_keys";
/// Counters written to the file.
pub const STORAGE_WRITTEN: &str = "storage_written";
/// Counters of the file that were not believed at the start, or found no room.
pub const STORAGE_SKIPPED: &str = "storage_skipped";
/// Rounds that could not be written.
pub const STORAGE_FAILED: &str = "storage_failed";
