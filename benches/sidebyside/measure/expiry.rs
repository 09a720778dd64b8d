//! A million keys come and expire while others are asked about at a fixed rate.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Entrant, Plan, interleave, table};
use crate::awake;
use crate::engine::resp::{KEY, Resp};
use crate::engine::{End, Keys, Load, Outcome, Pace};
use crate::peers::redis::{self, Setting};
use crate::peers::tidegate::{Node, Setting as Tidegate};
use crate::peers::{Limit, NEVER_REACHED, Target, throttlecrab, words};
use crate::processes;
use crate::results::Table;

pub const COLUMNS: [&str; 11] = [
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "most ms",
    "stolen by the host ms",
    "MiB before",
    "MiB at most",
    "MiB behind",
    "s until it was back",
    "store MiB at most",
    "store MiB behind",
];
/// The row of the ordinary class.
pub const ORDINARY: &str = "tidegate, CL.THROTTLE, ordinary class";
/// The row of cores that are not kept awake.
pub const HALTING: &str = "tidegate, CL.THROTTLE, halting";
/// What the machine itself does to a server that has hardly anything to do, in the same three ways.
pub const CALM: [&str; 3] = [
    "redis, INCR, none come",
    "redis, INCR, none come, ordinary class",
    "redis, INCR, none come, halting",
];
/// Rounds of the row that the bound is held against; the others are measured once.
const ROUNDS: usize = 5;
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
    timeouts: Duration,
}

/// The command that adds keys, and the target that is loaded meanwhile.
struct Trial {
    target: Target,
    add: Vec<String>,
    /// What says how large its store is.
    node: Option<Node>,
}

/// Whether clients and targets are in the real-time class, and the cores kept from halting.
#[derive(Clone, Copy, Debug)]
struct Manner {
    is_urgent: bool,
    is_awake: bool,
}

type Start<'a> = Box<dyn Fn() -> io::Result<Trial> + 'a>;

