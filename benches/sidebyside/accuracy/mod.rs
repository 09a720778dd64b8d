//! Accuracy of the verdicts: the same six scenarios against every target with a network protocol.
//!
//! A target is judged by its own claim. A *bucket* (token bucket, GCRA) admits `burst` at once
//! and then `count` per `period`: over any span at most `burst + span × rate`. A *log* admits at
//! most `count` in any `period`. A fixed window counter claims neither and is left out. An
//! *eventual* limit claims to be close while clients of several nodes use it at once, and only runs
//! the scenario of many clients.
//!
//! The results have the key `duel` in `docs/benchmarks.json`.

mod clients;
mod scenarios;

use std::fmt::Write;
use std::io;

pub use clients::{Participant, all};

use crate::peers::Limit;
use crate::results::{AccuracyRow, ScenarioResult};

/// The guarantee a target is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Bucket,
    Log,
    Eventual,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    pub is_admitted: bool,
    /// Seconds after which a retry may succeed, if the response has them.
    pub retry_s: Option<f64>,
    /// `retry_s` is the time until the whole limit is available: the protocol has no other.
    pub is_reset: bool,
}

/// A connection to a target.
pub trait Client: Send {
    /// Requests one hit of a key.
    fn check(&mut self, key: &str, limit: Limit) -> io::Result<Verdict>;
}

pub type Connect = Box<dyn Fn() -> io::Result<Box<dyn Client>> + Send + Sync>;

/// The algorithms of the rules, for APIs without limits in the request.
pub const ALGORITHMS: [(&str, Claim); 3] =
    [("gcra", Claim::Bucket), ("token_bucket", Claim::Bucket), ("sliding_window_log", Claim::Log)];

/// The modes of the rules that clients of three nodes check, with their names and algorithms.
pub const MODES: [(&str, &str, Claim); 2] =
    [("leased", "gcra", Claim::Bucket), ("eventual", "fixed_window", Claim::Eventual)];

/// The name of the rule for an algorithm or a mode, and a limit.
pub fn rule(algorithm: &str, limit: Limit) -> String {
    format!("{algorithm}-{}-{}-{}", limit.burst, limit.count, limit.period)
}

/// A rule for each algorithm and each limit of the scenarios.
pub fn rules() -> String {
    let mut out = format!("domain: {}\ndescriptors:\n", clients::DOMAIN);
    let strict = ALGORITHMS.map(|(algorithm, claim)| (algorithm, "strict", algorithm, claim));
    let others = MODES.map(|(mode, algorithm, claim)| (mode, mode, algorithm, claim));
    for (name, mode, algorithm, claim) in strict.into_iter().chain(others) {
        for limit in scenarios::LIMITS {
            let burst = match claim {
                Claim::Bucket => format!(", burst: {}", limit.burst),
                Claim::Log | Claim::Eventual => String::new(),
            };
            let _ = writeln!(
                out,
                "  - key: {}\n    mode: {mode}\n    rate_limit: {{window: {}s, \
                 requests_per_unit: {}, algorithm: {algorithm}{burst}}}",
                rule(name, limit),
                limit.period,
                limit.count,
            );
        }
    }
    out
}

/// Runs all scenarios. Those of one client run for all targets at the same time; the one of many
/// clients runs for one target after the other.
pub fn run(participants: Vec<Participant>) -> Vec<AccuracyRow> {
    let single = |participant: &Participant| match &participant.connect {
        Ok(connect) if participant.claim != Claim::Eventual => {
            scenarios::single_client(connect, participant.claim)
        }
        Ok(_) | Err(_) => Vec::new(),
    };
    let single: Vec<Vec<ScenarioResult>> = std::thread::scope(|scope| {
        let running: Vec<_> =
            participants.iter().map(|one| scope.spawn(move || single(one))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    participants
        .into_iter()
        .zip(single)
        .map(|(participant, mut results)| {
            if let Ok(connect) = &participant.connect {
                results.push(scenarios::many_clients(connect, participant.claim));
            }
            AccuracyRow {
                name: participant.name,
                claim: match participant.claim {
                    Claim::Bucket => "burst, then rate".into(),
                    Claim::Log => "limit in any window".into(),
                    Claim::Eventual => "close to the limit".into(),
                },
                absent: participant.connect.err(),
                scenarios: results,
            }
        })
        .collect()
}
