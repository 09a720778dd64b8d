//! Fills a node's disk while it writes snapshots.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use crate::cluster::{Cluster, NODES, Setup};

const VICTIM: usize = NODES - 1;
/// Enough for a small snapshot.
const DISK_SIZE: &str = "8m";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Several snapshot intervals.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn prepare(setup: &mut Setup) {
    setup.nodes[VICTIM].set_disk_size(DISK_SIZE);
}

pub(super) async fn fill(cluster: &mut Cluster) {
    let path = cluster.nodes[VICTIM].disk_from_host().join("junk");
    let mut file = File::create(&path).unwrap();
    // Whole pages, until the disk is full.
    while file.write_all(&[0; 4096]).is_ok() {}
    reports(cluster, false).await;
    tokio::time::sleep(cluster.duration).await;
    cluster.nodes[VICTIM].assert_running();
    // The space is freed when no process has the file open.
    drop(file);
    fs::remove_file(&path).unwrap();
    reports(cluster, true).await;
}

/// Waits until the node reports that snapshots succeed or fail.
async fn reports(cluster: &mut Cluster, is_written: bool) {
    let node = &cluster.nodes[VICTIM];
    let reported = async {
        while node.metric("tidegate_storage_ok").await != Ok(i64::from(is_written)) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(REPORTED_WITHIN, reported).await.is_err() {
        let what = if is_written { "are written again" } else { "are not written" };
        cluster.violations.push(format!("{} does not report that its counts {what}", node.id));
    }
}
