//! One `tidegate serve`, with what its operator can do to it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit};
use tidegate::admin::report::{MapMemberState, MapReport, RegionsReport};
use tidegate::admin::{MembersReport, OwnerReport, StatusReport};

use super::{ClusterOptions, Process};
use crate::http_client::Http;
use crate::ports;
use crate::wait::until;

/// A node, running or not.
#[derive(Debug)]
pub struct Node {
    pub id: String,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub resp: SocketAddr,
    /// gRPC and HTTP for clients of Gubernator, if its configuration has `[gubernator]`.
    pub gubernator: (SocketAddr, SocketAddr),
    pub admin: SocketAddr,
    pub mesh: SocketAddr,
    /// Its rules folder.
    pub rules: PathBuf,
    /// Its folder.
    pub dir: PathBuf,
    program: &'static str,
    has_disk: bool,
    has_drain_delay: bool,
    region: Option<String>,
    sets: Vec<String>,
    process: Option<Process>,
    /// Length of its log when it was last started.
    log_start: usize,
    client: Http,
}

/// The folder of the cluster map, below that of a node with a disk.
const DATA_DIR: &str = "data";

impl Node {
    /// A node in the folder `dir`. It does not run yet.
    pub fn new(
        program: &'static str,
        dir: PathBuf,
        id: &str,
        options: &ClusterOptions<'_>,
        client: &Http,
    ) -> Self {
        let node = Self {
            id: id.to_owned(),
            http: ports::free(),
            grpc: ports::free(),
            resp: ports::free(),
            gubernator: (ports::free(), ports::free()),
            admin: ports::free(),
            mesh: ports::free(),
            rules: dir.join("rules"),
            dir,
            program,
            has_disk: options.has_disks,
            has_drain_delay: options.has_drain_delay,
            region: options.region(id).map(str::to_owned),
            sets: options.sets.iter().map(ToString::to_string).collect(),
            process: None,
            log_start: 0,
            client: client.clone(),
        };
        fs::create_dir_all(&node.rules).unwrap();
        node.write_rules(options.rules);
        node
    }

