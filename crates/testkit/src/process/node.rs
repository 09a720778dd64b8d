//! One `tidegate serve`, with what its operator can do to it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidegate::admin::{OwnerReport, StatusReport};

use super::Process;
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
    pub admin: SocketAddr,
    pub mesh: SocketAddr,
    /// Its rules folder.
    pub rules: PathBuf,
    program: &'static str,
    dir: PathBuf,
    sets: Vec<String>,
    process: Option<Process>,
    client: Http,
}

impl Node {
    /// A node in a folder of its own below `dir`. It does not run yet.
    pub fn new(
        program: &'static str,
        dir: &Path,
        id: &str,
        rules: &str,
        sets: &[&str],
        client: &Http,
    ) -> Self {
        let dir = dir.join(id);
        let node = Self {
            id: id.to_owned(),
            http: ports::free(),
            grpc: ports::free(),
            resp: ports::free(),
            admin: ports::free(),
            mesh: ports::free(),
            rules: dir.join("rules"),
            program,
            dir,
            sets: sets.iter().map(ToString::to_string).collect(),
            process: None,
            client: client.clone(),
        };
        fs::create_dir_all(&node.rules).unwrap();
        node.write_rules(rules);
        node
    }

    /// Replaces its rules by a rename, as editors do.
    pub fn write_rules(&self, rules: &str) {
        let draft = self.dir.join("rules.draft");
        fs::write(&draft, rules).unwrap();
        fs::rename(draft, self.rules.join("rules.yaml")).unwrap();
    }

    /// Writes its `cluster.toml`: the listeners and `more`.
    pub fn write_config(&self, more: &str) {
        let Self { id, http, grpc, resp, admin, .. } = self;
        let config = format!(
            "[node]\nid = \"{id}\"\n[http]\nlisten = \"{http}\"\n[grpc]\nlisten = \"{grpc}\"\n\
             [resp]\nlisten = \"{resp}\"\n[admin]\nlisten = \"{admin}\"\n[rules]\npath = \"rules\"\n{more}\n"
        );
        fs::write(self.dir.join("cluster.toml"), config).unwrap();
    }

    /// One more `--set`, from its next start on.
    pub fn set(&mut self, pair: &str) {
        self.sets.push(pair.to_owned());
    }

    pub fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.id);
        let mut command = Command::new(self.program);
        // The environment of the tests must not matter.
        command.env_clear().arg("serve").arg("--config").arg(self.dir.join("cluster.toml"));
        for set in &self.sets {
            command.args(["--set", set]);
        }
        let log = self.dir.join("log");
        self.process = Some(Process::spawn(&self.id, &mut command, &log));
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

    /// `GET /status`.
    pub async fn status(&self) -> Result<StatusReport, String> {
        status(&self.client, self.admin).await
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

    /// SIGSTOP.
    pub fn pause(&self) {
        self.process.as_ref().expect("it runs").pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.as_ref().expect("it runs").resume();
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.as_ref().expect("it runs").resident_bytes()
    }

    /// Waits for its end after [`Node::terminate`] and returns its exit code.
    pub async fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let process = self.process.as_mut().expect("it runs");
        let code = process.ended(within).await.code();
        self.process = None;
        code
    }

    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }
}

async fn status(client: &Http, admin: SocketAddr) -> Result<StatusReport, String> {
    let reply = client.get(admin, "/status").await?;
    serde_json::from_str(&reply.body).map_err(|error| format!("{error} in {}", reply.body))
}
