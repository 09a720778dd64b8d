//! Steps the system clock of one node. libfaketime is preloaded into the node and reads the offset
//! from a file. The monotonic clock is unaffected.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tidegate_testkit::wait::until;

use crate::cluster::{Cluster, NODES, Setup};
use crate::group::WINDOW_S;
use crate::node::Node;

const VICTIM: usize = NODES - 1;
/// Two windows: a node that used this clock would admit a whole limit again.
const JUMP: &str = "+600s";
/// The node reads its clock once a second; the decision clock follows a step after ten seconds.
const SEEN_WITHIN: Duration = Duration::from_secs(8);
/// Time beyond the fault's duration: to start, to converge and to count.
const MARGIN: Duration = Duration::from_secs(25);

const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// Path of libfaketime, or how to install it.
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
    // Read the file at each reading of the clock, not every ten seconds.
    victim.set_variable("FAKETIME_NO_CACHE", "1");
}

pub(super) async fn jump(cluster: &mut Cluster) {
    let victim = &cluster.nodes[VICTIM];
    fs::write(offset_file(victim), format!("{JUMP}\n")).unwrap();
    // Checks that the step has reached the node.
    let reported = async || match victim.metric("tidegate_clock_skewed").await? {
        1 => Ok(()),
        _ => Err("it does not report clock skew".to_owned()),
    };
    until("the node reports that its clock was stepped", SEEN_WITHIN, reported).await;
    tokio::time::sleep(cluster.duration).await;
    fs::write(offset_file(victim), "+0s\n").unwrap();
}

/// Waits until the rest of the current window is longer than the trial. Each key of the group then
/// admits its limit once, whatever a node's clock shows.
#[expect(clippy::disallowed_methods, reason = "what matters is the window that the nodes see")]
pub(crate) async fn wait_for_window(duration: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let left = Duration::from_secs(WINDOW_S - now.as_secs() % WINDOW_S);
    if left < duration + MARGIN {
        tokio::time::sleep(left + Duration::from_secs(1)).await;
    }
}

fn offset_file(node: &Node) -> PathBuf {
    node.folder().join("clock")
}
