//! Regression seeds, grouped by the defect that they found.
//!
//! A seed gives another scenario when the drawing changes, so each defect is also covered by a test
//! near the code. A seed takes half a second.

use std::path::Path;
use std::process::Command;

/// A node that rejoined after the load had never used a key and therefore had not received its
/// eventual counters, which are sent to the nodes that use the key. From its first hit on it must
/// have the other nodes' counts.
#[test]
fn a_rejoined_node_receives_an_eventual_key_on_its_first_hit() {
    for seed in [60, 82, 161] {
        passes(seed);
    }
}

/// Nodes that joined the smaller side of a partition once formed a majority with it, and two nodes
/// owned one token until the partition healed.
#[test]
fn joining_nodes_do_not_make_a_minority_a_majority() {
    for seed in [1_050, 1_133] {
        passes(seed);
    }
}

/// A node that crashed and restarted was treated as a one-way partition, because of the pings that
/// were unanswered when it crashed.
#[test]
fn a_restarted_node_is_accepted_at_once() {
    passes(730);
}

/// An owner lost its lease with three voters. When it returned there were two voters, and it
/// regarded their quorum as proof of uninterrupted ownership. Other nodes had decided its keys
/// meanwhile.
#[test]
fn a_quorum_of_fewer_voters_does_not_restore_ownership() {
    passes(1_418);
}

/// After a partition of three seconds the two ends dropped their connection seconds apart. One end
/// refused the other's new connection, so the partition continued at the limits.
#[test]
fn a_connection_that_one_end_has_dropped_is_replaced() {
    passes(876);
}

/// A flood had filled all stores. Each node waited without a limit until the next owners had room
/// for the counts that they refused. Meanwhile the keys of a node that had lost its lease had no
/// owner.
#[test]
fn a_handoff_does_not_wait_for_ever_for_room() {
    for seed in [108, 189] {
        passes(seed);
    }
}

fn passes(seed: u64) {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("seeds");
    let seed = seed.to_string();
    let mut sim = Command::new(env!("CARGO_BIN_EXE_tidegate-sim"));
    let output = sim.args(["--seed", &seed, "--logs"]).arg(logs).output();
    let output = output.expect("the simulator runs");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}");
}
