//! `tidegate demo`: what it shows holds, and it leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use tempfile::TempDir;
use tidegate_testkit::exclusive;

use crate::TIDEGATE;

/// How long the nodes may take to drain, which takes a second or two on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[test]
fn the_whole_demo_holds_and_leaves_nothing_behind() {
    let _exclusive = exclusive::blocking_share();
    let home = tempfile::tempdir().unwrap();
    let output = demo(&home, &["--once"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));

    // The tables of the strict bursts contain region, sent, passed, limit. Before the kill each
    // node got a third of the requests; after it, those of the dead node go to the next.
    let rows = |row: &[&str]| {
        text.lines().filter(|l| l.split_whitespace().eq(row.iter().copied())).count()
    };
    assert_eq!(rows(&["eu", "200", "50", "50"]), 1, "{text}");
    assert_eq!(rows(&["us", "100", "50", "50"]), 1, "{text}");
    assert_eq!(text.lines().filter(|line| line.ends_with("  50      50")).count(), 4, "{text}");
    assert_eq!(text.matches("   ok ").count(), 8, "{text}");
    // Mode, passed, of, over, here, waited, and two times: no check waits in eventual mode, and
    // fewer do in leased than in strict mode.
    let of_mode = |mode: &str| -> Vec<String> {
        let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.first() == Some(&mode) && row.get(2) == Some(&"500"));
        row.unwrap_or_else(|| panic!("no row of {mode} in\n{text}"))
            .iter()
            .map(|it| (*it).into())
            .collect()
    };
    let waited = |mode| -> u32 {
        let row = of_mode(mode);
        row[row.len() - 3].parse().unwrap()
    };
    assert_eq!(of_mode("strict")[1..4], ["500", "500", "0"], "{text}");
    assert_eq!(waited("eventual"), 0, "{text}");
    assert!(waited("leased") < waited("strict"), "{text}");
    assert_eq!(text.matches("   sent 60, passed 0\n").count(), 2, "{text}");
    for part in [
        "eu-1 eu-2 us-1",
        "sent 300, passed 50\n",
        "HTTP/1.1 429 Too Many Requests\n",
        "x-ratelimit-remaining: 0\n",
        "800 responses, 800 passed, 0 errors",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "colours are for terminals:\n{text}");
    assert_nothing_left(&home);
}

#[test]
fn it_stays_up_until_a_signal_ends_it() {
    let _exclusive = exclusive::blocking_share();
    let home = tempfile::tempdir().unwrap();
    let mut demo = Running::start(&home);
    let text = demo.read_until("Ctrl-C ends the demo");

    let check = text.lines().find(|line| line.contains(" check demo user=me ")).unwrap();
    let mut words = check.split_whitespace();
    let run = |words: Vec<&str>| {
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    // The path is printed relative to the folder that tests run in.
    let (code, answer) = run(words.by_ref().collect());
    assert_eq!((code, &*answer), (Some(0), "allowed: limit 10, remaining 9\n"));
    let status = text.lines().find(|line| line.contains(" status --url ")).unwrap();
    let (code, answer) = run(status.split_whitespace().collect());
    assert_eq!(code, Some(0));
    assert!(answer.starts_with("cluster demo, "), "{answer}");

    demo.signal("INT");
    assert_eq!(demo.code(), Some(0));
    assert_nothing_left(&home);
}

#[test]
fn a_signal_in_the_middle_of_its_start_leaves_nothing_behind() {
    let _exclusive = exclusive::blocking_share();
    let home = tempfile::tempdir().unwrap();
    let mut demo = Running::start(&home);
    // Certificates are made, the first node is being started.
    demo.read_until("certificates, rules");
    demo.signal("TERM");
    assert_eq!(demo.code(), Some(0));
    assert_nothing_left(&home);
}

#[test]
fn nodes_do_not_outlive_a_demo_that_is_killed() {
    let _exclusive = exclusive::blocking_share();
    let home = tempfile::tempdir().unwrap();
    let mut demo = Running::start(&home);
    demo.read_until("started; waiting");
    assert_eq!(processes_of(home.path()).len(), 3);
    demo.signal("KILL");
    assert_eq!(demo.code(), None);
    let mut looks_left = TIMEOUT.as_millis() / POLL_INTERVAL.as_millis();
    while !processes_of(home.path()).is_empty() {
        assert!(looks_left > 0, "left: {:?}", processes_of(home.path()));
        looks_left -= 1;
        thread::sleep(POLL_INTERVAL);
    }
}

// === a demo ===

/// A demo whose folder for temporary files is `home`.
fn demo(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.arg("demo").args(args).env_clear().env("TMPDIR", home.path());
    // Variables of the user's own nodes must not reach these.
    command.env("TIDEGATE_NODE__ID", "Not an id!");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(home: &TempDir) -> Self {
        let mut child = demo(home, &[]).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Its output up to the line with `mark`.
    fn read_until(&mut self, mark: &str) -> String {
        let mut text = String::new();
        while !text.contains(mark) {
            let read = self.stdout.read_line(&mut text).unwrap();
            assert!(read > 0, "it ended before {mark:?}:\n{text}");
        }
        text
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(status.success());
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === what is left ===

fn assert_nothing_left(home: &TempDir) {
    let files: Vec<_> = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.is_empty(), "{files:?}");
    assert_eq!(processes_of(home.path()), Vec::<String>::new());
}

/// The command lines of the living processes that name `home`: the nodes of its demo.
fn processes_of(home: &Path) -> Vec<String> {
    let home = home.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    processes.filter(|line| line.contains(home)).collect()
}
