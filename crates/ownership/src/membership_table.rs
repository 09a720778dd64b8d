//! The members that this node recognises.
//!
//! Gossip reports which nodes are alive. The table adds a member as soon as gossip reports it, and
//! removes one late: a member that gossip reports as dead gets no further lease grants, and is
//! *evicted* once the last grant it got has expired. So a node that a quorum has evicted holds no
//! lease.
//!
//! Example, lease 400 ms: `b` sent its last ping at 0 and crashed. Gossip reports it as dead at
//! 950 ms; its grant expired at 400 ms, so it is evicted at once. Had it pinged at 900 ms, behind a
//! one-way partition that lets only its own packets through, it would be evicted at 1,300 ms.

use std::collections::BTreeMap;

use tidegate_limiter::units::{Monotonic, Span};

use crate::identity::{Generation, NodeId};

/// A live member, as reported by gossip.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LiveMember {
    pub id: NodeId,
    pub generation: Generation,
    /// Whether it owns keys; false while it drains.
    pub is_up: bool,
}

/// The members that this node recognises, including itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MembershipTable {
    me: NodeId,
    lease: Span,
    entries: BTreeMap<NodeId, TableEntry>,
    /// The serial of the newest entry.
    last_serial: u64,
}

/// A recognised member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableEntry {
    pub generation: Generation,
    /// Whether it owns keys; false while it drains.
    pub is_up: bool,
    /// Differs between two entries of one node, so a member can detect that it was evicted and
    /// added again in between.
    serial: u64,
    last_grant: Option<Monotonic>,
    /// Gossip reports the member as dead: it gets no grants until gossip reports it again.
    is_withheld: bool,
}

impl MembershipTable {
    /// An empty table of node `me`; each grant is valid for `lease`.
    pub fn new(me: NodeId, lease: Span) -> Self {
        Self { me, lease, entries: BTreeMap::new(), last_serial: 0 }
    }

    /// Replaces the set of live members. Returns whether the table changed.
    pub fn update(&mut self, now: Monotonic, alive: &[LiveMember]) -> bool {
        let mut has_changed = false;
        for LiveMember { id, generation, is_up } in alive {
            match self.entries.get_mut(id) {
                Some(entry) if entry.generation == *generation => {
                    has_changed |= entry.is_up != *is_up;
                    (entry.is_up, entry.is_withheld) = (*is_up, false);
                }
                // Late gossip about an incarnation that was replaced by the recognised one.
                Some(entry) if entry.generation > *generation => {}
                _ => {
                    self.last_serial += 1;
                    let entry = TableEntry {
                        generation: *generation,
                        is_up: *is_up,
                        serial: self.last_serial,
                        last_grant: None,
                        is_withheld: false,
                    };
                    self.entries.insert(id.clone(), entry);
                    has_changed = true;
                }
            }
        }
        for (id, entry) in &mut self.entries {
            entry.is_withheld |= *id != self.me && !alive.iter().any(|alive| alive.id == *id);
        }
        self.evict(now) || has_changed
    }

    /// Removes members that gossip reports as dead and whose last grant has expired. Returns
    /// whether there were any.
    pub fn evict(&mut self, now: Monotonic) -> bool {
        let before = self.entries.len();
        let lease = self.lease;
        self.entries.retain(|_, entry| {
            !entry.is_withheld || entry.last_grant.is_some_and(|at| now < at.plus(lease))
        });
        self.entries.len() < before
    }

    /// The lease grant that answers a ping of `peer`: the serial of its entry, or `None` when this
    /// incarnation is not recognised.
    pub fn grant(&mut self, now: Monotonic, peer: &NodeId, generation: Generation) -> Option<u64> {
        let entry = self.entries.get_mut(peer)?;
        if entry.generation != generation || entry.is_withheld {
            return None;
        }
        entry.last_grant = Some(now);
        Some(entry.serial)
    }

    pub fn entries(&self) -> &BTreeMap<NodeId, TableEntry> {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    fn alive(id_: &str, generation: u64) -> LiveMember {
        LiveMember { id: id(id_), generation: Generation(generation), is_up: true }
    }

    fn ms(ms: u64) -> Monotonic {
        Monotonic::from_nanos(ms * 1_000_000)
    }

    fn table() -> MembershipTable {
        let mut table = MembershipTable::new(id("a"), Span::from_millis(400));
        assert!(table.update(ms(0), &[alive("a", 1), alive("b", 1)]));
        table
    }

    #[test]
    fn a_member_is_evicted_when_its_last_grant_has_expired() {
        let mut table = table();
        assert_eq!(table.grant(ms(900), &id("b"), Generation(1)), Some(2));
        assert!(!table.update(ms(950), &[alive("a", 1)]));
        assert_eq!(table.grant(ms(960), &id("b"), Generation(1)), None, "withheld");
        assert!(!table.evict(ms(1_299)));
        assert!(table.evict(ms(1_300)));
        assert!(!table.entries().contains_key(&id("b")));
    }

    #[test]
    fn a_member_that_returns_before_its_grant_expires_keeps_its_serial() {
        let mut table = table();
        assert_eq!(table.grant(ms(900), &id("b"), Generation(1)), Some(2));
        table.update(ms(950), &[alive("a", 1)]);
        assert!(!table.update(ms(1_000), &[alive("a", 1), alive("b", 1)]));
        assert_eq!(table.grant(ms(1_010), &id("b"), Generation(1)), Some(2));
    }

    #[test]
    fn a_member_that_returns_late_or_restarted_gets_a_new_serial() {
        let mut late = table();
        assert!(late.update(ms(900), &[alive("a", 1)]));
        assert!(late.update(ms(1_000), &[alive("a", 1), alive("b", 1)]));
        assert_eq!(late.grant(ms(1_010), &id("b"), Generation(1)), Some(3));
        let mut restarted = table();
        assert!(restarted.update(ms(900), &[alive("a", 1), alive("b", 2)]));
        assert_eq!(
            restarted.grant(ms(910), &id("b"), Generation(1)),
            None,
            "a replaced incarnation"
        );
        assert_eq!(restarted.grant(ms(910), &id("b"), Generation(2)), Some(3));
        assert!(!restarted.update(ms(920), &[alive("a", 1), alive("b", 1)]), "late gossip");
    }
}
