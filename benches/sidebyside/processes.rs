//! Child processes: start, CPU time and memory, and termination.
//!
//! Each child has its own process group, so that its children are killed with it. It dies with
//! this process if the system has `setpriv`. A watchdog kills all children on a signal and at the
//! end of the time limit, and kills a child that exceeds its own limit.

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
/// A server that does not listen after this time has failed to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);

static CHILDREN: Mutex<Children> = Mutex::new(Children { running: Vec::new(), folder: None });

#[derive(Debug)]
struct Children {
    /// Each with its deadline.
    running: Vec<(Pid, Option<Instant>)>,
    /// Their files; removed at exit.
    folder: Option<PathBuf>,
}

/// A server that is killed on drop.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Duration,
    pub resident_bytes: u64,
}

/// A command whose process is killed when the thread that starts it ends.
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

/// As [`command`], in another network namespace.
pub fn command_in(namespace: Option<&Path>, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let Some(namespace) = namespace else {
        return command(program);
    };
    let mut command = command("nsenter");
    command.arg(format!("--net={}", namespace.display())).arg("--").arg(program);
    command
}

/// Moves this process, and the children it starts later, to the real-time scheduling class or back.
/// Other work on the machine then does not delay them. Needs `chrt` and the privilege.
pub fn real_time(is_on: bool) -> io::Result<()> {
    let pid = std::process::id().to_string();
    let class = if is_on { ["--fifo", "10"] } else { ["--other", "0"] };
    let mut command = Command::new("chrt");
    command.args(["--all-tasks", class[0], "--pid", class[1], &pid]);
    run(&mut command, Duration::from_secs(5)).map(drop)
}

/// Finds a program in the search path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Finds the program of a peer that the user installs: where `variable` says, or in the search
/// path.
pub fn find_peer(program: &str, variable: &str) -> io::Result<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named.or_else(|| find(program)).ok_or_else(|| {
        io::Error::other(format!("{program} is not on PATH, and {variable} does not name it"))
    })
}

/// Runs a program and returns its standard output. It is killed after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = start(command, Some(Instant::now() + limit))?;
    let pid = pid(&child);
    let output = child.wait_with_output();
    deregister(pid);
    let output = output?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let line = stderr.lines().chain(stdout.lines()).last().unwrap_or_default().to_owned();
    Err(io::Error::other(format!("{command:?}: {}: {line}", output.status)))
}

impl Server {
    /// Starts a server with its log in `folder`.
    pub fn start(command: &mut Command, folder: &Path, name: &str) -> io::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { child: start(command, None)?, log })
    }

    /// Waits until the server listens at `addr`.
    pub fn wait_for(&mut self, addr: SocketAddr) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                let mut log = String::new();
                File::open(&self.log)?.read_to_string(&mut log)?;
                let tail: Vec<_> = log.lines().rev().take(2).collect();
                return Err(io::Error::other(format!("failed to start: {}", tail.join(" / "))));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub fn usage(&self) -> io::Result<Usage> {
        let folder = format!("/proc/{}", self.child.id());
        let statm = fs::read_to_string(format!("{folder}/statm"))?;
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let [user, system, ..] = times(&fs::read_to_string(format!("{folder}/stat"))?);
        Ok(Usage { cpu: user + system, resident_bytes: pages.unwrap_or_default() * PAGE_BYTES })
    }

    /// Stops the process group until [`resume`](Self::resume), so that its background work does
    /// not affect the measurement of others.
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
        // No need for a graceful shutdown.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
        deregister(pid);
    }
}

/// CPU time of this process, and of its children that have ended.
pub fn own_cpu() -> (Duration, Duration) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let [user, system, children_user, children_system] = times(&stat);
    (user + system, children_user + children_system)
}

/// Steal time of all cores: time in which a core had work and the host did not schedule it.
pub fn steal_time() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // "cpu", two spaces, then ticks: user, nice, system, idle, iowait, irq, softirq, steal.
    let ticks = stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
    TICK * ticks.unwrap_or_default()
}

/// Removes the folder at exit.
pub fn remove_at_exit(folder: PathBuf) {
    CHILDREN.lock().folder = Some(folder);
}

/// Kills all children and exits. Holds the lock, so no child can start in between.
pub fn exit(code: i32) -> ! {
    let children = CHILDREN.lock();
    for (pid, _) in &children.running {
        let _ = kill_process_group(*pid, Signal::KILL);
    }
    if let Some(folder) = &children.folder {
        let _ = fs::remove_dir_all(folder);
    }
    std::process::exit(code)
}

/// Starts the thread that enforces the time limits and handles signals.
pub fn start_watchdog(limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        runtime.block_on(async {
            let why = tokio::select! {
                why = signal() => why,
                () = enforce_deadlines(deadline) => "time limit exceeded",
            };
            crate::progress(&format!("ended early: {why}"));
            exit(if why == "a signal" { 130 } else { 124 })
        })
    })?;
    Ok(())
}

async fn signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        return "failed to install signal handlers";
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    "a signal"
}

/// Kills children that exceed their deadline. Returns at `deadline`.
async fn enforce_deadlines(deadline: Instant) {
    while Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = Instant::now();
        for (pid, deadline) in &CHILDREN.lock().running {
            if deadline.is_some_and(|deadline| deadline < now) {
                let _ = kill_process_group(*pid, Signal::KILL);
            }
        }
    }
}

fn start(command: &mut Command, deadline: Option<Instant>) -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut children = CHILDREN.lock();
    let child = command.process_group(0).spawn()?;
    children.running.push((pid(&child), deadline));
    Ok(child)
}

fn deregister(pid: Pid) {
    CHILDREN.lock().running.retain(|(other, _)| *other != pid);
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// User and system time of a process, and of its children, from `/proc/PID/stat`.
fn times(stat: &str) -> [Duration; 4] {
    // The name in parentheses may contain spaces. The field after it is number 3.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split(' ').collect();
    [14, 15, 16, 17].map(|number: usize| {
        let ticks = fields.get(number - 3).and_then(|ticks| ticks.parse::<u32>().ok());
        TICK * ticks.unwrap_or_default()
    })
}

/// A free port. If another process binds it first, the server fails to start.
pub fn free_tcp() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A free port for the mesh.
pub fn free_udp() -> io::Result<SocketAddr> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
