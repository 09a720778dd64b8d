//! `tidegate export nftables` with the `nft` of this machine, in network namespaces of their own:
//! what a node names is dropped by the kernel, and passes again when its time is over.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use tempfile::TempDir;
use tidegate::admin::{BlockedReport, BlockedSource};
use tidegate_testkit::network;
use tidegate_testkit::process::Process;
use tidegate_testkit::wait::{eventually, until, whole_lines};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::TIDEGATE;

/// Far above what anything takes here.
const WITHIN: Duration = Duration::from_secs(30);

/// Drops all capabilities but `CAP_NET_ADMIN`, and all of them.
const NET_ADMIN: &str = "+net_admin";
const NONE: &str = "";

// === with a node ===

const RULES: &str = "
domain: edge
descriptors:
  - {key: remote_address, rate_limit: {unit: second, requests_per_unit: 5}}
";

const CONFIG: &str = "
[http]
listen = \"[::]:8080\"
[admin]
listen = \"127.0.0.1:8082\"
[rules]
path = \"rules.yaml\"
[auth]
domain = \"edge\"
trusted_hops = 0
[[auth.descriptors]]
entries = [{ key = \"remote_address\", source = \"client_address\" }]
[blocked_sources]
entry = \"remote_address\"
factor = 2
after = \"1s\"
block_for = \"4s\"
[limits]
drain_timeout = \"60s\"
";

#[test]
fn traffic_of_a_source_far_over_its_limit_stops_and_returns() {
    network::run(|_| stops_and_returns());
}

async fn stops_and_returns() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = ["203.0.113.1", "203.0.113.7", "203.0.113.8"];
    let hosts6 = ["2001:db8::1", "2001:db8:1:2::7", "2001:db8:1:2::8", "2001:db8:1:3::7"];
    for addr in hosts {
        ip(&["addr", "add", &format!("{addr}/32"), "dev", "lo"]);
    }
    for addr in hosts6 {
        ip(&["addr", "add", &format!("{addr}/128"), "dev", "lo", "nodad"]);
    }
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::write(dir.path().join("cluster.toml"), CONFIG).unwrap();
    let mut command = Command::new(TIDEGATE);
    command.env_clear().arg("serve").arg("--config").arg(dir.path().join("cluster.toml"));
    let mut node = Process::spawn("node", &mut command, &dir.path().join("node.log"));
    let _exporter = exporter(&dir, NET_ADMIN, &[]);
    eventually("the table is there", WITHIN, || entries().is_some()).await;

    let to = |host: &str| SocketAddr::new(host.parse().unwrap(), 8080);
    for (host, source, neighbour, other, entry) in [
        ("203.0.113.1", "203.0.113.7", None, "203.0.113.8", "203.0.113.7"),
        (
            "2001:db8::1",
            "2001:db8:1:2::7",
            Some("2001:db8:1:2::8"),
            "2001:db8:1:3::7",
            "2001:db8:1:2::",
        ),
    ] {
        let to = to(host);
        let began = Instant::now();
        let flood = async || match auth(source, to).await {
            None => Ok(()),
            Some(status) => Err(format!("answered {status}")),
        };
        loop {
            match flood().await {
                Ok(()) => break,
                Err(reason) => assert!(began.elapsed() < WITHIN, "{source}: {reason}"),
            }
        }
        let stopped = Instant::now();
        let (timeout, expires) = entries().unwrap()[entry];
        assert_eq!(timeout, 4, "the time that the node gave");
        assert!(expires <= 4);
        assert_eq!(auth(other, to).await, Some(200), "{other} passes");
        if let Some(neighbour) = neighbour {
            assert_eq!(auth(neighbour, to).await, None, "{neighbour} is in the same /64");
        }
        let returned = async || auth(source, to).await.ok_or_else(|| "no answer".to_owned());
        until("its traffic returns", WITHIN, returned).await;
        let gone = stopped.elapsed();
        println!(
            "{source}: blocked after {:.2} s of load, for {:.2} s of 4",
            (stopped - began).as_secs_f64(),
            gone.as_secs_f64() + CONNECT_TIMEOUT.as_secs_f64()
        );
        // Later on a busy machine, never earlier: `expires` above is whole seconds of the kernel.
        assert!(gone + CONNECT_TIMEOUT > Duration::from_secs(3), "{gone:?}");
        assert!(!entries().unwrap().contains_key(entry));
    }

    // The stream ends with the listeners, and does not hold up their drain.
    node.terminate();
    assert_eq!(node.ended(WITHIN).await.code(), Some(0));
}

/// Far above what a connection on the loopback takes, far below what a lost packet costs.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);

/// The status that the address `from` gets of `/auth`; none without an answer.
async fn auth(from: &str, to: SocketAddr) -> Option<u16> {
    let from: IpAddr = from.parse().unwrap();
    let request = async {
        let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(from, 0))?;
        let mut stream = socket.connect(to).await?;
        let request = b"GET /auth HTTP/1.1\r\nhost: t\r\nx-original-uri: /\r\n\
            x-original-method: GET\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.ok_or_else(|| std::io::Error::other(reply))
    };
    tokio::time::timeout(CONNECT_TIMEOUT, request).await.ok()?.ok()
}

