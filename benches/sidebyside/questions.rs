//! Blocking clients that ask one thing at a time: for the duel, and before a measurement.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

use crate::engine::resp::{Value, decode, encode};

/// An answer that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nothing that is asked here has a longer answer.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// One connection that speaks the Redis protocol.
#[derive(Debug)]
pub struct Redis {
    stream: TcpStream,
    input: Vec<u8>,
}

/// A kept HTTP connection, written by hand: a client library would be the larger part.
#[derive(Debug)]
pub struct Http {
    stream: BufReader<TcpStream>,
}

/// What HTTP answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// `ShouldRateLimit` on a connection of its own.
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

    /// The reply to a command; an error reply is an error.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Value> {
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

    /// The body of what `path` answers.
    pub fn get(&mut self, path: &str) -> io::Result<String> {
        let answer = self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n"))?;
        match answer.status {
            200 => Ok(answer.body),
            status => Err(io::Error::other(format!("{path} answered {status}"))),
        }
    }

    pub fn post(&mut self, path: &str, body: &str) -> io::Result<Answer> {
        self.exchange(&format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    fn exchange(&mut self, request: &str) -> io::Result<Answer> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no answer but {line:?}")))?;
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
        Ok(Answer { status, headers, body })
    }
}

// === impl Rls ===

impl Rls {
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).map_err(io::Error::other)?;
        let client = {
            let _inside = runtime.enter();
            RlsClient::new(&endpoint.timeout(PATIENCE).tcp_nodelay(true))
        };
        Ok(Self { runtime, client })
    }

    pub fn ask(&mut self, domain: &str, key: &str, value: &str) -> io::Result<RateLimitResponse> {
        let entry = Entry { key: key.into(), value: value.into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let domain = domain.into();
        let request = RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 1 };
        self.runtime.block_on(self.client.should_rate_limit(request)).map_err(io::Error::other)
    }
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}
