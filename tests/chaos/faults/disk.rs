//! A disk that is full while counts are to be written on it.

use std::fs::{self, File};
use std::io::Write;

use crate::arena::{Arena, NODES, Setup};

const VICTIM: usize = NODES - 1;
/// Enough for an empty file of counts.
const DISK_SIZE: &str = "4m";

pub(super) fn prepare(setup: &mut Setup) {
    setup.nodes[VICTIM].set_disk_size(DISK_SIZE);
}

pub(super) async fn fill(arena: &mut Arena) {
    let path = arena.nodes[VICTIM].disk_from_outside().join("junk");
    let mut file = File::create(&path).unwrap();
    // Whole pages, until there is no room for one more.
    while file.write_all(&[0; 4096]).is_ok() {}
    tokio::time::sleep(arena.hold).await;
    arena.nodes[VICTIM].assert_runs();
    fs::remove_file(&path).unwrap();
}