// === with scripted nodes ===

/// A node that names the sources that the test gives it.
struct ScriptedNode {
    addr: SocketAddr,
    pictures: watch::Sender<BlockedReport>,
    _serves: AbortOnDropHandle<()>,
}

impl ScriptedNode {
    async fn start() -> Self {
        let pictures = watch::Sender::new(BlockedReport::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let source = pictures.clone();
        let events = move || {
            let mut pictures = source.subscribe();
            pictures.mark_changed();
            let events = stream::unfold(pictures, |mut pictures| async {
                pictures.changed().await.ok()?;
                let data = serde_json::to_string(&*pictures.borrow_and_update()).unwrap();
                let event = Bytes::from(format!("event: blocked\ndata: {data}\n\n"));
                Some((Ok::<_, Infallible>(event), pictures))
            });
            async { Body::from_stream(events) }
        };
        let router = Router::new().route("/blocked/stream", get(events));
        let serves = tokio::spawn(async move { axum_serve(listener, router).await });
        Self { addr, pictures, _serves: AbortOnDropHandle::new(serves) }
    }

    fn names<S: AsRef<str>>(&self, sources: &[S], for_: Duration) {
        let sources = sources.iter().map(|source| BlockedSource {
            source: source.as_ref().parse().unwrap(),
            rule: "edge.remote_address".to_owned(),
            expires_in_ms: u64::try_from(for_.as_millis()).unwrap(),
        });
        let node = "n1".to_owned();
        let addresses = vec!["192.0.2.1".parse().unwrap()];
        self.pictures.send_replace(BlockedReport { node, addresses, sources: sources.collect() });
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

/// Serves HTTP/1 until it is dropped.
async fn axum_serve(listener: TcpListener, router: Router) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper_util::service::TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let io = hyper_util::rt::TokioIo::new(stream);
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
        });
    }
}

#[test]
fn ten_thousand_sources_are_in_the_kernel_within_a_second() {
    network::run(|_| ten_thousand());
}

