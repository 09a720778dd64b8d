//! Regions that are cut off from each other: a global key has one owner, also when the region that
//! is cut off starts more nodes.

use tidegate_testkit::network;
use tidegate_testkit::process::{Cluster, ClusterOptions};

use crate::TIDEGATE;
use crate::agreed_membership::{LIMIT, QUOTA};

const EU: [usize; 3] = [0, 1, 2];
const REGIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: &["n1", "n2", "n3", "m1", "m2"],
    rules: "
domain: quota
descriptors:
  - {key: user, rate_limit: {window: 365d, requests_per_unit: 20, on_unavailable: deny,
      durability: replicated, scope: global}}
",
    sets: &["cluster.deadline=1s", "cluster.global_deadline=1s"],
    has_disks: true,
    regions: &[("eu", &["n1", "n2", "n3"]), ("us", &["m1", "m2", "m3", "m4"])],
    ..QUOTA
};

#[test]
fn a_region_that_is_cut_off_and_grows_decides_no_key_of_the_other() {
    network::run(|network| async move {
        let mut cluster = Cluster::start(TIDEGATE, REGIONS).await;
        let used = keys("used");
        for (key, count) in used.iter().zip(admitted(&cluster, &[0, 1, 2, 3, 4], &used).await) {
            assert_eq!(count, LIMIT, "{key} before the cut");
        }
        for id in ["m3", "m4"] {
            cluster.add(id, id, REGIONS);
        }
        let meshes: Vec<_> = cluster.nodes.iter().map(|node| node.mesh).collect();
        network.split(&[&meshes[..3], &meshes[3..]]);
        never_both(&cluster, &[3, 4], &used, 0).await;
        never_both(&cluster, &[3, 4], &keys("cut"), LIMIT).await;

        for node in &mut cluster.nodes[5..] {
            node.start();
        }
        for node in &mut cluster.nodes[3..] {
            node.ready(4).await;
        }
        for node in &mut cluster.nodes[..3] {
            node.ready(3).await;
        }
        never_both(&cluster, &[3, 4, 5, 6], &used, 0).await;
        let fresh = keys("grown");
        never_both(&cluster, &[3, 4, 5, 6], &fresh, LIMIT).await;

        network.heal();
        cluster.one_view().await;
        for (key, count) in fresh.iter().zip(admitted(&cluster, &[0, 3, 5], &fresh).await) {
            assert_eq!(count, 0, "{key} was used up in one region");
        }
    });
}

fn keys(prefix: &str) -> Vec<String> {
    (0..12).map(|number| format!("{prefix}-{number}")).collect()
}

async fn admitted(cluster: &Cluster, indexes: &[usize], keys: &[String]) -> Vec<usize> {
    let mut admitted = Vec::new();
    for key in keys {
        admitted.push(cluster.admitted(indexes, "quota", "user", key, LIMIT + 5).await);
    }
    admitted
}

/// Asks both regions for all keys: one of them admits `most` of each, the other one nothing.
async fn never_both(cluster: &Cluster, us: &[usize], keys: &[String], most: usize) {
    let by_eu = admitted(cluster, &EU, keys).await;
    let by_us = admitted(cluster, us, keys).await;
    println!("eu admitted {by_eu:?}, us admitted {by_us:?}");
    for ((key, eu), us) in keys.iter().zip(&by_eu).zip(&by_us) {
        assert_eq!((*eu).min(*us), 0, "{key}: both regions decided it");
        assert_eq!(eu + us, most, "{key}");
    }
    if most > 0 {
        assert!(by_eu.iter().any(|count| *count > 0), "eu decides none");
        assert!(by_us.iter().any(|count| *count > 0), "us decides none");
    }
}
