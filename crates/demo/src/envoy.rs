//! Envoy in front of the nodes, with the configuration of `docs/examples/envoy.yaml` and their
//! ports.
//!
//! Envoy does not end with its parent. Its parent is therefore a shell that waits for the end of
//! standard input and then ends Envoy.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use tokio::process::Command;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::gateway::{HELLO, serve};
use crate::node::Node;
use crate::requests::{self, Http};

/// A link to the example in the documentation, so that the demo runs what users copy.
const EXAMPLE: &str = include_str!("../envoy.yaml");

/// Where `scripts/envoy-tools` puts Envoy.
const FETCHED: &str = "target/tools/envoy/bin/envoy";

/// Ends Envoy at the end of standard input, and itself when Envoy ends. Both are alone in a process
/// group, to which `kill 0` sends SIGTERM.
const WRAPPER: &str = r#"trap : TERM
{ trap : TERM; "$@"; kill 0; } &
read -r _
kill 0
wait"#;

/// Finds Envoy in the `PATH`, or where `scripts/envoy-tools` puts it.
pub(crate) fn find() -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("envoy"));
    let fetched = std::env::current_dir().unwrap_or_default().join(FETCHED);
    in_path.chain([fetched]).find(|program| program.is_file()).ok_or_else(|| {
        Error::new(
            "--envoy: there is no envoy in the PATH",
            "run scripts/envoy-tools, which fetches one, or install it (https://www.envoyproxy.io)",
        )
    })
}

/// Starts Envoy before the gRPC listeners of the nodes, with an upstream behind it, and waits until
/// it listens. Returns its address.
pub(crate) async fn start(
    program: &Path,
    nodes: &[Node],
    http: &Http,
    cluster: &mut Cluster,
) -> Result<SocketAddr, Error> {
    let upstream = serve(Router::new().fallback(async || HELLO)).await;
    let upstream = upstream.map_err(Error::context("start an upstream", "raise `ulimit -n`"))?;
    let nodes: Vec<SocketAddr> = nodes.iter().map(|node| node.grpc).collect();
    let config = cluster.write("envoy.yaml", &configuration(upstream, &nodes))?;
    let admin = cluster.folder().join("envoy.admin");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", WRAPPER, "sh"]).arg(program).arg("-c").arg(config);
    command.arg("--admin-address-path").arg(&admin);
    // Without hot restart it is independent of other Envoys on this machine.
    command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warn"]);
    cluster.spawn("envoy", &mut command)?;
    cluster.wait_for_start("envoy", async || address(http, &admin).await).await
}

/// The address of its listener once it is live: it has health-checked the nodes by then. `admin` is
/// the file with the address of its admin interface.
async fn address(http: &Http, admin: &Path) -> Option<SocketAddr> {
    let admin = fs::read_to_string(admin).ok()?;
    if get(http, &format!("http://{}/ready", admin.trim())).await? != "LIVE\n" {
        return None;
    }
    let listeners = get(http, &format!("http://{}/listeners", admin.trim())).await?;
    listeners.lines().find_map(|line| line.strip_prefix("edge::")?.parse().ok())
}

async fn get(http: &Http, url: &str) -> Option<String> {
    let response = requests::send(http, Request::get(url), Body::empty()).await.ok()?;
    Some(String::from_utf8_lossy(response.body()).into_owned())
}

/// The example with the demo's rules and ports. The system chooses Envoy's own ports.
fn configuration(upstream: SocketAddr, nodes: &[SocketAddr]) -> String {
    let ports = [(8020, 0), (9901, 0), (8001, upstream.port())];
    let ports = ports.into_iter().chain((8181..).zip(nodes.iter().map(SocketAddr::port)));
    let config = ports.fold(EXAMPLE.to_owned(), |config, (from, to)| {
        config.replace(&format!("port_value: {from}}}"), &format!("port_value: {to}}}"))
    });
    config
        .replace("domain: edge", "domain: demo")
        // One machine runs everything here; the results should not depend on its other load.
        .replace(
            "failure_mode_deny: true",
            &format!("failure_mode_deny: true\n{:22}timeout: 1s", ""),
        )
        .replace("max_interval: 0.02s", "max_interval: 0.5s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_ports_become_those_of_the_nodes() {
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let config = configuration(addr(1001), &[addr(1002), addr(1003), addr(1004)]);
        let ports: Vec<&str> = config
            .split("port_value: ")
            .skip(1)
            .filter_map(|rest| rest.split('}').next())
            .collect();
        assert_eq!(ports, ["0", "0", "1001", "1002", "1003", "1004"]);
        for replaced in ["domain: demo\n", " timeout: 1s\n", "max_interval: 0.5s}"] {
            assert_eq!(config.matches(replaced).count(), 1, "{replaced:?} in\n{config}");
        }
    }
}
