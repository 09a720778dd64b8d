//! The right to own ranges of a ring (the hash ring of a region, or that of all regions), granted
//! by a quorum for a limited time.
//!
//! A *voter* is a node whose grants count: a member of the ring, one that was lost recently, or one
//! that is pinned by name. Each answered ping carries a grant of the voter. A grant is valid for
//! the lease span from the moment the ping was *sent*. The promise of the voter starts later and
//! lasts as long, so it never ends before this node stops relying on it.
//!
//! A grant names the *serial* of this node's entry in the voter's membership table (the nodes that
//! the voter recognises), a number that each new entry gets. A voter *evicts* a node by removing
//! its entry. The lease *records* the serials it relies on. As long as a quorum grants under
//! recorded serials, no quorum has evicted this node in between, and the lease is
//! [held](LeaseState::Held). When a quorum grants, but not under recorded serials, a quorum may
//! have evicted this node in between and other nodes may own its ranges: the lease is
//! [interrupted](LeaseState::Interrupted), and the node drops all it held. A lease that had expired
//! when the voters changed is interrupted too.
//!
//! A new serial that appears while the lease is held is recorded one span after it was first seen.
//! That voter had evicted this node, and for one span another node may still count the voter's old
//! epoch (the number of its set of members). Example:
//!
//! 1. `b` evicts `a`, and `c` receives that epoch. `b` then recognises `a` again.
//! 2. `d` evicts `a`. `c` receives that epoch too, counts `b` and `d` as a quorum, and takes over.
//! 3. If `a` had replaced the grants of `d` by those of `b` at once, its lease would seem held.
//!
//! Example, three nodes, a span of 400 ms: `a` pings at 0 and 100 ms; `b` answers both, `c` only
//! the first. The lease is valid until 500 ms, because `a` and `b` are a quorum.

use std::collections::BTreeMap;

use tidegate_limiter::units::{Monotonic, Span};

use crate::identity::{Generation, NodeId};
use crate::quorum::{Quorum, is_majority};

const JUST_AFTER: Span = Span::from_nanos(1);

/// Names the entry of this node in a voter's membership table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId {
    /// The incarnation of the voter.
    pub generation: Generation,
    /// The serial of the entry.
    pub serial: u64,
}

/// The lease of one ring.
///
/// Input: [`Lease::grant_received`] for each answered ping. Timeout: [`Lease::renew`], after each
/// input and every 20 ms. There is no output to drain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    me: NodeId,
    span: Span,
    /// The latest grant of each voter.
    grants: BTreeMap<NodeId, Grant>,
    /// The entries that this lease relies on.
    recorded: BTreeMap<NodeId, EntryId>,
    /// New serials that are not recorded yet, and when each was first seen.
    unrecorded: BTreeMap<NodeId, (EntryId, Monotonic)>,
    /// From when on each voter counts.
    votes_from: BTreeMap<NodeId, Monotonic>,
    first_renewal: Option<Monotonic>,
    last_renewal: Monotonic,
    /// The end of the lease as of the last successful renewal, and the voters at that time.
    valid_until: Option<(Monotonic, Quorum)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    ping_sent: Monotonic,
    entry: EntryId,
}

/// A voter as a lease relies on it.
struct Vote {
    /// From when on the voter counts.
    counts_from: Monotonic,
    /// From when on its grant is recorded.
    recorded_from: Monotonic,
    /// When its grant expires.
    until: Monotonic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// Valid until then, and without interruption since the renewal before.
    Held(Monotonic),
    /// Valid until then, but other nodes may have taken over since it was last valid: everything
    /// held under it must be dropped.
    Interrupted(Monotonic),
    /// Not valid: this node may decide nothing. It keeps its ranges, for the case that the lease
    /// is held again without an interruption.
    None,
}

impl Vote {
    fn counts(&self, at: Monotonic) -> bool {
        self.counts_from <= at
    }

    fn is_given(&self, at: Monotonic) -> bool {
        self.recorded_from <= at && at < self.until
    }
}

impl LeaseState {
    /// The end of the lease; [`Monotonic::START`] when it is not valid.
    pub fn until(self) -> Monotonic {
        match self {
            Self::Held(until) | Self::Interrupted(until) => until,
            Self::None => Monotonic::START,
        }
    }
}

impl Lease {
    /// A lease of `me` without any grant; each grant is valid for `span`.
    pub fn new(me: NodeId, span: Span) -> Self {
        let (grants, recorded, unrecorded, votes_from) = Default::default();
        Self {
            me,
            span,
            grants,
            recorded,
            unrecorded,
            votes_from,
            first_renewal: None,
            last_renewal: Monotonic::START,
            valid_until: None,
        }
    }

    pub fn span(&self) -> Span {
        self.span
    }

