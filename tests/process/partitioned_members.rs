//! A node that is cut off decides nothing once its lease is over: after a restart, after the others
//! have forgotten it, and while another process has its name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::admin::report::MapMemberState;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::network::{self, Network};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node};
use tidegate_testkit::wait::until;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;
use crate::agreed_membership::{LIMIT, QUOTA, admitted, keys, new_keys, opens_without_a_majority};

/// Three times what a node waits for its peers before it gives up.
const RESTARTED_FOR: Duration = Duration::from_secs(15);
/// Longer than a cluster rests before copies are dropped, and than these are unchanged.
const DROPPED_AFTER: Duration = Duration::from_secs(40);
/// The states of an evicted node; the second if it votes.
const GONE: [MapMemberState; 2] = [MapMemberState::Down, MapMemberState::Lost];

#[test]
fn a_node_that_restarts_in_a_partition_decides_nothing() {
    network::run(|network| restarts_in_a_partition(network, true));
}

#[test]
fn a_node_without_a_disk_that_restarts_in_a_partition_decides_nothing() {
    network::run(|network| restarts_in_a_partition(network, false));
}

/// While n1 and n2 do not reach each other, others stand in for them as replicas. These reach all
/// nodes, and would drop what they are no replicas of, and with it the only other copy.
#[test]
fn a_copy_of_a_stand_in_stays_as_long_as_any_two_nodes_do_not_reach_each_other() {
    network::run(|network| async move {
        let options = ClusterOptions { nodes: &["n1", "n2", "n3", "n4"], ..QUOTA };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        let meshes: Vec<_> = cluster.nodes.iter().map(|node| node.mesh).collect();
        network.split(&[&meshes[..1], &meshes[1..2]]);
        // A check that waits for a copy at a node that has just been cut off is refused, and counts.
        let mut round = 0;
        until("all counts are confirmed", Duration::from_secs(30), async || {
            round += 1;
            for number in 0..40 {
                let key = format!("round-{round}-{number}");
                if cluster.admitted(&[2, 3], "quota", "user", &key, 1).await == 0 {
                    return Err(format!("{key} is not"));
                }
            }
            Ok(())
        })
        .await;
        let keys: Vec<String> = (0..40).map(|number| format!("user-{number}")).collect();
        for key in &keys {
            let half = cluster.admitted(&[2, 3], "quota", "user", key, LIMIT / 2).await;
            assert_eq!(half, LIMIT / 2, "{key}");
        }
        tokio::time::sleep(DROPPED_AFTER).await;
        cluster.nodes[0].kill();
        gone_from(&cluster.nodes[2..], "n1").await;
        let fresh = new_keys("fresh");
        assert_eq!(admitted(&cluster, &[2, 3], &fresh).await, [LIMIT; 6], "all have an owner");
        assert_eq!(admitted(&cluster, &[2, 3], &keys).await, [LIMIT / 2; 40]);
    });
}

