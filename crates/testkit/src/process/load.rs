//! A steady load: clients that send at a fixed rate, however long the responses take.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::http_client::{Http, check_body};

/// Clients that send until their token is cancelled.
#[derive(Default)]
pub struct Load {
    clients: JoinSet<(SocketAddr, Results)>,
}

/// What the clients of one listener received.
#[derive(Clone, Debug)]
pub struct Results {
    pub responses: u64,
    /// Connection errors, and responses other than 200: the load never reaches its limit.
    pub errors: Vec<String>,
    /// From request to response, microseconds.
    pub micros: Histogram<u64>,
}

/// Time between two requests of a client.
const INTERVAL: Duration = Duration::from_millis(40);
/// Distinct keys of the load.
const KEYS: usize = 300;

impl Load {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `count` clients of `listener`, each with a connection of its own, until `stop`.
    pub fn add(&mut self, count: usize, listener: SocketAddr, stop: &CancellationToken) {
        for _ in 0..count {
            let number = self.clients.len();
            let stop = stop.clone();
            self.clients.spawn(async move { (listener, run(number, listener, stop).await) });
        }
    }

    /// Waits until all clients have stopped; results by listener.
    pub async fn results(self) -> BTreeMap<SocketAddr, Results> {
        let mut all: BTreeMap<SocketAddr, Results> = BTreeMap::new();
        for (listener, results) in self.clients.join_all().await {
            match all.get_mut(&listener) {
                Some(sum) => sum.add(&results),
                None => drop(all.insert(listener, results)),
            }
        }
        all
    }
}

impl Results {
    fn empty() -> Self {
        let micros = Histogram::new_with_bounds(1, 60_000_000, 3).unwrap();
        Self { responses: 0, errors: Vec::new(), micros }
    }

    pub fn add(&mut self, other: &Self) {
        self.responses += other.responses;
        self.errors.extend(other.errors.iter().cloned());
        self.micros.add(&other.micros).unwrap();
    }

    /// One line to print.
    pub fn summary(&self) -> String {
        let at = |quantile| Duration::from_micros(self.micros.value_at_quantile(quantile));
        format!(
            "{} responses, {} errors, p50 {:?}, p99 {:?}, max {:?}",
            self.responses,
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

async fn run(number: usize, listener: SocketAddr, stop: CancellationToken) -> Results {
    let http = Http::new();
    let mut results = Results::empty();
    let mut turn = tokio::time::interval_at(Instant::now() + spread(number), INTERVAL);
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
                results.responses += 1;
                let micros = u64::try_from(start.elapsed().as_micros()).unwrap();
                results.micros.saturating_record(micros);
            }
            Ok(reply) => results.errors.push(format!("{}: {}", reply.status, reply.body)),
            Err(error) => results.errors.push(error),
        }
    }
    results
}

/// Keeps the clients from sending in the same millisecond.
fn spread(number: usize) -> Duration {
    INTERVAL * u32::try_from(number % 20).unwrap() / 20
}
