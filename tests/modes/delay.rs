//! How long an announcement of an eventual count takes: from the reply to a check at one node until
//! another node shows it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate_testkit::http_client::{Http, hits_body};
use tidegate_testkit::loadgen::{Clients, Run};
use tokio::runtime;

use crate::nodes::Nodes;
use crate::rules::{DOMAIN, PROBE, PROBE_LIMIT};

/// Probes, of which the median is taken.
const PROBES: u32 = 15;
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_micros(300);
/// A probe takes no longer.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// The other node has what it counted before.
const KNOWN_AFTER: Duration = Duration::from_millis(20);

/// The median while `load` is repeated.
pub(crate) fn under_load(nodes: &Nodes, clients: &mut Clients, load: &Run) -> Duration {
    let first = nodes.next_key();
    let [from, to, ..] = &nodes.cluster.nodes[..] else { panic!("too few nodes") };
    let (from, to) = (from.http, to.http);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let probes = scope.spawn(|| {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let http = Http::new();
            let mut delays = Vec::new();
            for number in 0..PROBES {
                let value = format!("{first}-{number}");
                delays.push(runtime.block_on(probe(&http, from, to, &value)));
            }
            is_over.store(true, Ordering::Relaxed);
            delays.sort_unstable();
            delays[delays.len() / 2]
        });
        while !is_over.load(Ordering::Relaxed) && !probes.is_finished() {
            clients.run(load, |_| {}).unwrap();
        }
        probes.join().unwrap()
    })
}

/// `to` uses up most of a fresh limit, `from` adds a hit, and `to` is asked until it knows.
async fn probe(
    http: &Http,
    from: std::net::SocketAddr,
    to: std::net::SocketAddr,
    value: &str,
) -> Duration {
    let left = 2;
    let most = hits_body(DOMAIN, PROBE, value, u64::from(PROBE_LIMIT - left));
    assert_eq!(http.check(to, &most).await.unwrap().status, 200);
    tokio::time::sleep(KNOWN_AFTER).await;
    let one = hits_body(DOMAIN, PROBE, value, 1);
    assert_eq!(http.check(from, &one).await.unwrap().status, 200);
    let counted = Instant::now();
    let look = hits_body(DOMAIN, PROBE, value, 0);
    loop {
        let reply = http.check(to, &look).await.unwrap();
        let remaining = reply.header("x-ratelimit-remaining").unwrap();
        if remaining.parse::<u32>().unwrap() < left || counted.elapsed() > LOST_AFTER {
            return counted.elapsed();
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
