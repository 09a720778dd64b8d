//! A region that is lost: the others decide its global keys once its lease has ended, with the
//! counts that were copied, and give them back when it returns.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::network::{self, Network};
use tidegate_testkit::process::{Cluster, ClusterOptions};
use tidegate_testkit::wait::until;
use tokio::time::Instant;

use crate::TIDEGATE;
use crate::agreed_membership::{LIMIT, QUOTA};

const EU: [usize; 3] = [0, 1, 2];
const US: [usize; 2] = [3, 4];
const WITNESS: usize = 5;
/// Two regions and a witness, which owns no keys.
const REGIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: &["n1", "n2", "n3", "m1", "m2", "w1"],
    rules: "
domain: quota
descriptors:
  - {key: user, rate_limit: {window: 365d, requests_per_unit: 20, on_unavailable: deny,
      durability: replicated, scope: global}}
",
    sets: &[
        "cluster.deadline=1s",
        "cluster.global_deadline=500ms",
        "cluster.regions=eu,us",
        "global.founders=n1,m1,w1",
        "global.lease=1s",
        "global.down_after=2s",
    ],
    has_disks: true,
    regions: &[("eu", &["n1", "n2", "n3"]), ("us", &["m1", "m2"]), ("w", &["w1"])],
    ..QUOTA
};
const GLOBAL_DEADLINE: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn the_keys_of_a_region_that_is_cut_off_are_decided_by_the_other() {
    network::run(|network| async move {
        let mut cluster = Cluster::start(TIDEGATE, REGIONS).await;
        every_key_is_decided(&cluster, &[0, 3]).await;
        let (used, half) = (keys("used"), keys("half"));
        assert_eq!(admitted(&cluster, &[0, 3], &used, LIMIT + 5).await, [LIMIT; KEYS]);
        assert_eq!(admitted(&cluster, &[1, 4], &half, LIMIT / 2).await, [LIMIT / 2; KEYS]);
        counts_are_copied(&cluster).await;

        let meshes: Vec<_> = cluster.nodes.iter().map(|node| node.mesh).collect();
        network.split(&[&meshes[..3], &meshes[3..]]);
        every_key_is_decided(&cluster, &US).await;
        let fresh = keys("cut");
        assert_eq!(admitted(&cluster, &US, &fresh, LIMIT + 5).await, [LIMIT; KEYS]);
        let begun = Instant::now();
        assert_eq!(admitted(&cluster, &EU, &fresh, EU.len()).await, [0; KEYS], "no lease");
        let elapsed = begun.elapsed();
        assert!(
            elapsed < 6 * GLOBAL_DEADLINE,
            "{elapsed:?}: 24 checks that have nothing to wait for"
        );
        assert_eq!(admitted(&cluster, &US, &used, LIMIT + 5).await, [0; KEYS], "it has copies");
        assert_eq!(admitted(&cluster, &US, &half, LIMIT + 5).await, [LIMIT / 2; KEYS]);

        for (region, reason) in [("us", "us is the only home"), ("eu", "eu is no home")] {
            let told = said_to_be_lost(&cluster, region);
            assert!(told.contains(reason), "{told}");
        }

        network.heal();
        // An owner is named once the nodes of its region are known again.
        cluster.one_view().await;
        until("both regions own keys again", TIMEOUT, async || {
            let mut owners = BTreeSet::new();
            for key in keys("back") {
                owners.insert(cluster.nodes[WITNESS].owner("quota", "user", &key).await);
            }
            let has = |first: char| owners.iter().any(|owner| owner.starts_with(first));
            (has('n') && has('m')).then_some(()).ok_or_else(|| format!("{owners:?}"))
        })
        .await;
        every_key_is_decided(&cluster, &EU).await;
        for used in [used, half, fresh] {
            assert_eq!(admitted(&cluster, &[0, 3], &used, LIMIT + 5).await, [0; KEYS]);
        }
    });
}

