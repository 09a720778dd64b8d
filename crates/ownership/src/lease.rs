//! The right to own, as a majority gives it, for a while.
//!
//! A grant counts for the lease's span from the moment that the ping it answers was *sent*: whoever
//! granted it did so later, and holds its promise at least as long as the lease is believed.
//!
//! A grant names the serial under which the voter recognises this node. While a quorum grants under
//! the serials that were noted, no quorum can have struck this node off in between. When a quorum
//! grants again, but not under those, one may have: all that was held is lost.
//!
//! A serial that is new while the tenure is whole is noted one span after it was first seen. Its
//! voter had struck this node off before, and for a span from then on somebody may still count it
//! among those who say so: `b` strikes `a` off and tells `c`; `b` recognises `a` again; `d` strikes
//! `a` off and tells `c`, which now claims. Had `a` replaced the grants of `d` by those of `b`
//! at once, it would not have noticed.
//!
//! Example, three nodes, a span of 400 ms: `a` pings at 0 and 100 ms; `b` answers both, `c` only
//! the first. The lease runs to 500 ms: `a` and `b` are enough.

use std::collections::BTreeMap;

use tidegate_limiter::units::Span;

use super::Monotonic;
use super::quorum::Quorum;
use crate::identity::{Generation, NodeId};

const JUST_AFTER: Span = Span::from_nanos(1);

/// What a voter's recognition of this node is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordedGrant {
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
    noted: BTreeMap<NodeId, RecordedGrant>,
    /// Other serials than those noted, and when each was first seen.
    seen: BTreeMap<NodeId, (RecordedGrant, Monotonic)>,
    /// From when on each known member is counted.
    counts_from: BTreeMap<NodeId, Monotonic>,
    /// When it was looked at first.
    begun: Option<Monotonic>,
    /// Until when it ran when it was last renewed, and who counted then.
    last_run: Option<(Monotonic, Quorum)>,
    /// When it was looked at last.
    renewed: Monotonic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    sent: Monotonic,
    recognised: RecordedGrant,
}

/// How this node stands with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// It may own until then, and has been able to without a break.
    Whole(Monotonic),
    /// It may own until then, but lost what it held.
    Broken(Monotonic),
    /// It may own nothing.
    Nothing,
}

impl Lease {
    /// A lease of `me` that nobody has granted anything of.
    pub fn new(me: NodeId, span: Span) -> Self {
        let (grants, noted, seen, counts_from) = Default::default();
        Self {
            me,
            span,
            grants,
            noted,
            seen,
            counts_from,
            begun: None,
            last_run: None,
            renewed: Monotonic::EPOCH,
        }
    }

    /// How long a grant counts.
    pub fn span(&self) -> Span {
        self.span
    }

    /// `voter` recognised this node in its answer to a ping of `sent`.
    pub fn granted(&mut self, voter: &NodeId, sent: Monotonic, recognised: RecordedGrant) {
        let is_older = self.grants.get(voter).is_some_and(|grant| grant.sent > sent);
        if !is_older {
            self.grants.insert(voter.clone(), Grant { sent, recognised });
        }
    }

    /// Where this node stands at `now`. A voter that became known while this node was whole counts
    /// when it can be relied on, or has had the time to grant.
    pub fn renew(&mut self, now: Monotonic, quorum: &Quorum) -> LeaseState {
        self.follow(now, quorum);
        let counts = self.counting(quorum, now);
        // A newcomer is noted before it counts, as long as those who counted until now are enough.
        let counted = self.counting(quorum, self.renewed);
        self.renewed = now;
        if counted.is_met(|id| self.is_intact_after(id, now)) {
            self.note_what_lasts(now);
        }
        let is_whole = !self.has_lapsed_under_others(now, quorum)
            && counts.is_met(|id| self.is_intact_after(id, now));
        if !is_whole && !counts.is_met(|id| self.is_fresh_after(id, now)) {
            return LeaseState::Nothing;
        }
        if is_whole {
            self.note_what_lasts(now);
        } else {
            self.note_all(now);
        }
        // It runs until so many grants have run out, or so many more voters count, that the rest is
        // no quorum any more.
        let ends = self.grants.values().map(|grant| grant.sent.plus(self.span));
        let grows = self.counts_from.values().copied();
        let changes = ends.chain(grows).filter(|at| now < *at);
        let lasts = |at| self.counting(quorum, at).is_met(|id| self.will_be_intact_after(id, at));
        let until = changes.filter(|at| !lasts(*at)).min().unwrap_or(Monotonic::NEVER);
        self.last_run = Some((until, quorum.clone()));
        if is_whole { LeaseState::Whole(until) } else { LeaseState::Broken(until) }
    }

    /// Those of `quorum` that count at `at`.
    fn counting(&self, quorum: &Quorum, at: Monotonic) -> Quorum {
        let from = |id: &NodeId| self.counts_from.get(id).copied().unwrap_or(at);
        quorum.only(|id| *id == self.me || at >= from(id))
    }

