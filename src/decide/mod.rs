//! The decision path: from a request that a listener has read to the response that it writes.
//!
//! ```text
//!                          ┌─ eventual ─▶ store
//! request ─▶ match rules ──┤                                ┌─ refused before ─▶ negative_cache.rs
//!            (plan.rs)     └─ strict ─▶ owned here? ─┬─ no ─┼─ forward ─────────▶ forward.rs
//!                             ▲         (owner.rs)   │      └─ no owner replies ▶ fallback.rs
//!                 leased: nothing granted            └─ yes ─▶ store
//!                      (leased.rs)
//! ```
//!
//! A leased rule of `scope: global` takes this path for the share of each region in turn
//! (`shares.rs`), until one admits.
//!
//! # Types of one request
//!
//! 1. [`CheckRequest`]: domain, descriptors and hits, borrowed from the bytes of the request.
//! 2. [`Descriptor`](tidegate_limiter::descriptor::Descriptor): the key/value entries that the
//!    rules match.
//! 3. `PlannedCheck`: the rule that matched a descriptor, its counters, and the hits to take.
//! 4. [`Counter`](tidegate_limiter::store::Counter): key and quota of one limit; what the store
//!    decides.
//! 5. [`Verdict`](tidegate_limiter::engine::Verdict): the result of one counter.
//! 6. [`Status`]: the verdicts of one descriptor, and the [`VerdictSource`] that they come from.
//! 7. [`CheckResponse`]: the statuses of all descriptors, and whether the request is allowed.
//!
//! Requests that were refused tell which sources ask for many times their limits
//! (`blocked_sources.rs`), for a firewall to drop, and which keys are refused most
//! (`refused_keys.rs`), for an operator to see.
//!
//! `CL.THROTTLE` names its limit itself, so it takes a shorter path: [`ThrottleRequest`], counter,
//! verdict. The mesh's [`Check`](tidegate_cluster::mesh::wire::Check) exists only between two
//! nodes: `forward.rs` builds it for an owner, and `owner.rs` decides those that other nodes
//! forward.
//!
//! Clients of Gubernator name limit and key, many at once ([`CarriedCheck`], `carried.rs`).
//!
//! `[envoy]` can require that the descriptors of a request are charged together or not at all
//! (`all_or_nothing.rs`); otherwise each is decided on its own.

mod all_or_nothing;
mod blocked_by_hand;
mod blocked_sources;
mod carried;
mod carried_stats;
mod check;
mod combiner;
mod decider;
mod dedup_cache;
mod divided;
mod fallback;
mod forecast;
mod forward;
mod grant_ledger;
#[cfg(test)]
mod grant_model;
mod held_grants;
mod in_flight;
mod leased;
mod leased_refunds;
mod limits;
mod negative_cache;
mod outcome;
mod overshoot;
mod owner;
mod owner_search;
mod peek;
mod plan;
mod recent_checks;
mod refused_keys;
mod region_limits;
mod reserve;
mod routing_attempts;
mod shares;
mod source_net;
mod source_watch;
mod status;
mod throttle;
mod traced;
mod waiting_refunds;

pub use blocked_sources::{BlockedSources, SourceCounters};
pub use carried::{CarriedCheck, CarriedVerdict, DecideCarried, carried_key};
pub use check::{
    CheckRequest, CheckResponse, Decide, Given, Status, THROTTLE_BATCH_MAX, Throttle,
    ThrottleRequest, VerdictSource,
};
pub use decider::{CarriedRules, Counters, Decider, LocalNode, Options, Peers, Rules};
pub use in_flight::{Entered, LimitInFlight, Place};
pub use leased::{NoGrants, granting_nodes_max};
pub use peek::{GivenBack, Peeked};
pub(crate) use plan::descriptor_hash;
pub use refused_keys::{FADES_BY, KEYS_MAX, LABEL_BYTES_MAX, RefusedKey, RefusedKeys};
pub use region_limits::{REGIONS_MAX as SHARES_MAX, regions_sharing};
pub use reserve::{
    COMMIT_PATIENCE, CommitRequest, Committed, Reservation, Reserve, ReserveRequest, TTL_DEFAULT,
    Uncommitted,
};
pub use source_net::{NEVER_BLOCKED, NotASource, SourceNet};
pub use source_watch::{Blocked, SOURCES_MAX};
pub(crate) use traced::Decisions;
