//! Fresh keys with a fixed window: how much of its limit each admits, and how many of these checks
//! waited for another node.

use std::time::Duration;

use tidegate_testkit::loadgen::{Clients, End, Keys, Pace, ReplyStatus, Run, Spread};

use crate::delay;
use crate::nodes::{CLIENTS, Nodes, open, wait_for_window};
use crate::options::Options;
use crate::row::{Figure, Is, Report, Row};
use crate::rules::{Algorithm, LIMITS, Mode, WINDOW, key};
use crate::traffic::messages_max;

/// More than the machine serves is a longer burst.
const PER_SECOND_MAX: u64 = 20_000;
const BURST: Duration = Duration::from_millis(100);
/// A burst is for so many times the limit.
const BURST_LIMITS: u64 = 3;
/// A load that goes on, and at least until twice the limit was sent.
const LASTS: Duration = Duration::from_millis(300);
/// These limits are also measured with a sliding window.
const SLIDING_LIMITS: [u32; 2] = [100, 1_000];
/// What begins in a window ends before it: the longest run, and what settles after it.
const RESERVE: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Burst,
    Steady,
    Full,
}

/// One row.
#[derive(Clone, Copy, Debug)]
struct Case {
    load: Load,
    mode: Mode,
    algorithm: Algorithm,
    limit: u32,
}

/// What one run admitted.
#[derive(Debug)]
struct Admitted {
    /// By the limit.
    ratio: f64,
    /// Percent of the admitted checks that were decided by the node that they came to.
    without_waiting: f64,
    /// Calls and replies about checks.
    messages: f64,
    /// Decided by `on_unavailable`.
    fallback: f64,
    per_second: f64,
    p99_ms: f64,
    /// Checks without a valid reply.
    failed: f64,
}

pub(crate) fn measure(nodes: &Nodes, options: &Options, report: &mut Report) {
    for case in cases().filter(|case| options.has(&case.name())) {
        eprintln!("{}", case.name());
        let key = case.key();
        let mut clients = nodes.clients(&key, CLIENTS);
        let runs: Vec<Admitted> =
            (0..options.runs).map(|_| case.run(nodes, &key, &mut clients)).collect();
        let mut row = case.row(&runs);
        if case.mode == Mode::Eventual {
            let run = case.load_of(nodes.next_key());
            let delay = delay::under_load(nodes, &mut clients, &run);
            let rate = Figure::of("", runs.iter().map(|run| run.per_second)).median;
            let during = rate * delay.as_secs_f64() / f64::from(case.limit);
            row.figures.push(Figure::of("delay ms", [delay.as_secs_f64() * 1_000.0]));
            row.figures.push(Figure::of("rate × delay / L", [during]));
        }
        report.add(&row);
    }
}

fn cases() -> impl Iterator<Item = Case> {
    use Algorithm::{FixedWindow, SlidingWindowCounter};
    let fixed = [Mode::Strict, Mode::Leased, Mode::Eventual]
        .into_iter()
        .flat_map(|mode| LIMITS.map(|limit| (mode, FixedWindow, limit)));
    let sliding = [Mode::Leased, Mode::Eventual]
        .into_iter()
        .flat_map(|mode| SLIDING_LIMITS.map(|limit| (mode, SlidingWindowCounter, limit)));
    let rules: Vec<_> = fixed.chain(sliding).collect();
    [Load::Burst, Load::Steady, Load::Full].into_iter().flat_map(move |load| {
        let case = move |(mode, algorithm, limit)| Case { load, mode, algorithm, limit };
        rules.clone().into_iter().map(case)
    })
}

impl Case {
    fn name(self) -> String {
        let load = match self.load {
            Load::Burst => "burst",
            Load::Steady => "steady",
            Load::Full => "full",
        };
        let sliding = match self.algorithm {
            Algorithm::FixedWindow => "",
            Algorithm::SlidingWindowCounter => "/sliding",
        };
        format!("{load}/{}/{}{sliding}", self.mode, self.limit)
    }

    fn key(self) -> String {
        key(self.mode, self.algorithm, self.limit)
    }