    /// Whether it ran out since, and others count now. While it had run out, a quorum of those who
    /// counted may have struck this node off, and need not meet a quorum of those who count now:
    /// `b c` of `a b c`, then `b` leaves, and `a` is a quorum of `a c`.
    fn has_lapsed_under_others(&self, now: Monotonic, quorum: &Quorum) -> bool {
        self.last_run.as_ref().is_some_and(|(until, then)| now >= *until && then != quorum)
    }

    /// Whether what `id` granted counts after `at`.
    fn is_fresh_after(&self, id: &NodeId, at: Monotonic) -> bool {
        *id == self.me || self.grants.get(id).is_some_and(|grant| at < grant.sent.plus(self.span))
    }

    /// Whether it does, and is under the serial that was noted.
    fn is_intact_after(&self, id: &NodeId, at: Monotonic) -> bool {
        let granted = self.grants.get(id).map(|grant| grant.recognised);
        let is_noted = *id == self.me || granted.is_some_and(|it| self.noted.get(id) == Some(&it));
        is_noted && self.is_fresh_after(id, at)
    }

    /// Whether it will, if this lease lasts until `at` and nothing else is heard of `id`.
    fn will_be_intact_after(&self, id: &NodeId, at: Monotonic) -> bool {
        let granted = self.grants.get(id).map(|grant| grant.recognised);
        let will_be_noted = self.seen.get(id).is_some_and(|(recognised, since)| {
            granted == Some(*recognised) && at > since.plus(self.span)
        });
        self.is_intact_after(id, at) || (will_be_noted && self.is_fresh_after(id, at))
    }

    /// The tenure begins: nothing is held that anybody could have taken.
    fn note_all(&mut self, now: Monotonic) {
        self.seen.clear();
        let fresh = self.grants.iter().filter(|(_, grant)| now < grant.sent.plus(self.span));
        self.noted = fresh.map(|(id, grant)| (id.clone(), grant.recognised)).collect();
    }

    /// The tenure goes on: other serials are noted when nobody counts the strike before them any
    /// more.
    fn note_what_lasts(&mut self, now: Monotonic) {
        for (id, Grant { sent, recognised }) in &self.grants {
            if now >= sent.plus(self.span) || self.noted.get(id) == Some(recognised) {
                continue;
            }
            let (before, since) = *self.seen.entry(id.clone()).or_insert((*recognised, now));
            if before != *recognised {
                self.seen.insert(id.clone(), (*recognised, now));
            } else if now >= since.plus(self.span) {
                self.seen.remove(id);
                self.noted.insert(id.clone(), *recognised);
            } else if let Some(from) = self.counts_from.get_mut(id)
                && now < *from
            {
                // It would count as one that cannot be relied on; afterwards it is noted.
                *from = since.plus(self.span).plus(JUST_AFTER);
            }
        }
    }

