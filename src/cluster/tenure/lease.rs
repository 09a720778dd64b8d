//! The right to own, as a majority gives it, for a while.
//!
//! A grant counts for the lease's span from the moment that the ping it answers was *sent*: whoever
//! granted it did so later, and holds its promise at least as long as the lease is believed.
//!
//! A grant names the serial under which the voter recognises this node. While a quorum grants under
//! the serials that were noted, no quorum can have struck this node off in between. When a quorum
//! grants again, but not under those, one may have: all that was held is lost.
//!
//! Example, three nodes, a span of 400 ms: `a` pings at 0 and 100 ms; `b` answers both, `c` only the
//! first. The lease runs to 500 ms: `a` and `b` are enough.

use std::collections::BTreeMap;

use super::Moment;
use super::quorum::Quorum;
use crate::cluster::identity::{Generation, NodeId};
use crate::units::Span;

/// What a voter's recognition of this node is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recognised {
    /// Which start of the voter.
    pub generation: Generation,
    /// Since which change of its roll.
    pub serial: u64,
}

/// The grants of all voters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    me: NodeId,
    span: Span,
    grants: BTreeMap<NodeId, Grant>,
    /// Under what each voter recognised this node while the tenure was whole.
    noted: BTreeMap<NodeId, Recognised>,
    /// Since when those count who have not granted anything yet.
    met: BTreeMap<NodeId, Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    sent: Moment,
    recognised: Recognised,
}

/// How this node stands with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It may own until then, and has been able to without a break.
    Whole(Moment),
    /// It may own until then, but lost what it held.
    Broken(Moment),
    /// It may own nothing.
    Nothing,
}

impl Lease {
    /// A lease of `me` that nobody has granted anything of.
    pub fn new(me: NodeId, span: Span) -> Self {
        let (grants, noted, met) = Default::default();
        Self { me, span, grants, noted, met }
    }

    /// How long a grant counts.
    pub fn span(&self) -> Span {
        self.span
    }

    /// `voter` recognised this node in its answer to a ping of `sent`.
    pub fn granted(&mut self, voter: &NodeId, sent: Moment, recognised: Recognised) {
        let is_older = self.grants.get(voter).is_some_and(|grant| grant.sent > sent);
        if !is_older {
            self.grants.insert(voter.clone(), Grant { sent, recognised });
        }
    }

    /// Where this node stands at `now`. A voter that is new to it counts from its first grant on, or
    /// when it had the time to grant one.
    pub fn renew(&mut self, now: Moment, quorum: &Quorum) -> Standing {
        self.follow(now, quorum);
        let (me, span) = (&self.me, self.span);
        let expiry = |id: &NodeId, grants: &BTreeMap<NodeId, Grant>| {
            if id == me {
                return Some(Moment::NEVER);
            }
            let until = grants.get(id)?.sent.plus(span);
            (now < until).then_some(until)
        };
        let counts = quorum.only(|id| {
            id == me
                || self.noted.contains_key(id)
                || self.met.get(id).is_some_and(|met| now >= met.plus(span))
        });
        let is_intact = |id: &NodeId| {
            let granted = self.grants.get(id).map(|grant| grant.recognised);
            id == me || granted.is_some() && granted == self.noted.get(id).copied()
        };
        // Whoever does not count yet will: nothing is believed beyond that.
        let is_new = |(id, _): &(&NodeId, &Moment)| *id != me && !self.noted.contains_key(*id);
        let in_time = self.met.iter().filter(is_new).map(|(_, met)| met.plus(span));
        let newcomers_count = in_time.filter(|at| now < *at).min().unwrap_or(Moment::NEVER);
        let is_whole = counts.is_met(|id| expiry(id, &self.grants).is_some() && is_intact(id));
        if !is_whole && !counts.is_met(|id| expiry(id, &self.grants).is_some()) {
            return Standing::Nothing;
        }
        if !is_whole {
            self.noted.clear();
        }
        for (id, grant) in &self.grants {
            if now < grant.sent.plus(span) {
                self.noted.insert(id.clone(), grant.recognised);
            }
        }
        // It runs until so many grants have run out that the rest is no quorum any more.
        let mut ends: Vec<Moment> = self
            .grants
            .values()
            .map(|grant| grant.sent.plus(span))
            .filter(|end| now < *end)
            .collect();
        ends.sort_unstable();
        let holds_after = |end: Moment| {
            counts.is_met(|id| expiry(id, &self.grants).is_some_and(|until| until > end))
        };
        let until = ends.into_iter().find(|end| !holds_after(*end)).unwrap_or(Moment::NEVER);
        let until = until.min(newcomers_count);
        if is_whole { Standing::Whole(until) } else { Standing::Broken(until) }
    }