async fn ten_thousand() {
    let dir = tempfile::tempdir().unwrap();
    let node = ScriptedNode::start().await;
    let _exporter = exporter(&dir, NET_ADMIN, &["--admin", &node.url(), "--timeout", "8s"]);
    eventually("the table is there", WITHIN, || entries().is_some()).await;
    let v4 = (0..5_000).map(|n| format!("10.0.{}.{}", n / 256, n % 256));
    let v6 = (0..5_000).map(|n| format!("2001:db8:0:{n:x}::/64"));
    let sources: Vec<String> = v4.chain(v6).collect();
    let start = Instant::now();
    node.names(&sources, Duration::from_secs(14));
    let took = eventually("all are there", WITHIN, || entries().unwrap().len() == 10_000).await;
    println!("10,000 sources, half of them IPv6: {:.3} s, looking included", took.as_secs_f64());
    // What is renewed at half of its time never ends before that of the node.
    let mut looks = 0;
    while start.elapsed() < Duration::from_secs(13) {
        let count = entries().unwrap().len();
        assert_eq!(count, 10_000, "after {:?}", start.elapsed());
        looks += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eventually("all have ended", WITHIN, || entries().unwrap().is_empty()).await;
    println!("ended after {:.2} s of 14; {looks} looks before", start.elapsed().as_secs_f64());
}

#[test]
fn a_restarted_exporter_leaves_no_stale_entries() {
    network::run(|_| restarted());
}

async fn restarted() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (ScriptedNode::start().await, ScriptedNode::start().await);
    let long = Duration::from_secs(600);
    one.names(&["203.0.113.1", "203.0.113.2", "2001:db8:1::/64"], long);
    two.names(&["203.0.113.3"], long);
    let (one_url, two_url) = (one.url(), two.url());
    let admin = ["--admin", &one_url, "--admin", &two_url, "--timeout", "600s"];
    let mut process = exporter(&dir, NET_ADMIN, &admin);
    until("the union is blocked", WITHIN, async || {
        holds(&["203.0.113.1", "203.0.113.2", "203.0.113.3", "2001:db8:1::"])
    })
    .await;
    process.kill();
    one.names(&["203.0.113.2"], long);
    two.names(&["2001:db8:2::/64"], long);
    let process = exporter(&dir, NET_ADMIN, &admin);
    until("only what is named is blocked", WITHIN, async || {
        holds(&["203.0.113.2", "2001:db8:2::"])
    })
    .await;

    // Somebody else empties the ruleset: it is written again with the next change.
    nft("flush ruleset");
    assert!(entries().is_none());
    one.names(&["203.0.113.2", "203.0.113.4"], long);
    until("all is blocked again", WITHIN, async || {
        holds(&["203.0.113.2", "203.0.113.4", "2001:db8:2::"])
    })
    .await;

    // The entries of an exporter that ends time out.
    let mut process = process;
    process.terminate();
    assert_eq!(process.ended(WITHIN).await.code(), Some(0));
    assert!(entries().is_some());

    let output = export(NET_ADMIN, &["--flush"]).output().unwrap();
    assert_eq!((output.status.code(), entries()), (Some(0), None), "{output:?}");
    // There is nothing to remove any more, which is no failure.
    assert_eq!(export(NET_ADMIN, &["--flush"]).output().unwrap().status.code(), Some(0));

    let with_flush = [&admin[..], &["--flush-at-exit"]].concat();
    let mut process = exporter(&dir, NET_ADMIN, &with_flush);
    eventually("the table is there", WITHIN, || entries().is_some()).await;
    process.terminate();
    assert_eq!(process.ended(WITHIN).await.code(), Some(0));
    assert_eq!(entries(), None);
}

#[test]
fn an_allowed_network_and_the_nodes_are_never_blocked() {
    network::run(|_| allowed());
}

async fn allowed() {
    let dir = tempfile::tempdir().unwrap();
    let node = ScriptedNode::start().await;
    let url = node.url();
    let sources = [
        "127.0.0.1",
        "::1",
        "fe80::1",
        // The node says that this is one.
        "192.0.2.1",
        "198.51.100.7",
        "2001:db8:7:1::/64",
        "203.0.113.7",
    ];
    node.names(&sources, Duration::from_secs(600));
    let allow = ["--allow", "198.51.100.0/24", "--allow", "2001:db8:7:1::5"];
    let arguments = [&["--admin", &url][..], &allow].concat();
    let _exporter = exporter(&dir, NET_ADMIN, &arguments);
    until("the other is blocked", WITHIN, async || holds(&["203.0.113.7"])).await;
    node.names(&["198.51.100.8", "203.0.113.8"], Duration::from_secs(600));
    until("the other is blocked", WITHIN, async || holds(&["203.0.113.7", "203.0.113.8"])).await;
}

#[test]
fn an_exporter_without_the_right_or_the_program_says_what_to_do() {
    network::run(|_| says_what_to_do());
}

