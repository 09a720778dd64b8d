//! The Envoy of `docs/examples/envoy.yaml`, on ports of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use http::Method;

use crate::http_client::{Http, Reply};
use crate::process::{Cluster, Process};
use crate::upstream::Upstream;
use crate::wait::until;
use crate::{ports, tools};

/// A running Envoy, and the application behind it.
pub struct Proxy {
    pub addr: SocketAddr,
    pub upstream: Upstream,
    pub http: Http,
    admin: SocketAddr,
    _process: Process,
}

impl Proxy {
    /// Starts it in front of the gRPC listeners of `cluster`. The filter waits for a second instead
    /// of the example's 20 ms, which is less than a busy machine may pause.
    pub async fn start(cluster: &Cluster) -> Self {
        let upstream = Upstream::start().await;
        let (addr, admin) = (ports::free(), ports::free());
        let dir = cluster.dir.path().join("envoy");
        fs::create_dir(&dir).unwrap();
        let [first, second, third] = &cluster.nodes[..] else {
            panic!("the example has three nodes")
        };
        let config = example(&[
            (8020, addr),
            (9901, admin),
            (8001, upstream.addr),
            (8181, first.grpc),
            (8182, second.grpc),
            (8183, third.grpc),
        ]);
        let config = with_timeout(&config, "1s");
        let file = dir.join("envoy.yaml");
        fs::write(&file, config).unwrap();

        let mut command = Command::new(tools::program("envoy"));
        command.env_clear().arg("-c").arg(&file).args(["--log-level", "warn"]);
        // Otherwise two Envoys on one machine share memory.
        command.args(["--disable-hot-restart", "--concurrency", "2"]);
        let mut process = Process::spawn("envoy", &mut command, &dir.join("log"));
        let http = Http::new();
        let ready = async || {
            if let Some(status) = process.exit() {
                panic!("envoy ended with {status}\n{}", process.tail());
            }
            let reply = http.get(admin, "/ready").await?;
            if reply.status != 200 {
                return Err(reply.body);
            }
            let healthy = stat(&http, admin, "cluster.tidegate.membership_healthy").await?;
            if healthy == 3 { Ok(()) } else { Err(format!("{healthy} nodes are healthy")) }
        };
        until("envoy is ready", Duration::from_secs(20), ready).await;
        Self { addr, upstream, http, admin, _process: process }
    }

    /// A GET with these headers.
    pub async fn get(&self, target: &str, headers: &[(&str, &str)]) -> Reply {
        self.http.send(Method::GET, self.addr, target, headers, Bytes::new()).await.unwrap()
    }

    /// One of Envoy's own counters and gauges; 0 until it is first set.
    pub async fn stat(&self, name: &str) -> u64 {
        stat(&self.http, self.admin, name).await.unwrap()
    }
}

async fn stat(http: &Http, admin: SocketAddr, name: &str) -> Result<u64, String> {
    let text = http.get(admin, &format!("/stats?filter=^{name}$")).await?.body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.map_or(Ok(0), |value| value.trim().parse().map_err(|_| text.clone()))
}

/// The documented example with its ports, each of which occurs once, replaced.
fn example(ports: &[(u16, SocketAddr)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/envoy.yaml");
    let mut text = fs::read_to_string(path).unwrap();
    for (written, addr) in ports {
        let address = |port: u16| format!("address: 127.0.0.1, port_value: {port}}}");
        text = replaced_once(&text, &address(*written), &address(addr.port()));
    }
    text
}

fn with_timeout(config: &str, timeout: &str) -> String {
    let retry_interval = format!("max_interval: {timeout}");
    let config = replaced_once(config, "max_interval: 0.02s", &retry_interval);
    let line = "failure_mode_deny: true";
    let indent = " ".repeat(22);
    replaced_once(&config, line, &format!("{line}\n{indent}timeout: {timeout}"))
}

fn replaced_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} in docs/examples/envoy.yaml");
    text.replace(from, to)
}
