//! What one open dashboard costs three nodes that answer 10,000 checks a second: their processor
//! time with the page and without it, in turn; and their memory, also with a page that reads
//! nothing of what it is sent.
//!
//! `scripts/check-long page` runs it with the release build.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use tidegate_testkit::loadgen::grpc::Grpc;
use tidegate_testkit::loadgen::{Clients, End, Keys, Pace, Protocol, Run, Spread};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::variable;

use crate::TIDEGATE;

const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    // A part of the keys is over its limit, so that the page has some to show.
    rules: "
domain: page
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 60}}
",
    config: "",
    // They share the machine with the client.
    sets: &["node.threads=1"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
const KEYS: u64 = 10_000;
const PER_SECOND: u64 = 10_000;
const CONNECTIONS: usize = 48;
/// Each with the page and without it.
const ROUNDS: u32 = 8;
const ROUND: Duration = Duration::from_secs(5);
/// Percent of a core.
const PAGE_MAX: f64 = 1.0;
/// What a page that reads nothing may add: the buffers of its connection and one picture.
const GROWTH_MAX: u64 = 4 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_page_costs_little_and_grows_nothing() {
    let cluster = Cluster::start_alone(TIDEGATE, OPTIONS).await;
    tokio::task::block_in_place(|| measure(&cluster));
}

fn measure(cluster: &Cluster) {
    let listeners: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.grpc).collect();
    let protocol = || -> Box<dyn Protocol> { Box::new(Grpc::new("page", "user")) };
    let mut clients = Clients::connect(&listeners, CONNECTIONS, &protocol).unwrap();
    let mut load = || {
        let run = Run {
            keys: Keys::Random(KEYS),
            pace: Pace::Open { per_second: PER_SECOND, burst: 1 },
            end: End::After(ROUND),
            spread: Spread::Even,
        };
        let before: f64 = cluster.nodes.iter().map(Node::cpu_seconds).sum();
        let result = clients.run(&run, |_| {}).unwrap();
        let spent: f64 = cluster.nodes.iter().map(Node::cpu_seconds).sum::<f64>() - before;
        assert_eq!(result.failed, 0, "checks failed");
        (100.0 * spent / result.took.as_secs_f64(), result.rate())
    };
    // Connections, counters and copies are there before it is measured.
    load();
    let rounds = variable::number("TIDEGATE_PAGE_ROUNDS", ROUNDS);
    let mut more = Vec::new();
    for round in 0..rounds {
        let (without, rate) = load();
        let page = Page::open(&cluster.nodes[0], true);
        let (with, _) = load();
        let pictures = page.close();
        println!(
            "round {round}: {rate:.0} checks/s, {without:.1} % of a core without a page, {with:.1} % \
             with one that got {pictures} pictures"
        );
        assert!(pictures > 0, "the page got nothing");
        more.push(with - without);
    }
    more.sort_by(f64::total_cmp);
    let median = more[more.len() / 2];

    let resident = || -> u64 { cluster.nodes.iter().map(Node::resident_bytes).sum() };
    let (deaf, before) = (Page::open(&cluster.nodes[0], false), resident());
    for _ in 0..rounds {
        load();
    }
    let grown = resident().saturating_sub(before);
    deaf.close();
    println!(
        "a page costs {median:.2} % of a core (median of {rounds}, all nodes together); with one \
         that reads nothing the nodes grew by {} KiB",
        grown >> 10
    );
    assert!(median < PAGE_MAX, "a page costs {median:.2} % of a core");
    assert!(grown < GROWTH_MAX, "the nodes grew by {grown} bytes");
}

/// A client of `/events`.
struct Page {
    stream: TcpStream,
    /// Counts the pictures; none where it does not read.
    reader: Option<thread::JoinHandle<usize>>,
}

impl Page {
    fn open(node: &Node, reads: bool) -> Self {
        let mut stream = TcpStream::connect(node.admin).unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
        let reader = reads.then(|| {
            let mut stream = stream.try_clone().unwrap();
            thread::spawn(move || {
                let (mut pictures, mut chunk) = (0, vec![0; 1 << 20]);
                while let Ok(read @ 1..) = stream.read(&mut chunk) {
                    let text = String::from_utf8_lossy(&chunk[..read]);
                    pictures += text.matches("data: ").count();
                }
                pictures
            })
        });
        Self { stream, reader }
    }

    /// How many pictures it got.
    fn close(self) -> usize {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
        self.reader.map_or(0, |reader| reader.join().unwrap())
    }
}