pub fn measure(plan: &Plan, folder: &Path) -> Table {
    let times = if plan.is_quick {
        let (short, second) = (Duration::from_millis(100), Duration::from_secs(1));
        Times { add: short, live_s: 1, load: short * 2, timeouts: second }
    } else {
        let seconds = Duration::from_secs;
        Times { add: seconds(8), live_s: 6, load: seconds(16), timeouts: seconds(10) }
    };
    let about = format!(
        "An open loop of {} checks a second over 100,000 lasting keys and 50 connections; beside \
         it {} further keys are added within {:?} over two connections, in pipelines that begin \
         every millisecond, and each is forgotten {} s later. Latency \
         is that of the open loop for {:?}, in which all came and all expired. Memory is the \
         process's resident size; it is back when no more than a tenth of the growth is left. \
         Clients and targets run in the real-time class (`chrt --fifo`), and tidegate once more in \
         the ordinary one: there, where the kernel does not preempt, whoever is woken waits for \
         whatever else the machine does, the kernel's own threads too, up to a tick of it. {} Rows \
         named *halting* are without that. Where none come, only the load of the lasting keys \
         runs: what is late there is late for any server on this machine.",
        crate::render::number(PER_SECOND as f64),
        crate::render::number(plan.keys as f64),
        times.add,
        times.live_s,
        times.load,
        awake::about(),
    );
    let mut table = table("expiry", "A million keys come and expire", &about, &COLUMNS);
    let limit = Limit { burst: 1, count: 1, period: times.live_s };
    let keys = plan.keys;
    let tidegate = move || -> io::Result<Trial> {
        let setting = Tidegate::new(folder)?.with("limits.keys_max", 2 * keys + 200_000);
        let node = setting.start()?;
        let add = node.target(limit)?.command;
        let target = node.target(NEVER_REACHED)?;
        Ok(Trial { target, add, node: Some(node) })
    };
    let redis = move || -> io::Result<Trial> {
        let server = redis::start(folder, Setting::Lean)?;
        let target = redis::incr(server, Setting::Lean);
        let add = words(&format!("SET {KEY} 1 PX {}", limit.period * 1_000));
        Ok(Trial { target, add, node: None })
    };
    let throttlecrab = move || -> io::Result<Trial> {
        let started = throttlecrab::start(folder, throttlecrab::Setting::Default)?;
        let add = throttlecrab::target(&started, limit).command;
        let target = throttlecrab::target(&started, NEVER_REACHED);
        Ok(Trial { target, add, node: None })
    };
    let manners = [Manner::BEST, Manner { is_urgent: false, ..Manner::BEST }, Manner::HALTING];
    let ours = [super::resp::TIDEGATE, ORDINARY, HALTING].into_iter().zip(manners);
    let mut ours = ours.map(|(name, manner)| {
        Entrant::new(name, move || manner.measure(|| tidegate()?.measure(times, keys)))
    });
    interleave(&mut table, plan.rounds.min(ROUNDS), ours.by_ref().take(1).collect());
    let starts: [(&str, Start<'_>); 2] = [
        ("redis, INCR beside SET PX", Box::new(redis)),
        (super::resp::THROTTLECRAB, Box::new(throttlecrab)),
    ];
    let others = starts.into_iter().map(|(name, start)| {
        Entrant::new(name, move || Manner::BEST.measure(|| start()?.measure(times, keys)))
    });
    let calm = CALM.into_iter().zip(manners).map(|(name, manner)| {
        Entrant::new(name, move || manner.measure(|| redis()?.measure_calm(times, keys)))
    });
    interleave(&mut table, 1, ours.chain(others).chain(calm).collect());
    table
}

impl Manner {
    const BEST: Self = Self { is_urgent: true, is_awake: true };
    const HALTING: Self = Self { is_awake: false, ..Self::BEST };

    fn measure(self, measure: impl FnOnce() -> io::Result<Vec<f64>>) -> io::Result<Vec<f64>> {
        let _awake = self.is_awake.then(awake::keep).transpose()?;
        if self.is_urgent {
            processes::real_time(true)?;
        }
        let measured = measure();
        if self.is_urgent {
            processes::real_time(false)?;
        }
        measured
    }
}

impl Trial {
    fn measure(&self, times: Times, keys: u64) -> io::Result<Vec<f64>> {
        let lasting = self.add_lasting(keys)?;
        let (before, mut most, mut store) = (self.resident()?, 0.0_f64, f64::NAN);
        let asking = self.asking(lasting, times.load);
        let stolen = processes::stolen();
        let adding = Target { command: self.add.clone(), ..self.target.clone() };
        let per_second = (keys as f64 / times.add.as_secs_f64()) as u64;
        let pace = Pace::Open { per_second, all_or_nothing: (per_second / TICKS).max(1) };
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
        let late = late(&asked, stolen);
        let begin = Instant::now();
        let is_back = |now: f64| now - before <= (most - before).max(0.0) * LEFT;
        let mut behind = self.resident()?;
        while !is_back(behind) && begin.elapsed() < times.timeouts {
            std::thread::sleep(Duration::from_millis(100));
            behind = self.resident()?;
        }
        let took = if is_back(behind) { begin.elapsed().as_secs_f64() } else { f64::NAN };
        let stored = [store / MIB, self.store()? / MIB];
        let memory = [before / MIB, most / MIB, behind / MIB, took];
        Ok(late.into_iter().chain(memory).chain(stored).collect())
    }

    /// The load of the lasting keys by itself. Without a key that comes there is no memory to tell
    /// of.
    fn measure_calm(&self, times: Times, keys: u64) -> io::Result<Vec<f64>> {
        let lasting = self.add_lasting(keys)?;
        let stolen = processes::stolen();
        Ok(late(&self.asking(lasting, times.load / 2)()?, stolen).into())
    }

    /// Adds the lasting keys and says how many they are.
    fn add_lasting(&self, keys: u64) -> io::Result<u64> {
        let lasting = keys.min(100_000);
        let closed = Pace::Closed { depth: 1 };
        load(&self.target, ASKERS, Keys::From(0), closed, End::AfterAsks(lasting))()?;
        Ok(lasting)
    }

    /// Asks about the lasting keys at the fixed rate.
    fn asking(
        &self,
        lasting: u64,
        span: Duration,
    ) -> impl FnOnce() -> io::Result<Outcome> + Send + use<> {
        let pace = Pace::Open { per_second: PER_SECOND, all_or_nothing: 1 };
        load(&self.target, ASKERS, Keys::Random(lasting), pace, End::After(span))
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

/// The columns of latency, and the time the host took from the cores since it had taken `stolen`.
fn late(asked: &Outcome, stolen: Duration) -> [f64; 5] {
    let stolen = processes::stolen().saturating_sub(stolen).as_secs_f64() * 1e3;
    let ms = |quantile| asked.ms(quantile);
    [ms(0.5), ms(0.99), ms(0.999), ms(1.0), stolen]
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
