//! What one epoch means: who is on the roll, who counts, and who owns which places.

use std::collections::BTreeMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::quorum::Quorum;
use crate::identity::{Generation, NodeId};
use crate::ranges::Ranges;

/// What one epoch means on one ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    /// The members of the roll on this ring.
    pub entries: BTreeMap<NodeId, Place>,
    /// The known members that count.
    pub quorum: Quorum,
}

/// A member's place on a ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which start of it.
    pub generation: Generation,
    /// What is its own; nothing while it drains.
    pub arcs: Ranges,
}

impl Members {
    /// A number that two nodes share exactly when they see the same members own the same places,
    /// and count alike.
    pub fn name(&self) -> u64 {
        let mut sip = SipHasher13::new_with_key(b"tidegate t epoch");
        let text = |sip: &mut SipHasher13, id: &NodeId| {
            sip.write_u64(id.as_str().len() as u64);
            sip.write(id.as_str().as_bytes());
        };
        sip.write_u64(self.entries.len() as u64);
        for (id, token) in &self.entries {
            text(&mut sip, id);
            sip.write_u64(token.generation.0);
            sip.write_u64(token.arcs.iter().len() as u64);
            for range in token.arcs.iter() {
                sip.write_u64(range.first);
                sip.write_u64(range.last);
            }
        }
        match &self.quorum {
            Quorum::Of(known) => {
                sip.write_u64(known.len() as u64);
                for id in known {
                    text(&mut sip, id);
                }
            }
            Quorum::Everyone => sip.write_u64(u64::MAX),
        }
        sip.finish()
    }

    /// What is `id`'s own.
    pub fn arcs(&self, id: &NodeId) -> Ranges {
        self.entries.get(id).map(|token| token.arcs.clone()).unwrap_or_default()
    }

    /// What became `id`'s own between `before` and now; everything when it is another start of it.
    pub fn gained(&self, id: &NodeId, before: &Self) -> Ranges {
        let Some(now) = self.entries.get(id) else { return Ranges::EMPTY };
        match before.entries.get(id) {
            Some(then) if then.generation == now.generation => now.arcs.without(&then.arcs),
            _ => now.arcs.clone(),
        }
    }

    /// Of nobody.
    pub fn none() -> Self {
        Self { entries: BTreeMap::new(), quorum: Quorum::Of(Vec::new()) }
    }
}
