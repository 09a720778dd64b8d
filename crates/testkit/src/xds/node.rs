//! A node that runs as a process, and the questions it is asked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{
    DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest,
};
use tonic::transport::Endpoint;

/// Far longer than anything takes: it ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits, but not for ever.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, future).await else {
        panic!("{what}: not within {PATIENCE:?}");
    };
    value
}

/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// `tidegate serve`, alone, with its rules from a management server.
pub struct Node {
    pub grpc: SocketAddr,
    http: SocketAddr,
    process: Child,
}

impl Node {
    pub fn start(program: &str, server: SocketAddr) -> Self {
        let (http, grpc, admin) = (free(), free(), free());
        let mut command = Command::new(program);
        command.env_clear().arg("serve").stdin(Stdio::null()).stdout(Stdio::null());
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
        Self { grpc, http, process: command.spawn().unwrap() }
    }

    /// Waits until `/readyz` says what is expected, and returns all of it.
    pub async fn readiness(&mut self, expected: &str) -> String {
        let looking = async {
            loop {
                if let Some(status) = self.process.try_wait().unwrap() {
                    panic!("the node ended with {status}");
                }
                match get(self.http, "/readyz") {
                    Ok(text) if text.contains(expected) => return text,
                    _ => tokio::time::sleep(LOOK_INTERVAL).await,
                }
            }
        };
        soon(expected, looking).await
    }

    /// Asks for some hits of `k=v` in a domain.
    pub async fn ask(&self, domain: &str, hits: u32) -> DescriptorStatus {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        let entries = vec![Entry { key: "k".into(), value: "v".into() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let request = RateLimitRequest { domain: domain.into(), descriptors, hits_addend: hits };
        let answer = RlsClient::new(&endpoint).should_rate_limit(request).await.unwrap();
        answer.statuses.into_iter().next().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn get(addr: SocketAddr, target: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    write!(stream, "GET {target} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// An address that nobody listens on.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
