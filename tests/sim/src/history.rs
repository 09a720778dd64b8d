//! The requests of a run and their responses, input of the checks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::decide::{CheckResponse, VerdictSource};

use crate::clock::Time;
use crate::keys::Key;
use crate::log::Log;

/// Every request of a run, in order; cheap to clone.
#[derive(Clone)]
pub(crate) struct History {
    time: Time,
    log: Log,
    records: Arc<Mutex<Vec<Record>>>,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Time of the request, in simulated milliseconds.
    pub(crate) at_ms: u64,
    /// The node that received it.
    pub(crate) node: usize,
    pub(crate) key: Key,
    /// 0 reads the remaining hits, negative ones are given back.
    pub(crate) hits: i64,
    pub(crate) asked: Asked,
    /// It was decided by an eventual rule which is another one most of the time.
    pub(crate) is_loosened: bool,
    /// `None` while pending, and for good when the process ended first.
    pub(crate) response: Option<Response>,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Check,
    /// No hits: it is what is committed later that counts.
    Reserve,
    /// Of its cost, from the first attempt to the first one that is confirmed.
    Commit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) at_ms: u64,
    pub(crate) is_allowed: bool,
    pub(crate) source: VerdictSource,
    /// Remaining hits, of several limits those of the first.
    pub(crate) remaining: u32,
}

impl History {
    pub(crate) fn new(time: Time, log: Log) -> Self {
        Self { time, log, records: Arc::default() }
    }

    /// Records a request and returns its number.
    pub(crate) fn record_request(
        &self,
        node: usize,
        key: Key,
        hits: i64,
        asked: Asked,
        is_loosened: bool,
    ) -> usize {
        let at_ms = self.time.millis();
        let record = Record { at_ms, node, key, hits, asked, is_loosened, response: None };
        let mut records = self.lock();
        records.push(record);
        records.len() - 1
    }

    /// Records the response to request `number`, which was for the descriptor `at` this position.
    pub(crate) fn record_response(&self, number: usize, response: &CheckResponse, at: usize) {
        let Some(status) = response.statuses.get(at) else { return };
        let remaining = status.verdicts.first().map_or(0, |verdict| verdict.remaining);
        let (is_allowed, source) = (response.allowed, status.source);
        let response = Response { at_ms: self.time.millis(), is_allowed, source, remaining };
        let mut records = self.lock();
        let record = &mut records[number];
        record.response = Some(response);
        self.log.event(format_args!(
            "request {number} {} hits={} after {} ms: allowed={is_allowed} by {source:?}, \
             {remaining} left",
            record.key,
            record.hits,
            response.at_ms - record.at_ms,
        ));
    }

    /// Reads the records.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&[Record]) -> T) -> T {
        read(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Source of the verdict; `None` without a response.
    pub(crate) fn source(&self) -> Option<VerdictSource> {
        self.response.map(|response| response.source)
    }

    /// Whether the key's owner decided, or the receiving node for an eventual key.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(self.source(), Some(VerdictSource::Local | VerdictSource::Owner))
    }

    /// Whether the verdict is the owner's, directly or from the negative cache.
    pub(crate) fn is_authoritative(&self) -> bool {
        self.is_decided() || self.source() == Some(VerdictSource::NegativeCache)
    }

    /// Hits that the key's owner admitted or had granted, according to the response.
    pub(crate) fn admitted_by_owner(&self) -> u64 {
        let is_admitted = (self.is_decided() || self.is_of_grant())
            && !self.is_loosened
            && self.response.is_some_and(|it| it.is_allowed);
        if is_admitted { u64::try_from(self.hits).unwrap_or(0) } else { 0 }
    }

    /// Whether the receiving node admitted it from hits that the owner had granted.
    pub(crate) fn is_of_grant(&self) -> bool {
        self.source() == Some(VerdictSource::Grant)
    }

    /// Hits that the rule's fallback admitted.
    pub(crate) fn admitted_by_fallback(&self) -> u64 {
        let is_fallback = self.source() == Some(VerdictSource::Fallback);
        let is_admitted = is_fallback && self.response.is_some_and(|it| it.is_allowed);
        if is_admitted { u64::try_from(self.hits).unwrap_or(0) } else { 0 }
    }
}
