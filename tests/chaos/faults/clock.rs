//! A system clock that jumps. libfaketime stands between one node and the system's clock and reads
//! from a file by how much to lie; the monotonic clock stays as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tidegate_testkit::wait::until;

use crate::arena::{Arena, NODES, Setup};
use crate::group::WINDOW_S;
use crate::node::Node;

/// The node whose clock jumps.
const VICTIM: usize = NODES - 1;
/// Two windows: a node that used this clock would admit a whole limit again.
const JUMP: &str = "+600s";
/// The node reads its clock once a second, and follows a jump after ten.
const SEEN_WITHIN: Duration = Duration::from_secs(8);
/// Beyond the time that the fault is held: to start, to settle and to count.
const MARGIN: Duration = Duration::from_secs(25);

const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// Where libfaketime is; what to do when it is nowhere.
pub(crate) fn library() -> Result<&'static str, String> {
    let found = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
    found.ok_or_else(|| "no libfaketime: apt-get install libfaketime".to_owned())
}

pub(super) fn prepare(setup: &mut Setup) {
    let victim = &mut setup.nodes[VICTIM];
    let file = offset_file(victim);
    fs::create_dir_all(victim.folder()).unwrap();
    fs::write(&file, "+0s\n").unwrap();
    victim.set_variable("LD_PRELOAD", library().unwrap());
    victim.set_variable("FAKETIME_TIMESTAMP_FILE", &file.display().to_string());
    victim.set_variable("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    // It reads the file at each reading of the clock, not every ten seconds.
    victim.set_variable("FAKETIME_NO_CACHE", "1");
}

pub(super) async fn jump(arena: &mut Arena) {
    let victim = &arena.nodes[VICTIM];
    fs::write(offset_file(victim), format!("{JUMP}\n")).unwrap();
    // A fault that does not reach the node would be one that it always survives.
    let noticed = async || match victim.metric("tidegate_clock_skewed").await? {
        1 => Ok(()),
        _ => Err("it takes its clock for right".to_owned()),
    };
    until("the node notices that its clock jumped", SEEN_WITHIN, noticed).await;
    tokio::time::sleep(arena.hold).await;
    fs::write(offset_file(victim), "+0s\n").unwrap();
}

/// Waits until so much of the present window is left that nothing of the fault meets the next one:
/// then each key of the window admits its limit once, whatever the time of a clock.
#[expect(clippy::disallowed_methods, reason = "what matters is the window that the nodes see")]
pub(crate) async fn far_from_the_next_window(hold: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let left = Duration::from_secs(WINDOW_S - now.as_secs() % WINDOW_S);
    if left < hold + MARGIN {
        tokio::time::sleep(left + Duration::from_secs(1)).await;
    }
}

fn offset_file(node: &Node) -> PathBuf {
    node.folder().join("clock")
}
