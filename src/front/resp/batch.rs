//! What one read brought, decided and answered in order.
//!
//! Consecutive `CL.THROTTLE`s are gathered and decided by one call. Whatever else comes between
//! them ends the batch: it sees what they counted, and its reply follows theirs.

use std::sync::Arc;

use tidegate_limiter::descriptor::Descriptor;
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::Mode;
use tidegate_limiter::quota::Quota;
use tidegate_limiter::units::Hits;

use super::command::{Command, command};
use super::limit::{Named, five};
use super::read::{Limits, Read, Words, read};
use super::reply::Replies;
use super::session::{Credentials, Next, Session};
use crate::decide::{CheckRequest, Throttle, ThrottleRequest};
use crate::front::bounds::Bounds;
use crate::front::serve::ListenerStats;

/// What all connections of the door have in common.
#[derive(Debug)]
pub(super) struct Shared<D> {
    pub(super) decide: Arc<D>,
    pub(super) credentials: Credentials,
    /// Who decides the limits that clients name.
    pub(super) mode: Mode,
    pub(super) bounds: Bounds,
    pub(super) stats: Arc<ListenerStats>,
}

/// Room that batches use one after the other, so that a hit allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Empty between batches: its lifetime means nothing then.
    demands: Vec<ThrottleRequest<'static>>,
    verdicts: Vec<Verdict>,
}

/// How far a batch came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Bytes that were read to their end.
    pub(super) bytes: usize,
    /// Whether it stopped at a bound, and whole commands may follow.
    pub(super) is_more: bool,
    pub(super) next: Next,
}

/// Most commands that are decided before their replies are sent: others wait that long.
const COMMANDS_MAX: usize = 512;
/// From here on replies are sent before the next command is looked at.
pub(super) const REPLIES_BYTES_MAX: usize = 64 * 1024;

/// Most words of a command.
const WORDS_MAX: usize = 1_024;
/// What Redis takes from a client that has not said its password.
const BEFORE_AUTH: (usize, usize) = (10, 16 * 1024);

impl<D> Shared<D> {
    fn limits(&self, session: &Session) -> Limits {
        let bytes_max = self.bounds.body_bytes_max;
        let before_auth = !session.is_let_in();
        let (words_max, word_bytes_max) =
            if before_auth { BEFORE_AUTH } else { (WORDS_MAX, bytes_max) };
        Limits { bytes_max, words_max, word_bytes_max, before_auth }
    }
}

/// Decides the whole commands in `bytes` and writes their replies.
///
/// Not cancel-safe: what was counted is not answered.
pub(super) async fn run<D: Throttle>(
    shared: &Shared<D>,
    session: &mut Session,
    bytes: &[u8],
    scratch: &mut Scratch,
    replies: &mut Replies,
) -> Done {
    let mut batch = Batch {
        shared,
        demands: emptied(std::mem::take(&mut scratch.demands)),
        verdicts: std::mem::take(&mut scratch.verdicts),
        replies,
        last: None,
    };
    let done = batch.all(session, bytes).await;
    let Batch { demands, verdicts, .. } = batch;
    *scratch = Scratch { demands: emptied(demands), verdicts };
    done
}

struct Batch<'a, 'b, D> {
    shared: &'b Shared<D>,
    /// Gathered, not decided yet.
    demands: Vec<ThrottleRequest<'a>>,
    verdicts: Vec<Verdict>,
    replies: &'b mut Replies,
    /// The limit of the command before: most clients name one limit over and over.
    last: Option<(Named, Quota)>,
}

