//! `tidegate proxy`: one line in front of an application.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::http_client::Http;
use tidegate_testkit::ports;
use tidegate_testkit::process::Process;
use tidegate_testkit::upstream::Upstream;
use tidegate_testkit::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

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

const LARGE: usize = 100 << 20;

/// An application that takes and gives [`LARGE`] bytes.
async fn large_app() -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let running = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            if head.starts_with(b"POST") {
                let mut body = (&mut stream).take(LARGE as u64);
                let taken = tokio::io::copy(&mut body, &mut tokio::io::sink()).await.unwrap();
                let body = taken.to_string();
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
                );
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            } else {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {LARGE}\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                let part = vec![7; 64 << 10];
                for _ in 0..LARGE / part.len() {
                    stream.write_all(&part).await.unwrap();
                }
            }
        }
    });
    (addr, AbortOnDropHandle::new(running))
}

/// The most memory that a process has had, in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_pass_at_constant_memory() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    fs::write(&rules, RULES.replace("3}", "1000}")).unwrap();
    let (app, _running) = large_app().await;
    let addr = ports::free();
    let mut command = Command::new(TIDEGATE);
    command.env_clear().arg("proxy").args(["--upstream", &format!("http://{app}")]);
    command.arg("--rules").arg(&rules).args(["--listen", &addr.to_string()]);
    let process = Process::spawn("proxy", &mut command, &dir.path().join("log"));
    let connect = async || TcpStream::connect(addr).await.map_err(|error| error.to_string());
    until("it listens", Duration::from_secs(30), connect).await;
    let before = peak_bytes(process.pid());

    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: t\r\ncontent-length: {LARGE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let part = vec![7; 64 << 10];
    for _ in 0..LARGE / part.len() {
        stream.write_all(&part).await.unwrap();
    }
    let mut reply = Vec::new();
    while !reply.ends_with(LARGE.to_string().as_bytes()) {
        assert_ne!(stream.read_buf(&mut reply).await.unwrap(), 0, "closed");
    }
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let get = b"GET / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    stream.write_all(get).await.unwrap();
    let taken = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap();
    assert!(taken > LARGE as u64);

    let grown = peak_bytes(process.pid()).saturating_sub(before);
    println!("100 MiB up and down: the peak of memory grew by {} KiB", grown >> 10);
    assert!(grown < 16 << 20, "{grown} bytes");
}

#[test]
fn a_mistake_is_one_line() {
    for (args, says) in [
        (
            &["--upstream", "app:3000", "--rules", "x"][..],
            "is not http://HOST:PORT or https://HOST:PORT",
        ),
        (&["--upstream", "http://app:3000", "--rules", "/nowhere"], "/nowhere does not exist"),
    ] {
        let output = Command::new(TIDEGATE).env_clear().arg("proxy").args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(says), "{stderr}");
    }
}
