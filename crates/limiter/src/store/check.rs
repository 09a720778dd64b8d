//! One check: all limits of a descriptor, decided together under their shard's lock.
//!
//! **Several limits.** All are looked at first. Only when each would let the hits pass is any of
//! them charged, so a refusal by the hourly limit costs nothing of the minute's. The limits that
//! would have passed answer "allowed" with what they have left; the others answer their refusal.
//!
//! **Worked example.** 1 a second and 10 a minute, ten hits used in this minute: a check answers
//! (allowed, 1 remaining) and (refused, retry at the end of the minute), and the next second's hit
//! is still there.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::counting_mode::CountingMode;
use super::key::KeyHash;
use super::overflow::{Overflow, Room, refusal, shared_counter};
use super::queues::Queues;
use super::shard::Shard;
use super::slot::Slot;
use super::sync_queue::{bucket_end, touch};
use crate::engine::{State, Verdict};
use crate::quota::{Algorithm, Quota};
use crate::units::{Hits, Timestamp};

/// One limit of a descriptor and the key it counts under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Its name. The counters of one check share their `token` and differ in their `tag`.
    pub key: KeyHash,
    /// What it allows.
    pub quota: Quota,
}

/// One verdict a counter, in the same order.
pub type Verdicts = SmallVec<[Verdict; 1]>;

/// What is asked of every counter of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) hits: Hits,
    pub(super) now: Timestamp,
    pub(super) counting_mode: CountingMode,
}

impl Shard {
    /// Decides `counters` together.
    pub(super) fn check(
        &mut self,
        counters: &[Counter],
        mut ask: Question,
        overflow: &Overflow,
    ) -> Verdicts {
        if let [counter] = counters {
            return smallvec::smallvec![self.check_single(counter, ask, overflow)];
        }
        ask.now = self.instant(ask.now);
        let verdicts = self.check_new(counters, ask, overflow);
        self.sweep_for_check(ask.now);
        verdicts
    }

    /// Decides one counter.
    #[inline]
    pub(super) fn check_single(
        &mut self,
        counter: &Counter,
        mut ask: Question,
        overflow: &Overflow,
    ) -> Verdict {
        ask.now = self.instant(ask.now);
        let known = if ask.hits == Hits::PEEK { None } else { self.charge_known(counter, ask) };
        let verdict = known.unwrap_or_else(|| self.check_new_single(counter, ask, overflow));
        self.sweep_for_check(ask.now);
        verdict
    }

    /// Decides one counter that is not in the table, or peeks at it.
    fn check_new_single(
        &mut self,
        counter: &Counter,
        ask: Question,
        overflow: &Overflow,
    ) -> Verdict {
        let mut room = self.room(std::slice::from_ref(counter), ask, overflow);
        if ask.hits == Hits::PEEK {
            return self.preview(counter, ask, &room);
        }
        self.charge(counter, ask, &mut room)
    }

    /// Decides counters together, of which some may not be in the table.
    fn check_new(&mut self, counters: &[Counter], ask: Question, overflow: &Overflow) -> Verdicts {
        let mut room = self.room(counters, ask, overflow);
        let previews: Verdicts =
            counters.iter().map(|counter| self.preview(counter, ask, &room)).collect();
        if ask.hits == Hits::PEEK {
            return previews;
        }
        if previews.iter().all(|verdict| verdict.allowed) {
            return counters.iter().map(|counter| self.charge(counter, ask, &mut room)).collect();
        }
        let left = Question { hits: Hits::PEEK, ..ask };
        let answer = |(counter, verdict): (&Counter, Verdict)| {
            self.note_refusal(counter, ask);
            if verdict.allowed { self.preview(counter, left, &room) } else { verdict }
        };
        counters.iter().zip(previews).map(answer).collect()
    }

