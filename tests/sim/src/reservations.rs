//! Reservations of clients, in the way of applications behind a load balancer: what one node
//! reserved is committed at any other, also twice, late, by several nodes at once, or never.
//!
//! ```text
//! client of n1 ── reserve ──▶ open reservations ◀── commit ── clients of n2, n3: the same cost
//! ```
//!
//! Each commit of an id has the same cost, which the first one draws: nothing, less than reserved,
//! as much, or more. A commit is one request of the [`History`](crate::history::History) for each
//! key, from the first attempt to the first confirmation, so the checks of admitted hits count it
//! once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::decide::{Committed, Reservation, VerdictSource};
use tidegate_limiter::store::{ReservationId, Settled};
use tidegate_limiter::units::Span;

use crate::clock::Time;
use crate::dice::Dice;
use crate::keys::Key;
use crate::log::Log;

/// All reservations of a run, in order; cheap to clone.
#[derive(Clone)]
pub(crate) struct Reservations {
    time: Time,
    log: Log,
    list: Arc<Mutex<Vec<Reserved>>>,
}

/// One reservation of one or two keys, as its clients saw it.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) keys: Vec<Key>,
    /// The node that it was asked of.
    pub(crate) node: usize,
    /// In hits of each key.
    pub(crate) amount: u32,
    /// As it was asked for.
    pub(crate) ttl_ms: u64,
    pub(crate) at_ms: u64,
    /// Present if the owners of all keys admitted it.
    pub(crate) made: Option<Made>,
    /// Drawn by the first commit.
    pub(crate) cost: Option<u32>,
    /// The requests of the commit in the history, one for each key.
    pub(crate) requests: Vec<usize>,
    pub(crate) commits: Vec<Commit>,
    /// How many confirmations clients want.
    wanted: usize,
}

/// It was answered, and admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) at_ms: u64,
    pub(crate) ttl_ms: u64,
    id: ReservationId,
}

/// One attempt to commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit {
    pub(crate) node: usize,
    pub(crate) at_ms: u64,
    /// `None` while pending, and for good when the process ended first.
    pub(crate) ended_ms: Option<u64>,
    /// `None` if not all owners have confirmed it.
    pub(crate) settled: Option<Settled>,
}

/// What a client is to commit.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    pub(crate) number: usize,
    pub(crate) keys: Vec<Key>,
    pub(crate) id: ReservationId,
    pub(crate) cost: u32,
    /// None before the first attempt.
    pub(crate) requests: Vec<usize>,
}

/// How many of a million reservations nobody commits.
const FORGOTTEN_PPM: u32 = 150_000;
/// Of those committed the confirmations that are waited for: most are sent again.
const WANTED: [usize; 4] = [1, 2, 2, 3];

impl Reservations {
    pub(crate) fn new(time: Time, log: Log) -> Self {
        Self { time, log, list: Arc::default() }
    }

    /// A client is about to reserve. Returns the number of the reservation.
    pub(crate) fn begin(
        &self,
        node: usize,
        keys: Vec<Key>,
        amount: u32,
        ttl: Span,
        dice: &mut Dice,
    ) -> usize {
        let wanted = if dice.chance(FORGOTTEN_PPM) { 0 } else { dice.pick(&WANTED) };
        let (requests, commits) = (Vec::new(), Vec::new());
        let (at_ms, ttl_ms) = (self.time.millis(), ttl.as_nanos() / 1_000_000);
        let mut list = self.lock();
        list.push(Reserved {
            node,
            keys,
            amount,
            ttl_ms,
            at_ms,
            made: None,
            cost: None,
            requests,
            commits,
            wanted,
        });
        list.len() - 1
    }

    /// The answer to reservation `number`. One that `on_unavailable` gave reserves nothing.
    pub(crate) fn answered(&self, number: usize, answer: &Reservation) {
        let at_ms = self.time.millis();
        let mut list = self.lock();
        let reserved = &mut list[number];
        let statuses = &answer.response.statuses;
        let is_by_owner =
            |source: VerdictSource| matches!(source, VerdictSource::Local | VerdictSource::Owner);
        let ttl_ms = answer.ttl.as_nanos() / 1_000_000;
        if let Some(id) = answer.id
            && statuses.iter().all(|status| is_by_owner(status.source))
        {
            reserved.made = Some(Made { at_ms, ttl_ms, id });
        }
        let Reserved { keys, amount, made, .. } = &*reserved;
        let is_made = made.is_some();
        self.log.event(format_args!(
            "reservation {number} of {amount} of {keys:?} for {ttl_ms} ms: made={is_made}",
        ));
    }

    /// One of those that are to be committed, made at any node.
    pub(crate) fn due(&self, dice: &mut Dice) -> Option<Due> {
        let mut list = self.lock();
        let is_due = |reserved: &Reserved| {
            let confirmed = reserved.commits.iter().filter(|it| it.settled.is_some()).count();
            reserved.made.is_some() && confirmed < reserved.wanted
        };
        let due: Vec<usize> = (0..list.len()).filter(|at| is_due(&list[*at])).collect();
        if due.is_empty() {
            return None;
        }
        let number = dice.pick(&due);
        let reserved = &mut list[number];
        let amount = reserved.amount;
        let cost = *reserved.cost.get_or_insert_with(|| draw_cost(amount, dice));
        let id = reserved.made?.id;
        let (keys, requests) = (reserved.keys.clone(), reserved.requests.clone());
        Some(Due { number, keys, id, cost, requests })
    }

    /// The requests of the commit of reservation `number`.
    pub(crate) fn requested(&self, number: usize, requests: Vec<usize>) {
        self.lock()[number].requests = requests;
    }

    /// An attempt to commit reservation `number` begins. Returns which one.
    pub(crate) fn commit(&self, number: usize, node: usize) -> usize {
        let commit = Commit { node, at_ms: self.time.millis(), ended_ms: None, settled: None };
        let commits = &mut self.lock()[number].commits;
        commits.push(commit);
        commits.len() - 1
    }

    /// The attempt has ended. Returns whether it is the first that all owners have confirmed.
    pub(crate) fn committed(
        &self,
        (number, attempt): (usize, usize),
        committed: Option<&Committed>,
    ) -> bool {
        let mut list = self.lock();
        let Reserved { cost, amount, commits, .. } = &mut list[number];
        let is_first = commits.iter().all(|commit| commit.settled.is_none());
        let commit = &mut commits[attempt];
        commit.ended_ms = Some(self.time.millis());
        commit.settled = committed.and_then(|it| it.settled);
        self.log.event(format_args!(
            "reservation {number} of {amount}: commit {attempt} of {cost:?} is {:?}",
            commit.settled
        ));
        is_first && committed.is_some()
    }

    /// Reads the reservations.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&[Reserved]) -> T) -> T {
        read(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Reserved>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved {
    /// When the first attempt to commit began.
    pub(crate) fn commit_ms(&self) -> Option<u64> {
        self.commits.first().map(|commit| commit.at_ms)
    }
}

/// A release, less than reserved, as much, or more: mostly little, so that the limits last.
fn draw_cost(amount: u32, dice: &mut Dice) -> u32 {
    match dice.below(10) {
        0..3 => 0,
        3..7 => 1 + amount / 8,
        7..9 => amount,
        _ => amount + 1 + amount / 2,
    }
}
