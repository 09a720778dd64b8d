//! What the dashboard of one node shows of the others, over its event stream.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use http::Method;
use tidegate::admin::report::MemberState;
use tidegate::admin::snapshot::{ClusterSnapshot, KeyReport, MemberRow};
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::TIDEGATE;

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: page, mode: eventual, rate_limit: {unit: day, requests_per_unit: 1000}}
";
const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: RULES,
    config: "",
    sets: &["cluster.deadline=1s", "admin.show_keys=true"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};

/// A client of `/events`.
struct Viewer {
    stream: TcpStream,
    text: Vec<u8>,
}

impl Viewer {
    async fn open(node: &Node) -> Self {
        let mut stream = TcpStream::connect(node.admin).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
        Self { stream, text: Vec::new() }
    }

    /// The next picture; none at the end of the stream.
    async fn picture(&mut self) -> Option<ClusterSnapshot> {
        loop {
            let text = String::from_utf8_lossy(&self.text);
            let found = text.split_once("\ndata: ").and_then(|(_, rest)| rest.split_once("\n\n"));
            if let Some((data, rest)) = found {
                let picture = serde_json::from_str(data).unwrap();
                self.text = rest.as_bytes().to_vec();
                return Some(picture);
            }
            let read = self.stream.read_buf(&mut self.text);
            let read = tokio::time::timeout(Duration::from_secs(30), read).await;
            if read.expect("no picture").unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// The first picture for which `holds`.
    async fn until(
        &mut self,
        what: &str,
        holds: impl Fn(&ClusterSnapshot) -> bool,
    ) -> ClusterSnapshot {
        let start = Instant::now();
        loop {
            let picture = self.picture().await.expect("the stream goes on");
            if holds(&picture) {
                return picture;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{what}: {picture:#?}");
        }
    }
}

fn member<'a>(picture: &'a ClusterSnapshot, id: &str) -> &'a MemberRow {
    let found = picture.members.iter().find(|row| row.member.id == id);
    found.unwrap_or_else(|| panic!("no {id}: {picture:#?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_shows_all_what_is_refused_where_and_who_died() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let http = Http::new();
    let body = check_body("edge", "user", "ann");
    for turn in 0..12 {
        let reply = http.check(cluster.nodes[turn % 2].http, &body).await.unwrap();
        assert_eq!(reply.status == 200, turn < 3, "{reply:?}");
    }
    let shown = cluster.nodes[2].admin;
    let mut viewer = Viewer::open(&cluster.nodes[2]).await;
    let picture = viewer
        .until("all have said something", |picture| {
            picture.members.len() == 3 && picture.members.iter().all(|row| row.reported.is_some())
        })
        .await;
    // Both nodes that received the checks have told the third.
    let rule = picture.rules.iter().find(|rule| rule.rule == "edge.user").unwrap();
    assert_eq!((rule.counts.allowed, rule.counts.denied), (3, 9), "{rule:?}");
    let [key] = &picture.refused_keys[..] else { panic!("{picture:#?}") };
    assert_eq!((key.key.as_deref(), &*key.rule), (Some("user=ann"), "edge.user"));
    assert!(key.per_second > 0.0 && key.error < f64::EPSILON, "{key:?}");
    for id in ["n1", "n2", "n3"] {
        let MemberRow { member, reported, age_ms } = member(&picture, id);
        let ownership = reported.as_ref().unwrap().ownership.as_ref().unwrap();
        assert!(ownership.has_lease && ownership.decides > 0.0, "{ownership:?}");
        assert!((ownership.decides - member.ring_share).abs() < 0.01, "{ownership:?}");
        assert!(age_ms.unwrap() < 5_000);
    }
    let ring = &picture.rings[0];
    assert_eq!(ring.nodes, THREE);
    assert_eq!(ring.owners.len(), 360);

    // Looking a key up counts nothing.
    let token = key.token.clone();
    for _ in 0..3 {
        let reply = http.get(shown, "/key?domain=edge&user=ann").await.unwrap();
        let report: KeyReport = serde_json::from_str(&reply.body).unwrap();
        assert_eq!((report.owner.token.clone(), report.limits[0].remaining), (token.clone(), 0));
        let reply = http.get(shown, "/key?domain=edge&user=bea").await.unwrap();
        let report: KeyReport = serde_json::from_str(&reply.body).unwrap();
        let limit = &report.limits[0];
        assert_eq!((limit.limit, limit.remaining, report.replicas.len()), (3, 3, 1), "{report:?}");
        assert_ne!(report.owner.owners[0].node, report.replicas[0]);
    }

    // One that does not read what it is sent keeps nobody waiting.
    let idle = Viewer::open(&cluster.nodes[2]).await;
    cluster.nodes[0].kill();
    let killed = Instant::now();
    let is_down = |picture: &ClusterSnapshot| {
        picture.members.iter().any(|row| row.member.state == MemberState::Down)
    };
    let picture = viewer.until("n1 is down", is_down).await;
    println!("shown as down after {:?}", killed.elapsed());
    assert_eq!(member(&picture, "n1").member.state, MemberState::Down);
    // It stays in the picture when it is no member any more.
    let evicted = |picture: &ClusterSnapshot| member(picture, "n2").member.ring_share > 0.45;
    let picture = viewer.until("n1 is evicted", |it| evicted(it) || it.rings[0].nodes.len() == 2);
    let picture = picture.await;
    assert_eq!(member(&picture, "n1").member.state, MemberState::Down);
    drop(idle);

    // A drain ends the stream.
    cluster.nodes[2].terminate();
    while viewer.picture().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_token_serves_commands_that_have_it() {
    let options = ClusterOptions { nodes: &["n1"], ..OPTIONS };
    let mut cluster = Cluster::start(TIDEGATE, options).await;
    let node = &mut cluster.nodes[0];
    let file = node.restart_with_token("0123456789abcdef\n");
    let (http, admin) = (Http::new(), node.admin);
    let ready = async || match http.get(admin, "/readyz").await?.status {
        200 => Ok(()),
        status => Err(status.to_string()),
    };
    tidegate_testkit::wait::until("it is ready", Duration::from_secs(30), ready).await;
    assert_eq!(http.get(admin, "/status").await.unwrap().status, 401);
    let foreign = [("host", "evil.example"), ("authorization", "Bearer 0123456789abcdef")];
    let reply = http.send(Method::GET, admin, "/status", &foreign, "").await.unwrap();
    assert_eq!((reply.status, &*reply.body), (421, ""));
    let url = format!("http://{admin}");
    let status = |more: &[&str]| {
        let args = ["status", "--url", &url].into_iter().chain(more.iter().copied());
        Command::new(TIDEGATE).env_clear().args(args).output().unwrap()
    };
    let refused = status(&[]);
    assert_eq!(refused.status.code(), Some(2));
    let says = String::from_utf8_lossy(&refused.stderr);
    assert!(says.contains("401") && says.contains("admin.token_file"), "{says}");
    let file = file.to_str().unwrap();
    let served = status(&["--token-file", file]);
    assert!(served.status.success(), "{}", String::from_utf8_lossy(&served.stderr));

    let args = ["top", "--once", "--url", &url, "--token-file", file];
    let top = Command::new(TIDEGATE).env_clear().args(args).output().unwrap();
    let text = String::from_utf8_lossy(&top.stdout);
    assert!(text.contains("members: 1 of 1 up"), "{text}");

    // A token that others can read is none.
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(status(&["--token-file", file]).status.code(), Some(2));
}
