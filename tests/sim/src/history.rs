//! What was asked and answered: what the checkers judge.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::decide::{CheckResponse, VerdictSource};

use crate::clock::Time;
use crate::keys::Key;
use crate::log::Log;

/// Every ask of a run in order; cheap to clone.
#[derive(Clone)]
pub(crate) struct History {
    time: Time,
    log: Log,
    records: Arc<Mutex<Vec<Record>>>,
}

/// One ask.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// When, in simulated milliseconds.
    pub(crate) at_ms: u64,
    /// The node that was asked.
    pub(crate) node: usize,
    pub(crate) key: Key,
    /// 0 looks at what is left.
    pub(crate) hits: i64,
    /// `None` while it is waited for; for ever when the process ended before.
    pub(crate) outcome: Option<Outcome>,
}

/// How an ask was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) at_ms: u64,
    pub(crate) is_allowed: bool,
    pub(crate) source: VerdictSource,
    /// What the verdict says is left.
    pub(crate) remaining: u32,
}

impl History {
    pub(crate) fn new(time: Time, log: Log) -> Self {
        Self { time, log, records: Arc::default() }
    }

    /// Notes an ask and returns its number.
    pub(crate) fn asked(&self, node: usize, key: Key, hits: i64) -> usize {
        let record = Record { at_ms: self.time.millis(), node, key, hits, outcome: None };
        let mut records = self.lock();
        records.push(record);
        records.len() - 1
    }

    /// Notes the answer to ask `number`.
    pub(crate) fn answered(&self, number: usize, answer: &CheckResponse) {
        let Some(status) = answer.statuses.first() else { return };
        let remaining = status.leading_verdict().map_or(0, |verdict| verdict.remaining);
        let (is_allowed, source) = (answer.allowed, status.source);
        let outcome = Outcome { at_ms: self.time.millis(), is_allowed, source, remaining };
        let mut records = self.lock();
        let record = &mut records[number];
        record.outcome = Some(outcome);
        self.log.say(format_args!(
            "ask {number} {} hits={} after {} ms: allowed={is_allowed} by {source:?}, {remaining} left",
            record.key,
            record.hits,
            outcome.at_ms - record.at_ms,
        ));
    }

    /// Looks at what was noted so far.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&[Record]) -> T) -> T {
        look(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Who decided; `None` while nobody has.
    pub(crate) fn source(&self) -> Option<VerdictSource> {
        self.outcome.map(|outcome| outcome.source)
    }

    /// Whether the key's owner decided, or for an eventual key the node itself.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(self.source(), Some(VerdictSource::Local | VerdictSource::Owner))
    }

    /// Whether it was answered by what the key's owner says, or said a while ago.
    pub(crate) fn is_judged(&self) -> bool {
        self.is_decided() || self.source() == Some(VerdictSource::NegativeCache)
    }

    /// Hits that the key's owner admitted, as far as the caller knows.
    pub(crate) fn admitted_by_owner(&self) -> u64 {
        let is_admitted = self.is_decided() && self.outcome.is_some_and(|it| it.is_allowed);
        if is_admitted { self.hits.unsigned_abs() } else { 0 }
    }

    /// Hits that passed because the rule says so while nobody could decide.
    pub(crate) fn admitted_by_policy(&self) -> u64 {
        let is_policy = self.source() == Some(VerdictSource::Fallback);
        let is_admitted = is_policy && self.outcome.is_some_and(|it| it.is_allowed);
        if is_admitted { self.hits.unsigned_abs() } else { 0 }
    }
}
