//! A management server in Python, made of the published protos, drives a node; a client made of
//! them sends checks. It compares our messages with generated ones.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_testkit::tools;
use tidegate_testkit::wait::in_time;
use tidegate_testkit::xds::Node;

use crate::TIDEGATE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_configurations_are_confirmed_and_a_bad_one_is_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(tools::program("python"))
        .arg(root.join("tests/python/xds_server.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(script.stdout.take().unwrap()).lines();
    let listening = lines.next().unwrap().unwrap();
    let addr = listening.strip_prefix("listening ").unwrap().parse().unwrap();
    let node = Node::start(TIDEGATE, addr);
    std::io::Write::write_all(
        &mut script.stdin.take().unwrap(),
        format!("{}\n", node.grpc).as_bytes(),
    )
    .unwrap();

    let transcript = tokio::task::spawn_blocking(move || {
        let transcript: Vec<String> = lines.map(Result::unwrap).collect();
        assert!(script.wait().unwrap().success(), "{transcript:#?}");
        transcript
    });
    let transcript = in_time("the script ends", transcript).await.unwrap();
    assert_eq!(
        transcript,
        [
            "subscribed node=default names=[]",
            "ACK version=1 nonce=n1",
            "OK limit=5 remaining=3",
            "ACK version=2 nonce=n2",
            "OK limit=7 remaining=4",
            "NACK version=2 nonce=n3 detail=shop-config: invalid rate limit unit 'UNKNOWN'",
            "OK limit=7 remaining=3",
        ]
    );
}