    /// Remembers since when voters count, and forgets those that do not any more.
    fn follow(&mut self, now: Moment, quorum: &Quorum) {
        let Quorum::Of(known) = quorum else { return };
        let counts = |id: &NodeId| known.binary_search(id).is_ok();
        self.met.retain(|id, _| counts(id));
        self.noted.retain(|id, _| counts(id));
        self.grants.retain(|id, grant| counts(id) || now < grant.sent.plus(self.span));
        for id in known {
            self.met.entry(id.clone()).or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span::from_millis(400);

    fn id(id: &str) -> NodeId {
        NodeId::new(id).expect("a valid id")
    }

    fn ms(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn of(serial: u64) -> Recognised {
        Recognised { generation: Generation(1), serial }
    }

    fn three() -> Quorum {
        Quorum::Of(vec![id("a"), id("b"), id("c")])
    }

    /// `b` of three, recognised by all from the beginning.
    fn b_of_three() -> Lease {
        let mut lease = Lease::new(id("b"), SPAN);
        for voter in ["a", "c"] {
            lease.granted(&id(voter), ms(0), of(1));
        }
        assert_eq!(lease.renew(ms(0), &three()), Standing::Whole(ms(400)));
        lease
    }

    #[test]
    fn a_lease_runs_from_the_ping_that_the_deciding_grant_answered() {
        let mut lease = b_of_three();
        lease.granted(&id("a"), ms(100), of(1));
        assert_eq!(lease.renew(ms(150), &three()), Standing::Whole(ms(500)));
        assert_eq!(lease.renew(ms(499), &three()), Standing::Whole(ms(500)));
        assert_eq!(lease.renew(ms(500), &three()), Standing::Nothing);
    }

    #[test]
    fn what_was_held_is_lost_only_when_a_quorum_may_have_struck_off() {
        let mut one = b_of_three();
        one.granted(&id("a"), ms(300), of(9));
        one.granted(&id("c"), ms(300), of(1));
        assert_eq!(one.renew(ms(450), &three()), Standing::Whole(ms(700)));
        let mut both = b_of_three();
        both.granted(&id("a"), ms(900), of(9));
        both.granted(&id("c"), ms(900), of(9));
        assert_eq!(both.renew(ms(950), &three()), Standing::Broken(ms(1_300)));
        assert_eq!(both.renew(ms(960), &three()), Standing::Whole(ms(1_300)));
    }

    #[test]
    fn a_newcomer_counts_from_its_first_grant_or_when_it_is_late() {
        let mut lease = Lease::new(id("b"), SPAN);
        let alone = Quorum::Of(vec![id("b")]);
        assert_eq!(lease.renew(ms(0), &alone), Standing::Whole(Moment::NEVER));
        let pair = Quorum::Of(vec![id("a"), id("b")]);
        assert_eq!(lease.renew(ms(10), &pair), Standing::Whole(ms(410)));
        lease.granted(&id("a"), ms(20), of(1));
        assert_eq!(lease.renew(ms(30), &pair), Standing::Whole(ms(410)));
        assert_eq!(lease.renew(ms(40), &pair), Standing::Whole(ms(420)));
        let mut unheard = Lease::new(id("b"), SPAN);
        unheard.renew(ms(0), &pair);
        assert_eq!(unheard.renew(ms(400), &pair), Standing::Nothing);
    }

    #[test]
    fn without_a_quorum_rule_nobody_is_asked() {
        let mut lease = Lease::new(id("b"), SPAN);
        assert_eq!(lease.renew(ms(0), &Quorum::Everyone), Standing::Whole(Moment::NEVER));
    }
}
