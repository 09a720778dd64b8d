//! A draining node finishes its requests, and its peers see the state at once.

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tidegate::admin::report::MapMemberState;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Load, Node, THREE};
use tidegate_testkit::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;

/// The queue lets one hit pass a second: the second is held for one.
const RULES: &str = "
domain: load
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100000000}
  - key: queue
    rate_limit: {window: 2s, requests_per_unit: 1, algorithm: leaky_bucket, queue: 5}
";

/// A busy machine may need more than the default of 10 ms, and late owners are not the subject.
const DEADLINE: &[&str] = &["cluster.deadline=100ms"];

const AUTH: &str = "
[auth]
domain = \"load\"
[[auth.descriptors]]
entries = [{ key = \"queue\", header = \"x-queue\" }]
";

/// Who then removes the machine cuts nothing off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_to_drain_ends_when_nothing_is_in_flight() {
    let sets = &["limits.header_timeout=60s", "limits.drain_timeout=3s"];
    let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let node = &cluster.nodes[2];
    let mut unfinished = TcpStream::connect(node.http).await.unwrap();
    unfinished.write_all(b"POST /v1/check HTTP/1.1\r\nhost: t\r\n").await.unwrap();
    let url = format!("http://{}", node.admin);
    let mut drain = Command::new(TIDEGATE);
    drain.env_clear().args(["drain", "--url", &url]);
    let drained = tokio::task::spawn_blocking(move || drain.output().unwrap()).await.unwrap();
    assert!(drained.status.success(), "{drained:?}");
    let mut left = Vec::new();
    let ended = timeout(Duration::from_secs(1), unfinished.read_to_end(&mut left)).await;
    assert!(ended.is_ok(), "it has a connection still");
}

/// As a supervisor does that restarts whatever ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_to_drain_knows_the_next_process_from_the_one_that_it_drained() {
    let options = ClusterOptions { nodes: THREE, rules: RULES, ..ClusterOptions::default() };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let node = &mut cluster.nodes[2];
    let mut drain = Command::new(TIDEGATE);
    drain.env_clear().args(["drain", "--timeout", "20", "--url"]);
    drain.arg(format!("http://{}", node.admin));
    let drained = tokio::task::spawn_blocking(move || drain.output().unwrap());
    assert_eq!(node.exit_code(Duration::from_secs(60)).await, Some(0));
    node.start();
    let drained = drained.await.unwrap();
    assert!(drained.status.success(), "{drained:?}");
}

/// It is what operators send to have files read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_ends_no_node_that_has_no_terminal() {
    let options = ClusterOptions { nodes: &["n1"], rules: RULES, ..ClusterOptions::default() };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let node = &mut cluster.nodes[0];
    node.hang_up();
    node.logged("rules, certificates and tokens are read when their files change", 1).await;
    node.is_serving().await;
    node.terminate();
    assert_eq!(node.exit_code(Duration::from_secs(30)).await, Some(0));
}

