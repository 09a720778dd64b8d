//! Third-party clients: redis-cli, redis-benchmark, redis-py and redis-rs against real
//! nodes, unchanged, as against a Redis.
//!
//! Debian's `redis-tools` has the first two; `scripts/envoy-tools` fetches redis-py.

mod cluster;
mod redis_benchmark;
mod redis_cli;
mod redis_py;
mod redis_rs;

/// The rules of every node here.
const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
";

/// A node with a password.
const WITH_PASSWORD: &[&str] = &["resp.password=open sesame"];

/// Runs a program with what is to be typed into it; what it prints.
async fn run(program: &str, args: &[&str], typed: &[u8]) -> String {
    use tokio::io::AsyncWriteExt;

    let mut child = tokio::process::Command::new(program)
        .args(args)
        .env_remove("REDISCLI_AUTH")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; it is in Debian's redis-tools"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(typed).await.unwrap();
    drop(stdin);
    let timeouts = std::time::Duration::from_secs(60);
    let output = tokio::time::timeout(timeouts, child.wait_with_output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}{errors}");
    text + &errors
}