    /// `voter` answered the ping that was sent at `ping_sent` with a grant.
    pub fn grant_received(&mut self, voter: &NodeId, ping_sent: Monotonic, entry: EntryId) {
        let is_older = self.grants.get(voter).is_some_and(|grant| grant.ping_sent > ping_sent);
        if !is_older {
            self.grants.insert(voter.clone(), Grant { ping_sent, entry });
        }
    }

    /// Recomputes the lease at `now` for the voters in `quorum`. A voter that was added while the
    /// lease was held starts to count when its grant is recorded, or after one span without a
    /// grant.
    pub fn renew(&mut self, now: Monotonic, quorum: &Quorum) -> LeaseState {
        self.follow_voters(now, quorum);
        // A new voter's grant is recorded before it counts, if the previous voters suffice.
        let previously = std::mem::replace(&mut self.last_renewal, now);
        if self.is_met(quorum, previously, |id| self.has_recorded_grant(id, now)) {
            self.record_lasting_grants(now);
        }
        let is_held = !self.has_expired_under_other_voters(now, quorum)
            && self.is_met(quorum, now, |id| self.has_recorded_grant(id, now));
        if !is_held && !self.is_met(quorum, now, |id| self.has_grant(id, now)) {
            return LeaseState::None;
        }
        if is_held {
            self.record_lasting_grants(now);
        } else {
            self.record_all_grants(now);
        }
        let until = self.end(now, quorum);
        self.valid_until = Some((until, quorum.clone()));
        if is_held { LeaseState::Held(until) } else { LeaseState::Interrupted(until) }
    }

    /// Whether `votes` is true for a majority of the voters that count at `at`.
    fn is_met(&self, quorum: &Quorum, at: Monotonic, votes: impl Fn(&NodeId) -> bool) -> bool {
        let counts =
            |id: &NodeId| *id == self.me || self.votes_from.get(id).is_none_or(|from| *from <= at);
        quorum.is_met_among(counts, votes)
    }

    /// The first moment after `now` at which the grants that have not expired are no quorum of the
    /// voters that count then.
    ///
    /// It is asked for at every tick, so the maps are read once per voter; what is left are
    /// comparisons of numbers, at most the square of the number of voters.
    fn end(&self, now: Monotonic, quorum: &Quorum) -> Monotonic {
        let Quorum::Of(voters) = quorum else { return Monotonic::NEVER };
        let votes: Vec<Vote> = voters.iter().map(|id| self.vote(id)).collect();
        let is_valid = |at| {
            is_majority(votes.iter().filter(|vote| vote.counts(at)).map(|vote| vote.is_given(at)))
        };
        let changes = votes.iter().flat_map(|vote| [vote.counts_from, vote.until]);
        let mut changes: Vec<Monotonic> = changes.filter(|at| now < *at).collect();
        changes.sort_unstable();
        changes.dedup();
        changes.into_iter().find(|at| !is_valid(*at)).unwrap_or(Monotonic::NEVER)
    }

    /// The vote of `id`, if this lease lasts and `id` sends nothing else.
    fn vote(&self, id: &NodeId) -> Vote {
        if *id == self.me {
            let (counts_from, recorded_from) = (Monotonic::START, Monotonic::START);
            return Vote { counts_from, recorded_from, until: Monotonic::NEVER };
        }
        let counts_from = self.votes_from.get(id).copied().unwrap_or_default();
        let Some(grant) = self.grants.get(id) else {
            return Vote { counts_from, recorded_from: Monotonic::NEVER, until: Monotonic::START };
        };
        let will_be_recorded = self.unrecorded.get(id).filter(|(entry, _)| *entry == grant.entry);
        let recorded_from = if self.recorded.get(id) == Some(&grant.entry) {
            Monotonic::START
        } else {
            will_be_recorded
                .map_or(Monotonic::NEVER, |(_, since)| since.plus(self.span).plus(JUST_AFTER))
        };
        Vote { counts_from, recorded_from, until: grant.ping_sent.plus(self.span) }
    }

    /// Whether the lease has expired and the voters are others now. While it was expired, a quorum
    /// of the old voters may have evicted this node without intersecting a quorum of the new ones:
    /// `b c` of `a b c`; then `b` leaves, and `a` is a quorum of `a c`.
    fn has_expired_under_other_voters(&self, now: Monotonic, quorum: &Quorum) -> bool {
        self.valid_until.as_ref().is_some_and(|(until, then)| now >= *until && then != quorum)
    }

    /// Whether the grant of `id` is still valid just after `at`.
    fn has_grant(&self, id: &NodeId, at: Monotonic) -> bool {
        *id == self.me
            || self.grants.get(id).is_some_and(|grant| at < grant.ping_sent.plus(self.span))
    }