async fn says_what_to_do() {
    let node = ScriptedNode::start().await;
    node.names(&["203.0.113.7"], Duration::from_secs(600));
    let url = node.url();
    for (capabilities, arguments, says) in [
        (NONE, &[][..], "Operation not permitted"),
        (NONE, &["--flush"], "run as root, or with CAP_NET_ADMIN"),
        (NET_ADMIN, &["--nft", "/nowhere/nft"], "install nftables (apt install nftables)"),
    ] {
        let mut command = export(capabilities, &["--admin", &url, "--log", "off"]);
        let output = command.args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with("tidegate: ") && stderr.contains(says), "{stderr}");
    }
    assert_eq!(entries(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_prints_the_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let node = ScriptedNode::start().await;
    node.names(&["203.0.113.7"], Duration::from_secs(600));
    let mut command = Command::new(TIDEGATE);
    command.env_clear().args(["export", "nftables", "--dry-run", "--log", "off"]);
    command.args(["--admin", &node.url(), "--nft", "/nowhere/nft"]);
    let log = dir.path().join("log");
    let _process = Process::spawn("exporter", &mut command, &log);
    let lines = || -> Vec<Value> {
        whole_lines(&log).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    eventually("the first transaction", WITHIN, || !lines().is_empty()).await;
    node.names(&["203.0.113.8"], Duration::from_secs(600));
    eventually("the second transaction", WITHIN, || lines().len() == 2).await;
    let lines = lines();
    let names = |line: &Value| -> Vec<String> {
        let commands = line["nftables"].as_array().unwrap().iter();
        commands.map(|it| it.as_object().unwrap().keys().next().unwrap().clone()).collect()
    };
    assert_eq!(names(&lines[0])[..3], ["add", "delete", "add"]);
    let element = &lines[1]["nftables"][0]["add"]["element"];
    assert_eq!(
        element["elem"][0]["elem"],
        serde_json::json!({ "val": "203.0.113.8", "timeout": 60 })
    );
}

// === the machine ===

/// `tidegate export nftables` with these capabilities alone.
fn export(capabilities: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    for set in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
        let only = [Some("-all"), Some(capabilities).filter(|it| !it.is_empty())];
        command.arg(format!("{set}={}", only.into_iter().flatten().collect::<Vec<_>>().join(",")));
    }
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.arg(TIDEGATE).args(["export", "nftables"]).args(arguments);
    command
}

fn exporter(dir: &TempDir, capabilities: &str, arguments: &[&str]) -> Process {
    let mut command = export(capabilities, arguments);
    command.args(["--log-format", "json"]);
    Process::spawn("exporter", &mut command, &log(dir.path()))
}

fn log(dir: &Path) -> std::path::PathBuf {
    dir.join("exporter.log")
}

/// Entries of both sets with timeout and remaining time in seconds; none without the table.
fn entries() -> Option<BTreeMap<String, (u64, u64)>> {
    let output = Command::new("nft").args(["-j", "list", "table", "inet", "tidegate"]).output();
    let output = output.unwrap();
    if !output.status.success() {
        return None;
    }
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut entries = BTreeMap::new();
    for set in listed["nftables"].as_array().unwrap().iter().filter_map(|it| it.get("set")) {
        for element in set.get("elem").and_then(Value::as_array).into_iter().flatten() {
            let element = &element["elem"];
            let number = |key: &str| element[key].as_u64().unwrap();
            let value = element["val"].as_str().unwrap().to_owned();
            entries.insert(value, (number("timeout"), number("expires")));
        }
    }
    Some(entries)
}

/// Whether the sets have these entries and no others.
fn holds(expected: &[&str]) -> Result<(), String> {
    let found: BTreeSet<String> = entries().unwrap_or_default().into_keys().collect();
    let expected = expected.iter().map(ToString::to_string).collect();
    if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
}

fn nft(command: &str) {
    assert!(Command::new("nft").args(command.split(' ')).status().unwrap().success(), "{command}");
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).status().unwrap().success();
    assert!(done, "ip {arguments:?}");
}
