//! A million keys come and expire while others are asked about at a fixed rate.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Entrant, Plan, interleave, table};
use crate::engine::resp::{KEY, Resp};
use crate::engine::{End, Keys, Load, Outcome, Pace};
use crate::peers::redis::{self, Setting};
use crate::peers::tidegate::{Node, Setting as Tidegate};
use crate::peers::{Limit, NEVER_REACHED, Target, throttlecrab, words};
use crate::processes;
use crate::results::Table;

pub const COLUMNS: [&str; 10] = [
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "most ms",
    "MiB before",
    "MiB at most",
    "MiB behind",
    "s until it was back",
    "store MiB at most",
    "store MiB behind",
];
/// The row of the ordinary class.
pub const ORDINARY: &str = "tidegate, CL.THROTTLE, ordinary class";
const PER_SECOND: u64 = 10_000;
/// Connections of the load, and of what adds keys.
const ASKERS: usize = 50;
const ADDERS: usize = 2;
/// How often in a second keys are added. One by one, a client alone would keep a core busy, and the
/// latency would be that of a machine without a core to spare, whatever the target.
const TICKS: u64 = 1_000;
const MIB: f64 = 1024.0 * 1024.0;
/// What a tenth of the growth is left for counts as returned.
const LEFT: f64 = 0.1;

/// How long keys are added, how long each lives, and how long the load lasts.
#[derive(Clone, Copy, Debug)]
struct Times {
    add: Duration,
    live_s: u32,
    load: Duration,
    patience: Duration,
}

/// The command that adds keys, and the target that is loaded meanwhile.
struct Trial {
    target: Target,
    add: Vec<String>,
    /// What says how large its store is.
    node: Option<Node>,
}

type Start<'a> = Box<dyn Fn() -> io::Result<Trial> + 'a>;

