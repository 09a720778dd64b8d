//! What a node tells systemd, whose part the test plays: it binds the socket of `NOTIFY_SOCKET`.

use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::ports;
use tidegate_testkit::process::Process;
use tidegate_testkit::wait::eventually;

use crate::TIDEGATE;

const RULE: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]\n";

/// The line that begins with `start`, in this message or one of the next.
fn line(socket: &UnixDatagram, start: &str) -> String {
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{start}: {error}"));
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let ready_too_early = start == "STATUS=rules" && text.contains("READY=1");
        assert!(!ready_too_early, "{text}");
        if let Some(line) = text.lines().find(|line| line.starts_with(start)) {
            return line.to_owned();
        }
    }
}

/// As of a supervisor that was stopped.
#[tokio::test]
async fn a_supervisor_that_reads_nothing_does_not_keep_a_node_from_ending() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let _unread = UnixDatagram::bind(&path).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send_to(b"STATUS=full", &path).is_ok() {}
    let mut command = Command::new(TIDEGATE);
    command.env_clear().env("NOTIFY_SOCKET", &path).arg("serve");
    let admin = ports::free();
    for set in [
        format!("http.listen={}", ports::free()),
        format!("grpc.listen={}", ports::free()),
        format!("resp.listen={}", ports::free()),
        format!("admin.listen={admin}"),
        "rules.required=false".to_owned(),
    ] {
        command.args(["--set", &set]);
    }
    let mut node = Process::spawn("node", &mut command, &dir.path().join("log"));
    eventually("it listens", Duration::from_secs(30), || TcpStream::connect(admin).is_ok()).await;
    node.terminate();
    let ended = node.ended(Duration::from_secs(30)).await;
    assert!(ended.success(), "{ended}");
}

#[tokio::test]
async fn systemd_learns_that_a_node_is_ready_lives_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules");
    fs::create_dir(&rules).unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let admin = ports::free();

    let mut command = Command::new(TIDEGATE);
    command.env_clear().env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000").arg("serve");
    for set in [
        format!("http.listen={}", ports::free()),
        format!("grpc.listen={}", ports::free()),
        format!("resp.listen={}", ports::free()),
        format!("admin.listen={admin}"),
        format!("rules.path={}", rules.display()),
        "rules.required=false".to_owned(),
    ] {
        command.args(["--set", &set]);
    }
    let mut node = Process::spawn("node", &mut command, &dir.path().join("log"));

    let lacks = line(&socket, "STATUS=rules");
    fs::write(rules.join("a.yaml"), RULE).unwrap();
    line(&socket, "READY=1");
    // Twice: once may be the start.
    line(&socket, "WATCHDOG=1");
    line(&socket, "WATCHDOG=1");
    node.terminate();
    line(&socket, "STOPPING=1");
    let ended = node.ended(Duration::from_secs(30)).await;
    assert!(ended.success(), "{lacks}: {ended}");
}
