//! redis-py, as published: plain, pipelined, with a password, in both protocols.

use std::path::Path;

use tidegate_testkit::process::{Cluster, ClusterOptions};
use tidegate_testkit::tools;

use super::{RULES, WITH_PASSWORD, run};
use crate::TIDEGATE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_finds_a_server_of_the_protocol() {
    let options = ClusterOptions {
        nodes: &["n1"],
        rules: RULES,
        sets: WITH_PASSWORD,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let port = cluster.nodes[0].resp.port().to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/redis_client.py");
    let args = [script.to_str().unwrap(), &port, "open sesame"];
    print!("{}", run(tools::program("python").to_str().unwrap(), &args, b"").await);
}