    /// Remembers from when on voters count, and forgets those that do not any more.
    fn follow(&mut self, now: Monotonic, quorum: &Quorum) {
        let Quorum::Of(known) = quorum else { return };
        // A node that just started has nothing to lose while it waits for a quorum of all.
        let begun = *self.begun.get_or_insert(now);
        let from = if now < begun.plus(self.span) { now } else { now.plus(self.span) };
        let counts = |id: &NodeId| quorum.counts(id);
        self.counts_from.retain(|id, _| counts(id));
        self.noted.retain(|id, _| counts(id));
        self.seen.retain(|id, _| counts(id));
        self.grants.retain(|id, grant| counts(id) || now < grant.sent.plus(self.span));
        for id in known {
            self.counts_from.entry(id.clone()).or_insert(from);
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

    fn ms(ms: u64) -> Monotonic {
        Monotonic::from_nanos(ms * 1_000_000)
    }

    fn of(serial: u64) -> RecordedGrant {
        RecordedGrant { generation: Generation(1), serial }
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
        assert_eq!(lease.renew(ms(0), &three()), LeaseState::Broken(ms(400)), "it is new");
        assert_eq!(lease.renew(ms(0), &three()), LeaseState::Whole(ms(400)));
        lease
    }

    #[test]
    fn a_lease_runs_from_the_ping_that_the_deciding_grant_answered() {
        let mut lease = b_of_three();
        lease.granted(&id("a"), ms(100), of(1));
        assert_eq!(lease.renew(ms(150), &three()), LeaseState::Whole(ms(500)));
        assert_eq!(lease.renew(ms(499), &three()), LeaseState::Whole(ms(500)));
        assert_eq!(lease.renew(ms(500), &three()), LeaseState::Nothing);
    }

    #[test]
    fn what_was_held_is_lost_only_when_a_quorum_may_have_struck_off() {
        let mut one = b_of_three();
        one.granted(&id("a"), ms(300), of(9));
        one.granted(&id("c"), ms(300), of(1));
        assert_eq!(one.renew(ms(450), &three()), LeaseState::Whole(ms(700)));
        let mut both = b_of_three();
        both.granted(&id("a"), ms(900), of(9));
        both.granted(&id("c"), ms(900), of(9));
        assert_eq!(both.renew(ms(950), &three()), LeaseState::Broken(ms(1_300)));
        assert_eq!(both.renew(ms(960), &three()), LeaseState::Whole(ms(1_300)));
    }

    /// `a` struck `b` off and recognised it again. Whoever heard of the strike may count `a` for a
    /// span, so `b` does not rely on it before.
    #[test]
    fn another_serial_is_relied_on_when_the_strike_before_it_counts_no_more() {
        let mut soon = b_of_three();
        for sent in [300, 600] {
            soon.granted(&id("a"), ms(sent), of(9));
            soon.granted(&id("c"), ms(300), of(1));
            assert_eq!(soon.renew(ms(sent), &three()), LeaseState::Whole(ms(700)));
        }
        assert_eq!(soon.renew(ms(700), &three()), LeaseState::Broken(ms(1_000)));
        let mut late = b_of_three();
        for sent in [300, 600, 700] {
            late.granted(&id("a"), ms(sent), of(9));
            late.granted(&id("c"), ms(sent.min(600)), of(1));
            assert!(matches!(late.renew(ms(sent), &three()), LeaseState::Whole(_)));
        }
        assert_eq!(late.renew(ms(1_000), &three()), LeaseState::Whole(ms(1_100)));
    }

    #[test]
    fn a_quorum_of_fewer_does_not_mend_what_ran_out_under_more() {
        let mut lease = Lease::new(id("a"), SPAN);
        let three = three();
        for voter in ["b", "c"] {
            lease.granted(&id(voter), ms(0), of(1));
        }
        assert_eq!(lease.renew(ms(0), &three), LeaseState::Broken(ms(400)));
        assert_eq!(lease.renew(ms(500), &three), LeaseState::Nothing);
        let two = Quorum::Of(vec![id("a"), id("c")]);
        assert!(matches!(lease.renew(ms(600), &two), LeaseState::Broken(_)), "b left meanwhile");
        assert!(matches!(lease.renew(ms(620), &two), LeaseState::Whole(_)));
    }

    /// Two nodes may have struck it off without a grant to wait for.
    #[test]
    fn a_node_that_just_started_needs_a_quorum_of_all_it_knows() {
        let mut lease = Lease::new(id("a"), SPAN);
        assert_eq!(lease.renew(ms(0), &three()), LeaseState::Nothing);
        lease.granted(&id("c"), ms(10), of(1));
        assert_eq!(lease.renew(ms(20), &three()), LeaseState::Broken(ms(410)));
    }

    #[test]
    fn a_newcomer_counts_when_it_can_be_relied_on_or_is_late() {
        let alone = Quorum::Of(vec![id("b")]);
        let pair = Quorum::Of(vec![id("a"), id("b")]);
        let mut lease = Lease::new(id("b"), SPAN);
        assert_eq!(lease.renew(ms(0), &alone), LeaseState::Whole(Monotonic::NEVER));
        assert_eq!(lease.renew(ms(500), &pair), LeaseState::Whole(ms(900)));
        lease.granted(&id("a"), ms(520), of(1));
        assert_eq!(lease.renew(ms(530), &pair), LeaseState::Whole(ms(930).plus(JUST_AFTER)));
        lease.granted(&id("a"), ms(920), of(1));
        assert_eq!(lease.renew(ms(930), &pair), LeaseState::Whole(ms(1_320)));
        let mut unheard = Lease::new(id("b"), SPAN);
        unheard.renew(ms(0), &alone);
        unheard.renew(ms(500), &pair);
        assert_eq!(unheard.renew(ms(900), &pair), LeaseState::Nothing);
    }

    /// What is believed between two renewals must not end just because another one counts.
    #[test]
    fn a_newcomer_that_is_not_needed_cuts_no_lease_short() {
        let pair = Quorum::Of(vec![id("a"), id("b")]);
        let mut lease = Lease::new(id("b"), SPAN);
        lease.granted(&id("a"), ms(0), of(1));
        lease.renew(ms(0), &pair);
        for sent in [300, 600] {
            lease.granted(&id("a"), ms(sent), of(1));
            assert_eq!(lease.renew(ms(sent), &three()), LeaseState::Whole(ms(sent + 400)));
        }
    }

    /// From when on `a` counts nobody is a quorum without it; it is noted just before.
    #[test]
    fn nor_does_one_that_is_needed_and_noted_in_time() {
        let (alone, pair) = (Quorum::Of(vec![id("b")]), Quorum::Of(vec![id("a"), id("b")]));
        let mut lease = Lease::new(id("b"), SPAN);
        lease.renew(ms(0), &alone);
        lease.granted(&id("a"), ms(490), of(1));
        lease.renew(ms(500), &pair);
        for sent in [800, 1_100] {
            lease.granted(&id("a"), ms(sent), of(1));
            assert_eq!(lease.renew(ms(sent), &pair), LeaseState::Whole(ms(sent + 400)));
        }
    }

    #[test]
    fn without_a_quorum_rule_nobody_is_asked() {
        let mut lease = Lease::new(id("b"), SPAN);
        assert_eq!(lease.renew(ms(0), &Quorum::Everyone), LeaseState::Whole(Monotonic::NEVER));
    }
}
