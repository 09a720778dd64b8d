//! Certificates, authorities and the key secret are replaced while a cluster runs; certificates
//! that are not valid are refused in words that say what to do.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_cluster::pki::{self, Bearer, Overwrite, Validity};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_testkit::certificates;
use tidegate_testkit::process::{Cluster, ClusterOptions, Load, Node, THREE};
use tidegate_testkit::wait::until;
use tokio_util::sync::CancellationToken;

use crate::TIDEGATE;

/// Every answer but that of an owner is a 429, which the load counts as an error.
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: load
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100000000, on_unavailable: deny}}
  - {key: limited, rate_limit: {unit: day, requests_per_unit: 10, on_unavailable: deny}}
",
    config: "",
    sets: &["cluster.deadline=1s"],
    has_disks: true,
    has_drain_delay: false,
    regions: &[],
};

/// Reading the files, opening connections anew or closing them takes some seconds.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_replaced_under_load_without_a_failed_check() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let load = RunningLoad::start(&cluster);
    let files = Files::of(&cluster);
    for (turn, node) in cluster.nodes.iter().enumerate() {
        files.issue(&node.id, 1_000 + turn as u64);
        in_use(node, 1).await;
    }
    for node in &cluster.nodes {
        renewed(node).await;
    }
    load.had_no_error(&cluster).await;
}