/// It has ranges still, as no other node is there to take them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_node_that_leaves_is_not_evicted_and_says_that_no_other_takes_its_keys() {
    let nodes = &["n1", "n2"];
    let options = ClusterOptions { nodes, rules: RULES, ..ClusterOptions::default() };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    for id in [1, 0] {
        let node = &mut cluster.nodes[id];
        node.terminate();
        assert_eq!(node.exit_code(Duration::from_secs(30)).await, Some(0));
    }
    let says_so = |at: usize| {
        let log = cluster.nodes[at].log();
        log.contains("no other node of the region is up to take this one's keys")
    };
    assert_eq!([says_so(0), says_so(1)], [true, false], "{}", cluster.nodes[0].log());
    assert!(!cluster.nodes[0].log().contains("evicted"), "{}", cluster.nodes[0].log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_completes_all_requests_in_flight() {
    let options = ClusterOptions {
        nodes: THREE,
        rules: RULES,
        config: AUTH,
        sets: DEADLINE,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let listeners: Vec<_> = cluster.nodes.iter().map(|node| node.http).collect();
    let (stop, stop_leaving) = (CancellationToken::new(), CancellationToken::new());
    let mut load = Load::new();
    load.add(4, listeners[0], &stop);
    load.add(4, listeners[1], &stop);
    load.add(4, listeners[2], &stop_leaving);

    let busy = async || match cluster.nodes[2].verdicts("owner").await {
        0..100 => Err("too few requests".to_owned()),
        _ => Ok(()),
    };
    until("the load runs", Duration::from_secs(10), busy).await;

    // The queue delays one request while the node begins to drain.
    let (http, listener) = (cluster.http.clone(), listeners[2]);
    let queue = async move || {
        let headers = [("x-queue", "only")];
        http.send(Method::GET, listener, "/auth", &headers, Bytes::new()).await
    };
    assert_eq!(queue().await.unwrap().status, 200);
    let held = tokio::spawn(async move { queue().await });
    let decided = async || {
        let allowed = cluster.nodes[2]
            .metric(r#"tidegate_rule_hits_total{rule="load.queue",outcome="allowed"}"#);
        if allowed.await == 2 { Ok(()) } else { Err("not decided".to_owned()) }
    };
    until("the second of the queue is decided", Duration::from_secs(10), decided).await;
    cluster.nodes[2].terminate();

    // A load balancer would stop sending now; its clients had no error until then.
    let not_ready = async || match cluster.http.get(listeners[2], "/readyz").await?.status {
        503 => Ok(()),
        status => Err(format!("/readyz returns {status}")),
    };
    until("the leaving node is not ready", Duration::from_secs(2), not_ready).await;
    stop_leaving.cancel();
    for node in &cluster.nodes[..2] {
        let draining = async || {
            let members = node.members().await?;
            if members.contains(&("n3".to_owned(), "draining")) {
                Ok(())
            } else {
                Err(format!("{members:?}"))
            }
        };
        let what = format!("{} has n3 as draining", node.id);
        let ((), took) = until(&what, Duration::from_secs(1), draining).await;
        println!("{what} after {took:?}");
    }
    assert!(!held.is_finished(), "the delayed request is still in flight");
    assert_eq!(held.await.unwrap().unwrap().status, 200, "the delayed request is answered");

    assert_eq!(cluster.nodes[2].exit_code(Duration::from_secs(15)).await, Some(0));
    assert!(!cluster.nodes[2].log().contains("lease lost"), "a drain is no failure");
    for node in &cluster.nodes[..2] {
        let gone = async || match node.members().await? {
            members if members.len() == 2 => Ok(()),
            members => Err(format!("{members:?}")),
        };
        until("the node that left is gone", Duration::from_secs(10), gone).await;
    }
    stop.cancel();
    let policy = cluster.verdicts("policy").await;
    let mut answers = 0;
    for (listener, seen) in load.results().await {
        println!("{listener}: {}", seen.summary());
        answers += seen.responses;
        assert_eq!(seen.errors, Vec::<String>::new(), "{listener}");
    }
    // A planned leave costs no fallback: the rest are owners that were late.
    println!("{policy} of {answers} responses by on_unavailable");
    assert!(policy * 100 < answers, "{policy} of {answers} responses by on_unavailable");
}

/// Three of five at once, as when a stateful set gets fewer replicas: one drains after the other,
/// no request fails, and every count is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_to_go_at_once_drain_one_after_the_other() {
    const KEYS: usize = 40;
    const BEFORE: usize = 7;
    let options = ClusterOptions {
        nodes: &["n1", "n2", "n3", "n4", "n5"],
        rules: "
domain: load
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100000000}, durability: replicated, on_unavailable: deny}
  - {key: few, rate_limit: {unit: day, requests_per_unit: 20}, durability: replicated, on_unavailable: deny}
",
        // Others vote in the place of those that go.
        sets: &["cluster.deadline=1s", "cluster.voters_from=auto"],
        has_disks: true,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("few-{number}")).collect();
    for key in &keys {
        assert_eq!(cluster.admitted(&[0, 1, 2, 3, 4], "load", "few", key, BEFORE).await, BEFORE);
    }
    let (stop, stop_leaving) = (CancellationToken::new(), CancellationToken::new());
    let (mut load, mut leaving) = (Load::new(), Load::new());
    for node in &cluster.nodes[..2] {
        load.add(4, node.http, &stop);
    }
    for node in &cluster.nodes[2..] {
        leaving.add(2, node.http, &stop_leaving);
    }
    let busy = async || match cluster.verdicts("owner").await {
        0..500 => Err("too few requests".to_owned()),
        _ => Ok(()),
    };
    until("the load runs", Duration::from_secs(30), busy).await;
    // The endpoints go first, as in Kubernetes.
    stop_leaving.cancel();
    let mut results = leaving.results().await;

    for node in &mut cluster.nodes[2..] {
        node.terminate();
    }
    let mut drained = Vec::new();
    let watched = async || {
        let mut members = cluster.nodes[0].map().await?.members;
        // A voter that has left keeps its vote while too few others could vote.
        members.retain(|it| it.state != MapMemberState::Lost);
        let draining: Vec<_> =
            members.iter().filter(|it| it.state == MapMemberState::Draining).collect();
        assert!(draining.len() <= 1, "at the same time: {draining:?}");
        for member in draining {
            if drained.last() != Some(&member.node) {
                drained.push(member.node.clone());
            }
        }
        if members.len() == 2 { Ok(()) } else { Err(format!("{members:?}")) }
    };
    until("two members are left", Duration::from_secs(60), watched).await;
    println!("drained in this order: {drained:?}");
    for node in &mut cluster.nodes[2..] {
        assert_eq!(node.exit_code(Duration::from_secs(30)).await, Some(0));
    }

    stop.cancel();
    results.extend(load.results().await);
    for (listener, seen) in results {
        println!("{listener}: {}", seen.summary());
        assert_eq!(seen.errors, Vec::<String>::new(), "{listener}");
    }
    for key in &keys {
        assert_eq!(cluster.admitted(&[0, 1], "load", "few", key, 20).await, 20 - BEFORE, "{key}");
    }
}