    fn load_of(self, key: u64) -> Run {
        let limit = u64::from(self.limit);
        let lasts = Duration::from_secs(2) * self.limit / u32::try_from(PER_SECOND_MAX).unwrap();
        let lasts = End::After(LASTS.max(lasts));
        let (pace, end) = match self.load {
            Load::Burst => {
                let checks = limit * BURST_LIMITS;
                let per_second = checks * 1_000 / u64::try_from(BURST.as_millis()).unwrap();
                (open(per_second.min(PER_SECOND_MAX)), End::AfterRequests(checks))
            }
            Load::Steady => (open(PER_SECOND_MAX), lasts),
            Load::Full => (Pace::Closed { depth: 1 }, lasts),
        };
        Run { keys: Keys::One(key), pace, end, spread: Spread::Even }
    }

    fn run(self, nodes: &Nodes, key: &str, clients: &mut Clients) -> Admitted {
        let number = nodes.next_key();
        let owner = nodes.owner(key, number);
        wait_for_window(WINDOW, RESERVE);
        let before = nodes.metrics();
        let mut by_node = [0_u32; 3];
        let result = clients
            .run(&self.load_of(number), |reply| {
                by_node[reply.addr] += u32::from(reply.status == ReplyStatus::Admitted);
            })
            .unwrap();
        let after = nodes.settled_metrics();
        let admitted = f64::from(by_node.iter().sum::<u32>());
        // Every check that is spent from a grant is admitted.
        let here = match self.mode {
            Mode::Eventual => admitted,
            Mode::Strict | Mode::Leased => {
                f64::from(by_node[owner]) + after.verdicts_since(&before, "grant")
            }
        };
        Admitted {
            ratio: admitted / f64::from(self.limit),
            without_waiting: here / admitted * 100.0,
            messages: after.messages_since(&before, "checks"),
            fallback: after.verdicts_since(&before, "policy"),
            per_second: result.rate(),
            p99_ms: result.ms(0.99),
            failed: result.failed as f64,
        }
    }

    fn row(self, runs: &[Admitted]) -> Row {
        let figure = |what, of: fn(&Admitted) -> f64| Figure::of(what, runs.iter().map(of));
        let ratio = figure("admitted / L", |run| run.ratio);
        let without_waiting = figure("without waiting %", |run| run.without_waiting);
        let messages = figure("messages", |run| run.messages);
        let mut row = Row::new(&self.name());
        match self.mode {
            Mode::Strict => {}
            Mode::Leased => {
                row.bound("admitted / L, most", ratio.max, Is::AtMost(1.0));
                row.bound("admitted / L, least", ratio.min, Is::AtLeast(0.99));
                let least = match self.load {
                    Load::Burst => Some(85.0),
                    Load::Steady => Some(98.0),
                    Load::Full => None,
                };
                if let Some(least) = least.filter(|_| self.limit >= 100) {
                    row.bound("without waiting %", without_waiting.median, Is::AtLeast(least));
                }
                if self.load == Load::Burst {
                    let most = messages_max(self.limit, self.lasts());
                    row.bound("messages, most", messages.max, Is::AtMost(most));
                }
            }
            Mode::Eventual => {
                let at = LIMITS.iter().position(|limit| *limit == self.limit).unwrap();
                let most = match self.load {
                    Load::Burst => [1.3, 1.05, 1.01, 1.002],
                    Load::Steady => [2.5, 1.25, 1.05, 1.005],
                    Load::Full => [4.0, 1.6, 1.1, 1.01],
                };
                row.bound("admitted / L", ratio.median, Is::AtMost(most[at]));
                row.bound("admitted / L, least", ratio.min, Is::AtLeast(1.0));
            }
        }
        row.figures.push(ratio);
        if self.mode != Mode::Eventual {
            row.figures.extend([without_waiting, messages]);
            row.figures.push(figure("by on_unavailable", |run| run.fallback));
        }
        row.figures.push(figure("checks/s", |run| run.per_second));
        row.figures.push(figure("p99 ms", |run| run.p99_ms));
        row.figures.push(figure("failed", |run| run.failed));
        row
    }

    /// How long a burst lasts.
    fn lasts(self) -> Duration {
        let checks = u64::from(self.limit) * BURST_LIMITS;
        BURST.max(Duration::from_secs(checks) / u32::try_from(PER_SECOND_MAX).unwrap())
    }
}
