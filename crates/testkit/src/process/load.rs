//! A steady load: clients that each ask at a fixed pace, whatever the answers do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::http_client::{Http, check_body};

/// Clients that ask until they are told to stop.
pub struct Load {
    clients: JoinSet<(SocketAddr, DedupCache)>,
}

/// What the clients of one door saw.
#[derive(Clone, Debug)]
pub struct DedupCache {
    pub answers: u64,
    /// Connection errors, and answers other than 200: the load never reaches its limit.
    pub errors: Vec<String>,
    /// From request to answer, microseconds.
    pub micros: Histogram<u64>,
}

/// A client's pause between two requests.
const PACE: Duration = Duration::from_millis(40);
/// Distinct keys that the load asks for.
const KEYS: usize = 300;

impl Load {
    pub fn new() -> Self {
        Self { clients: JoinSet::new() }
    }

    /// Adds `count` clients of `listener`, each with a connection of its own, until `stop`.
    pub fn add(&mut self, count: usize, listener: SocketAddr, stop: &CancellationToken) {
        for _ in 0..count {
            let number = self.clients.len();
            let stop = stop.clone();
            self.clients.spawn(async move { (listener, ask(number, listener, stop).await) });
        }
    }

    /// What was seen, by door, once all clients have stopped.
    pub async fn seen(self) -> BTreeMap<SocketAddr, DedupCache> {
        let mut all: BTreeMap<SocketAddr, DedupCache> = BTreeMap::new();
        for (listener, seen) in self.clients.join_all().await {
            match all.get_mut(&listener) {
                Some(sum) => sum.add(&seen),
                None => drop(all.insert(listener, seen)),
            }
        }
        all
    }
}

impl DedupCache {
    fn nothing() -> Self {
        let micros = Histogram::new_with_bounds(1, 60_000_000, 3).unwrap();
        Self { answers: 0, errors: Vec::new(), micros }
    }

    pub fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.errors.extend(other.errors.iter().cloned());
        self.micros.add(&other.micros).unwrap();
    }

    /// In one line, for people.
    pub fn summary(&self) -> String {
        let at = |quantile| Duration::from_micros(self.micros.value_at_quantile(quantile));
        format!(
            "{} answers, {} errors, p50 {:?}, p99 {:?}, max {:?}",
            self.answers,
            self.errors.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        )
    }

    pub fn p99(&self) -> Duration {
        Duration::from_micros(self.micros.value_at_quantile(0.99))
    }
}

async fn ask(number: usize, listener: SocketAddr, stop: CancellationToken) -> DedupCache {
    let http = Http::new();
    let mut seen = DedupCache::nothing();
    let mut turn = tokio::time::interval_at(Instant::now() + spread(number), PACE);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0.. {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = turn.tick() => {}
        }
        let key = format!("load-{}", (number * 31 + round * 7) % KEYS);
        let start = Instant::now();
        match http.check(listener, &check_body("load", "user", &key)).await {
            Ok(reply) if reply.status == 200 => {
                seen.answers += 1;
                let micros = u64::try_from(start.elapsed().as_micros()).unwrap();
                seen.micros.saturating_record(micros);
            }
            Ok(reply) => seen.errors.push(format!("{}: {}", reply.status, reply.body)),
            Err(error) => seen.errors.push(error),
        }
    }
    seen
}

/// So that the clients do not all ask in the same millisecond.
fn spread(number: usize) -> Duration {
    PACE * u32::try_from(number % 20).unwrap() / 20
}
