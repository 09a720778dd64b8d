//! A cluster under load that is upgraded node by node to a release whose protocol is one version
//! ahead, and a node of the old release that comes too late. The same from an earlier release to
//! this one, with clients that notice nothing.
//!
//! `scripts/check-long upgrade` builds both: this release with `tidegate_next_wire`, and an earlier
//! commit.

#![allow(clippy::print_stdout, reason = "what was measured belongs in the output of the test")]
#![allow(clippy::disallowed_methods, reason = "what the script says")]

use std::time::Duration;

use tidegate_cluster::mesh::codec::VERSION;
use tidegate_testkit::process::{Cluster, ClusterOptions, Load, Node, THREE};
use tidegate_testkit::wait::until;
use tokio_util::sync::CancellationToken;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");
const LIMIT: usize = 20;
const RULES: &str = "
domain: quota
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 20}, durability: replicated, on_unavailable: deny}
";
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: "",
    sets: &["cluster.voters_from=auto", "cluster.deadline=1s"],
    has_disks: true,
    has_drain_delay: false,
    regions: &[],
};
const TIMEOUT: Duration = Duration::from_secs(30);
/// What the next release speaks.
const NEXT: u8 = VERSION + 1;
const ALL: [usize; 3] = [0, 1, 2];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_upgraded_node_by_node() {
    let next =
        std::env::var("TIDEGATE_NEXT").expect("the next release: scripts/check-long upgrade");
    let next: &'static str = next.leak();
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let keys: Vec<String> = (0..6).map(|number| format!("user-{number}")).collect();
    let mut counts = vec![0; keys.len()];
    count(&cluster, &keys, 4, &mut counts).await;

    for index in ALL {
        // The old release still knows its way back in, as when an upgrade is rolled back.
        let programs = if index == 2 { &[next][..] } else { &[next, TIDEGATE, next] };
        for program in programs {
            version(&cluster.nodes, VERSION).await;
            restart(&mut cluster, index, program).await;
            count(&cluster, &keys, 1, &mut counts).await;
        }
    }
    version(&cluster.nodes, NEXT).await;
    count(&cluster, &keys, LIMIT, &mut counts).await;
    assert_eq!(counts, vec![LIMIT; keys.len()], "exact over all restarts");

    let late = cluster.add("n4", "n4", OPTIONS);
    late.start();
    late.logged(&format!("it speaks version {NEXT} of the mesh protocol"), 1).await;
    late.is_ready().await.expect_err("it listens only as a member");
    restart(&mut cluster, 0, next).await;
    version(&cluster.nodes[..3], NEXT).await;
}

/// Each node goes to this release, back and to it again, as far as the one before has to be able to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_notice_the_upgrade_from_an_earlier_release() {
    let earlier = std::env::var("TIDEGATE_PREVIOUS")
        .expect("the program of an earlier release: scripts/check-long upgrade");
    let earlier: &'static str = earlier.leak();
    let rules = RULES.replace("quota", "load").replace("key: user", "key: few")
        + "  - {key: user, rate_limit: {unit: day, requests_per_unit: 100000000}, durability: replicated}\n";
    let options = ClusterOptions { rules: &rules, has_drain_delay: true, ..OPTIONS };
    let mut cluster = Cluster::start(earlier, options).await;
    let keys: Vec<String> = (0..30).map(|number| format!("few-{number}")).collect();
    let mut counts = vec![0; keys.len()];
    count_of(&cluster, ("load", "few"), &keys, 4, &mut counts).await;

    let mut clients: Vec<Clients> = cluster.nodes.iter().map(Clients::of).collect();
    for index in ALL {
        let programs = if index == 2 { &[TIDEGATE][..] } else { &[TIDEGATE, earlier, TIDEGATE] };
        for program in programs {
            // A load balancer sends to the two others meanwhile.
            clients.remove(index).end().await;
            restart(&mut cluster, index, program).await;
            clients.insert(index, Clients::of(&cluster.nodes[index]));
            count_of(&cluster, ("load", "few"), &keys, 1, &mut counts).await;
        }
    }
    count_of(&cluster, ("load", "few"), &keys, LIMIT, &mut counts).await;
    assert_eq!(counts, vec![LIMIT; keys.len()], "exact over all restarts");
    for clients in clients {
        clients.end().await;
    }
}

/// Clients of one node.
struct Clients {
    load: Load,
    stop: CancellationToken,
}

impl Clients {
    fn of(node: &Node) -> Self {
        let (mut load, stop) = (Load::new(), CancellationToken::new());
        load.add(3, node.http, &stop);
        Self { load, stop }
    }

    /// Ends them once they have an answer to what they sent. None had an error.
    async fn end(self) {
        self.stop.cancel();
        for (listener, seen) in self.load.results().await {
            println!("{listener}: {}", seen.summary());
            assert_eq!(seen.errors, Vec::<String>::new(), "{listener}");
        }
    }
}

async fn restart(cluster: &mut Cluster, index: usize, program: &'static str) {
    let node = &mut cluster.nodes[index];
    node.terminate();
    assert_eq!(node.exit_code(TIMEOUT).await, Some(0));
    node.upgrade(program);
    node.start();
    for node in &mut cluster.nodes[..3] {
        node.ready(3).await;
    }
}

/// Waits until every node has a map in which `version` is in force.
async fn version(nodes: &[Node], version: u8) {
    until(&format!("version {version} is in force"), TIMEOUT, async || {
        for node in nodes {
            let map = node.map().await?;
            if map.version != version {
                return Err(format!("{} has {}", node.id, map.version));
            }
        }
        Ok(())
    })
    .await;
}

async fn count(cluster: &Cluster, keys: &[String], checks: usize, counts: &mut [usize]) {
    count_of(cluster, ("quota", "user"), keys, checks, counts).await;
}

async fn count_of(
    cluster: &Cluster,
    (domain, name): (&str, &str),
    keys: &[String],
    checks: usize,
    counts: &mut [usize],
) {
    for (key, count) in keys.iter().zip(counts.iter_mut()) {
        *count += cluster.admitted(&ALL, domain, name, key, checks).await;
    }
}
