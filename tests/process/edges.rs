//! Edges as processes: they start, limit, go on without cores and leave, and the cluster map knows
//! nothing of it.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tidegate::admin::report::MemberState;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const RULES: &str = "
domain: edge
descriptors:
  - key: strict
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 30}
  - key: leased
    mode: leased
    on_unavailable: deny
    rate_limit: {unit: day, requests_per_unit: 200}
  - key: open
    on_unavailable: allow
    rate_limit: {unit: day, requests_per_unit: 30}
";
const BLOCKS_SOURCES: &str = "
[auth]
domain = \"edge\"
trusted_hops = 0
[[auth.descriptors]]
entries = [{ key = \"remote_address\", source = \"client_address\" }]
[blocked_sources]
entry = \"remote_address\"
";
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: BLOCKS_SOURCES,
    sets: &["cluster.deadline=1s", "node.threads=1"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};

const CUT_OFF: &str = "tidegate_edge_cut_off";

/// In turn at each of `nodes`.
async fn admitted(nodes: &[&Node], key: &str, value: &str, checks: usize) -> usize {
    let (http, body) = (Http::new(), check_body("edge", key, value));
    let mut admitted = 0;
    for turn in 0..checks {
        let reply = http.check(nodes[turn % nodes.len()].http, &body).await.unwrap();
        assert!([200, 429].contains(&reply.status), "{reply:?}");
        admitted += usize::from(reply.status == 200);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_edges_start_limit_and_leave() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    // The start of a cluster ends with a last map: all counters of earlier starts are collected.
    let settled = async || {
        let before = cluster.nodes[0].map().await?.epoch;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let map = cluster.nodes[0].map().await?;
        if map.epoch == before { Ok(map) } else { Err(format!("epoch {before}")) }
    };
    let (before, _) = until("the map does not change", Duration::from_secs(30), settled).await;
    let mut edges: Vec<Node> = ["e1", "e2", "e3"].map(|id| cluster.edge(id, OPTIONS)).into();
    // Its address is no other's.
    let of_its_own = SocketAddr::from(([127, 0, 0, 9], edges[0].mesh.port()));
    edges[0].set(&format!("cluster.listen={of_its_own}"));
    edges.iter_mut().for_each(Node::start);
    for edge in &mut edges {
        edge.is_serving().await;
    }
    // A firewall that drops it would cut the edge off.
    let report = Http::new().get(cluster.nodes[0].admin, "/blocked").await.unwrap().body;
    assert!(report.contains("127.0.0.9"), "{report}");
    let all: Vec<&Node> = cluster.nodes.iter().chain(&edges).collect();
    assert_eq!(admitted(&all, "strict", "x", 60).await, 30);
    assert!(admitted(&all, "leased", "x", 600).await <= 200);

    let follows = async || {
        let status = edges[0].status().await?;
        match status.follows {
            Some(it) if it.cores.len() == 2 && !it.is_cut_off => Ok(status.node.role),
            it => Err(format!("{it:?}")),
        }
    };
    let (role, _) = until("it follows two cores", Duration::from_secs(30), follows).await;
    assert_eq!(role, "edge");
    assert_eq!(edges[0].metric(CUT_OFF).await, 0);
    let url = format!("http://{}", edges[0].admin);
    let text = Command::new(TIDEGATE).env_clear().args(["status", "--url", &url]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("seen by edge e1") && text.contains("\nfollows: n"), "{text}");
    let known: usize = {
        let mut known = 0;
        for node in &cluster.nodes {
            known += node.status().await.unwrap().edges.unwrap().connected;
        }
        known
    };
    assert!(known >= 2 * edges.len(), "{known}");

    // One leaves in order, one dies.
    edges[1].terminate();
    assert_eq!(edges[1].exit_code(Duration::from_secs(10)).await, Some(0));
    edges[2].kill();
    assert_eq!(admitted(&[&cluster.nodes[0], &edges[0]], "strict", "y", 60).await, 30);
    let after = cluster.nodes[0].map().await.unwrap();
    assert_eq!((after.epoch, after.members.len()), (before.epoch, 3));

    cluster.nodes.iter_mut().for_each(Node::kill);
    let alone = async || match edges[0].status().await?.follows {
        Some(it) if it.is_cut_off => Ok(()),
        it => Err(format!("{it:?}")),
    };
    assert_eq!(admitted(&[&edges[0]], "strict", "z", 3).await, 0, "on_unavailable: deny");
    assert_eq!(admitted(&[&edges[0]], "open", "z", 3).await, 3, "on_unavailable: allow");
    until("it says that it is cut off", Duration::from_secs(5), alone).await;
    assert_eq!(edges[0].metric(CUT_OFF).await, 1);
    assert_eq!(edges[0].metric("tidegate_mesh_peers_up").await, 0);
    let status = edges[0].status().await.unwrap();
    let are_down = status.members.iter().all(|member| member.state == MemberState::Down);
    assert!(are_down && status.members.len() == 3, "{:?}", status.members);
    let args = ["members", "--url", &url];
    let text = Command::new(TIDEGATE).env_clear().args(args).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("this edge is cut off") && !text.contains("present"), "{text}");
    assert_eq!(edges[0].is_ready().await, Ok(true), "its service goes on");

    let mut late = cluster.edge("e4", OPTIONS);
    late.start();
    late.is_serving().await;
    assert_eq!(late.metric(CUT_OFF).await, 1, "no core has ever answered it");
}

#[test]
fn a_certificate_is_for_one_role() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    tidegate_testkit::certificates::write(TIDEGATE, &pki, [("n1", None)]);
    let config = "[node]\nid = \"n1\"\nrole = \"edge\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
                  [cluster]\nseeds = [\"127.0.0.1:7600\"]\n\
                  [tls]\nca = \"pki/ca.pem\"\ncert = \"pki/n1.pem\"\nkey = \"pki/n1.key\"\n\
                  secret = \"pki/cluster.secret\"\n";
    let file = dir.path().join("cluster.toml");
    std::fs::write(&file, config).unwrap();
    std::fs::create_dir(dir.path().join("rules")).unwrap();
    let mut serve = Command::new(TIDEGATE);
    let output = serve.env_clear().arg("serve").arg("--config").arg(&file).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("edge.role.tidegate"), "{error}");
    assert!(error.contains("--role edge"), "it says how to make one: {error}");
}