pub fn measure(plan: &Plan, folder: &Path) -> Table {
    let times = if plan.is_quick {
        let (short, second) = (Duration::from_millis(100), Duration::from_secs(1));
        Times { add: short, live_s: 1, load: short * 2, patience: second }
    } else {
        let seconds = Duration::from_secs;
        Times { add: seconds(8), live_s: 10, load: seconds(21), patience: seconds(20) }
    };
    let about = format!(
        "An open loop of {} checks a second over 100,000 lasting keys and 50 connections; beside \
         it {} further keys are added within {:?} over two connections, in pipelines that begin \
         every millisecond, and each is forgotten {} s later. Latency \
         is that of the open loop for {:?}, in which all came and all expired. Memory is the \
         process's resident size; it is back when no more than a tenth of the growth is left. \
         Clients and targets run in the real-time class (`chrt --fifo`), and tidegate once more in \
         the ordinary one: there, where the kernel does not preempt, whoever is woken waits for \
         whatever else the machine does, the kernel's own threads too, up to a tick of it.",
        crate::render::number(PER_SECOND as f64),
        crate::render::number(plan.keys as f64),
        times.add,
        times.live_s,
        times.load,
    );
    let mut table = table("expiry", "A million keys come and expire", &about, &COLUMNS);
    let limit = Limit { burst: 1, count: 1, period: times.live_s };
    let keys = plan.keys;
    let tidegate = move || {
        let setting = Tidegate::new(folder)?.with("limits.keys_max", 2 * keys + 200_000);
        let node = setting.start()?;
        let add = node.target(limit)?.command;
        let target = node.target(NEVER_REACHED)?;
        Ok(Trial { target, add, node: Some(node) })
    };
    let starts: [(&str, Start<'_>); 4] = [
        (super::resp::TIDEGATE, Box::new(tidegate)),
        (ORDINARY, Box::new(tidegate)),
        (
            "redis, INCR beside SET PX",
            Box::new(move || {
                let server = redis::start(folder, Setting::Lean)?;
                let target = redis::incr(server, Setting::Lean);
                let add = words(&format!("SET {KEY} 1 PX {}", limit.period * 1_000));
                Ok(Trial { target, add, node: None })
            }),
        ),
        (
            super::resp::THROTTLECRAB,
            Box::new(move || {
                let started = throttlecrab::start(folder, throttlecrab::Setting::Default)?;
                let add = throttlecrab::target(&started, limit).command;
                let target = throttlecrab::target(&started, NEVER_REACHED);
                Ok(Trial { target, add, node: None })
            }),
        ),
    ];
    let entrants = starts.into_iter().map(|(name, start)| {
        Entrant::new(name, move || {
            let is_urgent = name != ORDINARY;
            if is_urgent {
                processes::real_time(true)?;
            }
            let measured = start().and_then(|trial| trial.measure(times, keys));
            if is_urgent {
                processes::real_time(false)?;
            }
            measured
        })
    });
    interleave(&mut table, 1, entrants.collect());
    table
}

impl Trial {
    fn measure(&self, times: Times, keys: u64) -> io::Result<Vec<f64>> {
        // The lasting keys stand before it begins.
        let lasting = keys.min(100_000);
        let closed = Pace::Closed { depth: 1 };
        load(&self.target, ASKERS, Keys::From(0), closed, End::AfterAsks(lasting))()?;
        let (before, mut most, mut store) = (self.resident()?, 0.0_f64, f64::NAN);
        let asking = load(
            &self.target,
            ASKERS,
            Keys::Random(lasting),
            Pace::Open { per_second: PER_SECOND, together: 1 },
            End::After(times.load),
        );
        let adding = Target { command: self.add.clone(), ..self.target.clone() };
        let per_second = (keys as f64 / times.add.as_secs_f64()) as u64;
        let pace = Pace::Open { per_second, together: (per_second / TICKS).max(1) };
        let adding = load(&adding, ADDERS, Keys::From(lasting), pace, End::AfterAsks(keys));
        let (asked, added) = std::thread::scope(|scope| -> io::Result<_> {
            let asking = scope.spawn(asking);
            let adding = scope.spawn(adding);
            for tick in 1.. {
                most = most.max(self.resident()?);
                if tick % 20 == 0 {
                    store = store.max(self.store()?);
                }
                if asking.is_finished() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let died = |_| io::Error::other("a client's thread");
            Ok((asking.join().map_err(died)??, adding.join().map_err(died)??))
        })?;
        if asked.failed + added.failed > 0 {
            let (asked, added) = (asked.failed, added.failed);
            return Err(io::Error::other(format!("{asked} and {added} had no answer")));
        }
        let begin = Instant::now();
        let is_back = |now: f64| now - before <= (most - before).max(0.0) * LEFT;
        let mut behind = self.resident()?;
        while !is_back(behind) && begin.elapsed() < times.patience {
            std::thread::sleep(Duration::from_millis(100));
            behind = self.resident()?;
        }
        let took = if is_back(behind) { begin.elapsed().as_secs_f64() } else { f64::NAN };
        let ms = |quantile| asked.ms(quantile);
        let stored = [store / MIB, self.store()? / MIB];
        let memory = [before / MIB, most / MIB, behind / MIB, took];
        Ok([ms(0.5), ms(0.99), ms(0.999), ms(1.0)]
            .into_iter()
            .chain(memory)
            .chain(stored)
            .collect())
    }

    /// What its store says it holds; not a number where nothing says so.
    fn store(&self) -> io::Result<f64> {
        let node = self.node.as_ref();
        node.map_or(Ok(f64::NAN), |node| node.metric("tidegate_store_bytes", ""))
    }

    fn resident(&self) -> io::Result<f64> {
        Ok(self.target.server.usage()?.resident_bytes as f64)
    }
}

/// A load that can move to a thread of its own.
fn load(
    target: &Target,
    connections: usize,
    keys: Keys,
    pace: Pace,
    end: End,
) -> impl FnOnce() -> io::Result<Outcome> + Send + use<> {
    let (addr, command) = (target.addr, target.command.clone());
    let (prefix, reply) = (target.prefix, target.reply);
    move || {
        let wire = || Box::new(Resp::new(&command, prefix, reply)) as _;
        Load { addrs: &[addr], connections, wire: &wire, keys, pace, end }.run()
    }
}
