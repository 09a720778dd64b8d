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

/// A running Envoy, with the application behind it.
pub struct Proxy {
    pub addr: SocketAddr,
    pub upstream: Upstream,
    pub http: Http,
    admin: SocketAddr,
    _process: Process,
}

/// How long the filter waits for the rate limit service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Timeouts {
    /// 100 ms in place of the 20 that are Envoy's default and the example's: for tests of what
    /// becomes of a request in time, on machines that may stop for some of these 20.
    Tenth,
    /// A second: for tests of what is decided, on machines that do other things as well.
    Second,
}

impl Proxy {
    /// Starts it in front of the gRPC doors of `cluster`.
    pub async fn start(cluster: &Cluster, timeouts: Timeouts) -> Self {
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
        let config = match timeouts {
            Timeouts::Tenth => patient(&config, "0.1s"),
            Timeouts::Second => patient(&config, "1s"),
        };
        let file = dir.join("envoy.yaml");
        fs::write(&file, config).unwrap();

        let mut command = Command::new(tools::program("envoy"));
        command.env_clear().arg("-c").arg(&file).args(["--log-level", "warn"]);
        // Two Envoys of one machine share memory otherwise.
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

    /// A GET by a client with these headers.
    pub async fn get(&self, target: &str, headers: &[(&str, &str)]) -> Reply {
        self.http.send(Method::GET, self.addr, target, headers, Bytes::new()).await.unwrap()
    }

    /// One of Envoy's own counters and gauges, 0 while it was never touched.
    pub async fn stat(&self, name: &str) -> u64 {
        stat(&self.http, self.admin, name).await.unwrap()
    }
}

async fn stat(http: &Http, admin: SocketAddr, name: &str) -> Result<u64, String> {
    let text = http.get(admin, &format!("/stats?filter=^{name}$")).await?.body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.map_or(Ok(0), |value| value.trim().parse().map_err(|_| text.clone()))
}

/// The file of the documents, with each of its ports, said once, replaced.
fn example(ports: &[(u16, SocketAddr)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/envoy.yaml");
    let mut text = fs::read_to_string(path).unwrap();
    for (written, addr) in ports {
        let address = |port: u16| format!("address: 127.0.0.1, port_value: {port}}}");
        text = replaced_once(&text, &address(*written), &address(addr.port()));
    }
    text
}

fn patient(config: &str, timeout: &str) -> String {
    let each_try = format!("max_interval: {timeout}");
    let config = replaced_once(config, "max_interval: 0.02s", &each_try);
    let line = "failure_mode_deny: true";
    let indent = " ".repeat(22);
    replaced_once(&config, line, &format!("{line}\n{indent}timeout: {timeout}"))
}

fn replaced_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} in docs/examples/envoy.yaml");
    text.replace(from, to)
}