/// As operations.md describes it: trust both, issue anew, trust the new one alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_is_replaced_in_three_steps_under_load_without_a_failed_check() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let load = RunningLoad::start(&cluster);
    let files = Files::of(&cluster);
    let next = Files { dir: cluster.dir.path().join("next") };
    pki::init(&next.dir, days(3_650), [0; 16]).unwrap();
    let (old, new) = (files.read("ca.pem"), next.read("ca.pem"));

    files.write("ca.pem", &format!("{new}{old}"));
    for node in &cluster.nodes {
        in_use(node, 1).await;
        assert_eq!(certificate(node).await.unwrap().authorities, 2, "{}", node.id);
    }
    for node in &cluster.nodes {
        next.issue(&node.id, 365);
        files.take(&next, &node.id);
        in_use(node, 2).await;
    }
    for node in &cluster.nodes {
        renewed(node).await;
    }
    files.write("ca.pem", &new);
    for node in &cluster.nodes {
        in_use(node, 3).await;
        assert_eq!(certificate(node).await.unwrap().authorities, 1, "{}", node.id);
    }
    load.had_no_error(&cluster).await;
    for node in &cluster.nodes {
        // Every connection was opened anew before the old authority was removed.
        assert_eq!(node.metric("tidegate_mesh_untrusted_total").await, 0, "{}", node.id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_be_used_change_nothing_and_are_reported() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let load = RunningLoad::start(&cluster);
    let files = Files::of(&cluster);
    let node = &cluster.nodes[0];
    let good = files.read("n1.pem");
    files.write("n1.pem", &files.read("n2.pem"));
    node.logged("the files of [tls] are not in use; kept the previous ones", 1).await;
    let problem = certificate(node).await.unwrap().problem.unwrap();
    assert!(problem.contains("n1.pem: does not carry the name n1"), "{problem}");
    assert_eq!(node.metric("tidegate_certificate_ok").await, 0);
    assert_eq!(node.metric("tidegate_certificate_loads_total{outcome=\"failed\"}").await, 1);
    files.write("n1.pem", &good);
    node.logged("the files of [tls] are in use again", 1).await;
    assert_eq!(certificate(node).await.unwrap().problem, None);
    assert_eq!(node.metric("tidegate_certificate_ok").await, 1);
    load.had_no_error(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_ends_its_connections_until_it_is_renewed() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let files = Files::of(&cluster);
    let last = &cluster.nodes[2];
    files.issue_for("n3", Validity { not_after: now().plus(Span::from_secs(15)), ..days(1) });
    in_use(last, 1).await;
    last.logged("this node's certificate is to be renewed", 1).await;
    let line = "closed the connection: the peer's certificate is not valid any more";
    cluster.nodes[0].logged(line, 1).await;
    cluster.nodes[1].logged(line, 1).await;
    cluster.nodes[0].logged("its certificate is out of its dates", 1).await;
    last.logged("it refuses this node's certificate as out of its dates", 1).await;
    last.logged("the certificate of node n3 expired on", 1).await;
    let report = certificate(last).await.unwrap();
    assert_eq!((report.expires_in_s, report.is_renewal_due), (0, true));
    assert!(report.problem.is_some_and(|problem| problem.contains("ca issue")));
    let is_unready = async || {
        if last.is_ready().await? { Err("it is ready".to_owned()) } else { Ok(()) }
    };
    until("n3 has no majority", FOLLOWED_WITHIN, is_unready).await;

    files.issue("n3", 100);
    cluster.one_view().await;
    let report = certificate(&cluster.nodes[2]).await.unwrap();
    assert_eq!((report.problem, report.is_renewal_due), (None, false));
}

/// Both sides say what is wrong, once a minute for an address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_foreign_authority_is_named_in_the_log_of_both_sides() {
    let two = ClusterOptions { nodes: &["n1", "n2"], has_disks: false, ..OPTIONS };
    let mut cluster = Cluster::start(TIDEGATE, two).await;
    cluster.add("n3", "n3", two);
    let files = Files::of(&cluster);
    let foreign = Files { dir: cluster.dir.path().join("foreign") };
    pki::init(&foreign.dir, days(365), [0; 16]).unwrap();
    foreign.issue("n3", 365);
    files.take(&foreign, "n3");
    // It trusts both authorities, so that it is the others that refuse.
    foreign.write("ca.pem", &(foreign.read("ca.pem") + &files.read("ca.pem")));
    let node = &mut cluster.nodes[2];
    node.set(&format!("tls.ca={}", foreign.dir.join("ca.pem").display()));
    node.start();
    let (n1, n3) = (&cluster.nodes[0], &cluster.nodes[2]);
    let here = "its certificate is not of an authority in tls.ca of this node";
    let there = "it refuses this node's certificate: the authority is not in its tls.ca";
    // n3 may dial n2 first.
    for (node, addr, line) in [(n1, n3.mesh, here), (n3, n1.mesh, there)] {
        let parts = ["WARN", line, &addr.to_string()];
        let is_named = async || {
            let log = node.log();
            let is_named = log.lines().any(|logged| parts.iter().all(|part| logged.contains(part)));
            is_named.then_some(()).ok_or(log)
        };
        until("the other side is named in a warning", FOLLOWED_WITHIN, is_named).await;
    }
    let refused = async || match n1.metric("tidegate_mesh_refused_total").await {
        0..8 => Err("a few refusals".to_owned()),
        _ => Ok(()),
    };
    until("n3 has dialed again and again", FOLLOWED_WITHIN, refused).await;
    let lines = |node: &Node, line: &str| node.log().matches(line).count();
    // Once for each direction, and for n3 once for each of both peers.
    assert!(lines(n1, here) <= 2, "{}", n1.log());
    assert!(lines(n3, there) <= 4, "{}", n3.log());
}

/// Accept both, use the new one from a restart in turn on, accept the new one alone. Every counter
/// starts again once, and nothing else is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_secret_is_replaced_by_a_restart_in_turn() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    assert_eq!(cluster.admitted(&[0, 1, 2], "load", "limited", "key", 30).await, 10);
    let files = Files::of(&cluster);
    let (old, new) = (files.read("cluster.secret"), "0123456789abcdef0123456789abcdef\n");
    files.write("cluster.secret", &format!("{old}{new}"));
    for node in &cluster.nodes {
        in_use(node, 1).await;
    }
    files.write("cluster.secret", &format!("{new}{old}"));
    for node in &cluster.nodes {
        in_use(node, 2).await;
        assert!(certificate(node).await.unwrap().has_next_secret, "{}", node.id);
    }
    assert_eq!(cluster.admitted(&[0, 1, 2], "load", "limited", "key", 30).await, 0);
    for turn in 0..3 {
        let stop = CancellationToken::new();
        let mut load = Load::new();
        for (_, node) in cluster.nodes.iter().enumerate().filter(|(index, _)| *index != turn) {
            load.add(4, node.http, &stop);
        }
        cluster.nodes[turn].terminate();
        assert_eq!(cluster.nodes[turn].exit_code(FOLLOWED_WITHIN).await, Some(0));
        cluster.nodes[turn].start();
        cluster.one_view().await;
        stop.cancel();
        for (listener, results) in load.results().await {
            assert_eq!(results.errors, [""; 0], "clients of {listener}");
        }
        assert!(!certificate(&cluster.nodes[turn]).await.unwrap().has_next_secret);
    }
    files.write("cluster.secret", new);
    for node in &cluster.nodes {
        in_use(node, 1).await;
    }
    assert_eq!(cluster.admitted(&[0, 1, 2], "load", "limited", "key", 30).await, 10);
}

