//! A disk that is full while counts are to be written on it.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use crate::arena::{Arena, NODES, Setup};

const VICTIM: usize = NODES - 1;
/// Enough for a small file of counts.
const DISK_SIZE: &str = "8m";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Several intervals of the snapshot.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn prepare(setup: &mut Setup) {
    setup.nodes[VICTIM].set_disk_size(DISK_SIZE);
}

pub(super) async fn fill(arena: &mut Arena) {
    let path = arena.nodes[VICTIM].disk_from_outside().join("junk");
    let mut file = File::create(&path).unwrap();
    // Whole pages, until there is no room for one more.
    while file.write_all(&[0; 4096]).is_ok() {}
    reports(arena, false).await;
    tokio::time::sleep(arena.hold).await;
    arena.nodes[VICTIM].assert_runs();
    // Its space is free when no process has it open any more.
    drop(file);
    fs::remove_file(&path).unwrap();
    reports(arena, true).await;
}

/// Waits until the node reports whether its counts are written.
async fn reports(arena: &mut Arena, is_written: bool) {
    let node = &arena.nodes[VICTIM];
    let reported = async {
        while node.metric("tidegate_storage_ok").await != Ok(i64::from(is_written)) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(REPORTED_WITHIN, reported).await.is_err() {
        let what = if is_written { "are written again" } else { "are not written" };
        arena.broken.push(format!("{} does not report that its counts {what}", node.id));
    }
}
