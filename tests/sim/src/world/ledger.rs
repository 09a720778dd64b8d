//! Who decides each key, and what is lost when another node takes over.
//!
//! The ledger of a key is what its owners admitted, by the answers to clients, less what was given
//! back and less what was lost before. When a node decides a key for the first time its own count
//! is compared with the ledger: a lower count is a loss, which is written down with its cause.
//! Example: n1 admitted 10 hits and crashed, n2 takes over with a count of 8: 2 hits are lost, by
//! the crash of n1, and may be admitted once more. A loss without a cause is a failure.
//!
//! Of a limit that regions share each share has an owner. Answers do not say which share admitted,
//! so a new owner is compared with what the one before had counted when it was seen last.

use std::collections::BTreeMap;

use tidegate_limiter::store::{Counter, KeyHasher};

use super::World;
use crate::keys::{self, Key, Selection};
use crate::node::Deciding;

/// The owners of all keys so far.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    owners: BTreeMap<(Key, usize), Owner>,
    /// One for each change of an owner, also if nothing was lost.
    pub(crate) changes: Vec<Change>,
}

/// The process that decided a key last.
#[derive(Clone, Copy, Debug)]
struct Owner {
    node: usize,
    start: u32,
    at_ms: u64,
    /// What it has counted of a share.
    count: u32,
}

/// Another process began to decide a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) at_ms: u64,
    /// Hits that the new owner does not have. Those in flight at the time come on top.
    pub(crate) lost: u64,
    pub(crate) cause: Cause,
}

/// Why a key changed its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The owner handed it over.
    Handover,
    /// The process of the owner ended without shutdown. Its replica is complete if that was the
    /// only fault for some time.
    Crash { at_ms: u64, is_only_fault: bool },
    /// Other nodes did not reach the owner, or it did not run, shortly before. Between regions, the
    /// links between them failed, or nodes of one of them, while the key moved.
    Isolation,
    /// The new owner's machine was stopped, and went on at this time: it decided for a moment what
    /// others had taken over. Its count and theirs are not added.
    WentOn { at_ms: u64 },
    /// The region of the owner is no home any more. What it had not sent to the other since its
    /// trouble began is lost; more if nodes of the other region crashed, or it was no home yet.
    Failover { from_ms: u64, is_only_fault: bool },
}

/// How long after a fault of its links or its process a node's counts may not have reached others.
const ISOLATION_MS: u64 = 3_000;
/// After this time as a home without a crash, a region has copies of the keys of others: a round of
/// digests begins every 7 s, and takes some round trips.
const COPIED_MS: u64 = 9_000;