    /// Where those of `counters` go that are not in the table.
    fn room<'a>(
        &mut self,
        counters: &[Counter],
        ask: Question,
        overflow: &'a Overflow,
    ) -> Room<'a> {
        let mut new = self.count_new(counters);
        while self.make_room(new, ask.now) {
            // Making room may have removed an expired one of `counters` themselves.
            let still = std::mem::replace(&mut new, self.count_new(counters));
            if new <= still {
                return Room::Own;
            }
        }
        let is_new = |counter: &&Counter| self.table.find(counter.key).is_none();
        let shared = |counter: &Counter| shared_counter(counter, ask.counting_mode);
        let room = overflow.room(counters.iter().filter(is_new).map(shared), ask.now);
        let charged = if ask.hits.charge() > 0 { new as u64 } else { 0 };
        match room {
            Room::Shared(_) => self.counts.overflowed += charged,
            Room::Refused | Room::Own => self.counts.refused += charged,
        }
        room
    }

    fn count_new(&self, counters: &[Counter]) -> usize {
        counters.iter().filter(|counter| self.table.find(counter.key).is_none()).count()
    }

    fn charge(&mut self, counter: &Counter, ask: Question, room: &mut Room<'_>) -> Verdict {
        if let Some(verdict) = self.charge_known(counter, ask) {
            return verdict;
        }
        match room {
            Room::Own => self.charge_new(counter, ask),
            Room::Shared(shared) => {
                let counter = shared_counter(counter, ask.counting_mode);
                let ask = Question {
                    counting_mode: CountingMode::Strict,
                    now: shared.instant(ask.now),
                    ..ask
                };
                let known = shared.charge_known(&counter, ask);
                let verdict = known.unwrap_or_else(|| shared.charge_new(&counter, ask));
                shared.sweep_for_check(ask.now);
                verdict
            }
            Room::Refused => refusal(&counter.quota),
        }
    }

    /// Charges a counter that has a slot.
    #[inline]
    fn charge_known(&mut self, counter: &Counter, ask: Question) -> Option<Verdict> {
        let Counter { key, quota } = counter;
        let (slot, queues) = self.live_mut(*key, ask.now)?;
        let verdict = ask.counting_mode.decide(&mut slot.state, quota, ask.hits, ask.now);
        match ask.counting_mode {
            CountingMode::Strict => {
                slot.stamp = slot.stamp.moved(slot.state.absent_at(quota));
                note_change(slot, queues, quota, &verdict);
            }
            CountingMode::Eventual(_) => touch(slot, queues, quota, ask, Some(&verdict)),
        }
        Some(verdict)
    }

    /// Charges a counter that has none. It gets one only if there is something to remember.
    fn charge_new(&mut self, counter: &Counter, ask: Question) -> Verdict {
        let mut state = State::Absent;
        let verdict = ask.counting_mode.decide(&mut state, &counter.quota, ask.hits, ask.now);
        let expires = match ask.counting_mode {
            CountingMode::Strict => state.absent_at(&counter.quota),
            CountingMode::Eventual(_) => bucket_end(&counter.quota, ask.now),
        };
        if !matches!(state, State::Absent) && expires > ask.now {
            let mut slot = Slot::new(counter.key, state, expires);
            let (queues, quota) = (&mut self.queues, &counter.quota);
            match ask.counting_mode {
                CountingMode::Strict => note_change(&mut slot, queues, quota, &verdict),
                CountingMode::Eventual(_) => touch(&mut slot, queues, quota, ask, Some(&verdict)),
            }
            self.insert(slot);
        }
        verdict
    }

    fn preview(&self, counter: &Counter, ask: Question, room: &Room<'_>) -> Verdict {
        let Question { hits, now, counting_mode } = ask;
        let quota = &counter.quota;
        if let Some(state) = self.known_state(counter.key, now) {
            return counting_mode.preview(state, quota, hits, now);
        }
        match room {
            Room::Own => counting_mode.preview(&State::Absent, quota, hits, now),
            Room::Shared(shared) => {
                let (key, now) = (shared_counter(counter, counting_mode).key, shared.instant(now));
                CountingMode::Strict.preview(shared.state(key, now), quota, hits, now)
            }
            Room::Refused => refusal(quota),
        }
    }

    /// An eventual key hears what others count only while this node asks for it, so the first
    /// refusal in a bucket is news to its peers even though nothing was counted.
    fn note_refusal(&mut self, counter: &Counter, ask: Question) {
        if let (CountingMode::Eventual(_), Some((slot, queues))) =
            (ask.counting_mode, self.live_mut(counter.key, ask.now))
        {
            touch(slot, queues, &counter.quota, ask, None);
        }
    }
}

/// Notes what a charge or a refund did to a strict key, for its replicas and for the disk.
fn note_change(slot: &mut Slot, queues: &mut Queues, quota: &Quota, verdict: &Verdict) {
    if verdict.allowed || quota.algorithm() == Algorithm::FixedWindow {
        queues.enqueue_strict(slot);
        queues.enqueue_snapshot(slot);
    }
}