/// Without a disk each node that restarts is another voter, which takes the regions some leases to
/// agree on: it is ready only then.
#[test]
fn nodes_without_disks_that_restart_as_they_become_ready_leave_the_regions_a_majority() {
    network::run(|_network| async move {
        let options = ClusterOptions { has_disks: false, ..REGIONS };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        every_key_is_decided(&cluster, &[0, 3]).await;
        let used = keys("used");
        assert_eq!(admitted(&cluster, &[0, 3], &used, LIMIT + 5).await, [LIMIT; KEYS]);
        counts_are_copied(&cluster).await;
        for index in [0, 3, WITNESS, 1] {
            let node = &mut cluster.nodes[index];
            node.terminate();
            assert_eq!(node.exit_code(TIMEOUT).await, Some(0));
            node.start();
            let node = &cluster.nodes[index];
            let is_ready =
                async || node.is_ready().await?.then_some(()).ok_or_else(|| "not yet".to_owned());
            until("it is ready", 2 * TIMEOUT, is_ready).await;
        }
        every_key_is_decided(&cluster, &[0, 3]).await;
        assert_eq!(admitted(&cluster, &[0, 3], &used, LIMIT + 5).await, [0; KEYS]);
    });
}

/// A node gets its ranges back as soon as it is a member. It has the lease of its region by then,
/// which is renewed less often than a check waits.
#[test]
fn every_global_key_is_decided_while_a_node_restarts() {
    network::run(|_network| async move {
        let sets = &[
            "cluster.deadline=1s",
            "cluster.global_deadline=500ms",
            "cluster.regions=eu,us",
            "global.founders=n1,m1,w1",
            "global.lease=5s",
        ];
        let mut cluster = Cluster::start(TIDEGATE, ClusterOptions { sets, ..REGIONS }).await;
        every_key_is_decided(&cluster, &[0, 3]).await;
        cluster.nodes[1].terminate();
        assert_eq!(cluster.nodes[1].exit_code(TIMEOUT).await, Some(0));
        cluster.nodes[1].start();
        let (mut round, mut ready_rounds) = (0, 0);
        while ready_rounds < 20 {
            for key in keys(&format!("round-{round}")) {
                for index in [0, 3] {
                    let count = cluster.admitted(&[index], "quota", "user", &key, 1).await;
                    assert_eq!(count, 1, "{key} at {index}, {ready_rounds} rounds after it");
                }
            }
            round += 1;
            ready_rounds += i32::from(cluster.nodes[1].is_ready().await == Ok(true));
        }
    });
}

/// The region that returns reaches the witness, but not the one that decides its keys: it is no
/// home before it has the counts. Nor does it matter that one of its nodes dies as they arrive.
#[test]
fn a_region_is_a_home_again_only_when_it_has_the_counts() {
    network::run(|network| async move {
        let mut cluster = Cluster::start(TIDEGATE, REGIONS).await;
        every_key_is_decided(&cluster, &[0, 3]).await;
        // Otherwise the region that returns would not reach the node that could make it a home.
        // Each attempt is a draw of two.
        until("the witness leads", 4 * TIMEOUT, async || {
            let leader = cluster.nodes[WITNESS].global_map().await?.leader;
            if leader.as_deref() == Some("w1") {
                return Ok(());
            }
            if let Some(leads) = cluster.nodes.iter().find(|node| Some(&node.id) == leader.as_ref())
            {
                leads.pause();
                tokio::time::sleep(2 * GLOBAL_LEASE).await;
                leads.resume();
            }
            Err(format!("{leader:?} led"))
        })
        .await;
        let used = used_up_while_eu_is_away(&cluster, &network).await;

        // Only the link between the two regions is cut now.
        let meshes: Vec<_> = cluster.nodes.iter().map(|node| node.mesh).collect();
        network.split(&[&meshes[..3], &meshes[3..5]]);
        until("eu is a member of the global map again", TIMEOUT, async || {
            let stands = cluster.nodes[WITNESS].global_members().await?;
            let has_eu = stands.iter().any(|id| id.starts_with('n'));
            has_eu.then_some(()).ok_or_else(|| format!("{stands:?}"))
        })
        .await;
        tokio::time::sleep(3 * GLOBAL_LEASE).await;
        assert_eq!(admitted(&cluster, &EU, &used, EU.len()).await, [0; KEYS], "no home");
        every_key_is_decided(&cluster, &US).await;

        let copied = async || {
            cluster.nodes[3].metric("tidegate_global_copied_total").await
                + cluster.nodes[4].metric("tidegate_global_copied_total").await
        };
        let before = copied().await;
        network.heal();
        until("counts arrive in eu", TIMEOUT, async || {
            (copied().await > before).then_some(()).ok_or_else(|| "none is copied".to_owned())
        })
        .await;
        cluster.nodes[1].kill();
        is_a_home(&cluster, 'n').await;
        every_key_is_decided(&cluster, &[0, 2]).await;
        assert_eq!(admitted(&cluster, &[0, 2, 3], &used, LIMIT + 5).await, [0; KEYS]);
    });
}

