//! A node whose listeners have TLS, and the commands that reach it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tidegate_testkit::http_client::Http;
use tidegate_testkit::ports;
use tidegate_testkit::process::Process;
use tidegate_testkit::site::Authority;
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const RULES: &str = "
domain: demo
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
";

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_reach_listeners_with_tls_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let (authority, clients) = (Authority::new(), Authority::new());
    authority.issue("127.0.0.1").write(folder, "own");
    fs::write(folder.join("ca.pem"), &authority.pem).unwrap();
    fs::write(folder.join("clients.pem"), &clients.pem).unwrap();
    clients.issue("operator").write(folder, "operator");
    Authority::new().issue("operator").write(folder, "foreign");
    fs::write(folder.join("rules.yaml"), RULES).unwrap();
    let [http, admin] = [(); 2].map(|()| ports::free());
    let tls = "tls_cert = \"own.pem\"\ntls_key = \"own.key\"\n";
    let config = format!(
        "[http]\nlisten = \"{http}\"\n{tls}\n[rules]\npath = \"rules.yaml\"\n\
         [admin]\nlisten = \"{admin}\"\n{tls}client_ca = \"clients.pem\"\n\
         client_san = \"operator\"\n"
    );
    fs::write(folder.join("cluster.toml"), config).unwrap();
    let mut serve = Command::new(TIDEGATE);
    serve.env_clear().args(["serve", "--config"]).arg(folder.join("cluster.toml"));
    let mut node = Process::spawn("node", &mut serve, &folder.join("log"));

    let url = format!("https://{http}");
    let check = |arguments: &[&str]| {
        tidegate(folder, &[&["check", "demo", "user=ann", "--url", &url], arguments].concat())
    };
    let answered = async || {
        if let Some(status) = node.exit() {
            panic!("it ended with {status}\n{}", node.tail());
        }
        let output = check(&["--ca", "ca.pem", "--hits", "0"]);
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    };
    until("it answers", PATIENCE, answered).await;
    for expected in [0, 0, 0, 1] {
        assert_eq!(check(&["--ca", "ca.pem"]).status.code(), Some(expected));
    }
    // An authority that the client does not trust, and plain text.
    assert_eq!(check(&["--ca", "clients.pem"]).status.code(), Some(2));
    assert!(Http::new().get(http, "/healthz").await.is_err());

    let admin_url = format!("https://{admin}");
    let status = |arguments: &[&str]| {
        let common = ["status", "--json", "--url", &admin_url, "--ca", "ca.pem"];
        tidegate(folder, &[&common, arguments].concat())
    };
    let operator = ["--client-cert", "operator.pem", "--client-key", "operator.key"];
    let report = status(&operator);
    assert!(report.status.success(), "{report:?}");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["node"]["id"], "node-1");
    let foreign = ["--client-cert", "foreign.pem", "--client-key", "foreign.key"];
    for refused in [&[][..], &foreign] {
        assert_eq!(status(refused).status.code(), Some(2));
    }
    assert!(Http::new().get(admin, "/healthz").await.is_err());

    // A renewed certificate of another authority is in use without a restart.
    let next = Authority::new();
    next.issue("127.0.0.1").write(folder, "own");
    fs::write(folder.join("next.pem"), &next.pem).unwrap();
    let renewed = async || {
        let output = check(&["--ca", "next.pem", "--hits", "0"]);
        if output.status.code() == Some(2) { Err(format!("{output:?}")) } else { Ok(()) }
    };
    until("the new certificate is shown", PATIENCE, renewed).await;

    node.terminate();
    assert_eq!(node.ended(PATIENCE).await.code(), Some(0));
}

fn tidegate(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(TIDEGATE).env_clear().current_dir(folder).args(arguments).output().unwrap()
}
