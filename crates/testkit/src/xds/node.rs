//! A node as a process, which gets its rules from a management server.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{
    DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest,
};
use tonic::transport::Endpoint;

use crate::http_client::Http;
use crate::ports;
use crate::process::Process;
use crate::wait::until;

/// `tidegate serve` outside of any cluster.
pub struct Node {
    pub grpc: SocketAddr,
    http: SocketAddr,
    client: Http,
    process: Process,
    /// Dropped after the process.
    _dir: TempDir,
}

impl Node {
    /// Starts `program` with the management server at `server`.
    pub fn start(program: &str, server: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (http, grpc, admin) = (ports::free(), ports::free(), ports::free());
        let mut command = Command::new(program);
        command.env_clear().arg("serve");
        for set in [
            format!("http.listen={http}"),
            format!("grpc.listen={grpc}"),
            "resp.listen=127.0.0.1:0".to_owned(),
            format!("admin.listen={admin}"),
            format!("xds.server={server}"),
            "xds.backoff_initial=10ms".to_owned(),
            "xds.backoff_max=50ms".to_owned(),
        ] {
            command.args(["--set", &set]);
        }
        let process = Process::spawn("node", &mut command, &dir.path().join("log"));
        Self { grpc, http, client: Http::new(), process, _dir: dir }
    }

    /// Waits until `/readyz` responds with `status` and a body that contains `text`.
    pub async fn wait_for_readiness(&mut self, status: u16, text: &str) {
        let condition = async || {
            if let Some(status) = self.process.exit() {
                panic!("the node ended with {status}\n{}", self.process.tail());
            }
            let reply = self.client.get(self.http, "/readyz").await?;
            let is_expected = reply.status == status && reply.body.contains(text);
            if is_expected { Ok(()) } else { Err(format!("{reply:?}")) }
        };
        until("readiness", Duration::from_secs(60), condition).await;
    }

    /// Checks some hits of `k=v` in a domain.
    pub async fn check(&self, domain: &str, hits: u32) -> DescriptorStatus {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        let entries = vec![Entry { key: "k".into(), value: "v".into() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let request = RateLimitRequest { domain: domain.into(), descriptors, hits_addend: hits };
        let response = RlsClient::new(&endpoint).should_rate_limit(request).await.unwrap();
        response.statuses.into_iter().next().unwrap()
    }
}
