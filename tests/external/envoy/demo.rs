//! `tidegate demo --envoy` shows what it promises, and leaves no Envoy behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::exclusive;
use tidegate_testkit::wait::until;

use super::day;
use crate::TIDEGATE;

/// The demo, run in the repository, its files below `home`.
fn demo(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.env_clear().env("TMPDIR", home.path()).current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["demo", "--envoy"]).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_exact_behind_envoy_and_nothing_is_left() {
    day::far_from_its_end().await;
    let _exclusive = exclusive::share().await;
    let home = tempfile::tempdir().unwrap();
    let output = demo(&home, &["--once"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let act = text.split("In front: a real Envoy").nth(1).unwrap();
    for part in
        ["sent 300, passed 50\n", "x-envoy-ratelimited: true\n", "w=86400\n", "   ok strict"]
    {
        assert!(act.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(text.matches("   ok ").count(), 9, "{text}");
    assert_eq!(processes_of(home.path()), Vec::<String>::new());
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_does_not_outlive_a_demo_that_is_killed() {
    day::far_from_its_end().await;
    let _exclusive = exclusive::share().await;
    let home = tempfile::tempdir().unwrap();
    let mut demo = demo(&home, &[]).spawn().unwrap();
    let mut text = String::new();
    let mut stdout = BufReader::new(demo.stdout.take().unwrap());
    while !text.contains("docs/examples/envoy.yaml") {
        assert!(stdout.read_line(&mut text).unwrap() > 0, "it ended:\n{text}");
    }
    let is_envoy = |line: &String| line.contains("envoy.yaml");
    assert!(processes_of(home.path()).iter().any(is_envoy), "{:?}", processes_of(home.path()));
    demo.kill().unwrap();
    demo.wait().unwrap();
    let gone = async || match processes_of(home.path()) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    };
    until("nodes and Envoy are gone", Duration::from_secs(60), gone).await;
}

#[test]
fn without_an_envoy_the_error_names_the_script_that_fetches_it() {
    let home = tempfile::tempdir().unwrap();
    let mut demo = demo(&home, &["--once"]);
    let output = demo.current_dir(home.path()).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("scripts/envoy-tools"), "{text}");
}

/// The command lines of the living processes that name `home`.
fn processes_of(home: &Path) -> Vec<String> {
    let home = home.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    processes.filter(|line| line.contains(home)).collect()
}
