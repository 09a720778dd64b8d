//! Faults of processes: killed, paused, restarted, joining and leaving.

use std::time::Duration;

use crate::cluster::{Cluster, NODES};
use crate::network::NODES_MAX;

pub(super) async fn kill_one(cluster: &mut Cluster) {
    let victim = cluster.draw();
    cluster.kill(victim);
    tokio::time::sleep(cluster.duration).await;
    cluster.start(victim).await;
}

/// All at once; only the counts on disk remain.
pub(super) async fn kill_all(cluster: &mut Cluster) {
    // Longer than `storage.interval`, so that earlier counts are on disk.
    tokio::time::sleep(cluster.duration).await;
    let running = cluster.running();
    for node_index in &running {
        cluster.kill(*node_index);
    }
    for node_index in &running {
        cluster.nodes[*node_index].start();
    }
    cluster.await_convergence().await;
    for node_index in running {
        cluster.load.open(node_index, true);
    }
}

/// The node receives no requests while it is stopped, and receives them again as soon as it
/// continues: it must not decide keys that it no longer owns.
pub(super) async fn pause_one(cluster: &mut Cluster, time: Duration) {
    let victim = cluster.draw();
    cluster.load.open(victim, false);
    cluster.nodes[victim].pause();
    tokio::time::sleep(time).await;
    cluster.nodes[victim].resume();
    cluster.load.open(victim, true);
    tokio::time::sleep(cluster.duration).await;
}

pub(super) async fn pause_three(cluster: &mut Cluster, time: Duration) {
    cluster.duration /= 4;
    for _ in 0..3 {
        pause_one(cluster, time).await;
    }
}

pub(super) async fn restart_all(cluster: &mut Cluster) {
    for node_index in cluster.random.order(NODES) {
        cluster.leave(node_index).await;
        cluster.start(node_index).await;
        cluster.await_convergence().await;
    }
    tokio::time::sleep(cluster.duration).await;
}

pub(super) async fn join(cluster: &mut Cluster) {
    cluster.start(NODES).await;
    tokio::time::sleep(cluster.duration).await;
}

/// Each successor joins before the next death; of five voters at most one is missing.
pub(super) async fn replace_three(cluster: &mut Cluster) {
    let order = cluster.random.order(NODES);
    for (victim, successor) in order.into_iter().zip(NODES..NODES_MAX) {
        cluster.kill(victim);
        cluster.start(successor).await;
        cluster.await_convergence().await;
        tokio::time::sleep(cluster.duration / 3).await;
    }
}

pub(super) async fn leave(cluster: &mut Cluster) {
    let node_index = cluster.draw();
    cluster.leave(node_index).await;
    tokio::time::sleep(cluster.duration).await;
}