// === files ===

/// The folder of an authority.
struct Files {
    dir: PathBuf,
}

impl Files {
    fn of(cluster: &Cluster) -> Self {
        Self { dir: cluster.dir.path().join("pki") }
    }

    fn issue(&self, node: &str, valid_for_days: u64) {
        self.issue_for(node, days(valid_for_days));
    }

    fn issue_for(&self, node: &str, validity: Validity) {
        let bearer = Bearer::core(node, "local");
        pki::issue(&self.dir, bearer, validity, Overwrite::Renew).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap()
    }

    /// Replaces the contents, not the file: its mode stays.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
    }

    /// Copies certificate and key of `node` from the folder of another authority.
    fn take(&self, from: &Self, node: &str) {
        for name in [format!("{node}.key"), format!("{node}.pem")] {
            fs::copy(from.dir.join(&name), self.dir.join(&name)).unwrap();
        }
    }
}

fn now() -> Timestamp {
    certificates::validity().not_after.minus(Span::from_secs(86_400))
}

/// From a minute ago for `count` days.
fn days(count: u64) -> Validity {
    let (minute, all) = (Span::from_secs(60), Span::from_secs(count * 86_400));
    Validity { not_before: now().minus(minute), not_after: now().plus(all) }
}

// === nodes ===

async fn certificate(node: &Node) -> Result<tidegate::admin::report::CertificateReport, String> {
    node.status().await?.certificate.ok_or_else(|| "no certificate".to_owned())
}

/// Waits until `node` has put changed files in use `times` times.
async fn in_use(node: &Node, times: usize) {
    node.logged("reloaded the files of [tls]", times).await;
}

/// Waits until no peer of `node` has an earlier certificate of it.
async fn renewed(node: &Node) {
    let condition = async || match certificate(node).await?.connections_to_renew {
        0 => Ok(()),
        count => Err(format!("{count} connections")),
    };
    until(&format!("{} has renewed its connections", node.id), FOLLOWED_WITHIN, condition).await;
}

/// A load on all nodes of a cluster.
struct RunningLoad {
    load: Load,
    stop: CancellationToken,
}

impl RunningLoad {
    fn start(cluster: &Cluster) -> Self {
        let (mut load, stop) = (Load::new(), CancellationToken::new());
        for node in &cluster.nodes {
            load.add(6, node.http, &stop);
        }
        Self { load, stop }
    }

    /// Ends it. Every check was decided by the owner of its key.
    async fn had_no_error(self, cluster: &Cluster) {
        self.stop.cancel();
        for (listener, results) in self.load.results().await {
            println!("{listener}: {}", results.summary());
            assert!(results.responses > 100, "{listener}: {}", results.summary());
            assert_eq!(results.errors, [""; 0], "clients of {listener}");
        }
        assert_eq!(cluster.verdicts("policy").await, 0);
    }
}
