//! What one epoch of a ring means: its members, the tokens each one owns, and the voters.

use std::collections::BTreeMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::identity::{Generation, NodeId};
use crate::quorum::Quorum;
use crate::ranges::Ranges;

/// The members and voters of one ring at one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RingMembers {
    /// The recognised members that belong to this ring.
    pub entries: BTreeMap<NodeId, RingMember>,
    /// The voters of this ring.
    pub quorum: Quorum,
}

/// A member of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RingMember {
    pub generation: Generation,
    /// The tokens the member owns; empty while it drains.
    pub arcs: Ranges,
}

impl RingMembers {
    pub fn none() -> Self {
        Self { entries: BTreeMap::new(), quorum: Quorum::Of(Vec::new()) }
    }

    /// The [`Epoch::name`](crate::Epoch::name) of these members: equal on two nodes exactly when
    /// both see the same members own the same tokens, and the same voters.
    pub fn fingerprint(&self) -> u64 {
        let mut sip = SipHasher13::new_with_key(b"tidegate t epoch");
        let text = |sip: &mut SipHasher13, id: &NodeId| {
            sip.write_u64(id.as_str().len() as u64);
            sip.write(id.as_str().as_bytes());
        };
        sip.write_u64(self.entries.len() as u64);
        for (id, member) in &self.entries {
            text(&mut sip, id);
            sip.write_u64(member.generation.0);
            sip.write_u64(member.arcs.iter().len() as u64);
            for range in member.arcs.iter() {
                sip.write_u64(range.first);
                sip.write_u64(range.last);
            }
        }
        match &self.quorum {
            Quorum::Of(voters) => {
                sip.write_u64(voters.len() as u64);
                for id in voters {
                    text(&mut sip, id);
                }
            }
            Quorum::NotRequired => sip.write_u64(u64::MAX),
        }
        sip.finish()
    }

    /// Whether `id` is a member, in this incarnation.
    pub fn has(&self, id: &NodeId, generation: Generation) -> bool {
        self.entries.get(id).is_some_and(|member| member.generation == generation)
    }

    /// The tokens that `id` owns.
    pub fn arcs(&self, id: &NodeId) -> Ranges {
        self.entries.get(id).map(|member| member.arcs.clone()).unwrap_or_default()
    }

    /// The tokens that `id` owns now and did not own in `before`; all of them when `id` has
    /// restarted in between.
    pub fn gained(&self, id: &NodeId, before: &Self) -> Ranges {
        let Some(now) = self.entries.get(id) else { return Ranges::EMPTY };
        match before.entries.get(id) {
            Some(then) if then.generation == now.generation => now.arcs.without(&then.arcs),
            _ => now.arcs.clone(),
        }
    }
}
