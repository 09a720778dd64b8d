//! A child process whose output goes to a file. It ends when its owner drops it.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::wait::until;

/// A running process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// Lines of the log that a failure prints.
const TAIL_LINES: usize = 40;
const TICKS_PER_SECOND: f64 = 100.0;

impl Process {
    /// Starts `command` and appends its output to `log`.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Self {
        let open = || OpenOptions::new().create(true).append(true).open(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap_or_else(|error| panic!("start {name} ({command:?}): {error}"));
        Self { name: name.to_owned(), child, log: log.to_owned() }
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    pub fn hang_up(&self) {
        self.signal("HUP");
    }

    /// SIGSTOP. Returns when all its threads have stopped.
    pub fn pause(&self) {
        self.signal("STOP");
        while !self.is_stopped() {
            std::thread::yield_now();
        }
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib = line.split_whitespace().next().unwrap();
        kib.parse::<u64>().unwrap() * 1024
    }

    /// Processor time since its start, which the kernel counts in hundredths of a second.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // After the name, which is in parentheses: state is the third field, utime the 14th.
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let ticks = fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
        ticks.sum::<f64>() / TICKS_PER_SECOND
    }

    /// SIGKILL. Returns when the process has ended.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its exit status; `None` while it runs.
    pub fn exit(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        let condition = async || self.exit().ok_or_else(|| "it still runs".to_owned());
        until(&what, within, condition).await.0
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("--- {}: the end of its log\n{}\n", self.name, tail.join("\n"))
    }
}

// === impl Process: signals ===

impl Process {
    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        threads.into_iter().all(|thread| {
            // A thread may end between the two calls; the next round reads again.
            let status = fs::read_to_string(thread.unwrap().path().join("status"));
            status.is_ok_and(|status| status.contains("\nState:\tT"))
        })
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid();
        // std can only send SIGKILL; every shell has `kill`.
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status();
        assert!(sent.unwrap().success(), "send SIG{signal} to {}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
        // Both fail only when the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
