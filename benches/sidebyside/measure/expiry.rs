//! A million keys are added and expire under a load at a fixed rate over other keys.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tidegate_testkit::loadgen::resp::{KEY, Resp};
use tidegate_testkit::loadgen::{End, Keys, Load, LoadResult, Pace};

use super::{Case, Plan, interleave, table};
use crate::peers::redis::{self, Setting};
use crate::peers::tidegate::{Node, Setting as Tidegate};
use crate::peers::{Limit, NEVER_REACHED, Target, throttlecrab, words};
use crate::results::Table;
use crate::{machine, processes};

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
/// The row in the ordinary scheduling class.
pub const ORDINARY: &str = "tidegate, CL.THROTTLE, ordinary class";
/// The row with cores that halt when idle.
pub const HALTING: &str = "tidegate, CL.THROTTLE, halting";
/// The latency of a nearly idle server on this machine, in the same three configurations.
pub const BASELINE: [&str; 3] = [
    "redis, INCR, none come",
    "redis, INCR, none come, ordinary class",
    "redis, INCR, none come, halting",
];
/// Rounds of the row that has a bound. The others are measured once.
const ROUNDS: usize = 5;
const PER_SECOND: u64 = 10_000;
const LOAD_CONNECTIONS: usize = 50;
/// Connections that add the expiring keys.
const ADD_CONNECTIONS: usize = 2;
/// Bursts of added keys per second. Without bursts the client alone would occupy a core, and the
/// latency of every target would be that of a saturated machine.
const BURSTS_PER_SECOND: u64 = 1_000;
const MIB: f64 = 1024.0 * 1024.0;
/// Memory counts as returned when at most this share of the growth remains.
const REMAINDER: f64 = 0.1;

#[derive(Clone, Copy, Debug)]
struct Times {
    /// Keys are added during this time.
    add: Duration,
    /// Lifetime of an added key.
    live_s: u32,
    load: Duration,
    /// Longest wait until memory is returned.
    return_timeout: Duration,
}

/// A target under load, and the command that adds keys to it.
struct Trial {
    target: Target,
    add: Vec<String>,
    /// The source of the store's size.
    node: Option<Node>,
}

#[derive(Clone, Copy, Debug)]
struct Scheduling {
    /// Clients and targets are in the real-time class.
    is_real_time: bool,
    /// Cores halt when idle.
    can_halt: bool,
}

type Start<'a> = Box<dyn Fn() -> io::Result<Trial> + 'a>;

