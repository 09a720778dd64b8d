//! Three times the limit, at a steady rate over many windows, by how it is spread over the nodes.

use std::time::Duration;

use tidegate_testkit::loadgen::{End, Keys, ReplyStatus, Run, Spread};

use crate::nodes::{CLIENTS, Nodes, next_window, open};
use crate::options::Options;
use crate::row::{Figure, Is, Report, Row};
use crate::rules::{Mode, PER_SECOND, key_of_seconds};

const WINDOW: Duration = Duration::from_secs(1);
const LIMITS_PER_WINDOW: u64 = 3;
/// A third of a window uses the limit up. What is admitted in the last sixth by the clock of the
/// client belongs to the next window.
const EARLY: Duration = Duration::from_millis(166);
/// The hot node changes within windows, too.
const TURN: Duration = Duration::from_millis(2_500);

pub(crate) fn measure(nodes: &Nodes, options: &Options, report: &mut Report) {
    let spreads = [
        ("even", Spread::Even),
        ("98-1-1", Spread::Hot { percent: 98, turn: None }),
        ("rotating", Spread::Hot { percent: 98, turn: Some(TURN) }),
    ];
    for mode in [Mode::Leased, Mode::Eventual] {
        for (name, spread) in spreads {
            let name = format!("windows/{mode}/{name}");
            if options.has(&name) {
                eprintln!("{name}");
                report.add(&row(&name, nodes, mode, spread, options.windows));
            }
        }
    }
}

fn row(name: &str, nodes: &Nodes, mode: Mode, spread: Spread, windows: u32) -> Row {
    let key = key_of_seconds(mode);
    let mut clients = nodes.clients(&key, CLIENTS);
    let number = nodes.next_key();
    let run = Run {
        keys: Keys::One(number),
        pace: open(u64::from(PER_SECOND) * LIMITS_PER_WINDOW),
        end: End::After(WINDOW * windows),
        spread,
    };
    let owner = nodes.owner(&key, number);
    let before = nodes.metrics();
    let (mut admitted, mut at_owner) = (vec![0_u32; windows as usize], 0_u32);
    let begin = next_window(WINDOW);
    let result = clients
        .run(&run, |reply| {
            if reply.status == ReplyStatus::Admitted {
                let since = (reply.at - begin + EARLY).as_millis() / WINDOW.as_millis();
                // The last checks arrive after the last window.
                if let Some(window) = admitted.get_mut(usize::try_from(since).unwrap()) {
                    *window += 1;
                    at_owner += u32::from(reply.addr == owner);
                }
            }
        })
        .unwrap();
    let after = nodes.settled_metrics();
    let ratios = || admitted.iter().map(|admitted| f64::from(*admitted) / f64::from(PER_SECOND));
    let sum = f64::from(admitted.iter().sum::<u32>());
    let mean = ratios().sum::<f64>() / f64::from(windows);
    let here = f64::from(at_owner) + after.verdicts_since(&before, "grant");
    let ratio = Figure::of("admitted / L", ratios());
    let mut row = Row::new(name);
    row.bound("admitted / L, mean", mean, Is::AtLeast(0.98));
    row.bound("admitted / L, mean", mean, Is::AtMost(1.01));
    let worst = if mode == Mode::Leased { 1.0 } else { 1.02 };
    row.bound("admitted / L, worst", ratio.max, Is::AtMost(worst));
    row.figures.push(ratio);
    row.figures.push(Figure::of("mean", [mean]));
    if mode == Mode::Leased {
        let messages = after.messages_since(&before, "checks") / f64::from(windows);
        row.figures.push(Figure::of("without waiting %", [here / sum * 100.0]));
        row.figures.push(Figure::of("messages a window", [messages]));
        let fallback = after.verdicts_since(&before, "policy");
        row.figures.push(Figure::of("by on_unavailable", [fallback]));
    }
    row.figures.push(Figure::of("p99 ms", [result.ms(0.99)]));
    row.figures.push(Figure::of("failed", [result.failed as f64]));
    row
}
