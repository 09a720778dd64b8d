//! A disk that is full while counts are to be written on it.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use crate::arena::{Arena, NODES, Setup};
use crate::node::Node;
use crate::wait::until;

const VICTIM: usize = NODES - 1;
/// Enough for a small file of counts.
const DISK_SIZE: &str = "8m";
/// Several intervals of the snapshot.
const SAID_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn prepare(setup: &mut Setup) {
    setup.nodes[VICTIM].set_disk_size(DISK_SIZE);
}

pub(super) async fn fill(arena: &mut Arena) {
    let path = arena.nodes[VICTIM].disk_from_outside().join("junk");
    let mut file = File::create(&path).unwrap();
    // Whole pages, until there is no room for one more.
    while file.write_all(&[0; 4096]).is_ok() {}
    says(&arena.nodes[VICTIM], false).await;
    tokio::time::sleep(arena.hold).await;
    arena.nodes[VICTIM].assert_runs();
    fs::remove_file(&path).unwrap();
    says(&arena.nodes[VICTIM], true).await;
}

/// Waits until `node` says whether its counts are written.
async fn says(node: &Node, is_written: bool) {
    let said = async || match node.metric("tidegate_storage_ok").await? {
        said if said == i64::from(is_written) => Ok(()),
        said => Err(format!("it says {said}")),
    };
    until(&format!("{} says that it writes: {is_written}", node.id), SAID_WITHIN, said).await;
}
