//! A client of all nodes of a cluster: `pb.gubernator.V1` over gRPC.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use http::uri::PathAndQuery;
use tidegate_proto::gubernator::{
    GetRateLimitsReq, GetRateLimitsResp, HealthCheckReq, HealthCheckResp, RateLimitReq,
    RateLimitResp, Status,
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Longer than a server should take for any answer, also while it is paused.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The window outlasts a run.
const DURATION_MS: i64 = 3_600_000;
/// How many requests a message has. It may have 1,000; small ones are answered in time also where
/// all nodes share a machine.
pub const PER_MESSAGE: usize = 100;
pub const GLOBAL: i32 = 2;

/// A connection to each node. Its calls are made by the thread that created it.
#[derive(Debug)]
pub struct Client {
    pub runtime: Runtime,
    /// What the servers are told of how long an answer is waited for.
    pub deadline: Duration,
    channels: Vec<Channel>,
}

/// A key of a scenario. Numbers that follow each other give keys that differ in most characters, as
/// those of users do: Gubernator's ring keeps keys together that differ in the last.
pub fn key(scenario: &str, number: usize) -> String {
    let mixed = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!("{mixed:016x}-{scenario}")
}

/// Requests hits of a key.
pub fn hits(key: &str, hits: i64, limit: i64, behavior: i32) -> RateLimitReq {
    RateLimitReq {
        name: "bench".into(),
        unique_key: key.into(),
        hits,
        limit,
        duration: DURATION_MS,
        behavior,
        ..RateLimitReq::default()
    }
}

/// Requests one hit of each key.
pub fn one_each(keys: &[String], limit: i64) -> Vec<RateLimitReq> {
    keys.iter().map(|key| hits(key, 1, limit, 0)).collect()
}

/// A look at each key.
pub fn looks(keys: &[String], limit: i64) -> Vec<RateLimitReq> {
    keys.iter().map(|key| hits(key, 0, limit, 0)).collect()
}

pub fn is_admitted(response: &RateLimitResp) -> bool {
    response.error.is_empty() && response.status() == Status::UnderLimit
}

pub fn is_error(response: &RateLimitResp) -> bool {
    !response.error.is_empty()
}

pub fn count(responses: &[RateLimitResp], is_counted: fn(&RateLimitResp) -> bool) -> usize {
    responses.iter().filter(|response| is_counted(response)).count()
}

impl Client {
    pub fn connect(addrs: impl Iterator<Item = SocketAddr>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let channel = |addr: SocketAddr| {
            let endpoint = Endpoint::from_shared(format!("http://{addr}"));
            let endpoint = endpoint.map_err(io::Error::other)?;
            let _runtime = runtime.enter();
            Ok(endpoint.timeout(TIMEOUT).tcp_nodelay(true).connect_lazy())
        };
        let channels: io::Result<Vec<_>> = addrs.map(channel).collect();
        Ok(Self { channels: channels?, runtime, deadline: TIMEOUT })
    }

    /// How many nodes a node knows, itself included. An error while it is not healthy.
    pub fn peers(&self, node: usize) -> io::Result<usize> {
        let response: io::Result<HealthCheckResp> = self.runtime.block_on(call(
            self.channels[node].clone(),
            "/pb.gubernator.V1/HealthCheck",
            HealthCheckReq::default(),
            self.deadline,
        ));
        usize::try_from(response?.peer_count).map_err(io::Error::other)
    }

    /// Sends messages of requests to a node, one after the other.
    pub fn ask(&self, node: usize, requests: &[RateLimitReq]) -> Vec<RateLimitResp> {
        let mut responses = Vec::with_capacity(requests.len());
        for message in requests.chunks(PER_MESSAGE) {
            let message = message.to_vec();
            responses.extend(self.runtime.block_on(self.send(node, message)));
        }
        responses
    }

    /// Sends messages at once, each to a node.
    pub fn ask_at_once(&self, messages: Vec<(usize, Vec<RateLimitReq>)>) -> Vec<RateLimitResp> {
        self.runtime.block_on(self.send_at_once(messages))
    }

    pub async fn send_at_once(
        &self,
        messages: Vec<(usize, Vec<RateLimitReq>)>,
    ) -> Vec<RateLimitResp> {
        let calls = messages.into_iter().map(|(node, requests)| self.send(node, requests));
        join_all(calls).await.concat()
    }

    /// Sends one message. A call that fails is an error of each of its requests.
    pub async fn send(&self, node: usize, requests: Vec<RateLimitReq>) -> Vec<RateLimitResp> {
        let sent = requests.len();
        let response: io::Result<GetRateLimitsResp> = call(
            self.channels[node].clone(),
            "/pb.gubernator.V1/GetRateLimits",
            GetRateLimitsReq { requests },
            self.deadline,
        )
        .await;
        match response {
            Ok(response) => response.responses,
            Err(error) => {
                let error = error.to_string();
                vec![RateLimitResp { error, ..RateLimitResp::default() }; sent]
            }
        }
    }
}

async fn call<Q, A>(
    channel: Channel,
    path: &'static str,
    message: Q,
    deadline: Duration,
) -> io::Result<A>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(io::Error::other)?;
    let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::default());
    let mut request = tonic::Request::new(message);
    request.set_timeout(deadline);
    let response = grpc.unary(request, path, codec).await;
    Ok(response.map_err(io::Error::other)?.into_inner())
}
