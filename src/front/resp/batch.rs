//! The commands of one read, decided and answered in order.
//!
//! Consecutive `CL.THROTTLE`s are collected and decided by one call. Any other command flushes them
//! first: it sees their counts, and its reply follows theirs.

use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::store::{ReservationId, Settled};
use tidegate_limiter::units::{Hits, Span};

use super::command::{Command, command};
use super::limit::{ThrottleLimit, reply};
use super::listener::Listener;
use super::read::{Limits, Read, Words, read};
use super::reply::Replies;
use super::session::{Next, Session};
use crate::decide::{
    CheckRequest, CheckResponse, CommitRequest, Reserve, ReserveRequest, Status, Throttle,
    ThrottleRequest,
};
use crate::front::bounds::{Bounds, Refusal};

/// Buffers that batches reuse, so that a hit allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Empty between batches, so its lifetime does not matter.
    requests: Vec<ThrottleRequest<'static>>,
    verdicts: Vec<Verdict>,
}

/// How far a batch got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Bytes of the commands that were answered.
    pub(super) bytes: usize,
    /// Whether it stopped at a bound, so that complete commands may follow.
    pub(super) is_more: bool,
    pub(super) next: Next,
}

/// Most commands that are decided before their replies are sent.
const COMMANDS_MAX: usize = 512;
/// At this size replies are sent before the next command is parsed.
pub(super) const REPLIES_BYTES_MAX: usize = 64 * 1024;

/// Most words of a command.
const WORDS_MAX: usize = 1_024;
/// Most words, and most bytes per word, before authentication; the bounds of Redis.
const BEFORE_AUTH: (usize, usize) = (10, 16 * 1024);

/// The bounds of a command before and after authentication.
fn limits(bounds: &Bounds, session: &Session) -> Limits {
    let bytes_max = bounds.body_bytes_max;
    let before_auth = !session.is_authenticated();
    let (words_max, word_bytes_max) =
        if before_auth { BEFORE_AUTH } else { (WORDS_MAX, bytes_max) };
    Limits { bytes_max, words_max, word_bytes_max, before_auth }
}

/// Decides the complete commands in `bytes` and writes their replies.
///
/// Not cancel-safe: replies to commands that were counted are lost.
pub(super) async fn run<D: Throttle + Reserve>(
    listener: &Listener<D>,
    session: &mut Session,
    bytes: &[u8],
    scratch: &mut Scratch,
    replies: &mut Replies,
) -> Progress {
    let mut batch = Batch {
        listener,
        requests: emptied(std::mem::take(&mut scratch.requests)),
        verdicts: std::mem::take(&mut scratch.verdicts),
        replies,
        last: None,
    };
    let progress = batch.run(session, bytes).await;
    let Batch { requests, verdicts, .. } = batch;
    *scratch = Scratch { requests: emptied(requests), verdicts };
    progress
}

struct Batch<'a, 'b, D> {
    listener: &'b Listener<D>,
    /// Collected and not decided yet.
    requests: Vec<ThrottleRequest<'a>>,
    verdicts: Vec<Verdict>,
    replies: &'b mut Replies,
    /// The limit of the previous command: most clients repeat one limit.
    last: Option<(ThrottleLimit, Quota)>,
}