pub fn measure(plan: &Plan, folder: &Path) -> Table {
    let times = if plan.is_quick {
        let (short, second) = (Duration::from_millis(100), Duration::from_secs(1));
        Times { add: short, live_s: 1, load: short * 2, return_timeout: second }
    } else {
        let seconds = Duration::from_secs;
        Times { add: seconds(8), live_s: 6, load: seconds(16), return_timeout: seconds(10) }
    };
    let about = format!(
        "An open loop of {} checks a second over 100,000 lasting keys and 50 connections. At the \
         same time {} further keys are added within {:?} over two connections, in a burst every \
         millisecond; each expires after {} s. Latency is that of the open loop over {:?}, in \
         which all keys are added and expire. Memory is the resident size of the process; it is \
         returned when at most a tenth of the growth remains. Clients and targets run in the \
         real-time class (`chrt --fifo`). The row *ordinary class* is without that: a thread that \
         wakes up then waits for other work on its core, kernel threads included, for up to a \
         tick, because this kernel does not preempt. {} The rows *halting* are without that. In \
         the rows *none come* only the lasting keys are checked; their latency is that of the \
         machine.",
        crate::render::number(PER_SECOND as f64),
        crate::render::number(plan.keys as f64),
        times.add,
        times.live_s,
        times.load,
        machine::idle_note(),
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
        let server = redis::start(folder, Setting::InMemory)?;
        let target = redis::incr(server, Setting::InMemory);
        let add = words(&format!("SET {KEY} 1 PX {}", limit.period * 1_000));
        Ok(Trial { target, add, node: None })
    };
    let throttlecrab = move || -> io::Result<Trial> {
        let started = throttlecrab::start(folder, throttlecrab::Setting::Default)?;
        let add = throttlecrab::target(&started, limit).command;
        let target = throttlecrab::target(&started, NEVER_REACHED);
        Ok(Trial { target, add, node: None })
    };
    let modes = [
        Scheduling::BEST,
        Scheduling { is_real_time: false, ..Scheduling::BEST },
        Scheduling::HALTING,
    ];
    let ours = [super::resp::TIDEGATE, ORDINARY, HALTING].into_iter().zip(modes);
    let mut ours = ours.map(|(name, mode)| {
        Case::new(name, move || mode.measure(|| tidegate()?.measure(times, keys)))
    });
    interleave(&mut table, plan.rounds.min(ROUNDS), ours.by_ref().take(1).collect());
    let starts: [(&str, Start<'_>); 2] = [
        ("redis, INCR beside SET PX", Box::new(redis)),
        (super::resp::THROTTLECRAB, Box::new(throttlecrab)),
    ];
    let others = starts.into_iter().map(|(name, start)| {
        Case::new(name, move || Scheduling::BEST.measure(|| start()?.measure(times, keys)))
    });
    let baseline = BASELINE.into_iter().zip(modes).map(|(name, mode)| {
        Case::new(name, move || mode.measure(|| redis()?.measure_baseline(times, keys)))
    });
    interleave(&mut table, 1, ours.chain(others).chain(baseline).collect());
    table
}

impl Scheduling {
    const BEST: Self = Self { is_real_time: true, can_halt: false };
    const HALTING: Self = Self { can_halt: true, ..Self::BEST };

    fn measure(self, measure: impl FnOnce() -> io::Result<Vec<f64>>) -> io::Result<Vec<f64>> {
        let _no_idle = (!self.can_halt).then(machine::disable_idle).transpose()?;
        if self.is_real_time {
            processes::real_time(true)?;
        }
        let measured = measure();
        if self.is_real_time {
            processes::real_time(false)?;
        }
        measured
    }
}

impl Trial {
    fn measure(&self, times: Times, keys: u64) -> io::Result<Vec<f64>> {
        let lasting = self.add_lasting(keys)?;
        let (before, mut most, mut store) = (self.resident()?, 0.0_f64, f64::NAN);
        let load = self.load(lasting, times.load);
        let steal = processes::steal_time();
        let adding = Target { command: self.add.clone(), ..self.target.clone() };
        let per_second = (keys as f64 / times.add.as_secs_f64()) as u64;
        let pace = Pace::Open { per_second, burst: (per_second / BURSTS_PER_SECOND).max(1) };
        let add = load_task(
            &adding,
            ADD_CONNECTIONS,
            Keys::From(lasting),
            pace,
            End::AfterRequests(keys),
        );
        let (loaded, added) = std::thread::scope(|scope| -> io::Result<_> {
            let load = scope.spawn(load);
            let add = scope.spawn(add);
            for tick in 1.. {
                most = most.max(self.resident()?);
                if tick % 20 == 0 {
                    store = store.max(self.store_bytes()?);
                }
                if load.is_finished() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let panicked = |_| io::Error::other("a client thread panicked");
            Ok((load.join().map_err(panicked)??, add.join().map_err(panicked)??))
        })?;
        if loaded.failed + added.failed > 0 {
            let (loaded, added) = (loaded.failed, added.failed);
            return Err(io::Error::other(format!("{loaded} and {added} requests failed")));
        }
        let latencies = latencies(&loaded, steal);
        let begin = Instant::now();
        let is_returned = |now: f64| now - before <= (most - before).max(0.0) * REMAINDER;
        let mut after = self.resident()?;
        while !is_returned(after) && begin.elapsed() < times.return_timeout {
            std::thread::sleep(Duration::from_millis(100));
            after = self.resident()?;
        }
        let took = if is_returned(after) { begin.elapsed().as_secs_f64() } else { f64::NAN };
        let stored = [store / MIB, self.store_bytes()? / MIB];
        let memory = [before / MIB, most / MIB, after / MIB, took];
        Ok(latencies.into_iter().chain(memory).chain(stored).collect())
    }

    /// Measures the load over the lasting keys alone. Its memory columns are empty.
    fn measure_baseline(&self, times: Times, keys: u64) -> io::Result<Vec<f64>> {
        let lasting = self.add_lasting(keys)?;
        let steal = processes::steal_time();
        Ok(latencies(&self.load(lasting, times.load / 2)()?, steal).into())
    }

    /// Adds the lasting keys and returns their number.
    fn add_lasting(&self, keys: u64) -> io::Result<u64> {
        let lasting = keys.min(100_000);
        let closed = Pace::Closed { depth: 1 };
        load_task(
            &self.target,
            LOAD_CONNECTIONS,
            Keys::From(0),
            closed,
            End::AfterRequests(lasting),
        )()?;
        Ok(lasting)
    }

    /// Checks the lasting keys at the fixed rate.
    fn load(
        &self,
        lasting: u64,
        span: Duration,
    ) -> impl FnOnce() -> io::Result<LoadResult> + Send + use<> {
        let pace = Pace::Open { per_second: PER_SECOND, burst: 1 };
        load_task(&self.target, LOAD_CONNECTIONS, Keys::Random(lasting), pace, End::After(span))
    }

    /// The reported size of its store in bytes; NaN if it has no such metric.
    fn store_bytes(&self) -> io::Result<f64> {
        let node = self.node.as_ref();
        node.map_or(Ok(f64::NAN), |node| node.metric("tidegate_store_bytes", ""))
    }

    fn resident(&self) -> io::Result<f64> {
        Ok(self.target.server.usage()?.resident_bytes as f64)
    }
}

/// The latency columns, and the steal time since it was `steal`.
fn latencies(loaded: &LoadResult, steal: Duration) -> [f64; 5] {
    let steal = processes::steal_time().saturating_sub(steal).as_secs_f64() * 1e3;
    let ms = |quantile| loaded.ms(quantile);
    [ms(0.5), ms(0.99), ms(0.999), ms(1.0), steal]
}

/// A load that can move to another thread.
fn load_task(
    target: &Target,
    connections: usize,
    keys: Keys,
    pace: Pace,
    end: End,
) -> impl FnOnce() -> io::Result<LoadResult> + Send + use<> {
    let (addr, command) = (target.addr, target.command.clone());
    let (prefix, reply) = (target.prefix, target.reply);
    move || {
        let protocol = || Box::new(Resp::new(&command, prefix, reply)) as _;
        Load { addrs: &[addr], connections, protocol: &protocol, keys, pace, end }.run()
    }
}