    /// Where it keeps what outlives it, if it has a disk.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join(DATA_DIR)
    }

    /// Replaces its rules by a rename, as editors do.
    pub fn write_rules(&self, rules: &str) {
        let draft = self.dir.join("rules.draft");
        fs::write(&draft, rules).unwrap();
        fs::rename(draft, self.rules.join("rules.yaml")).unwrap();
    }

    /// Writes its `cluster.toml`: the listeners and `more`, in which a section `[gubernator]` gets
    /// the addresses of this node.
    pub fn write_config(&self, more: &str) {
        let Self { id, http, grpc, resp, admin, gubernator, .. } = self;
        let key = |name: &str, value: &str| format!("{name} = \"{value}\"\n");
        let mut node = key("id", id);
        if self.has_disk {
            node.push_str(&key("data_dir", DATA_DIR));
        }
        if let Some(region) = &self.region {
            node.push_str(&key("region", region));
        }
        let (guber_grpc, guber_http) = gubernator;
        let section = "[gubernator]\n";
        let addresses = format!("{section}grpc = \"{guber_grpc}\"\nhttp = \"{guber_http}\"\n");
        let more = more.replace(section, &addresses);
        let config = format!(
            "[node]\n{node}[http]\nlisten = \"{http}\"\n[grpc]\nlisten = \"{grpc}\"\n\
             [resp]\nlisten = \"{resp}\"\n[admin]\nlisten = \"{admin}\"\n[rules]\npath = \"rules\"\n{more}\n"
        );
        fs::write(self.dir.join("cluster.toml"), config).unwrap();
    }

    /// Loses its disk, so that it is another voter at its next start.
    pub fn wipe_disk(&self) {
        assert!(!self.is_running(), "{} runs", self.id);
        fs::remove_dir_all(self.data_dir()).unwrap();
    }

    /// Runs `program` from its next start on.
    pub fn upgrade(&mut self, program: &'static str) {
        self.program = program;
    }

    /// One more `--set`, from its next start on.
    pub fn set(&mut self, pair: &str) {
        self.sets.push(pair.to_owned());
    }

    /// Starts it again, with a token at its admin listener; returns the file of the token.
    pub fn restart_with_token(&mut self, token: &str) -> PathBuf {
        let file = self.dir.join("admin.token");
        fs::write(&file, token).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        self.kill();
        self.set(&format!("admin.token_file={}", file.display()));
        self.start();
        file
    }

    pub fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.id);
        // A write beyond `limit_files` is to fail, and not to end the process.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(self.program);
        // The environment of the tests must not matter.
        command.env_clear().arg("serve").arg("--config").arg(self.dir.join("cluster.toml"));
        if !self.has_drain_delay {
            command.args(["--set", "limits.drain_delay=0s"]);
        }
        for set in &self.sets {
            command.args(["--set", set]);
        }
        let log = self.dir.join("log");
        self.log_start = fs::read(&log).map_or(0, |log| log.len());
        self.process = Some(Process::spawn(&self.id, &mut command, &log));
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.join("log")).unwrap();
        String::from_utf8_lossy(&log[self.log_start..]).into_owned()
    }

    /// Waits until its log contains `text` `times` times since its last start.
    pub async fn logged(&self, text: &str, times: usize) {
        let what = format!("{} logs {text:?} {times} times", self.id);
        let condition = async || match self.log().matches(text).count() {
            count if count >= times => Ok(()),
            count => Err(format!("{count} times")),
        };
        until(&what, Duration::from_secs(30), condition).await;
    }

    /// Whether it may receive traffic; an error while it does not listen.
    pub async fn is_ready(&self) -> Result<bool, String> {
        Ok(self.client.get(self.http, "/readyz").await?.status == 200)
    }

    /// Waits until it is ready and its view has `members` members, all of them up.
    pub async fn ready(&mut self, members: usize) {
        let what = format!("{} is ready with {members} members", self.id);
        let (client, http, admin) = (self.client.clone(), self.http, self.admin);
        let process = self.process.as_mut().expect("it was started");
        let condition = async || {
            if let Some(status) = process.exit() {
                panic!("it ended with {status}\n{}", process.tail());
            }
            let ready = client.get(http, "/readyz").await?;
            if ready.status != 200 {
                return Err(format!("/readyz returns {}: {}", ready.status, ready.body));
            }
            let seen = status(&client, admin).await?;
            let up =
                seen.members.iter().filter(|member| matches!(member.state.name(), "self" | "up"));
            match up.count() {
                count if count == members => Ok(()),
                _ => Err(format!("{:?}", seen.members)),
            }
        };
        until(&what, Duration::from_secs(30), condition).await;
    }

    /// Waits until it is ready.
    pub async fn is_serving(&mut self) {
        let what = format!("{} is ready", self.id);
        let (client, http) = (self.client.clone(), self.http);
        let process = self.process.as_mut().expect("it was started");
        let condition = async || {
            if let Some(status) = process.exit() {
                panic!("it ended with {status}\n{}", process.tail());
            }
            match client.get(http, "/readyz").await? {
                ready if ready.status == 200 => Ok(()),
                ready => Err(format!("/readyz returns {}: {}", ready.status, ready.body)),
            }
        };
        until(&what, Duration::from_secs(30), condition).await;
    }

    /// `GET /status`.
    pub async fn status(&self) -> Result<StatusReport, String> {
        status(&self.client, self.admin).await
    }

    /// The cluster map by which it decides.
    pub async fn map(&self) -> Result<MapReport, String> {
        let reply = self.client.get(self.admin, "/members").await?;
        let report: MembersReport = serde_json::from_str(&reply.body)
            .map_err(|error| format!("{error}: {}", reply.body))?;
        report.map.ok_or_else(|| "it knows no cluster".to_owned())
    }

    /// The members of the global map by which it decides.
    pub async fn global_members(&self) -> Result<Vec<String>, String> {
        let map = self.global_map().await?;
        let present = map.members.into_iter().filter(|one| one.state == MapMemberState::Up);
        Ok(present.map(|member| member.node).collect())
    }

    /// The global map that it knows.
    pub async fn global_map(&self) -> Result<MapReport, String> {
        let reply = self.client.get(self.admin, "/regions").await?;
        let report: RegionsReport = serde_json::from_str(&reply.body)
            .map_err(|error| format!("{error}: {}", reply.body))?;
        report.map.ok_or_else(|| "it knows no global map".to_owned())
    }

    /// Waits until what it has counted until now is in its `node.data_dir`.
    pub async fn saves_counts(&self) {
        let rounds = async || match self.status().await?.storage {
            Some(storage) => Ok(storage.rounds),
            None => Err("it has no file".to_owned()),
        };
        let before = rounds().await.unwrap();
        // The first of the two may have begun before.
        let is_over = async || match rounds().await? {
            now if now >= before + 2 => Ok(()),
            now => Err(format!("{now} rounds, {before} before")),
        };
        until("what was counted is on the disk", Duration::from_secs(10), is_over).await;
    }

    /// Ids and states of the members in its view.
    pub async fn members(&self) -> Result<Vec<(String, &'static str)>, String> {
        let members = self.status().await?.members.into_iter();
        Ok(members.map(|member| (member.id, member.state.name())).collect())
    }

    /// Id of the owner of a strict key.
    pub async fn owner(&self, domain: &str, key: &str, value: &str) -> String {
        let target = format!("/owner?domain={domain}&{key}={value}");
        let reply = self.client.get(self.admin, &target).await.unwrap();
        let report: OwnerReport = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(report.mode.as_deref(), Some("strict"), "{report:?}");
        match &report.owners[..] {
            [owner] => owner.node.clone(),
            owners => panic!("{key}={value} has {owners:?}"),
        }
    }

    /// One sample of `/metrics`, by name and labels: `tidegate_verdicts_total{source="policy"}`.
    pub async fn metric(&self, sample: &str) -> u64 {
        let text = self.client.get(self.admin, "/metrics").await.unwrap().body;
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no {sample} in\n{text}"));
        value.parse().unwrap_or_else(|_| panic!("{sample} is {value}"))
    }

    /// Descriptors that it decided, by source: `local`, `owner`, `policy` or `peer`.
    pub async fn verdicts(&self, source: &str) -> u64 {
        self.metric(&format!("tidegate_verdicts_total{{source=\"{source}\"}}")).await
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.process.as_ref().expect("it runs").terminate();
    }

    pub fn hang_up(&self) {
        self.process.as_ref().expect("it runs").hang_up();
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").pid()
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.process.as_ref().expect("it runs").pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.as_ref().expect("it runs").resume();
    }

    /// A write that would make a file longer than `bytes` fails from now on, as on a full disk;
    /// with `None` all succeed again.
    pub fn limit_files(&self, bytes: Option<u64>) {
        self.limit(Resource::Fsize, bytes);
    }

    /// No file or connection can be opened from now on if `files` are open; with `None` the limit
    /// is what this process has.
    pub fn limit_open_files(&self, files: Option<u64>) {
        self.limit(Resource::Nofile, files);
    }

    fn limit(&self, resource: Resource, current: Option<u64>) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let Rlimit { maximum, .. } = rustix::process::getrlimit(resource);
        let limits = Rlimit { current: current.or(maximum), maximum };
        rustix::process::prlimit(pid, resource, limits).unwrap();
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.as_ref().expect("it runs").resident_bytes()
    }

    /// Processor time since its start.
    pub fn cpu_seconds(&self) -> f64 {
        self.process.as_ref().expect("it runs").cpu_seconds()
    }

    /// Waits for its end after [`Node::terminate`] and returns its exit code.
    pub async fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let process = self.process.as_mut().expect("it runs");
        let code = process.ended(within).await.code();
        self.process = None;
        code
    }

    /// Its exit status, if its process has ended by itself.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        let status = self.process.as_mut()?.exit()?;
        self.process = None;
        Some(status)
    }

    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }
}

async fn status(client: &Http, admin: SocketAddr) -> Result<StatusReport, String> {
    let reply = client.get(admin, "/status").await?;
    serde_json::from_str(&reply.body).map_err(|error| format!("{error} in {}", reply.body))
}