/// Its peers are stopped and take nothing.
/// A load balancer that asks `/readyz` has that long to stop sending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_for_the_drain_delay_while_it_is_not_ready() {
    const DELAY: Duration = Duration::from_secs(3);
    let options = ClusterOptions {
        nodes: THREE,
        rules: RULES,
        sets: &["cluster.deadline=1s", "limits.drain_delay=3s"],
        has_drain_delay: true,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let leaving = &mut cluster.nodes[2];
    leaving.terminate();
    let begun = Instant::now();
    let is_ready = async || match leaving.is_ready().await {
        Ok(false) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    until("the leaving node is not ready", Duration::from_secs(2), is_ready).await;
    let mut answers = 0;
    while begun.elapsed() + Duration::from_millis(500) < DELAY {
        // Of a connection of its own.
        let reply = Http::new().check(leaving.http, &check_body("load", "user", "u")).await;
        assert_eq!(reply.expect("it listens").status, 200);
        assert_eq!(leaving.is_ready().await, Ok(false));
        answers += 1;
    }
    println!("{answers} answers while the node was not ready");
    assert!(answers > 0);
    assert_eq!(leaving.exit_code(Duration::from_secs(15)).await, Some(0));
}

/// A voter is dead, and no other member may vote in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_leaves_no_majority_says_so() {
    let options = ClusterOptions { nodes: THREE, rules: RULES, ..ClusterOptions::default() };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    cluster.nodes[0].kill();
    let is_evicted = async || {
        let members = cluster.nodes[1].members().await?;
        let is_up = members.iter().any(|(id, state)| id == "n1" && *state == "up");
        if is_up { Err(format!("{members:?}")) } else { Ok(()) }
    };
    until("n1 is evicted", Duration::from_secs(30), is_evicted).await;
    let url = format!("http://{}", cluster.nodes[2].admin);
    let run = Command::new(TIDEGATE).env_clear().args(["drain", "--url", &url]).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("drained, but the voters that stay are no majority"), "{text}");
    assert_eq!(run.status.code(), Some(1), "{text}");
}

/// It restarted while the others are dead, so that it is no member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_of_a_node_that_is_no_member_says_so() {
    let options = ClusterOptions { nodes: THREE, rules: RULES, ..ClusterOptions::default() };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    cluster.nodes.iter_mut().for_each(Node::kill);
    let stranded = &mut cluster.nodes[2];
    stranded.start();
    let answers = async || stranded.status().await.map(drop);
    until("its admin listener answers", Duration::from_secs(10), answers).await;
    assert_eq!(stranded.metric("tidegate_mesh_peers_up").await, 0);
    assert_eq!(stranded.metric("tidegate_ready").await, 0);
    let url = format!("http://{}", stranded.admin);
    let run = Command::new(TIDEGATE).env_clear().args(["drain", "--url", &url]).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("it is no member of the cluster"), "{text}");
    assert_eq!(run.status.code(), Some(1), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_hands_nothing_over_says_so() {
    let sets = &["cluster.handover_timeout=1s"];
    let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let (stopped, drained) = (&cluster.nodes[..2], &cluster.nodes[2]);
    stopped.iter().for_each(Node::pause);
    let url = format!("http://{}", drained.admin);
    let output =
        Command::new(TIDEGATE).env_clear().args(["drain", "--url", &url]).output().unwrap();
    stopped.iter().for_each(Node::resume);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not all keys were handed over"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}