impl<'a, D: Throttle + Reserve> Batch<'a, '_, D> {
    async fn run(&mut self, session: &mut Session, bytes: &'a [u8]) -> Progress {
        let mut words = Words::new();
        let mut at = 0;
        for _ in 0..COMMANDS_MAX {
            let rest = bytes.get(at..).unwrap_or_default();
            let limits = limits(&self.listener.bounds, session);
            let next = match read(rest, &limits, &mut words) {
                Ok(Read::Partial) => {
                    self.flush().await;
                    return Progress { bytes: at, is_more: false, next: Next::Continue };
                }
                Ok(Read::Command(length)) => {
                    at += length;
                    if words.is_empty() {
                        Next::Continue
                    } else {
                        self.run_command(session, &mut words).await
                    }
                }
                Ok(Read::Quoted(length, quoted)) => {
                    at += length;
                    self.flush().await;
                    self.run_quoted(session, &quoted).await
                }
                Err(malformed) => {
                    self.flush().await;
                    self.refuse(&format!("ERR {malformed}"));
                    Next::Close
                }
            };
            if next == Next::Close {
                return Progress { bytes: at, is_more: false, next };
            }
            if self.replies.len() >= REPLIES_BYTES_MAX {
                break;
            }
        }
        self.flush().await;
        Progress { bytes: at, is_more: true, next: Next::Continue }
    }

    /// Runs a command whose words live as long as the batch.
    async fn run_command(&mut self, session: &mut Session, words: &mut Words<'a>) -> Next {
        let admitted = command(words)
            .and_then(|command| session.admits(&command).map(|()| command).map_err(str::to_owned));
        match admitted {
            Ok(Command::Throttle { key, limit, quantity }) => match self.quota(key, limit) {
                Ok(quota) => {
                    self.requests.push(ThrottleRequest { key, quota, hits: quantity });
                    return Next::Continue;
                }
                Err(error) => {
                    self.flush().await;
                    self.refuse(&error);
                }
            },
            Ok(Command::Check { domain, descriptor, hits }) => {
                self.flush().await;
                self.check(domain, descriptor, hits).await;
            }
            Ok(Command::Reserve { domain, descriptor, amount, ttl, id }) => {
                self.flush().await;
                self.reserve((domain, descriptor), (amount, ttl, id), session).await;
            }
            Ok(Command::Commit { domain, descriptor, id, cost }) => {
                self.flush().await;
                self.commit((domain, descriptor), id, cost).await;
            }
            Ok(Command::Session(command, args)) => {
                self.flush().await;
                return session.run(command, &args, &self.listener.credentials, self.replies);
            }
            Ok(Command::Http) => {
                self.flush().await;
                self.listener.stats.refused.add(1);
                tracing::debug!("HTTP request on the RESP listener; closing the connection");
                return Next::Close;
            }
            Err(error) => {
                self.flush().await;
                self.refuse(&error);
            }
        }
        Next::Continue
    }

    /// Runs a command with quotes in a batch of its own, because its words live no longer.
    async fn run_quoted(&mut self, session: &mut Session, words: &[Vec<u8>]) -> Next {
        let mut batch = Batch {
            listener: self.listener,
            requests: Vec::new(),
            verdicts: Vec::new(),
            replies: &mut *self.replies,
            last: None,
        };
        let mut words: Words<'_> = words.iter().map(Vec::as_slice).collect();
        if words.is_empty() {
            return Next::Continue;
        }
        let next = batch.run_command(session, &mut words).await;
        batch.flush().await;
        next
    }

    /// Decides the collected requests and writes their replies.
    async fn flush(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        self.verdicts.clear();
        self.listener.decide.throttle(&self.requests, &mut self.verdicts).await;
        debug_assert_eq!(self.verdicts.len(), self.requests.len());
        for (request, verdict) in self.requests.iter().zip(&self.verdicts) {
            self.replies.integers(reply(verdict.allowed, request.quota.burst(), verdict));
        }
        self.requests.clear();
    }

    async fn check(&mut self, domain: &str, descriptor: Descriptor<'_>, hits: Hits) {
        let descriptors = [descriptor];
        if let Err(error) = self.admit(domain, &descriptors) {
            return self.refuse(&error);
        }
        let request = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
        let response = self.listener.decide.decide(request).await;
        self.numbers(&response);
    }

    /// The id, or null, and the numbers of `TG.CHECK`.
    async fn reserve(
        &mut self,
        (domain, descriptor): (&str, Descriptor<'_>),
        (amount, ttl, id): (u64, Option<Span>, Option<ReservationId>),
        session: &Session,
    ) {
        let descriptors = [descriptor];
        if let Err(error) = self.admit(domain, &descriptors) {
            return self.refuse(&error);
        }
        let descriptors = &descriptors;
        let request = ReserveRequest { domain, descriptors, amount, ttl, id };
        let reserved = self.listener.decide.reserve(request).await;
        self.replies.array(2);
        match reserved.id {
            Some(id) => self.replies.bulk(id.to_string().as_bytes()),
            None => self.replies.null(session.protocol()),
        }
        self.numbers(&reserved.response);
    }

    /// What became of it, and the numbers of `TG.CHECK`.
    async fn commit(
        &mut self,
        (domain, descriptor): (&str, Descriptor<'_>),
        id: Option<ReservationId>,
        cost: u64,
    ) {
        let descriptors = [descriptor];
        if let Err(error) = self.admit(domain, &descriptors) {
            return self.refuse(&error);
        }
        let descriptors = &descriptors;
        let request = CommitRequest { domain, descriptors, id, cost };
        match self.listener.decide.commit(request).await {
            Ok(committed) => {
                self.replies.array(2);
                self.replies.bulk(match committed.settled {
                    Some(Settled::Committed) => b"COMMITTED",
                    Some(Settled::Again) => b"REPEATED",
                    Some(Settled::Reported) => b"REPORTED",
                    None => b"UNLIMITED",
                });
                self.numbers(&committed.response);
            }
            // The code that Redis has for what may succeed later.
            Err(error) => self.replies.error(&format!("TRYAGAIN {error}")),
        }
    }

    /// The reply to a request with one descriptor: five integers, and a sixth for a rule with soft
    /// limits.
    fn numbers(&mut self, response: &CheckResponse) {
        let status = response.statuses.first();
        let numbers = match status.and_then(Status::leading_verdict) {
            Some(verdict) => reply(response.allowed, verdict.limit, verdict),
            None => [i64::from(!response.allowed), -1, -1, -1, -1],
        };
        let rule = status.and_then(|status| status.rule.as_ref());
        if rule.is_some_and(|rule| !rule.soft_limits.is_empty()) {
            let [limited, limit, remaining, retry, reset] = numbers;
            let soft_limited = i64::from(response.is_soft_limited());
            self.replies.integers([limited, limit, remaining, retry, reset, soft_limited]);
        } else {
            self.replies.integers(numbers);
        }
    }

    fn quota(&mut self, key: &[u8], limit: ThrottleLimit) -> Result<Quota, String> {
        let (bytes, max) = (key.len(), self.listener.bounds.value_bytes_max);
        if bytes > max {
            return Err(format!(
                "ERR the key has {bytes} bytes; at most {max} are allowed (limits.value_bytes_max)"
            ));
        }
        if let Some((last, quota)) = self.last
            && last == limit
        {
            return Ok(quota);
        }
        let quota = limit.quota(self.listener.mode).map_err(|error| error.to_string())?;
        self.last = Some((limit, quota));
        Ok(quota)
    }

    /// The error that a command gets that no rules could decide.
    fn admit(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Result<(), String> {
        let Listener { bounds, decide, .. } = self.listener;
        bounds.admit(domain, descriptors).map_err(|refusal| format!("ERR {refusal}"))?;
        if decide.is_loaded() {
            Ok(())
        } else {
            // The code that Redis has for what may succeed later.
            Err(format!("TRYAGAIN {}", Refusal::NotLoaded))
        }
    }

    fn refuse(&mut self, error: &str) {
        self.listener.stats.refused.add(1);
        self.replies.error(error);
    }
}

/// The same allocation for requests of another lifetime: collecting from a `Vec` of the same layout
/// reuses it.
#[allow(clippy::unnecessary_filter_map, reason = "`filter` would keep the lifetime")]
fn emptied<'a>(mut requests: Vec<ThrottleRequest<'_>>) -> Vec<ThrottleRequest<'a>> {
    requests.clear();
    requests.into_iter().filter_map(|_| None).collect()
}
