//! `redis-cli` in both protocols, with inline commands through a pipe and in `--pipe` mode.

use tidegate_testkit::process::{Cluster, ClusterOptions};

use super::{RULES, WITH_PASSWORD, run};
use crate::TIDEGATE;

async fn cli(port: &str, args: &[&str], typed: &str) -> String {
    let args = [&["-p", port], args].concat();
    run("redis-cli", &args, typed.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_answered_as_by_redis_cell() {
    let options = ClusterOptions { nodes: &["n1"], rules: RULES, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let port = &cluster.nodes[0].resp.port().to_string();
    let throttle = ["CL.THROTTLE", "user", "15", "1", "3600"];
    assert_eq!(cli(port, &throttle, "").await, "0\n16\n15\n-1\n3600\n");
    let three = [&["-3"], &throttle[..]].concat();
    assert_eq!(cli(port, &three, "").await, "0\n16\n14\n-1\n7200\n");
    assert_eq!(cli(port, &["TG.CHECK", "nowhere", "a", "b"], "").await, "0\n-1\n-1\n-1\n-1\n");
    assert!(cli(port, &["CL.THROTTLE", "user"], "").await.contains("wrong number of arguments"));
    assert!(cli(port, &["-3", "HELLO"], "").await.contains("proto 3"));
    assert!(cli(port, &["INFO"], "").await.contains("tidegate_version:"));
    assert!(cli(port, &["COMMAND", "DOCS"], "").await.contains("cl.throttle"));
    // Lines of standard input, one connection.
    let typed = "CL.THROTTLE \"a b\" 0 1 3600\nCL.THROTTLE \"a b\" 0 1 3600\nPING\n";
    assert_eq!(cli(port, &[], typed).await, "0\n1\n0\n-1\n3600\n1\n1\n0\n3600\n3600\nPONG\n");
    let lines = "THROTTLE piped 9 1 3600\r\n".repeat(1_000);
    let output = cli(port, &["--pipe"], &lines).await;
    assert!(output.contains("errors: 0, replies: 1000"), "{output}");
    assert_eq!(
        cli(port, &["CL.THROTTLE", "piped", "9", "1", "3600", "0"], "").await.lines().nth(2),
        Some("0")
    );
    let decided =
        |outcome| format!("tidegate_decisions_total{{listener=\"resp\",outcome=\"{outcome}\"}}");
    assert_eq!(cluster.nodes[0].metric(&decided("denied")).await, 991);
    assert_eq!(cluster.nodes[0].metric(&decided("allowed")).await, 15);
    let timed = "tidegate_decision_seconds_count{listener=\"resp\"}";
    assert_eq!(cluster.nodes[0].metric(timed).await, 1_006);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_authenticates_with_the_password() {
    let options = ClusterOptions {
        nodes: &["n1"],
        rules: RULES,
        sets: WITH_PASSWORD,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let port = &cluster.nodes[0].resp.port().to_string();
    assert!(cli(port, &["PING"], "").await.contains("NOAUTH Authentication required."));
    let known = ["--no-auth-warning", "-a", "open sesame"];
    assert_eq!(cli(port, &[&known[..], &["PING"]].concat(), "").await, "PONG\n");
    let named = [&known[..], &["--user", "default", "-3", "PING"]].concat();
    assert_eq!(cli(port, &named, "").await, "PONG\n");
    let wrong = ["--no-auth-warning", "-a", "sesame", "PING"];
    assert!(cli(port, &wrong, "").await.contains("WRONGPASS"));
}
