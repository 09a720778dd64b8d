//! A real Envoy before the nodes: the configuration of `docs/examples/envoy.yaml`, with their
//! ports.
//!
//! Envoy does not know to end when this process does. A shell stands between, which waits for the
//! end of its standard input, and ends Envoy then.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::Failure;
use super::super::client::{self, Http};
use super::fleet::{Fleet, Node};
use super::site::Site;
use crate::config::{Limits, UserError};
use crate::front::bounds::Bounds;
use crate::front::serve::{ListenerStats, Protocols, serve};

/// What people copy is what is shown.
const EXAMPLE: &str = include_str!("../../../docs/examples/envoy.yaml");

/// Where `scripts/envoy-tools` puts it.
const FETCHED: &str = "target/tools/envoy/bin/envoy";

/// Ends Envoy when standard input ends, and itself when Envoy does. Both have a process group of
/// their own, which `kill 0` means.
const KEEPER: &str = r#"trap : TERM
{ trap : TERM; "$@"; kill 0; } &
read -r _
kill 0
wait"#;

/// How long Envoy may take to listen. It takes a second; a machine may be busy.
const START_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// An Envoy that listens, with an upstream behind it. The process is the fleet's.
pub(super) struct Envoy {
    pub(super) addr: SocketAddr,
    pub(super) program: PathBuf,
    /// Ends when this is dropped.
    _upstream: AbortOnDropHandle<()>,
}

/// Finds an Envoy: in the `PATH`, or where `scripts/envoy-tools` puts one.
pub(super) fn find() -> Result<PathBuf, UserError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("envoy"));
    let fetched = std::env::current_dir().unwrap_or_default().join(FETCHED);
    in_path.chain([fetched]).find(|program| program.is_file()).ok_or_else(|| {
        UserError::new(
            "--envoy: there is no envoy in the PATH",
            "run scripts/envoy-tools, which fetches one, or install it (https://www.envoyproxy.io)",
        )
    })
}

impl Envoy {
    /// Starts `program` before the gRPC doors of the nodes, and waits until it listens.
    pub(super) async fn start(
        program: PathBuf,
        site: &Site,
        nodes: &[Node],
        fleet: &mut Fleet,
    ) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| failed(&error))?;
        let upstream = listener.local_addr().map_err(|error| failed(&error))?;
        let listeners: Vec<SocketAddr> = nodes.iter().map(|node| node.grpc).collect();
        let file = site.path().join("envoy.yaml");
        let admin = site.path().join("envoy.admin");
        let log = site.path().join("envoy.log");
        fs::write(&file, configuration(upstream, &listeners)).map_err(|error| failed(&error))?;
        let child = spawn(&program, &file, &admin, &log).map_err(|error| failed(&error))?;
        fleet.adopt("envoy", child, log);
        let behind = greet(listener);

        let http = client::http();
        let deadline = Instant::now() + START_PATIENCE;
        while Instant::now() < deadline {
            if let Some(addr) = listening(&http, &admin).await {
                return Ok(Self { addr, program, _upstream: behind });
            }
            if let Some(status) = fleet.ended("envoy") {
                let problem = format!("envoy ended at its start ({status})");
                return Err(UserError::new(problem, "its log is above").into());
            }
            sleep(LOOK_INTERVAL).await;
        }
        Err(UserError::new(
            format!("envoy did not listen within {START_PATIENCE:?}"),
            "try it on a machine that is less busy; its log is above",
        )
        .into())
    }
}

fn spawn(program: &Path, config: &Path, admin: &Path, log: &Path) -> io::Result<Child> {
    let output = File::create(log)?;
    Command::new("/bin/sh")
        .args(["-c", KEEPER, "sh"])
        .arg(program)
        .arg("-c")
        .arg(config)
        .arg("--admin-address-path")
        .arg(admin)
        // Other Envoys of this machine have nothing to do with it.
        .args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warn"])
        .stdin(Stdio::piped())
        .stdout(output.try_clone()?)
        .stderr(output)
        // Ctrl-C is for us alone, who then end it in order.
        .process_group(0)
        .spawn()
}

/// Where it listens, once it does: its nodes are looked at before. The system chose the ports.
async fn listening(http: &Http, admin: &Path) -> Option<SocketAddr> {
    let admin = fs::read_to_string(admin).ok()?;
    let ready = get(http, &format!("http://{}/ready", admin.trim())).await?;
    if ready != "LIVE\n" {
        return None;
    }
    let listeners = get(http, &format!("http://{}/listeners", admin.trim())).await?;
    listeners.lines().find_map(|line| line.strip_prefix("edge::")?.parse().ok())
}

async fn get(http: &Http, url: &str) -> Option<String> {
    let request = Request::get(url).body(Full::<Bytes>::default()).ok()?;
    let answer = client::exchange(http, request).await.ok()?;
    Some(String::from_utf8_lossy(answer.body()).into_owned())
}

/// The upstream: it greets whoever gets through.
fn greet(listener: TcpListener) -> AbortOnDropHandle<()> {
    let router = Router::new().fallback(async || "hello from the upstream\n");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let bounds = Bounds::from(&Limits::default());
        let stats = std::sync::Arc::new(ListenerStats::default());
        serve(listener, router, Protocols::Http, &bounds, stats, CancellationToken::new()).await;
    }))
}

/// The example with the demo's rules and the ports of this run.
fn configuration(upstream: SocketAddr, listeners: &[SocketAddr]) -> String {
    let ports = [(8020, 0), (9901, 0), (8001, upstream.port())];
    let listeners = (8181..).zip(listeners.iter().map(SocketAddr::port));
    let config =
        ports.into_iter().chain(listeners).fold(EXAMPLE.to_owned(), |config, (from, to)| {
            config.replace(&format!("port_value: {from}}}"), &format!("port_value: {to}}}"))
        });
    config
        .replace("domain: edge", "domain: demo")
        // One machine plays all of it here, and answers should not depend on what else it does.
        .replace(
            "failure_mode_deny: true",
            &format!("failure_mode_deny: true\n{:22}timeout: 1s", ""),
        )
        .replace("max_interval: 0.02s", "max_interval: 0.5s")
}

fn failed(error: &io::Error) -> UserError {
    UserError::new(format!("start envoy: {error}"), "check `ulimit -n` and `ulimit -u`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_ports_are_those_of_the_nodes() {
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
