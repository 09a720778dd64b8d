//! `tidegate top`: what a script reads of real nodes, and what a person sees on a real terminal.
//!
//! The terminal is one that `script` makes (Debian's bsdutils, which every system has); the shell in
//! it prints the modes of the terminal before and after.

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tidegate::admin::events::EVENT;
use tidegate::admin::report::MemberState;
use tidegate::admin::snapshot::ClusterSnapshot;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

use crate::TIDEGATE;

const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
",
    config: "",
    sets: &["cluster.deadline=1s", "admin.show_keys=true"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};

const WITHIN: Duration = Duration::from_secs(30);

const OTHER_SCREEN: &str = "\u{1b}[?1049h";
const FIRST_SCREEN: &str = "\u{1b}[?1049l";
const CURSOR: &str = "\u{1b}[?25h";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_finds_all_members_what_is_refused_and_who_died() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    refuse_ann(&cluster).await;
    let asked = url(&cluster.nodes[2]);
    let (snapshot, rates) = once(&[&asked]);
    let ids: Vec<&str> = snapshot.members.iter().map(|row| &*row.member.id).collect();
    assert_eq!(ids, THREE);
    assert!(snapshot.members.iter().all(|row| row.reported.is_some()), "{snapshot:#?}");
    let [key] = &snapshot.refused_keys[..] else { panic!("{snapshot:#?}") };
    assert_eq!((key.key.as_deref(), &*key.rule), (Some("user=ann"), "edge.user"));
    // What was counted before it looked is no rate.
    assert_eq!(rates["refused_per_second"], 0.0, "{rates}");
    assert_eq!(rates["rules"]["edge.user"]["checks_per_second"], 0.0, "{rates}");

    let text = top(&["--once", "--url", &asked]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("members: 3 of 3 up") && text.contains("user=ann"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");

    cluster.nodes[0].kill();
    let is_marked = async || {
        // The first of them does not answer any more.
        let (snapshot, _) = once(&[&url(&cluster.nodes[0]), &asked]);
        let row = snapshot.members.iter().find(|row| row.member.id == "n1");
        match row.map(|row| row.member.state) {
            Some(MemberState::Down) => Ok(()),
            state => Err(format!("{state:?}")),
        }
    };
    until("n1 is marked", WITHIN, is_marked).await;
    // The first of these goes away after its first snapshot, of which there are no rates.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = format!("http://{}", gone.local_addr().unwrap());
    let data = serde_json::to_string(&snapshot).unwrap();
    let leaves = std::thread::spawn(move || {
        let (mut stream, _) = gone.accept().unwrap();
        let _ = std::io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        let event = format!("{head}event: {EVENT}\ndata: {data}\n\n");
        std::io::Write::write_all(&mut stream, event.as_bytes()).unwrap();
    });
    let (_, rates) = once(&[&first, &asked]);
    leaves.join().unwrap();
    assert_eq!(rates["refused_per_second"], 0.0, "{rates}");

    let text = String::from_utf8(top(&["--once", "--url", &asked]).stdout).unwrap();
    assert!(text.contains("down: n1") && text.contains("members: 2 of 3 up"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_as_before_when_it_ends() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    refuse_ann(&cluster).await;
    let mut terminal = Terminal::open(&[&url(&cluster.nodes[0]), &url(&cluster.nodes[1])]);
    terminal.shows("live").await;
    terminal.shows("user=ann").await;
    // The node that was asked is gone: the next one is asked, and shows it.
    cluster.nodes[0].kill();
    terminal.shows("STALE").await;
    terminal.shows("down:").await;
    terminal.press("?").await;
    terminal.shows("hash:").await;
    terminal.press("q").await;
    terminal.is_restored().await;

    let mut terminal = Terminal::open(&[&url(&cluster.nodes[1])]);
    terminal.shows("user=ann").await;
    terminal.press("\u{3}").await;
    terminal.is_restored().await;

    let mut terminal = Terminal::open(&[&url(&cluster.nodes[1])]);
    terminal.shows("user=ann").await;
    let (_, pid) = terminal.text.split_once("pid=").unwrap();
    let pid: u32 = pid.split_whitespace().next().unwrap().parse().unwrap();
    let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status();
    assert!(sent.unwrap().success());
    terminal.is_restored().await;
}

#[test]
fn without_a_terminal_or_a_node_one_line_says_what_to_do() {
    let run = top(&[]);
    let says = String::from_utf8_lossy(&run.stderr);
    let expected = "tidegate: standard output is not a terminal; use --once, or --once --json\n";
    assert_eq!((run.status.code(), &*says, &*run.stdout), (Some(2), expected, &b""[..]));

    // A port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = top(&["--once", "--url", &format!("http://{closed}")]);
    let says = String::from_utf8_lossy(&run.stderr);
    let expected = format!(
        "tidegate: http://{closed}: connection refused; start a node with `tidegate serve`, or set \
         --url to the address of one, with https, --ca and --client-cert where its listener has \
         TLS\n"
    );
    assert_eq!((run.status.code(), &*says), (Some(2), &*expected));
}

/// Twelve checks at two nodes, of which three are admitted.
async fn refuse_ann(cluster: &Cluster) {
    let (http, body) = (Http::new(), check_body("edge", "user", "ann"));
    for turn in 0..12 {
        let reply = http.check(cluster.nodes[turn % 2].http, &body).await.unwrap();
        assert_eq!(reply.status == 200, turn < 3, "{reply:?}");
    }
}

fn url(node: &Node) -> String {
    format!("http://{}", node.admin)
}

fn top(args: &[&str]) -> Output {
    Command::new(TIDEGATE).env_clear().arg("top").args(args).output().unwrap()
}

/// The snapshot, and its rates.
fn once(urls: &[&str]) -> (ClusterSnapshot, Value) {
    let urls = urls.iter().flat_map(|url| ["--url", url]);
    let args: Vec<&str> = ["--once", "--json"].into_iter().chain(urls).collect();
    let run = top(&args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let mut json: Value = serde_json::from_slice(&run.stdout).unwrap();
    (ClusterSnapshot::deserialize(&json).unwrap(), json["rates"].take())
}

/// `tidegate top` on a terminal of 80 by 24.
struct Terminal {
    script: Child,
    /// What was written to it.
    text: String,
    /// How much of that was looked at.
    seen: usize,
}

impl Terminal {
    fn open(urls: &[&str]) -> Self {
        let urls = urls.join(" --url ");
        let commands = format!(
            "stty rows 24 cols 80; echo before=$(stty -g); \
             sh -c 'echo pid=$$; exec \"{TIDEGATE}\" top --url {urls}'; \
             echo ended=$?; echo after=$(stty -g)."
        );
        let script = tokio::process::Command::new("script")
            .args(["--quiet", "--flush", "--command", &commands, "/dev/null"])
            .envs([("SHELL", "/bin/sh"), ("TERM", "xterm-256color")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("script is installed: apt-get install bsdutils");
        Self { script, text: String::new(), seen: 0 }
    }

    async fn press(&mut self, keys: &str) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes()).await.unwrap();
    }

    /// Waits until `text` is written, after what was waited for before. Only what differs from the
    /// screen before is written, and no spaces where it was empty.
    async fn shows(&mut self, text: &str) {
        let is_in_time = tokio::time::timeout(WITHIN, self.reads(text)).await.is_ok();
        assert!(is_in_time, "no {text:?}: {:?}", &self.text[self.seen..]);
    }

    async fn reads(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        loop {
            if let Some(at) = self.text[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            let read = self.script.stdout.as_mut().unwrap().read(&mut bytes).await.unwrap();
            assert!(read > 0, "it ended without {text:?}: {:?}", self.text);
            // Cut characters are of no interest here.
            self.text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    /// It ended with success, and left the terminal as it was.
    async fn is_restored(&mut self) {
        self.shows("ended=0").await;
        self.shows("after=").await;
        self.shows(".").await;
        let modes = |name: &str| {
            let (_, rest) = self.text.split_once(name).unwrap();
            rest.split(['.', '\r', '\n']).next().unwrap().to_owned()
        };
        let before = modes("before=");
        assert!(before.contains(':'), "{before}");
        assert_eq!(before, modes("after="));
        let at = |what: &str| self.text.rfind(what).unwrap_or_else(|| panic!("{what:?}"));
        assert!(at(OTHER_SCREEN) < at(FIRST_SCREEN) && at(FIRST_SCREEN) < at(CURSOR));
    }
}
