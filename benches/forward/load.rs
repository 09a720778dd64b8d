//! An open loop: checks that are due at fixed times, and how late their answers came.

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::door::Door;

/// What is asked, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Asked in turns.
    pub keys: &'a [String],
    /// Checks a second over all connections.
    pub per_second: u32,
    /// Each has a thread of its own and every n-th check. A check waits for its connection when the
    /// answer before took longer than `connections / per_second`, and that wait counts.
    pub connections: u32,
    /// How long.
    pub seconds: u32,
}

/// Makes a connection.
pub type Connect<'a> = &'a dyn Fn() -> io::Result<Box<dyn Door>>;

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Nanoseconds from when a check was due to its answer.
    pub latencies: Histogram<u64>,
    /// Answers that were none, or a refusal: the limit is out of reach.
    pub errors: u64,
}

/// A thread that sleeps wakes up some 60 us late, which would be the measurement. It sleeps until
/// this long before a check is due and spins from there.
const SPIN: Duration = Duration::from_micros(100);
/// Longer than any answer may take.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

impl Load<'_> {
    /// Runs it on new connections of `connect`.
    pub fn run(&self, connect: Connect<'_>) -> io::Result<Outcome> {
        let doors = (0..self.connections).map(|_| connect()).collect::<io::Result<Vec<_>>>()?;
        // All connections stand before the first check is due.
        let start = Instant::now() + Duration::from_millis(100);
        let mut all = Outcome::new();
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..)
                .zip(doors)
                .map(|(number, door)| scope.spawn(move || self.ask(start, number, door)))
                .collect();
            for one in asking {
                let one = one.join().map_err(|_| io::Error::other("a connection's thread"))?;
                all.latencies.add(&one.latencies).map_err(io::Error::other)?;
                all.errors += one.errors;
            }
            Ok(all)
        })
    }

    fn ask(&self, start: Instant, number: u32, mut door: Box<dyn Door>) -> Outcome {
        let mut outcome = Outcome::new();
        for n in (number..self.per_second * self.seconds).step_by(self.connections as usize) {
            let due = start + Duration::from_secs(1) * n / self.per_second;
            wait_until(due);
            let passed = door.check(&self.keys[n as usize % self.keys.len()]);
            let latency = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
            outcome.latencies.saturating_record(latency);
            outcome.errors += u64::from(!matches!(passed, Ok(true)));
        }
        outcome
    }
}

impl Outcome {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        Self { latencies: latencies.expect("valid bounds"), errors: 0 }
    }
}

fn wait_until(due: Instant) {
    if let Some(ahead) = due.checked_duration_since(Instant::now() + SPIN) {
        std::thread::sleep(ahead);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}
