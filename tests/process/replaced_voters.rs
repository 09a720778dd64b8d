//! Nodes that are killed and replaced under new names, one by one: the voters follow, so that any
//! number of nodes may be replaced.

use std::time::Duration;

use tidegate_testkit::http_client::hits_body;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node};
use tidegate_testkit::variable;
use tidegate_testkit::wait::until;
use tokio::time::Instant;

use crate::TIDEGATE;
use crate::agreed_membership::{LIMIT, QUOTA};

/// More than the three nodes of the start, so that none of them is left. `TIDEGATE_REPLACEMENTS`
/// has another number.
const REPLACEMENTS: u32 = 5;
/// Generous: what it took is printed, and about a second on an idle machine.
const DECIDED_WITHIN: Duration = Duration::from_secs(15);
const REPLACED_WITHIN: Duration = Duration::from_secs(60);
/// Keys of each node that is killed.
const KEYS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_killed_one_by_one_are_replaced_as_voters() {
    let replacements = variable::number("TIDEGATE_REPLACEMENTS", REPLACEMENTS) as usize;
    let sets = &["cluster.deadline=1s", "cluster.voters_from=auto", "cluster.replace_after=1s"];
    let options = ClusterOptions { sets, ..QUOTA };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    // Used a little between each two deaths, over the whole test.
    let lasting: Vec<String> = (0..KEYS).map(|number| format!("lasting-{number}")).collect();
    let mut counts = vec![0; lasting.len()];
    for round in 0..replacements {
        // Nodes are killed in the order of their starts.
        let (id, living) = (cluster.nodes[round].id.clone(), [round + 1, round + 2]);
        let keys = cluster.owned("quota", "user", &format!("round-{round}"), &id, KEYS).await;
        for key in &keys {
            let admitted = cluster.admitted(&living, "quota", "user", key, LIMIT / 2).await;
            assert_eq!(admitted, LIMIT / 2, "{key} of {id}");
        }
        for (key, count) in lasting.iter().zip(&mut counts) {
            *count += cluster.admitted(&living, "quota", "user", key, 2).await;
        }
        let epoch = epoch(&cluster.nodes[round + 1]).await;

        cluster.nodes[round].kill();
        let slowest = decided_again(&cluster, &living, &keys).await;
        println!("{id} was killed: both others decide its keys after {slowest:?}");
        for key in &keys {
            let admitted = cluster.admitted(&living, "quota", "user", key, LIMIT).await;
            assert_eq!(admitted, LIMIT / 2, "{key} of {id} after its death");
        }
        let name = format!("n{}", round + 4);
        cluster.join(&name, options).await;
        let took = votes(&cluster, &[round + 1, round + 2, round + 3], epoch).await;
        println!("{name} votes in its place after {took:?}");
    }
    let running = [replacements, replacements + 1, replacements + 2];
    for (key, count) in lasting.iter().zip(&mut counts) {
        *count += cluster.admitted(&running, "quota", "user", key, LIMIT).await;
    }
    println!("keys used over {replacements} replacements have admitted {counts:?}");
    assert_eq!(counts, vec![LIMIT; lasting.len()]);
}

/// A node leaves in order, and another one is killed as soon as its process has ended: the copies
/// that the first one held have been made again elsewhere by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_copies_that_a_node_took_along_are_made_again_at_once() {
    let nodes = &["n1", "n2", "n3", "n4"];
    let sets = &["cluster.deadline=1s"];
    let mut cluster = Cluster::start(TIDEGATE, ClusterOptions { nodes, sets, ..QUOTA }).await;
    let keys = cluster.owned("quota", "user", "user", "n1", 40).await;
    for key in &keys {
        assert_eq!(cluster.admitted(&[0], "quota", "user", key, LIMIT).await, LIMIT);
    }
    cluster.nodes[3].terminate();
    assert_eq!(cluster.nodes[3].exit_code(Duration::from_secs(20)).await, Some(0));
    cluster.nodes[0].kill();
    decided_again(&cluster, &[1, 2], &keys).await;
    for key in &keys {
        let admitted = cluster.admitted(&[1, 2], "quota", "user", key, LIMIT).await;
        assert_eq!(admitted, 0, "{key} after the death of its owner");
    }
}

/// Reads all keys at each of the nodes until owners answer: the fallback refuses. Returns how long
/// it took.
async fn decided_again(cluster: &Cluster, indexes: &[usize], keys: &[String]) -> Duration {
    let mut waiting: Vec<(usize, &String)> =
        indexes.iter().flat_map(|index| keys.iter().map(|key| (*index, key))).collect();
    let ((), took) = until("owners decide", DECIDED_WITHIN, async || {
        let mut refused = Vec::new();
        for (index, key) in std::mem::take(&mut waiting) {
            let node = &cluster.nodes[index];
            let reply = cluster.http.check(node.http, &hits_body("quota", "user", key, 0)).await?;
            if reply.status != 200 {
                refused.push((index, key));
            }
        }
        waiting = refused;
        if waiting.is_empty() { Ok(()) } else { Err(format!("{waiting:?} are refused")) }
    })
    .await;
    took
}

/// Waits until no dead voter counts any more: since the map with `epoch` the dead member was
/// evicted, the new one admitted, the change of voters begun and completed.
async fn votes(cluster: &Cluster, indexes: &[usize], epoch: u64) -> Duration {
    const CHANGES: u64 = 4;
    let mut last = (Vec::new(), Instant::now());
    let ((), took) = until("the voters are replaced", REPLACED_WITHIN, async || {
        let mut epochs = Vec::new();
        for index in indexes {
            let ownership = cluster.nodes[*index].status().await?.ownership.ok_or("no cluster")?;
            if !ownership.missed.is_empty() || ownership.epoch_number < epoch + CHANGES {
                return Err(format!("{ownership:?}"));
            }
            epochs.push(ownership.epoch_number);
        }
        if epochs != last.0 {
            last = (epochs, Instant::now());
        }
        // Longer than a change of voters lasts, should there have been more changes than these.
        if last.1.elapsed() > Duration::from_secs(1) { Ok(()) } else { Err(format!("{last:?}")) }
    })
    .await;
    took
}

async fn epoch(node: &Node) -> u64 {
    node.status().await.unwrap().ownership.unwrap().epoch_number
}
