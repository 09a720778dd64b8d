//! The doors of a node as a blocking client sees them: one request at a time on one connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

use crate::cluster::{DOMAIN, KEY};

/// Something that answers checks.
pub trait Door: Send {
    /// Whether a hit of `key` passes.
    fn check(&mut self, key: &str) -> io::Result<bool>;
}

/// `POST /v1/check` on a kept connection, written by hand: a client library would cost more than
/// what is measured.
#[derive(Debug)]
pub struct Http {
    stream: BufReader<TcpStream>,
    request: String,
    body: Vec<u8>,
}

/// `ShouldRateLimit` on a connection of its own.
#[derive(Debug)]
pub struct Grpc {
    runtime: Runtime,
    client: RlsClient,
}

/// An answer that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nothing that is asked here has a longer answer.
const BODY_BYTES_MAX: usize = 1024 * 1024;

impl Http {
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), request: String::new(), body: Vec::new() })
    }

    /// The body of what `path` answers.
    pub fn get(&mut self, path: &str) -> io::Result<String> {
        self.request = format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n");
        match self.exchange()? {
            200 => Ok(String::from_utf8_lossy(&self.body).into_owned()),
            status => Err(io::Error::other(format!("{path} answered {status}"))),
        }
    }

    fn exchange(&mut self) -> io::Result<u16> {
        self.stream.get_mut().write_all(self.request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no answer but {line:?}")))?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let header = line.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(usize::MAX).min(BODY_BYTES_MAX);
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok(status)
    }
}

impl Door for Http {
    fn check(&mut self, key: &str) -> io::Result<bool> {
        let body = format!(
            "{{\"domain\":\"{DOMAIN}\",\"descriptors\":[{{\"entries\":[{{\"key\":\"{KEY}\",\
             \"value\":\"{key}\"}}]}}]}}"
        );
        self.request = format!(
            "POST /v1/check HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        Ok(self.exchange()? == 200)
    }
}

impl Grpc {
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).map_err(io::Error::other)?;
        let client = {
            let _inside = runtime.enter();
            RlsClient::new(&endpoint.timeout(PATIENCE).tcp_nodelay(true))
        };
        let mut grpc = Self { runtime, client };
        // Connects with the first call; the load has none to give away.
        grpc.check("first")?;
        Ok(grpc)
    }
}

impl Door for Grpc {
    fn check(&mut self, key: &str) -> io::Result<bool> {
        let entry = Entry { key: KEY.into(), value: key.into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let request = RateLimitRequest {
            domain: DOMAIN.into(),
            descriptors: vec![descriptor],
            hits_addend: 1,
        };
        let asked = self.client.should_rate_limit(request);
        let response = self.runtime.block_on(asked).map_err(io::Error::other)?;
        Ok(response.overall_code() == Code::Ok)
    }
}
