//! Blocking clients with one request at a time: for the accuracy part and for status requests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_testkit::loadgen::resp::{Value, decode, encode};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than any response here.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A connection with the Redis protocol.
#[derive(Debug)]
pub struct Redis {
    stream: TcpStream,
    input: Vec<u8>,
}

/// A persistent HTTP connection. Written by hand, so that a client library does not dominate.
#[derive(Debug)]
pub struct Http {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    /// Names are in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// A gRPC connection for `ShouldRateLimit`.
#[derive(Debug)]
pub struct Rls {
    runtime: Runtime,
    client: RlsClient,
}

// === impl Redis ===

impl Redis {
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: connect(addr)?, input: Vec::new() })
    }

    /// Sends a command and returns the reply. An error reply is an error.
    pub fn command(&mut self, words: &[&str]) -> io::Result<Value> {
        self.stream.write_all(&encode(words))?;
        loop {
            if let Some((value, length)) = decode(&self.input)? {
                self.input.drain(..length);
                return match value {
                    Value::Error(text) => Err(io::Error::other(text)),
                    value => Ok(value),
                };
            }
            let mut bytes = [0; 4_096];
            match self.stream.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.input.extend_from_slice(&bytes[..length]),
            }
        }
    }
}

// === impl Http ===

impl Http {
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(connect(addr)?) })
    }

    pub fn get(&mut self, path: &str) -> io::Result<String> {
        let response = self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))?;
        match response.status {
            200 => Ok(response.body),
            status => Err(io::Error::other(format!("GET {path}: status {status}"))),
        }
    }

    pub fn post(&mut self, path: &str, body: &str) -> io::Result<HttpResponse> {
        self.exchange(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    fn exchange(&mut self, request: &str) -> io::Result<HttpResponse> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status =
            status.ok_or_else(|| io::Error::other(format!("invalid status line {line:?}")))?;
        let (mut headers, mut length) = (Vec::new(), 0);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(':') else {
                break;
            };
            let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
            if name == "content-length" {
                length = value.parse().unwrap_or(usize::MAX).min(BODY_BYTES_MAX);
            }
            headers.push((name, value));
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(HttpResponse { status, headers, body })
    }
}

// === impl Rls ===

impl Rls {
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).map_err(io::Error::other)?;
        let client = {
            let _runtime = runtime.enter();
            RlsClient::new(&endpoint.timeout(TIMEOUT).tcp_nodelay(true))
        };
        Ok(Self { runtime, client })
    }

    pub fn check(&mut self, domain: &str, key: &str, value: &str) -> io::Result<RateLimitResponse> {
        let entry = Entry { key: key.into(), value: value.into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let domain = domain.into();
        let request = RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 1 };
        self.runtime.block_on(self.client.should_rate_limit(request)).map_err(io::Error::other)
    }
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}