    /// Whether it is, and is the recorded one.
    fn has_recorded_grant(&self, id: &NodeId, at: Monotonic) -> bool {
        let entry = self.grants.get(id).map(|grant| grant.entry);
        let is_recorded =
            *id == self.me || (entry.is_some() && self.recorded.get(id) == entry.as_ref());
        is_recorded && self.has_grant(id, at)
    }

    /// A new lease begins: nothing is held that another node could have taken.
    fn record_all_grants(&mut self, now: Monotonic) {
        self.unrecorded.clear();
        let valid = self.grants.iter().filter(|(_, grant)| now < grant.ping_sent.plus(self.span));
        self.recorded = valid.map(|(id, grant)| (id.clone(), grant.entry)).collect();
    }

    /// The lease continues: records new serials that were first seen a span ago.
    fn record_lasting_grants(&mut self, now: Monotonic) {
        for (id, Grant { ping_sent, entry }) in &self.grants {
            if now >= ping_sent.plus(self.span) || self.recorded.get(id) == Some(entry) {
                continue;
            }
            let (seen, since) = *self.unrecorded.entry(id.clone()).or_insert((*entry, now));
            if seen != *entry {
                self.unrecorded.insert(id.clone(), (*entry, now));
            } else if now >= since.plus(self.span) {
                self.unrecorded.remove(id);
                self.recorded.insert(id.clone(), *entry);
            } else if let Some(from) = self.votes_from.get_mut(id)
                && now < *from
            {
                // Otherwise it would count before its grant is recorded.
                *from = since.plus(self.span).plus(JUST_AFTER);
            }
        }
    }

