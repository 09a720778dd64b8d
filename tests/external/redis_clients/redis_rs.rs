//! redis-rs, as published: plain, pipelined, with a password.

use redis::{Client, Connection, RedisError};
use tidegate_testkit::process::{Cluster, ClusterOptions};

use super::{RULES, WITH_PASSWORD};
use crate::TIDEGATE;

type Five = (i64, i64, i64, i64, i64);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_finds_a_server_of_the_protocol() {
    let options = ClusterOptions {
        nodes: &["n1"],
        rules: RULES,
        sets: WITH_PASSWORD,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let port = cluster.nodes[0].resp.port();
    tokio::task::spawn_blocking(move || {
        for protocol in ["resp2", "resp3"] {
            let url = |password| {
                format!("redis://default:{password}@127.0.0.1:{port}/?protocol={protocol}")
            };
            let mut connection = connect(&url("open%20sesame")).unwrap();
            limits(&mut connection, protocol);
            assert!(connect(&url("wrong")).is_err());
        }
    })
    .await
    .unwrap();
}

fn connect(url: &str) -> Result<Connection, RedisError> {
    Client::open(url)?.get_connection()
}

fn limits(connection: &mut Connection, key: &str) {
    for expected in [(0, 2, 1, -1, 3_600), (0, 2, 0, -1, 7_200)] {
        let found: Five =
            redis::cmd("CL.THROTTLE").arg(key).arg(&[1, 1, 3_600]).query(connection).unwrap();
        assert_eq!(found, expected);
    }
    let mut pipeline = redis::pipe();
    for _ in 0..100 {
        pipeline.cmd("THROTTLE").arg(format!("{key}-many")).arg(&[9, 1, 3_600]);
    }
    let found: Vec<Five> = pipeline.query(connection).unwrap();
    assert_eq!(found.iter().filter(|five| five.0 == 0).count(), 10);
    let found: Five =
        redis::cmd("TG.CHECK").arg(&["edge", "user", key, "HITS", "3"]).query(connection).unwrap();
    assert_eq!((found.0, found.1, found.2), (0, 3, 0));
    let error = redis::cmd("CL.THROTTLE").arg(key).query::<Five>(connection).unwrap_err();
    assert!(error.to_string().contains("wrong number of arguments"), "{error}");
}
