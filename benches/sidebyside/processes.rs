//! Processes that are started here, what they use, and that each of them ends.
//!
//! Each has a process group of its own, so that what it forks ends with it, and dies with this
//! process where the system has `setpriv`. A guard ends all of them on a signal, when the whole run
//! takes too long, and the one that takes longer than it may.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

/// The kernel's unit of processor time in `/proc`, 100 a second on every Linux.
const TICK: Duration = Duration::from_millis(10);
const PAGE_BYTES: u64 = 4_096;
/// A server that does not listen by then is said not to start.
const START_PATIENCE: Duration = Duration::from_secs(20);

static GROUPS: Mutex<Groups> = Mutex::new(Groups { running: Vec::new(), folder: None });

#[derive(Debug)]
struct Groups {
    running: Vec<(Pid, Option<Instant>)>,
    /// Where they write; removed with them.
    folder: Option<PathBuf>,
}

/// A server that ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
}

/// Processor time and memory of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Duration,
    pub resident_bytes: u64,
}

/// A command that dies with the thread that starts it.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    if *SETPRIV.get_or_init(|| find("setpriv").is_some()) {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

/// Puts this process, and what it starts from now on, into the real-time class, or back: then none
/// of them waits until other work of the machine has used up its slice. Takes util-linux and the
/// right to.
pub fn real_time(is_on: bool) -> io::Result<()> {
    let pid = std::process::id().to_string();
    let class = if is_on { ["--fifo", "10"] } else { ["--other", "0"] };
    let mut command = Command::new("chrt");
    command.args(["--all-tasks", class[0], "--pid", class[1], &pid]);
    run(&mut command, Duration::from_secs(5)).map(drop)
}

/// Where a program stands in the search path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Runs a program to its end and gives what it printed; it may take `limit`.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = start(command, Some(Instant::now() + limit))?;
    let pid = pid(&child);
    let output = child.wait_with_output();
    forget(pid);
    let output = output?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(told);
    }
    let wrong = String::from_utf8_lossy(&output.stderr);
    let line = wrong.lines().chain(told.lines()).last().unwrap_or_default().to_owned();
    Err(io::Error::other(format!("{command:?}: {}: {line}", output.status)))
}

impl Server {
    /// Starts a server that writes its log into `folder`.
    pub fn start(command: &mut Command, folder: &Path, name: &str) -> io::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { child: start(command, None)?, log })
    }

    /// Waits until something listens at `addr`.
    pub fn wait_for(&mut self, addr: SocketAddr) -> io::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                let mut log = String::new();
                File::open(&self.log)?.read_to_string(&mut log)?;
                let tail: Vec<_> = log.lines().rev().take(2).collect();
                return Err(io::Error::other(format!("does not start: {}", tail.join(" / "))));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What it used until now.
    pub fn usage(&self) -> io::Result<Usage> {
        let folder = format!("/proc/{}", self.child.id());
        let statm = fs::read_to_string(format!("{folder}/statm"))?;
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let [user, system, ..] = times(&fs::read_to_string(format!("{folder}/stat"))?);
        Ok(Usage { cpu: user + system, resident_bytes: pages.unwrap_or_default() * PAGE_BYTES })
    }

    /// Stops it with its children until [`resume`](Self::resume), so that what it does by itself
    /// is not in another's measurement.
    pub fn pause(&self) {
        let _ = kill_process_group(pid(&self.child), Signal::STOP);
    }

    pub fn resume(&self) {
        let _ = kill_process_group(pid(&self.child), Signal::CONT);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = pid(&self.child);
        // Nothing here is worth draining.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
        forget(pid);
    }
}

/// Processor time of this process, and of its children that have ended.
pub fn own_cpu() -> (Duration, Duration) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let [user, system, children_user, children_system] = times(&stat);
    (user + system, children_user + children_system)
}

/// Time in which a core had work and the host of this machine let it wait.
pub fn stolen() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // "cpu", two spaces, and the ticks: user, nice, system, idle, iowait, irq, softirq, steal.
    let ticks = stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
    TICK * ticks.unwrap_or_default()
}

/// Sets the folder that goes with the processes.
pub fn set_folder(folder: PathBuf) {
    GROUPS.lock().folder = Some(folder);
}

/// Ends all that was started and the process itself. Nothing can be started meanwhile.
pub fn end(code: i32) -> ! {
    let groups = GROUPS.lock();
    for (pid, _) in &groups.running {
        let _ = kill_process_group(*pid, Signal::KILL);
    }
    if let Some(folder) = &groups.folder {
        let _ = fs::remove_dir_all(folder);
    }
    std::process::exit(code)
}

/// Watches over the run from a thread of its own.
pub fn guard(limit: Duration) -> io::Result<()> {
    let end_by = Instant::now() + limit;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("guard".into()).spawn(move || {
        runtime.block_on(async {
            let why = tokio::select! {
                why = signal() => why,
                () = overtime(end_by) => "it takes longer than it may",
            };
            crate::say(&format!("ended early: {why}"));
            end(if why == "a signal" { 130 } else { 124 })
        })
    })?;
    Ok(())
}

async fn signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        return "no signal can be caught";
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    "a signal"
}

/// Returns at `end_by`; until then it ends what is overdue.
async fn overtime(end_by: Instant) {
    while Instant::now() < end_by {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = Instant::now();
        for (pid, limit) in &GROUPS.lock().running {
            if limit.is_some_and(|limit| limit < now) {
                let _ = kill_process_group(*pid, Signal::KILL);
            }
        }
    }
}

fn start(command: &mut Command, limit: Option<Instant>) -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut groups = GROUPS.lock();
    let child = command.process_group(0).spawn()?;
    groups.running.push((pid(&child), limit));
    Ok(child)
}

fn forget(pid: Pid) {
    GROUPS.lock().running.retain(|(other, _)| *other != pid);
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// User and system time of a process, and of its children, from `/proc/PID/stat`.
fn times(stat: &str) -> [Duration; 4] {
    // The name in parentheses may hold spaces; the fields behind it are counted from 3.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split(' ').collect();
    [14, 15, 16, 17].map(|number: usize| {
        let ticks = fields.get(number - 3).and_then(|ticks| ticks.parse::<u32>().ok());
        TICK * ticks.unwrap_or_default()
    })
}

/// A port that is free now. Somebody else may take it first; the server then says so.
pub fn free_tcp() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// The same for the mesh.
pub fn free_udp() -> io::Result<SocketAddr> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
