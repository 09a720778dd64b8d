//! Strict and eventual counting over the same slots.

use crate::engine::{self, ActorId, Behavior, Retry, State, Verdict, reservation};
use crate::quota::Quota;
use crate::units::{Hits, Span, Timestamp};

/// All nodes together hold back at most one part in this many of what is left of a limit: see
/// `docs/replication-and-sync.md`.
pub const SYNC_SLACK_DIVISOR: u32 = 10;

/// How much earlier than the time of the node a bucket may be decided: a request names an instant,
/// and takes time to arrive.
pub const BEHIND_MAX: Span = Span::from_secs(1);

/// This node as a writer of eventual keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalActor {
    /// Whose counter it counts in.
    pub actor: ActorId,
    /// [`SYNC_SLACK_DIVISOR`] × nodes: this node announces a count at once when what peers do not
    /// know exceeds one part in this many of what is left of the limit. Zero sends every change in
    /// the next round.
    pub slack_divisor: u32,
}

/// Without slack: every change is sent in the next round.
impl From<ActorId> for LocalActor {
    fn from(actor: ActorId) -> Self {
        Self { actor, slack_divisor: 0 }
    }
}

/// What applies to every counter of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckParams {
    pub(super) hits: Hits,
    /// Not of eventual limits.
    pub(super) behavior: Behavior,
    pub(super) now: Timestamp,
    /// The instant as of which a bucket is decided that is not now.
    pub(super) at: Option<Timestamp>,
    /// As which actor this node counts eventual keys. `None` for strict ones: this node is their
    /// owner, so its state is complete.
    pub(super) me: Option<LocalActor>,
    /// Whether a key near its limit may get a ring. Not of leased rules: of hits that are granted
    /// it is not known when they pass.
    pub(super) refines: bool,
    /// What reservations keep free of each counter.
    pub(super) reserved: u64,
    /// The hits are counted whatever is left: they are the cost of work that was done.
    pub(super) in_full: bool,
}

impl CheckParams {
    /// Of strict counters that this node decides.
    pub(super) fn strict(hits: Hits, now: Timestamp) -> Self {
        let behavior = Behavior::default();
        let (at, me) = (None, None);
        Self { hits, behavior, now, at, me, refines: true, reserved: 0, in_full: false }
    }

    /// Of leased counters.
    pub(super) fn leased(hits: Hits, now: Timestamp) -> Self {
        Self { refines: false, ..Self::strict(hits, now) }
    }

    /// Of eventual counters.
    pub(super) fn eventual(hits: Hits, now: Timestamp, me: LocalActor) -> Self {
        Self { me: Some(me), refines: false, ..Self::strict(hits, now) }
    }

    /// The cost of work that was done. A ring begins as for a check of as many hits, unless granted
    /// hits `are_outstanding`.
    pub(super) fn in_full(
        hits: Hits,
        now: Timestamp,
        me: Option<LocalActor>,
        are_outstanding: bool,
    ) -> Self {
        let refines = me.is_none() && !are_outstanding;
        Self { me, refines, in_full: true, ..Self::strict(hits, now) }
    }

    /// The same check of a strict counter at `now` that other keys share: it neither takes what is
    /// left for them nor credits them.
    pub(super) fn strict_at(self, now: Timestamp) -> Self {
        Self { now, at: None, me: None, behavior: Behavior::default(), ..self }
    }

    #[inline]
    pub(super) fn decide(self, state: &mut State, quota: &Quota) -> Verdict {
        let Self { hits, now, me, .. } = self;
        if self.in_full {
            return self.charge_in_full(state, quota);
        }
        match me {
            None if self.at.is_some() || self.behavior != Behavior::default() => {
                self.decide_with_behavior(state, quota)
            }
            None => engine::decide(state, quota, hits, now),
            Some(me) => engine::decide_eventual(state, me.actor, quota, hits, now),
        }
    }

    #[cold]
    fn decide_with_behavior(self, state: &mut State, quota: &Quota) -> Verdict {
        engine::decide_with(state, quota, self.hits, self.behavior, self.instant())
    }

    #[cold]
    fn charge_in_full(self, state: &mut State, quota: &Quota) -> Verdict {
        let Self { hits, now, me, .. } = self;
        let left = match me {
            None => reservation::charge_in_full(state, quota, hits, now),
            Some(me) => reservation::charge_in_full_eventual(state, me.actor, quota, hits, now),
        };
        // It was counted, also if nothing is left.
        Verdict { allowed: true, retry: Retry::Now, excess: 0, ..left }
    }

    fn instant(self) -> Timestamp {
        self.at.unwrap_or(self.now)
    }

    /// When a state that was decided strictly is to be removed.
    #[inline]
    pub(super) fn expiry(self, state: &State, quota: &Quota) -> Timestamp {
        let expires = state.expires_at(quota);
        if self.at.is_some() { expires.plus(BEHIND_MAX) } else { expires }
    }

    pub(super) fn preview(self, state: &State, quota: &Quota) -> Verdict {
        match self.me {
            None => engine::preview(state, quota, self.hits, self.instant()),
            Some(_) => engine::preview_eventual(state, quota, self.hits, self.now),
        }
    }
}