impl<'a, D: Throttle> Batch<'a, '_, D> {
    async fn all(&mut self, session: &mut Session, bytes: &'a [u8]) -> Done {
        let mut words = Words::new();
        let mut at = 0;
        for _ in 0..COMMANDS_MAX {
            let rest = bytes.get(at..).unwrap_or_default();
            let limits = self.shared.limits(session);
            let next = match read(rest, &limits, &mut words) {
                Ok(Read::Partial) => {
                    self.settle().await;
                    return Done { bytes: at, is_more: false, next: Next::GoOn };
                }
                Ok(Read::Command(length)) => {
                    at += length;
                    if words.is_empty() { Next::GoOn } else { self.one(session, &mut words).await }
                }
                Ok(Read::Quoted(length, quoted)) => {
                    at += length;
                    self.settle().await;
                    self.quoted(session, &quoted).await
                }
                Err(malformed) => {
                    self.settle().await;
                    self.refuse(&format!("ERR {malformed}"));
                    Next::Close
                }
            };
            if next == Next::Close {
                return Done { bytes: at, is_more: false, next };
            }
            if self.replies.len() >= REPLIES_BYTES_MAX {
                break;
            }
        }
        self.settle().await;
        Done { bytes: at, is_more: true, next: Next::GoOn }
    }

    /// A command whose words live as long as the batch.
    async fn one(&mut self, session: &mut Session, words: &mut Words<'a>) -> Next {
        let admitted = command(words)
            .and_then(|command| session.admits(&command).map(|()| command).map_err(str::to_owned));
        match admitted {
            Ok(Command::Throttle { key, named, quantity }) => match self.quota(key, named) {
                Ok(quota) => {
                    self.demands.push(ThrottleRequest { key, quota, hits: quantity });
                    return Next::GoOn;
                }
                Err(error) => {
                    self.settle().await;
                    self.refuse(&error);
                }
            },
            Ok(Command::Check { domain, descriptor, hits }) => {
                self.settle().await;
                self.check(domain, descriptor, hits).await;
            }
            Ok(Command::Talk(talk, args)) => {
                self.settle().await;
                return session.talk(talk, &args, &self.shared.credentials, self.replies);
            }
            Ok(Command::Http) => {
                self.settle().await;
                self.shared.stats.refused.add(1);
                tracing::debug!("close a connection that speaks HTTP to the resp door");
                return Next::Close;
            }
            Err(error) => {
                self.settle().await;
                self.refuse(&error);
            }
        }
        Next::GoOn
    }

    /// A command with quotes: its words are gone after it, so it is a batch of its own.
    async fn quoted(&mut self, session: &mut Session, words: &[Vec<u8>]) -> Next {
        let mut alone = Batch {
            shared: self.shared,
            demands: Vec::new(),
            verdicts: Vec::new(),
            replies: &mut *self.replies,
            last: None,
        };
        let mut words: Words<'_> = words.iter().map(Vec::as_slice).collect();
        if words.is_empty() {
            return Next::GoOn;
        }
        let next = alone.one(session, &mut words).await;
        alone.settle().await;
        next
    }

    /// Decides what was gathered.
    async fn settle(&mut self) {
        if self.demands.is_empty() {
            return;
        }
        self.verdicts.clear();
        self.shared.decide.throttle(&self.demands, &mut self.verdicts).await;
        debug_assert_eq!(self.verdicts.len(), self.demands.len());
        for (demand, verdict) in self.demands.iter().zip(&self.verdicts) {
            self.replies.five(five(verdict.allowed, demand.quota.burst(), verdict));
        }
        self.demands.clear();
    }

    async fn check(&mut self, domain: &str, descriptor: Descriptor<'_>, hits: Hits) {
        let descriptors = [descriptor];
        let bounds = &self.shared.bounds;
        if let Err(refusal) = bounds.admit(domain, &descriptors) {
            return self.refuse(&format!("ERR {refusal}"));
        }
        let ask = CheckRequest { domain, descriptors: &descriptors, hits, for_envoy: false };
        let answer = self.shared.decide.decide(ask).await;
        let leading = answer.statuses.first().and_then(|status| status.leading_verdict());
        self.replies.five(match leading {
            Some(verdict) => five(answer.allowed, verdict.limit, verdict),
            None => [i64::from(!answer.allowed), -1, -1, -1, -1],
        });
    }

    fn quota(&mut self, key: &[u8], named: Named) -> Result<Quota, String> {
        let (bytes, max) = (key.len(), self.shared.bounds.value_bytes_max);
        if bytes > max {
            return Err(format!(
                "ERR the key has {bytes} bytes; at most {max} are allowed (limits.value_bytes_max)"
            ));
        }
        if let Some((last, quota)) = self.last
            && last == named
        {
            return Ok(quota);
        }
        let quota = named.quota(self.shared.mode).map_err(|error| error.to_string())?;
        self.last = Some((named, quota));
        Ok(quota)
    }

    fn refuse(&mut self, error: &str) {
        self.shared.stats.refused.add(1);
        self.replies.error(error);
    }
}

/// The same room for demands of another lifetime: collecting from a `Vec` of the same layout keeps
/// its allocation.
#[allow(clippy::unnecessary_filter_map, reason = "`filter` would keep the lifetime")]
fn emptied<'a>(mut demands: Vec<ThrottleRequest<'_>>) -> Vec<ThrottleRequest<'a>> {
    demands.clear();
    demands.into_iter().filter_map(|_| None).collect()
}