/// The other region is lost as soon as one is a home again: the one that returned has the counts of
/// all keys by then, not only of those that it decides.
#[test]
fn a_region_that_has_just_returned_has_the_counts_of_the_other() {
    network::run(|network| async move {
        let mut cluster = Cluster::start(TIDEGATE, REGIONS).await;
        let used = used_up_while_eu_is_away(&cluster, &network).await;

        network.heal();
        is_a_home(&cluster, 'n').await;
        for index in US {
            cluster.nodes[index].kill();
        }
        every_key_is_decided(&cluster, &EU).await;
        assert_eq!(admitted(&cluster, &EU, &used, LIMIT + 5).await, [0; KEYS]);
    });
}

/// The node that stands for a region is killed: another one of it does, and the region keeps its
/// lease and its keys. So it does when all nodes have been killed: the map is on their disks.
#[test]
fn another_node_stands_for_a_region_when_one_is_killed() {
    network::run(|_| async move {
        let mut cluster = Cluster::start(TIDEGATE, REGIONS).await;
        every_key_is_decided(&cluster, &[0, 3]).await;
        cluster.nodes[0].kill();
        every_key_is_decided(&cluster, &[1, 2]).await;
        // Longer than the region would keep its lease without the vote of the other.
        tokio::time::sleep(3 * GLOBAL_LEASE).await;
        every_key_is_decided(&cluster, &[1, 3]).await;
        until("another node of eu is a member of the global map", TIMEOUT, async || {
            let stands = cluster.nodes[1].global_members().await?;
            let has_eu = stands.iter().any(|id| ["n2", "n3"].contains(&id.as_str()));
            has_eu.then_some(()).ok_or_else(|| format!("{stands:?}"))
        })
        .await;
        for node in cluster.nodes.iter_mut().filter(|node| node.is_running()) {
            node.kill();
        }
        for node in &mut cluster.nodes {
            node.start();
        }
        every_key_is_decided(&cluster, &[0, 1, 3]).await;
    });
}

/// Two of three global voters lose their disks. Their regions are founded anew, and no global key
/// is decided until an operator recovers the agreement of the regions from the third.
#[test]
fn an_agreement_of_the_regions_is_recovered_by_hand() {
    network::run(|_| async move {
        let mut cluster = Cluster::start(TIDEGATE, REGIONS).await;
        every_key_is_decided(&cluster, &[0, 3]).await;
        let lost = [EU.as_slice(), &[WITNESS]].concat();
        for &index in &lost {
            cluster.nodes[index].kill();
            cluster.nodes[index].wipe_disk();
        }
        for &index in &lost {
            cluster.nodes[index].start();
        }
        let m1 = &mut cluster.nodes[3];
        let id = m1.global_map().await.unwrap().cluster;
        m1.kill();
        let mut recover = Command::new(TIDEGATE);
        recover.args(["recover", "--global", "--yes", "--cluster", &id, "--config"]);
        recover.arg(m1.dir.join("cluster.toml"));
        for set in REGIONS.sets {
            recover.args(["--set", set]);
        }
        let done = recover.output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
        assert!(text.contains("m1 is the only voter of the agreement of the regions"), "{text}");
        m1.start();
        every_key_is_decided(&cluster, &[0, 3]).await;
        until("all regions stand for themselves again", TIMEOUT, async || {
            let stands = cluster.nodes[WITNESS].global_members().await?;
            let has = |first: char| stands.iter().any(|id| id.starts_with(first));
            let have_all = ['n', 'm', 'w'].into_iter().all(has);
            have_all.then_some(()).ok_or_else(|| format!("{stands:?}"))
        })
        .await;
    });
}

