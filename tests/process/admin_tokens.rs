//! A node with a token that writes and one that only reads, and the commands that have them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::ports;
use tidegate_testkit::process::Process;
use tidegate_testkit::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::TIDEGATE;

const RULES: &str = "
domain: demo
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
";
const PATIENCE: Duration = Duration::from_secs(30);
const ORDERS: [&[&str]; 7] = [
    &["key", "reset", "demo", "user=ann"],
    &["key", "adjust", "demo", "user=ann", "--hits", "-1"],
    &["key", "block", "demo", "user=ann"],
    &["key", "unblock", "demo", "user=ann"],
    &["bootstrap"],
    &["forget", "n2"],
    &["drain"],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_reads_shows_everything_and_orders_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let write_token = |name: &str, token: &str| -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, token).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let writes = write_token("write.token", "0123456789abcdef\n");
    let reads = write_token("read.token", "fedcba9876543210\n");
    let wrong = write_token("wrong.token", "another-token-altogether");
    let [http, admin] = [(); 2].map(|()| ports::free());
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    let config = format!(
        "[http]\nlisten = \"{http}\"\n[rules]\npath = \"rules.yaml\"\n\
         [admin]\nlisten = \"{admin}\"\ntoken_file = \"write.token\"\n\
         read_token_file = \"read.token\"\n"
    );
    let file = dir.path().join("cluster.toml");
    fs::write(&file, config).unwrap();
    let mut serve = Command::new(TIDEGATE);
    serve.env_clear().args(["serve", "--config"]).arg(&file);
    let mut node = Process::spawn("node", &mut serve, &dir.path().join("log"));
    let client = Http::new();
    let ready = async || match client.get(http, "/readyz").await?.status {
        200 => Ok(()),
        status => Err(status.to_string()),
    };
    until("it is ready", PATIENCE, ready).await;

    let url = format!("http://{admin}");
    let run = |arguments: &[&str], token: Option<&Path>| -> Output {
        let mut command = Command::new(TIDEGATE);
        command.env_clear().args(arguments).args(["--url", &url]);
        if let Some(token) = token {
            command.arg("--token-file").arg(token);
        }
        command.output().unwrap()
    };
    // From a secret store, without a file.
    let piped = format!("{TIDEGATE} status --url {url} --token-file <(cat {})", reads.display());
    let piped = Command::new("bash").args(["-c", &piped]).output().unwrap();
    assert!(piped.status.success(), "{piped:?}");
    let shows: [&[&str]; 3] = [&["status"], &["members"], &["key", "show", "demo", "user=ann"]];
    for arguments in shows {
        for token in [&reads, &writes] {
            let shown = run(arguments, Some(token));
            assert!(shown.status.success(), "{arguments:?}: {shown:?}");
        }
    }
    assert_eq!(client.check(http, &check_body("demo", "user", "ann")).await.unwrap().status, 200);
    for arguments in ORDERS {
        for (token, says) in [
            (None, "401 Unauthorized"),
            (Some(&wrong), "no token of the node"),
            (Some(&reads), "only reads; send that of admin.token_file"),
        ] {
            let refused = run(arguments, token.map(PathBuf::as_path));
            let text = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {text}");
            assert!(text.contains(says), "{arguments:?}: {text}");
        }
    }
    // Nothing was reset, and nothing drains.
    assert_eq!(client.check(http, &check_body("demo", "user", "ann")).await.unwrap().status, 429);
    assert_eq!(client.get(http, "/readyz").await.unwrap().status, 200);
    let reset = run(ORDERS[0], Some(&writes));
    assert!(reset.status.success(), "{reset:?}");
    assert_eq!(client.check(http, &check_body("demo", "user", "ann")).await.unwrap().status, 200);

    // A token is replaced without a restart, and the one before it is refused.
    let before = write_token("before.token", "fedcba9876543210");
    let mut events = TcpStream::connect(admin).await.unwrap();
    let request = "GET /events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ";
    let request = format!("{request}fedcba9876543210\r\nconnection: close\r\n\r\n");
    events.write_all(request.as_bytes()).await.unwrap();
    write_token("read.token", "a-new-token-that-reads\n");
    let replaced = async || {
        let shown = run(&["status"], Some(&reads));
        if shown.status.success() { Ok(()) } else { Err(format!("{shown:?}")) }
    };
    until("the new token reads", PATIENCE, replaced).await;
    assert_eq!(run(&["status"], Some(&before)).status.code(), Some(2));
    assert!(run(&["status"], Some(&writes)).status.success());
    let mut received = Vec::new();
    let ended = timeout(PATIENCE, events.read_to_end(&mut received)).await;
    ended.expect("what is open by the token before it ends").unwrap();
    let received = String::from_utf8_lossy(&received);
    assert!(received.starts_with("HTTP/1.1 200 OK"), "{received}");
    assert!(received.ends_with("\r\n0\r\n\r\n"), "{received}");

    let drained = run(&["drain"], Some(&writes));
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(node.ended(PATIENCE).await.code(), Some(0));
}

#[test]
fn a_node_does_not_start_with_the_same_token_for_both_roles() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let mut serve = Command::new(TIDEGATE);
    serve.env_clear().arg("serve").args(["--set", "http.listen=127.0.0.1:0"]);
    for key in ["admin.token_file", "admin.read_token_file"] {
        serve.arg("--set").arg(format!("{key}={}", token.display()));
    }
    let output = serve.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("have the same token; make another one"), "{text}");
}
