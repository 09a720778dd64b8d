//! `tidegate proxy`: one line in front of an application.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::http_client::Http;
use tidegate_testkit::ports;
use tidegate_testkit::process::Process;
use tidegate_testkit::upstream::Upstream;
use tidegate_testkit::wait::until;

use crate::TIDEGATE;

const RULES: &str = "
domain: http
descriptors:
  - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: path, value: /free, rate_limit: {unlimited: true}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_line_limits_an_application() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    let upstream = Upstream::start().await;
    let addr = ports::free();
    let mut command = Command::new(TIDEGATE);
    command.env_clear().arg("proxy").args(["--upstream", &format!("http://{}", upstream.addr)]);
    command.arg("--rules").arg(&rules).args(["--listen", &addr.to_string()]);
    let mut process = Process::spawn("proxy", &mut command, &dir.path().join("log"));
    let client = Http::new();
    let first = async || {
        if let Some(status) = process.exit() {
            panic!("it ended with {status}\n{}", process.tail());
        }
        client.get(addr, "/a").await
    };
    let (first, _) = until("it answers", Duration::from_secs(30), first).await;
    assert_eq!((first.status, first.body.as_str()), (200, "ok\n"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("2"));
    for expected in [200, 200, 429, 429] {
        assert_eq!(client.get(addr, "/b").await.unwrap().status, expected);
    }
    assert_eq!(upstream.served(), 3);

    process.terminate();
    assert_eq!(process.ended(Duration::from_secs(30)).await.code(), Some(0));
}

#[test]
fn a_mistake_is_one_line() {
    for (args, says) in [
        (&["--upstream", "app:3000", "--rules", "x"][..], "is not http://HOST:PORT"),
        (&["--upstream", "http://app:3000", "--rules", "/nowhere"], "/nowhere does not exist"),
    ] {
        let output = Command::new(TIDEGATE).env_clear().arg("proxy").args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(says), "{stderr}");
    }
}