    /// Sets from when on new voters count, and drops the state of former ones.
    fn follow_voters(&mut self, now: Monotonic, quorum: &Quorum) {
        let Quorum::Of(voters) = quorum else { return };
        // A node that has just started holds nothing, so it may wait for a quorum of all voters.
        let first = *self.first_renewal.get_or_insert(now);
        let from = if now < first.plus(self.span) { now } else { now.plus(self.span) };
        let is_voter = |id: &NodeId| quorum.has_voter(id);
        self.votes_from.retain(|id, _| is_voter(id));
        self.recorded.retain(|id, _| is_voter(id));
        self.unrecorded.retain(|id, _| is_voter(id));
        self.grants.retain(|id, grant| is_voter(id) || now < grant.ping_sent.plus(self.span));
        for id in voters {
            self.votes_from.entry(id.clone()).or_insert(from);
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

    fn of(serial: u64) -> EntryId {
        EntryId { generation: Generation(1), serial }
    }

    fn three() -> Quorum {
        Quorum::Of(vec![id("a"), id("b"), id("c")])
    }

    /// The lease of `b` of three, with grants of all from the beginning.
    fn b_of_three() -> Lease {
        let mut lease = Lease::new(id("b"), SPAN);
        for voter in ["a", "c"] {
            lease.grant_received(&id(voter), ms(0), of(1));
        }
        assert_eq!(
            lease.renew(ms(0), &three()),
            LeaseState::Interrupted(ms(400)),
            "nothing was recorded"
        );
        assert_eq!(lease.renew(ms(0), &three()), LeaseState::Held(ms(400)));
        lease
    }

    #[test]
    fn a_lease_starts_at_the_ping_of_its_oldest_needed_grant() {
        let mut lease = b_of_three();
        lease.grant_received(&id("a"), ms(100), of(1));
        assert_eq!(lease.renew(ms(150), &three()), LeaseState::Held(ms(500)));
        assert_eq!(lease.renew(ms(499), &three()), LeaseState::Held(ms(500)));
        assert_eq!(lease.renew(ms(500), &three()), LeaseState::None);
    }

    #[test]
    fn a_lease_is_interrupted_only_when_a_quorum_may_have_evicted() {
        let mut one = b_of_three();
        one.grant_received(&id("a"), ms(300), of(9));
        one.grant_received(&id("c"), ms(300), of(1));
        assert_eq!(one.renew(ms(450), &three()), LeaseState::Held(ms(700)));
        let mut both = b_of_three();
        both.grant_received(&id("a"), ms(900), of(9));
        both.grant_received(&id("c"), ms(900), of(9));
        assert_eq!(both.renew(ms(950), &three()), LeaseState::Interrupted(ms(1_300)));
        assert_eq!(both.renew(ms(960), &three()), LeaseState::Held(ms(1_300)));
    }

    /// `a` evicted `b` and recognised it again. Nodes that saw the old epoch of `a` may count it
    /// for one span, so `b` does not rely on the new serial before.
    #[test]
    fn a_new_serial_is_recorded_after_one_span() {
        let mut soon = b_of_three();
        for sent in [300, 600] {
            soon.grant_received(&id("a"), ms(sent), of(9));
            soon.grant_received(&id("c"), ms(300), of(1));
            assert_eq!(soon.renew(ms(sent), &three()), LeaseState::Held(ms(700)));
        }
        assert_eq!(soon.renew(ms(700), &three()), LeaseState::Interrupted(ms(1_000)));
        let mut late = b_of_three();
        for sent in [300, 600, 700] {
            late.grant_received(&id("a"), ms(sent), of(9));
            late.grant_received(&id("c"), ms(sent.min(600)), of(1));
            assert!(matches!(late.renew(ms(sent), &three()), LeaseState::Held(_)));
        }
        assert_eq!(late.renew(ms(1_000), &three()), LeaseState::Held(ms(1_100)));
    }

    #[test]
    fn a_lease_that_expired_is_interrupted_when_the_voters_are_others() {
        let mut lease = Lease::new(id("a"), SPAN);
        let three = three();
        for voter in ["b", "c"] {
            lease.grant_received(&id(voter), ms(0), of(1));
        }
        assert_eq!(lease.renew(ms(0), &three), LeaseState::Interrupted(ms(400)));
        assert_eq!(lease.renew(ms(500), &three), LeaseState::None);
        let two = Quorum::Of(vec![id("a"), id("c")]);
        assert!(matches!(lease.renew(ms(600), &two), LeaseState::Interrupted(_)), "b has left");
        assert!(matches!(lease.renew(ms(620), &two), LeaseState::Held(_)));
    }

    /// Two voters may have evicted it without waiting for a grant to expire.
    #[test]
    fn a_node_that_just_started_needs_a_quorum_of_all_voters() {
        let mut lease = Lease::new(id("a"), SPAN);
        assert_eq!(lease.renew(ms(0), &three()), LeaseState::None);
        lease.grant_received(&id("c"), ms(10), of(1));
        assert_eq!(lease.renew(ms(20), &three()), LeaseState::Interrupted(ms(410)));
    }

    #[test]
    fn a_new_voter_counts_once_its_grant_is_recorded_or_overdue() {
        let alone = Quorum::Of(vec![id("b")]);
        let pair = Quorum::Of(vec![id("a"), id("b")]);
        let mut lease = Lease::new(id("b"), SPAN);
        assert_eq!(lease.renew(ms(0), &alone), LeaseState::Held(Monotonic::NEVER));
        assert_eq!(lease.renew(ms(500), &pair), LeaseState::Held(ms(900)));
        lease.grant_received(&id("a"), ms(520), of(1));
        assert_eq!(lease.renew(ms(530), &pair), LeaseState::Held(ms(930).plus(JUST_AFTER)));
        lease.grant_received(&id("a"), ms(920), of(1));
        assert_eq!(lease.renew(ms(930), &pair), LeaseState::Held(ms(1_320)));
        let mut silent = Lease::new(id("b"), SPAN);
        silent.renew(ms(0), &alone);
        silent.renew(ms(500), &pair);
        assert_eq!(silent.renew(ms(900), &pair), LeaseState::None);
    }

    /// The end that was computed at a renewal must not be cut because another voter counts.
    #[test]
    fn a_new_voter_that_is_not_needed_does_not_shorten_the_lease() {
        let pair = Quorum::Of(vec![id("a"), id("b")]);
        let mut lease = Lease::new(id("b"), SPAN);
        lease.grant_received(&id("a"), ms(0), of(1));
        lease.renew(ms(0), &pair);
        for sent in [300, 600] {
            lease.grant_received(&id("a"), ms(sent), of(1));
            assert_eq!(lease.renew(ms(sent), &three()), LeaseState::Held(ms(sent + 400)));
        }
    }

    /// Once `a` counts, there is no quorum without it; its grant is recorded just before.
    #[test]
    fn nor_does_a_needed_voter_whose_grant_is_recorded_in_time() {
        let (alone, pair) = (Quorum::Of(vec![id("b")]), Quorum::Of(vec![id("a"), id("b")]));
        let mut lease = Lease::new(id("b"), SPAN);
        lease.renew(ms(0), &alone);
        lease.grant_received(&id("a"), ms(490), of(1));
        lease.renew(ms(500), &pair);
        for sent in [800, 1_100] {
            lease.grant_received(&id("a"), ms(sent), of(1));
            assert_eq!(lease.renew(ms(sent), &pair), LeaseState::Held(ms(sent + 400)));
        }
    }

    #[test]
    fn without_a_quorum_rule_the_lease_is_always_held() {
        let mut lease = Lease::new(id("b"), SPAN);
        assert_eq!(lease.renew(ms(0), &Quorum::NotRequired), LeaseState::Held(Monotonic::NEVER));
    }
}