impl World<'_> {
    /// Compares the owners of all keys with those of the last call.
    pub(super) fn follow_owners(&mut self, deciding: &[(usize, Deciding)]) {
        let at_ms = self.time.millis();
        let mut changed = Vec::new();
        for (key, share, counter) in &self.counters {
            let decides = |(node, own): &&(usize, Deciding)| {
                self.may_decide(*node, *key) && own.has(key.kind.scope(), counter.key.token)
            };
            let before = self.ledger.owners.get(&(*key, *share)).map(|owner| owner.node);
            // A machine that was stopped may decide for a moment what another node has taken over.
            // Those hits are lost when it ends.
            let same = deciding.iter().find(|one| Some(one.0) == before && decides(one));
            let Some((node, _)) = same.or_else(|| deciding.iter().find(decides)) else { continue };
            let process = self.nodes[*node].process.as_ref().filter(|_| key.kind.is_divided());
            let count = process.map_or(0, |process| process.count_of(counter));
            let owner = Owner { node: *node, start: self.nodes[*node].starts, at_ms, count };
            let before = self.ledger.owners.insert((*key, *share), owner);
            if let Some(before) = before
                && (before.node, before.start) != (owner.node, owner.start)
            {
                changed.push((*key, before, owner));
            }
        }
        if changed.is_empty() {
            return;
        }
        let balances = self.balances();
        for (key, before, owner) in changed {
            let cause = self.cause(before, owner);
            let balance = balances.get(&key).copied().unwrap_or(0);
            let lost = match key.kind {
                // Its windows end.
                kind if kind.is_brief() && cause == Cause::Handover => 0,
                // What is given back meanwhile is not lost.
                kind if kind.is_divided() && cause == Cause::Handover => 0,
                kind if kind.is_divided() && !kind.is_brief() => {
                    u64::from(before.count.saturating_sub(owner.count))
                }
                kind if kind.is_brief() => u64::from(kind.limit()),
                _ => {
                    let process = self.nodes[owner.node].process.as_ref();
                    let count = process.map_or(0, |process| process.count(&self.hasher, key));
                    // How much was committed beyond the limit does not show in the count.
                    let is_over = key.kind.is_reserved() && count >= key.kind.limit();
                    let balance = if is_over { balance.min(i64::from(count)) } else { balance };
                    u64::try_from(balance - i64::from(count)).unwrap_or(0)
                }
            };
            if lost > 0 {
                let to = &self.nodes[owner.node].id;
                self.log.event(format_args!("{key} loses {lost} of {balance} at {to}: {cause:?}"));
            }
            self.ledger.changes.push(Change { key, at_ms, lost, cause });
        }
    }

    /// What all owners together should have counted of each key.
    fn balances(&self) -> BTreeMap<Key, i64> {
        let mut balances = BTreeMap::new();
        let mut unplanned: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
        for change in self.ledger.changes.iter().filter(|one| one.cause != Cause::Handover) {
            unplanned.entry(change.key).or_default().push(change.at_ms);
        }
        self.history.with(|records| {
            for record in records.iter().filter(|record| record.key.kind.is_strict()) {
                // In flight at such a change, a hit may be lost or not: see `Change::lost`.
                let answered_ms = record.response.map_or(u64::MAX, |response| response.at_ms);
                let mut changes = unplanned.get(&record.key).into_iter().flatten();
                let may_be_lost = changes.any(|at_ms| (record.at_ms..=answered_ms).contains(at_ms));
                let admitted = if may_be_lost { 0 } else { record.admitted_by_owner() };
                let admitted = i64::try_from(admitted).unwrap_or(i64::MAX);
                let given_back = record.hits.min(0);
                *balances.entry(record.key).or_insert(0) += admitted + given_back;
            }
        });
        for change in self.ledger.changes.iter().filter(|change| !change.key.kind.is_brief()) {
            let lost = i64::try_from(change.lost).unwrap_or(i64::MAX);
            *balances.entry(change.key).or_insert(0) -= lost;
        }
        balances
    }

    fn cause(&self, before: Owner, owner: Owner) -> Cause {
        if !self.layout.are_together(before.node, owner.node) {
            return self.far_cause(before, owner);
        }
        let is_process =
            |crash: &&super::Crash| (crash.node, crash.start) == (before.node, before.start);
        if let Some(crash) = self.crashes.iter().find(is_process) {
            return Cause::Crash { at_ms: crash.at_ms, is_only_fault: crash.is_only_fault };
        }
        let isolated_ms = self.nodes[before.node].isolated_ms;
        let is_isolated = isolated_ms.is_some_and(|at_ms| at_ms + ISOLATION_MS >= before.at_ms);
        let went_on = |(node, at_ms): &&(usize, u64)| {
            *node == owner.node && at_ms + ISOLATION_MS >= owner.at_ms
        };
        match self.stops.iter().rev().find(went_on) {
            _ if is_isolated => Cause::Isolation,
            Some((_, at_ms)) => Cause::WentOn { at_ms: *at_ms },
            None => Cause::Handover,
        }
    }

    /// Why a key moved to another region.
    fn far_cause(&self, before: Owner, owner: Owner) -> Cause {
        let [from, to] = [before.node, owner.node].map(|node| self.layout.of_nodes[node]);
        let home_since_ms = self.home_since_ms(to);
        let last = self.troubles.last(from, home_since_ms.unwrap_or(0));
        let crashed_since = |region: usize, at_ms: u64| {
            let of_region = |node: usize| self.layout.of_nodes[node] == region;
            let is_core = |node: usize| !self.layout.is_edge(node);
            self.crashes
                .iter()
                .any(|crash| of_region(crash.node) && is_core(crash.node) && crash.at_ms >= at_ms)
        };
        let is_struck_off = !self.newest_global_map().homes.contains(self.layout.names[from]);
        if is_struck_off && let Some(trouble) = last {
            // Counts are sent to the second home of a key, and a region becomes a home with all.
            let copied_ms = trouble.from_ms.saturating_sub(COPIED_MS);
            // Keys whose second home was lost get another one by digests.
            let has_moved = self.struck_off_ms().is_some_and(|at_ms| at_ms >= copied_ms);
            // Where all homes were lost at once, the next one need not have any.
            let is_only_fault =
                home_since_ms.is_some() && !has_moved && !crashed_since(to, copied_ms);
            return Cause::Failover { from_ms: trouble.from_ms, is_only_fault };
        }
        // It became a home because it had all counts, and got each change since.
        let at_ms = self.time.millis();
        let since_ms = at_ms.saturating_sub(self.returning_ms());
        let is_in_trouble = |region: usize| self.troubles.last(region, since_ms).is_some();
        if [from, to].into_iter().any(|it| crashed_since(it, since_ms.saturating_sub(COPIED_MS))) {
            Cause::Isolation
        } else if is_in_trouble(from) || is_in_trouble(to) {
            Cause::Failover { from_ms: since_ms, is_only_fault: true }
        } else {
            Cause::Handover
        }
    }

    /// How long before it decides its keys a region that returns may miss changes unnoticed:
    /// reports of two pings, five of which are sent in a lease, and a hold, and what else happens
    /// once.
    fn returning_ms(&self) -> u64 {
        let lease_ms = self.configs[0].global.lease.as_nanos() / 1_000_000;
        lease_ms * 2 / 5 + lease_ms * 5 / 4 + ISOLATION_MS
    }

    /// The counters of the strict keys that are checked; of one that `homes` share, one for each.
    pub(super) fn strict_counters(
        hasher: &KeyHasher,
        selection: Selection,
        homes: &[String],
    ) -> Vec<(Key, usize, Counter)> {
        let strict = keys::checked(selection).filter(|key| key.kind.is_strict());
        let of_key = |key: Key| {
            let counters = key.counters(hasher, homes).into_iter().enumerate();
            counters.map(move |(share, counter)| (key, share, counter))
        };
        strict.flat_map(of_key).collect()
    }
}