async fn restarts_in_a_partition(network: Network, has_disks: bool) {
    let mut cluster = Cluster::start(TIDEGATE, ClusterOptions { has_disks, ..QUOTA }).await;
    let (used, fresh) = (keys(&cluster).await, new_keys("fresh"));
    assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
    cut_off(&network, &cluster);
    cluster.nodes[2].kill();
    cluster.nodes[2].start();
    let start = Instant::now();
    if has_disks {
        opens_without_a_majority(&cluster, &cluster.nodes[2]).await;
    }
    gone_from(&cluster.nodes[..2], "n3").await;
    assert_eq!(admitted(&cluster, &[0, 1], &used).await, [0; 6]);
    let mut turn = 0;
    while start.elapsed() < RESTARTED_FOR {
        let key = &fresh[turn % fresh.len()];
        assert_ne!(cluster.nodes[2].is_ready().await, Ok(true), "n3 is ready");
        assert_eq!(cluster.admitted(&[2], "quota", "user", key, 1).await, 0);
        // The others do not wait for the end.
        if turn == 0 {
            assert_eq!(admitted(&cluster, &[0, 1], &fresh).await, [LIMIT; 6]);
        }
        turn += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(admitted(&cluster, &[2], &used).await, [0; 6]);

    network.heal();
    cluster.one_view().await;
    assert_eq!(admitted(&cluster, &[2], &used).await, [0; 6]);
    assert_eq!(admitted(&cluster, &[2], &fresh).await, [0; 6]);
    assert_eq!(admitted(&cluster, &[0, 1, 2], &new_keys("healed")).await, [LIMIT; 6]);
}

#[test]
fn a_partition_that_lasts_longer_than_members_are_remembered_has_one_side_that_decides() {
    network::run(|network| async move {
        let sets = &["cluster.deadline=1s", "cluster.forget_after=10s"];
        let options = ClusterOptions { has_disks: true, sets, ..QUOTA };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        let used = keys(&cluster).await;
        assert_eq!(admitted(&cluster, &[0, 1, 2], &used).await, [LIMIT; 6]);
        cut_off(&network, &cluster);
        let cut = Instant::now();
        lost_its_lease(&cluster.nodes[2]).await;
        gone_from(&cluster.nodes[..2], "n3").await;
        assert_eq!(admitted(&cluster, &[0, 1], &used).await, [0; 6]);

        let (fresh, mut turn, mut reloaded) = (new_keys("fresh"), 0, false);
        while cut.elapsed() < Duration::from_secs(25) {
            // Any change on the side of the minority: it counted members anew at such.
            if !reloaded && cut.elapsed() > Duration::from_secs(14) {
                let more = "  - {key: more, rate_limit: {unit: day, requests_per_unit: 1}}\n";
                cluster.nodes[2].write_rules(&format!("{}{more}", QUOTA.rules));
                reloaded = true;
            }
            assert_eq!(cluster.nodes[2].is_ready().await, Ok(false));
            for keys in [&used, &fresh] {
                let key = &keys[turn % keys.len()];
                assert_eq!(cluster.admitted(&[2], "quota", "user", key, 1).await, 0, "{key}");
            }
            if turn == 0 {
                assert_eq!(admitted(&cluster, &[0, 1], &fresh).await, [LIMIT; 6]);
            }
            turn += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("n3 was asked {} times in {:?} and admitted nothing", 2 * turn, cut.elapsed());
        let rules = cluster.nodes[2].status().await.unwrap().rule_book;
        assert_eq!(rules.rules, 2, "the change was seen");

        network.heal();
        cluster.one_view().await;
        for keys in [&used, &fresh] {
            assert_eq!(admitted(&cluster, &[0, 1, 2], keys).await, [0; 6]);
        }
        assert_eq!(admitted(&cluster, &[0, 1, 2], &new_keys("healed")).await, [LIMIT; 6]);
    });
}

/// Two nodes lose each other, and one of them is evicted because the other waits for it. When that
/// one dies no majority is left without the evicted node, so it is not kept out for the rest of
/// `cluster.settle_after`.
#[test]
fn an_evicted_voter_returns_at_once_when_another_one_dies() {
    network::run(|network| async move {
        let sets = &["cluster.deadline=1s", "cluster.settle_after=8s"];
        let options = ClusterOptions { has_disks: true, sets, ..QUOTA };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        let leader = cluster.nodes[0].map().await.unwrap().leader.expect("a leader");
        let place =
            |cluster: &Cluster, id: &str| cluster.nodes.iter().position(|node| node.id == id);
        let leads = place(&cluster, &leader).expect("it is one of the nodes");
        let others: Vec<usize> = (0..3).filter(|index| *index != leads).collect();
        let [one, other] = [0, 1].map(|index| cluster.nodes[others[index]].mesh);
        network.split(&[&[one], &[other]]);
        cluster.add("n4", "n4", options).start();
        let is_evicted = async || {
            let map = cluster.nodes[leads].map().await?;
            let mut members = map.members.into_iter();
            let lost = members.find(|member| GONE.contains(&member.state));
            lost.map(|member| member.node).ok_or_else(|| "both are members".to_owned())
        };
        let what = "one of the two is evicted";
        let (evicted, took) = until(what, Duration::from_secs(30), is_evicted).await;
        println!("{evicted} was evicted after {took:?}; {leader} leads");
        let stays = place(&cluster, &evicted).expect("it is one of the two");
        let dies = others.into_iter().find(|index| *index != stays).expect("the other one");

        network.heal();
        cluster.nodes[dies].kill();
        let killed = Instant::now();
        for key in new_keys("fresh") {
            until("the key has an owner", Duration::from_secs(20), async || {
                match cluster.admitted(&[leads], "quota", "user", &key, 1).await {
                    1 => Ok(()),
                    _ => Err("it is refused".to_owned()),
                }
            })
            .await;
        }
        println!("all keys have an owner {:?} after the death", killed.elapsed());
        assert!(killed.elapsed() < Duration::from_secs(5), "after {:?}", killed.elapsed());
    });
}

/// A node drains and does not reach one of those that take its keys over: it goes on deciding
/// these, and another node, which has handed over already, confirms its hits. When it is killed
/// they count.
#[test]
fn hits_that_a_draining_node_admits_late_survive_it() {
    network::run(|network| async move {
        let nodes = &["n1", "n2", "n3", "n4"];
        let sets = &["cluster.deadline=1s"];
        let options = ClusterOptions { nodes, rules: WATCHED, sets, has_disks: true, ..QUOTA };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        let keys = cluster.owned("quota", "durable", "user", "n1", 24).await;
        let [leaves, next] = [0, 3].map(|index| cluster.nodes[index].mesh);
        network.split(&[&[leaves], &[next]]);
        cluster.nodes[0].terminate();
        let is_draining =
            async || match cluster.nodes[1].members().await?.iter().find(|it| it.0 == "n1") {
                Some((_, "draining")) => Ok(()),
                other => Err(format!("n1 is {other:?}")),
            };
        until("n1 drains", Duration::from_secs(10), is_draining).await;
        // The others have handed over what they had by then.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut late = Vec::new();
        for key in &keys {
            late.push(cluster.admitted(&[0], "quota", "durable", key, LIMIT / 2).await);
        }
        println!("n1 admitted {late:?} while it drained");
        assert!(late.contains(&(LIMIT / 2)), "it decides what it cannot hand over");
        cluster.nodes[0].kill();
        for (key, late) in keys.iter().zip(late) {
            let mut rest = 0;
            until("the key has an owner", Duration::from_secs(30), async || {
                rest += cluster.admitted(&[1, 2], "quota", "durable", key, 1).await;
                (rest > 0).then_some(()).ok_or_else(|| "it is refused".to_owned())
            })
            .await;
            rest += cluster.admitted(&[1, 2], "quota", "durable", key, 2 * LIMIT).await;
            assert_eq!(late + rest, LIMIT, "{key}: {late} at n1, {rest} later");
        }
    });
}

/// A dead node is evicted although another voter stalls again and again, for less time than would
/// cost it its lease.
#[test]
fn a_voter_that_stalls_now_and_then_notices_a_dead_one() {
    network::run(|_| async move {
        let sets = &["cluster.deadline=1s"];
        let mut cluster = Cluster::start(TIDEGATE, ClusterOptions { sets, ..QUOTA }).await;
        let leader = cluster.nodes[0].map().await.unwrap().leader.expect("a leader");
        let leads = cluster.nodes.iter().position(|node| node.id == leader).expect("one of them");
        let [dies, stalls] = [1, 2].map(|after| (leads + after) % 3);
        cluster.nodes[dies].kill();
        let dead = cluster.nodes[dies].id.clone();
        let killed = Instant::now();
        let is_evicted = async || {
            cluster.nodes[stalls].pause();
            tokio::time::sleep(Duration::from_millis(300)).await;
            cluster.nodes[stalls].resume();
            tokio::time::sleep(Duration::from_millis(500)).await;
            let map = cluster.nodes[leads].map().await?;
            let mut gone = map.members.iter().filter(|member| GONE.contains(&member.state));
            gone.any(|member| member.node == dead).then_some(()).ok_or_else(|| format!("{map:?}"))
        };
        until("the dead node is evicted", Duration::from_secs(20), is_evicted).await;
        println!("evicted {:?} after its death", killed.elapsed());
    });
}

/// Enough for every admitted hit of this test, so that nothing but ownership refuses one.
const WATCHED: &str = "
domain: quota
descriptors:
  - {key: watched, rate_limit: {window: 365d, requests_per_unit: 1000000, on_unavailable: deny}}
  - {key: durable, rate_limit:
      {window: 365d, requests_per_unit: 20, on_unavailable: deny, durability: replicated}}
";
/// Long, so that the first process has time left when the second one joins.
const LONG_LEASE: &[&str] = &["cluster.deadline=1s", "cluster.lease=5s", "cluster.down_after=6s"];

#[test]
fn two_processes_of_one_name_never_both_decide() {
    network::run(|network| async move {
        let options = ClusterOptions { rules: WATCHED, sets: LONG_LEASE, ..QUOTA };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        let keys = cluster.owned("quota", "watched", "user", "n3", 8).await;
        let durable = cluster.owned("quota", "durable", "user", "n3", 3).await;
        let mut counts = vec![0; durable.len()];
        count_durable(&cluster, &[0, 2], &durable, &mut counts).await;

        cluster.add("n3", "n3-again", options);
        let [n1, n2, old, new] = [0, 1, 2, 3].map(|index| cluster.nodes[index].mesh);
        let stop = CancellationToken::new();
        let by_old = watch(cluster.nodes[2].http, &keys, &stop);
        let by_others = watch(cluster.nodes[0].http, &keys, &stop);
        network.split(&[&[n1, n2, new], &[old]]);
        let cut = Instant::now();
        cluster.nodes[3].start();
        // It decides, but no replica has what it counts.
        count_durable(&cluster, &[2], &durable, &mut counts).await;
        lost_its_lease(&cluster.nodes[2]).await;
        println!("the first process lost its lease {:?} after the cut", cut.elapsed());
        for index in [0, 1, 3] {
            cluster.nodes[index].ready(3).await;
        }
        println!("the second process is ready {:?} after the cut", cut.elapsed());
        let after_cut = |(_, answered): &(Instant, Instant)| *answered > cut + HELD_AT_THE_CUT;
        until("the keys of n3 are decided again", Duration::from_secs(30), async || {
            let is_missing = |checks: &Vec<_>| !checks.iter().any(after_cut);
            match by_others.lock().iter().position(is_missing) {
                Some(index) => Err(format!("{} is refused", keys[index])),
                None => Ok(()),
            }
        })
        .await;
        count_durable(&cluster, &[2, 0, 3], &durable, &mut counts).await;
        stop.cancel();
        for (index, key) in keys.iter().enumerate() {
            let (by_old, by_others) = (by_old.lock(), by_others.lock());
            let last = by_old[index].iter().map(|(sent, _)| *sent).max().expect("it owned it");
            let next = by_others[index].iter().filter(|check| after_cut(check));
            let next = next.map(|(_, answered)| *answered).min().expect("it was seen above");
            println!(
                "{key}: last by the first process {:?} after the cut, then by others after {:?}",
                last.duration_since(cut),
                next.duration_since(cut)
            );
            assert!(last < next, "both decided {key}");
        }

        // The two see each other. Whichever of them goes on, a key has admitted its limit at most
        // when the others decide it.
        network.heal();
        let refused = async |cluster: &Cluster| {
            cluster.nodes[0].verdicts("policy").await + cluster.nodes[1].verdicts("policy").await
        };
        until("owners refuse the durable keys", Duration::from_secs(60), async || {
            let (before, by_policy) = (counts.clone(), refused(&cluster).await);
            count_durable(&cluster, &[0, 1], &durable, &mut counts).await;
            if counts == before && refused(&cluster).await == by_policy {
                Ok(())
            } else {
                Err(format!("{counts:?}"))
            }
        })
        .await;
        // Hits that were counted and not confirmed may reach a replica once the network is there
        // again, so that a key admits less.
        assert!(counts.iter().all(|count| *count <= LIMIT), "of durable keys: {counts:?}");
    });
}

/// How long the process that remains is watched: each of the two bumps its generation for a second.
const REMAINS_FOR: Duration = Duration::from_secs(5);

#[test]
fn of_two_processes_of_one_name_one_goes_on() {
    network::run(|network| async move {
        let mut cluster = Cluster::start(TIDEGATE, QUOTA).await;
        cluster.add("n3", "n3-again", QUOTA);
        let [n1, n2, old, new] = [0, 1, 2, 3].map(|index| cluster.nodes[index].mesh);
        network.split(&[&[n1, n2, new], &[old]]);
        cluster.nodes[3].start();
        for index in [0, 1, 3] {
            cluster.nodes[index].ready(3).await;
        }

        network.heal();
        let mut ended = [None, None];
        let mut end = async |cluster: &mut Cluster| {
            for (ended, node) in ended.iter_mut().zip(&mut cluster.nodes[2..]) {
                *ended = ended.or_else(|| node.has_ended());
            }
            ended
        };
        let ((), took) =
            until("one of the two ends", Duration::from_secs(60), async || {
                match end(&mut cluster).await {
                    [None, None] => Err("both run".to_owned()),
                    _ => Ok(()),
                }
            })
            .await;
        println!("one of the two ended {took:?} after the network healed");
        let since = Instant::now();
        while since.elapsed() < REMAINS_FOR {
            let ended = end(&mut cluster).await;
            assert!(ended.contains(&None), "both ended: {ended:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.one_view().await;
        assert_eq!(admitted(&cluster, &[0, 1], &keys(&cluster).await).await, [LIMIT; 6]);
    });
}

/// What was sent to the owner before the cut is answered by then.
const HELD_AT_THE_CUT: Duration = Duration::from_secs(1);

/// Ten more checks of each key.
async fn count_durable(
    cluster: &Cluster,
    indexes: &[usize],
    keys: &[String],
    counts: &mut [usize],
) {
    for (key, count) in keys.iter().zip(counts.iter_mut()) {
        *count += cluster.admitted(indexes, "quota", "durable", key, 10).await;
    }
    println!("durable keys have admitted {counts:?}");
}

/// When each admitted check was sent and answered, by key.
type Admitted = Vec<Vec<(Instant, Instant)>>;

/// Checks all keys in turn, through one node, until `stop`. Returns what was admitted so far.
fn watch(listener: SocketAddr, keys: &[String], stop: &CancellationToken) -> Arc<Mutex<Admitted>> {
    let (keys, stop): (Arc<[String]>, _) = (keys.into(), stop.clone());
    let admitted = Arc::new(Mutex::new(vec![Vec::new(); keys.len()]));
    let seen = admitted.clone();
    tokio::spawn(async move {
        let http = Http::new();
        while !stop.is_cancelled() {
            for (index, key) in keys.iter().enumerate() {
                let sent = Instant::now();
                // It may not listen yet, or not any more.
                let reply = http.check(listener, &check_body("quota", "watched", key)).await;
                if reply.is_ok_and(|reply| reply.status == 200) {
                    admitted.lock()[index].push((sent, Instant::now()));
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
    seen
}

/// Cuts n3 off from n1 and n2.
fn cut_off(network: &Network, cluster: &Cluster) {
    let [n1, n2, n3] = [0, 1, 2].map(|index| cluster.nodes[index].mesh);
    network.split(&[&[n1, n2], &[n3]]);
}

async fn lost_its_lease(node: &Node) {
    until("it loses its lease", Duration::from_secs(20), async || {
        if node.is_ready().await? { Err("it is ready".to_owned()) } else { Ok(()) }
    })
    .await;
}

/// Waits until `nodes` have evicted `id` and own its keys.
async fn gone_from(nodes: &[Node], id: &str) {
    for node in nodes {
        until("it is evicted", Duration::from_secs(30), async || {
            let status = node.status().await?;
            let ownership = status.ownership.as_ref().ok_or("no cluster")?;
            let share: f64 = status
                .members
                .iter()
                .filter(|one| one.id == node.id)
                .map(|one| one.ring_share)
                .sum();
            let is_gone = status.members.iter().all(|member| member.id != id);
            let owns = (ownership.decides - share).abs() < 0.001;
            if is_gone && owns { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }
}
