//! Whom this node recognises, and whom it knows.
//!
//! Gossip tells who is alive; the roll follows it at once when somebody comes, and late when
//! somebody goes: a member that gossip gave up gets no more grants, and is struck off when the last
//! one it got has run out. So whoever is off the roll of a quorum has no lease.
//!
//! Example, lease 400 ms: `b` pinged last at 0 and died. Gossip gives it up at 950 ms; its grant
//! ran out at 400 ms, so it is struck off at once. Had it pinged at 900 ms, behind a cut that lets
//! only its own datagrams through, it would go at 1,300 ms.

use std::collections::BTreeMap;

use tidegate_limiter::units::Span;

use super::Monotonic;
use crate::identity::{Generation, NodeId};

/// What gossip says of a live member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LiveMember {
    /// Its id.
    pub id: NodeId,
    /// Which start of it.
    pub generation: Generation,
    /// Whether it takes keys; false while it drains.
    pub is_up: bool,
}

/// The members this node recognises, itself among them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MembershipTable {
    me: NodeId,
    lease: Span,
    entries: BTreeMap<NodeId, TableEntry>,
    /// Grows with every new seat.
    serial: u64,
}

/// A member on the roll.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableEntry {
    /// Which start of it.
    pub generation: Generation,
    /// Whether it takes keys; false while it drains.
    pub is_up: bool,
    /// Under what it is recognised.
    serial: u64,
    /// When it last got a grant.
    granted: Option<Monotonic>,
    /// Whether gossip has given it up: no more grants.
    is_withheld: bool,
}

impl MembershipTable {
    /// The roll of `me`, empty.
    pub fn new(me: NodeId, lease: Span) -> Self {
        Self { me, lease, entries: BTreeMap::new(), serial: 0 }
    }

    /// Takes in who is alive. Returns whether the roll changed.
    pub fn hear(&mut self, now: Monotonic, alive: &[LiveMember]) -> bool {
        let mut has_changed = false;
        for LiveMember { id, generation, is_up } in alive {
            match self.entries.get_mut(id) {
                Some(seat) if seat.generation == *generation => {
                    has_changed |= seat.is_up != *is_up;
                    (seat.is_up, seat.is_withheld) = (*is_up, false);
                }
                // An older start than the one that is recognised is dead.
                Some(seat) if seat.generation > *generation => {}
                _ => {
                    self.serial += 1;
                    let seat = TableEntry {
                        generation: *generation,
                        is_up: *is_up,
                        serial: self.serial,
                        granted: None,
                        is_withheld: false,
                    };
                    self.entries.insert(id.clone(), seat);
                    has_changed = true;
                }
            }
        }
        for (id, seat) in &mut self.entries {
            seat.is_withheld |= *id != self.me && !alive.iter().any(|alive| alive.id == *id);
        }
        self.evict(now) || has_changed
    }

    /// Strikes off those that gossip gave up and whose last grant has run out. Returns whether
    /// there were any.
    pub fn evict(&mut self, now: Monotonic) -> bool {
        let before = self.entries.len();
        let lease = self.lease;
        self.entries.retain(|_, seat| {
            !seat.is_withheld || seat.granted.is_some_and(|granted| now < granted.plus(lease))
        });
        self.entries.len() < before
    }

    /// Answers a ping of `peer`: under what it is recognised, if it is.
    pub fn grant(&mut self, now: Monotonic, peer: &NodeId, generation: Generation) -> Option<u64> {
        let seat = self.entries.get_mut(peer)?;
        if seat.generation != generation || seat.is_withheld {
            return None;
        }
        seat.granted = Some(now);
        Some(seat.serial)
    }

    /// Everybody on it, sorted by id.
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
        assert!(table.hear(ms(0), &[alive("a", 1), alive("b", 1)]));
        table
    }

    #[test]
    fn a_member_is_struck_off_when_its_last_grant_has_run_out() {
        let mut table = table();
        assert_eq!(table.grant(ms(900), &id("b"), Generation(1)), Some(2));
        assert!(!table.hear(ms(950), &[alive("a", 1)]));
        assert_eq!(table.grant(ms(960), &id("b"), Generation(1)), None, "withheld");
        assert!(!table.evict(ms(1_299)));
        assert!(table.evict(ms(1_300)));
        assert!(!table.entries().contains_key(&id("b")));
    }

    #[test]
    fn a_member_that_comes_back_in_time_was_never_gone() {
        let mut table = table();
        assert_eq!(table.grant(ms(900), &id("b"), Generation(1)), Some(2));
        table.hear(ms(950), &[alive("a", 1)]);
        assert!(!table.hear(ms(1_000), &[alive("a", 1), alive("b", 1)]));
        assert_eq!(table.grant(ms(1_010), &id("b"), Generation(1)), Some(2));
    }

    #[test]
    fn a_member_that_comes_back_late_or_anew_is_recognised_under_another_serial() {
        let mut late = table();
        assert!(late.hear(ms(900), &[alive("a", 1)]));
        assert!(late.hear(ms(1_000), &[alive("a", 1), alive("b", 1)]));
        assert_eq!(late.grant(ms(1_010), &id("b"), Generation(1)), Some(3));
        let mut anew = table();
        assert!(anew.hear(ms(900), &[alive("a", 1), alive("b", 2)]));
        assert_eq!(anew.grant(ms(910), &id("b"), Generation(1)), None, "the old start is dead");
        assert_eq!(anew.grant(ms(910), &id("b"), Generation(2)), Some(3));
        assert!(!anew.hear(ms(920), &[alive("a", 1), alive("b", 1)]), "late gossip");
    }
}
