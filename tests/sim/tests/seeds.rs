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

/// Two nodes lost the large datagrams between them, and a third one crashed. One of the two was
/// evicted, because the other waited for it, and admitted again before anything was taken over. The
/// keys of the crashed node had no owner for as long as the datagrams were lost.
#[test]
fn a_member_that_does_not_release_is_not_admitted_again_at_once() {
    passes(325);
}

/// A hit that was in flight when its owner crashed was taken for one that the next owner had lost.
#[test]
fn a_hit_in_flight_at_a_crash_is_lost_once() {
    passes(305);
}

/// With clocks of different speeds a peer of another region, pinged once a second, was ahead more
/// than a machine may stand still. A node dropped its lease every second, and its region decided no
/// global key.
#[test]
fn a_clock_that_runs_slower_is_not_one_that_stood_still() {
    passes(307);
}

/// The lease of a region lacked a majority after a global voter was replaced, until the next ping.
#[test]
fn a_new_global_voter_is_asked_for_the_lease_at_once() {
    for seed in [157, 1_127] {
        passes(seed);
    }
}

/// A voter whose disk took more than a second lost its lease when the voters changed: it followed a
/// map only once it was saved.
#[test]
fn a_slow_disk_costs_no_lease() {
    passes(145);
}

/// A region was a home again before the nodes of the others saw its nodes. These copied nothing,
/// and its keys continued with the counts of before.
#[test]
fn a_region_that_comes_into_sight_late_gets_the_counts_of_its_keys() {
    passes(227);
}

/// Two nodes lost the large datagrams between them, and one of them led. It alone was waited for,
/// by the other, which could not tell it. The keys of a crashed node had no owner meanwhile.
#[test]
fn a_leader_that_cannot_hand_over_says_so_itself() {
    passes(465);
}

/// The crashed owner of a key and its replica, cut off 72 ms later, both had its counts, and no
/// other node: two faults, of which the oracle saw one.
#[test]
fn a_replica_that_is_cut_off_after_a_crash_explains_what_is_lost() {
    passes(863);
}

/// Three voters, of which one had crashed, became five instead of three that live.
#[test]
fn a_voter_that_is_gone_adds_no_voters() {
    passes(865);
}

/// A node was restarted while its slow disk wrote the map of before. That one was taken for a later
/// one in which another process has its place, and the node ended.
#[test]
fn a_map_that_is_saved_late_displaces_nobody() {
    passes(55);
}

/// A leader had a request to join from a run of a node that crashed. Once it led again it admitted
/// that run in place of the living one, which ended.
#[test]
fn a_leader_forgets_who_wants_to_join_when_it_stops_leading() {
    passes(125);
}

/// Two nodes lost each other and one was evicted, because the other waited for it. It was kept out
/// for `cluster.settle_after` also when another voter crashed, and no majority was left without it.
#[test]
fn a_voter_that_was_evicted_for_waiting_returns_when_it_is_needed() {
    passes(155);
}

/// An evicted node that had been a member for longer than `cluster.forget_after` was forgotten at
/// once, so limits were divided among the others while it had its share.
#[test]
fn a_member_is_forgotten_only_long_after_it_was_evicted() {
    passes(75);
}

/// A region reached the witness and not the home of its keys, and decided them without their
/// counts.
#[test]
fn a_region_that_does_not_reach_the_home_of_its_keys_stays_out() {
    passes(797);
}

/// A region was cut off before the homes were agreed on. It took itself for the only home, so its
/// nodes had all shares of a limit.
#[test]
fn a_region_that_knows_no_agreement_has_its_part_of_a_limit() {
    passes(3367);
}

/// A region returned, and the other one was cut off at once: it had the counts of the keys that
/// moved, and not of those that had stayed.
#[test]
fn a_region_that_returns_has_the_counts_of_all_keys() {
    passes(47);
}

/// While its disk was full, a node led for less than the time between two ticks, and was asked to
/// join by a run that ended later. When it led again it admitted that run in place of the living
/// one.
#[test]
fn a_leader_forgets_who_wanted_to_join_in_an_earlier_term() {
    passes(175);
}

/// All clocks were set, and a region restarted. Its second node stepped its clock back to that of
/// the members while a message to the first had failed: the pause before the next one was measured
/// by that clock, and lasted 70 minutes.
#[test]
fn a_clock_that_is_stepped_back_delays_no_message() {
    passes(197);
}

/// A region was struck off at the start, and the one that took its keys over was lost before it had
/// their counts, as was the next: the first had counts only for the homes it left to.
#[test]
fn a_region_that_was_struck_off_sends_its_last_counts_to_later_homes() {
    passes(5057);
}

/// Two nodes lost the large datagrams between them. Each attempt of one to copy counts to the other
/// was taken for progress. So neither was evicted, and keys of a crashed node had no owner.
#[test]
fn a_copy_that_never_arrives_is_no_progress() {
    passes(1_725);
}

/// A home restarted with other clocks while it was cut off, for less than it takes to strike it
/// off. The other refused its counts, so they were lost with it.
#[test]
fn a_home_of_other_clocks_loses_its_keys_before_it_decides_them() {
    passes(577);
}

/// A region returned, and its only node that stands for it crashed before the homes had copied
/// their counts. It became a home that decides nothing, until it was struck off again.
#[test]
fn a_region_that_has_just_died_is_no_home() {
    passes(5_117);
}

/// The owner granted hits together with a verdict, and the verdict waited for a replica to have the
/// grant until the client had been refused.
#[test]
fn a_check_does_not_wait_for_a_grant_until_it_is_too_late() {
    passes(100_734);
}

/// A core was killed and started again. An edge that did not follow it kept its connection to the
/// process before, and answered for the keys of that core by `on_unavailable` until it had ended.
#[test]
fn an_edge_dials_a_core_that_was_started_again() {
    for seed in [126, 276] {
        passes(seed);
    }
}

/// All clocks were set back, and an edge was killed and started again. Cores took it for an earlier
/// start of itself, and kept the connection to the one that had ended for as long as 16 s.
#[test]
fn an_edge_that_starts_again_with_its_clock_set_back_is_accepted() {
    for seed in [4_166, 4_516] {
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