const GLOBAL_LEASE: Duration = Duration::from_secs(1);
const KEYS: usize = 8;

fn keys(prefix: &str) -> Vec<String> {
    (0..KEYS).map(|number| format!("{prefix}-{number}")).collect()
}

async fn admitted(
    cluster: &Cluster,
    indexes: &[usize],
    keys: &[String],
    checks: usize,
) -> [usize; KEYS] {
    let mut admitted = [0; KEYS];
    for (key, count) in keys.iter().zip(&mut admitted) {
        *count = cluster.admitted(indexes, "quota", "user", key, checks).await;
    }
    println!("{keys:?} at {indexes:?}: {admitted:?}");
    admitted
}

/// The answer to an operator at `us` who says that `region` is lost.
fn said_to_be_lost(cluster: &Cluster, region: &str) -> String {
    let url = format!("http://{}", cluster.nodes[US[0]].admin);
    let mut order = Command::new(TIDEGATE);
    let told = order.args(["regions", "--lost", region, "--url", &url]).output().unwrap();
    assert!(!told.status.success(), "{told:?}");
    String::from_utf8_lossy(&told.stderr).into_owned()
}

/// Cuts `eu` off and uses keys up in `us`, which decides all of them then.
async fn used_up_while_eu_is_away(cluster: &Cluster, network: &Network) -> Vec<String> {
    every_key_is_decided(cluster, &[0, 3]).await;
    let meshes: Vec<_> = cluster.nodes.iter().map(|node| node.mesh).collect();
    network.split(&[&meshes[..3], &meshes[3..]]);
    every_key_is_decided(cluster, &US).await;
    let used = keys("used");
    assert_eq!(admitted(cluster, &US, &used, LIMIT + 5).await, [LIMIT; KEYS]);
    used
}

/// Waits until the other region has all counts: confirmed hits are at a replica of the same one.
async fn counts_are_copied(cluster: &Cluster) {
    // Changes enter the queues every `cluster.replication_interval`, 5 ms.
    tokio::time::sleep(Duration::from_millis(25)).await;
    for node in &cluster.nodes {
        until("it has sent all changes", TIMEOUT, async || {
            let lag = node.metric("tidegate_replication_lag_ms").await;
            (lag == 0).then_some(()).ok_or_else(|| format!("{} lags {lag} ms", node.id))
        })
        .await;
    }
}

/// Waits until a node whose name begins with `initial` decides a key.
async fn is_a_home(cluster: &Cluster, initial: char) {
    until("the region decides keys", TIMEOUT, async || {
        for key in keys("back") {
            if cluster.nodes[WITNESS].owner("quota", "user", &key).await.starts_with(initial) {
                return Ok(());
            }
        }
        Err("all are decided elsewhere".to_owned())
    })
    .await;
}

/// Waits until each of these nodes gets an exact answer for keys of all homes.
async fn every_key_is_decided(cluster: &Cluster, indexes: &[usize]) {
    let mut round = 0;
    until("all keys are decided", TIMEOUT, async || {
        round += 1;
        for number in 0..KEYS {
            for &index in indexes {
                let key = format!("probe-{index}-{round}-{number}");
                if cluster.admitted(&[index], "quota", "user", &key, 1).await == 0 {
                    return Err(format!("{key} of round {round} is not decided"));
                }
            }
        }
        Ok(())
    })
    .await;
}
