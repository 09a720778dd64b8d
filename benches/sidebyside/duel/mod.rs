//! Who admits what is right: every target that speaks a protocol, the same six bouts.
//!
//! A target is judged by its own claim. A *bucket* (token bucket, GCRA) lets `burst` pass at once
//! and then `count` a `period`: over any span no more than `burst + span × rate`. A *log* never
//! lets more than `count` pass in any `period`. A counter of fixed windows claims neither and does
//! not fight.

mod askers;
mod bouts;

use std::fmt::Write;
use std::io;

pub use askers::{Listed, all};

use crate::peers::Limit;
use crate::results::{Bout, Duelist};

/// What a target claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Bucket,
    Log,
}

/// What a target told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    pub is_admitted: bool,
    /// Seconds until it is worth asking again, where it named them.
    pub retry_s: Option<f64>,
    /// They are those until the whole limit is there again: the protocol has no others.
    pub is_reset: bool,
}

/// A connection that asks for one hit of a key.
pub trait Asker: Send {
    fn ask(&mut self, key: &str, limit: Limit) -> io::Result<Told>;
}

/// Makes a connection.
pub type Connect = Box<dyn Fn() -> io::Result<Box<dyn Asker>> + Send + Sync>;

/// The algorithms of rules, for doors whose clients name no limit.
pub const ALGORITHMS: [(&str, Claim); 3] =
    [("gcra", Claim::Bucket), ("token_bucket", Claim::Bucket), ("sliding_window_log", Claim::Log)];

/// The name of the rule for an algorithm and a limit.
pub fn rule(algorithm: &str, limit: Limit) -> String {
    format!("{algorithm}-{}-{}-{}", limit.burst, limit.count, limit.period)
}

/// A rule for each algorithm and each limit of the bouts.
pub fn rules() -> String {
    let mut out = String::from("domain: duel\ndescriptors:\n");
    for (algorithm, claim) in ALGORITHMS {
        for limit in bouts::LIMITS {
            let burst = match claim {
                Claim::Bucket => format!(", burst: {}", limit.burst),
                Claim::Log => String::new(),
            };
            let _ = writeln!(
                out,
                "  - key: {}\n    rate_limit: {{window: {}s, requests_per_unit: {}, \
                 algorithm: {algorithm}{burst}}}",
                rule(algorithm, limit),
                limit.period,
                limit.count,
            );
        }
    }
    out
}

/// All bouts of all targets: those that measure time side by side, the crowd one after the other.
pub fn run(listed: Vec<Listed>) -> Vec<Duelist> {
    let timed = |listed: &Listed| match &listed.connect {
        Ok(connect) => bouts::timed(connect, listed.claim),
        Err(_) => Vec::new(),
    };
    let timed: Vec<Vec<Bout>> = std::thread::scope(|scope| {
        let running: Vec<_> =
            listed.iter().map(|listed| scope.spawn(move || timed(listed))).collect();
        running.into_iter().map(|one| one.join().unwrap_or_default()).collect()
    });
    listed
        .into_iter()
        .zip(timed)
        .map(|(listed, mut bouts)| {
            if let Ok(connect) = &listed.connect {
                bouts.push(bouts::crowd(connect));
            }
            Duelist {
                name: listed.name,
                claim: match listed.claim {
                    Claim::Bucket => "burst, then rate".into(),
                    Claim::Log => "limit in any window".into(),
                },
                absent: listed.connect.err(),
                bouts,
            }
        })
        .collect()
}
