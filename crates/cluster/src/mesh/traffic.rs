//! What a node sends to its peers, by kind of message. A reply is of the kind of its call.
//!
//! Bytes are those of the frames; QUIC adds some 30 to 60 bytes to each datagram.

use std::sync::atomic::{AtomicU64, Ordering};

use super::wire::Call;
use crate::count;

/// Messages and bytes since the start.
#[derive(Debug, Default)]
pub struct Traffic([Sent; Kind::ALL.len()]);

#[derive(Debug, Default)]
struct Sent {
    messages: AtomicU64,
    bytes: AtomicU64,
}

/// What a message is about. The kinds are an array in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pings and grants.
    Pings,
    /// The cluster maps, their consensus, requests to change them, and what edges follow; orders of
    /// operators, and certificates.
    Map,
    /// Range transfers, without the states.
    Transfers,
    Gossip,
    Checks,
    /// Per-actor counters.
    Sync,
    /// States of strict counters, and their digests.
    States,
    /// What operators look at.
    Snapshots,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Pings,
        Self::Map,
        Self::Transfers,
        Self::Gossip,
        Self::Checks,
        Self::Sync,
        Self::States,
        Self::Snapshots,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Pings => "pings",
            Self::Map => "map",
            Self::Transfers => "transfers",
            Self::Gossip => "gossip",
            Self::Checks => "checks",
            Self::Sync => "sync",
            Self::States => "states",
            Self::Snapshots => "snapshots",
        }
    }

    pub(super) const fn of(call: &Call) -> Self {
        match call {
            Call::Ping { .. } | Call::GlobalPing(_) => Self::Pings,
            Call::Map(..)
            | Call::Edge(_)
            | Call::Interventions(_)
            | Call::Revocations(_)
            | Call::Certificate(_) => Self::Map,
            Call::Handoff(_) => Self::Transfers,
            Call::Gossip(_) => Self::Gossip,
            Call::Check(_)
            | Call::CombinedCheck(_)
            | Call::TracedCheck(_)
            | Call::Carried(_)
            | Call::GiveBack(_)
            | Call::Recall(_)
            | Call::Reserve(_)
            | Call::Commit(_)
            | Call::Refunded { .. } => Self::Checks,
            Call::Sync(_) => Self::Sync,
            Call::States(_) | Call::Digests(_) => Self::States,
            Call::Snapshot => Self::Snapshots,
        }
    }
}

impl Traffic {
    pub(super) fn sent(&self, kind: Kind, bytes: usize) {
        let Sent { messages, bytes: sum } = &self.0[kind as usize];
        count(messages, 1);
        count(sum, bytes as u64);
    }

    /// Messages and bytes of each kind.
    pub fn read(&self) -> [(Kind, u64, u64); Kind::ALL.len()] {
        Kind::ALL.map(|kind| {
            let Sent { messages, bytes } = &self.0[kind as usize];
            (kind, messages.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
        })
    }
}
