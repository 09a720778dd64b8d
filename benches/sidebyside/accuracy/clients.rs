//! How a request for one hit is sent to each target, and how its response is parsed.

use std::io;
use std::net::SocketAddr;

use serde_json::json;
use tidegate::front::rls::message::Code;
use tidegate_testkit::loadgen::resp::{KEY, Reply, Value};

use super::{ALGORITHMS, Claim, Client, Connect, Verdict, rule};
use crate::clients::{Http, Redis, Rls};
use crate::peers::redis::Script;
use crate::peers::tidegate::Node;
use crate::peers::{Limit, Peer, Target, cl_throttle, redis, words};

/// The domain of the rules.
pub const DOMAIN: &str = "accuracy";

pub struct Participant {
    pub name: String,
    pub claim: Claim,
    pub connect: Result<Connect, String>,
}

/// A client that sends the limit in each command.
struct CommandClient {
    redis: Redis,
    /// Prefix of its keys: the scripts share a server.
    prefix: &'static str,
    command: fn(Limit) -> Vec<String>,
    sha: String,
    reply: Reply,
    retry: RetryField,
}

/// Position of the retry time in the reply, and its unit.
#[derive(Clone, Copy)]
struct RetryField {
    index: usize,
    per_second: f64,
}

const SCRIPT_RETRY: RetryField = RetryField { index: 2, per_second: 1_000.0 };
const CL_THROTTLE_RETRY: RetryField = RetryField { index: 3, per_second: 1.0 };
const THROTTLECRAB_RETRY: RetryField = RetryField { index: 4, per_second: 1.0 };

/// A client of an API without limits in the request: the limit is that of a rule.
struct RuleClient<C> {
    client: C,
    algorithm: &'static str,
}

/// A target whose commands contain the limit: name, address, command, retry field.
type CommandTarget<'a> = (&'a str, Result<Target, String>, fn(Limit) -> Vec<String>, RetryField);

/// All targets, with the reason for each that is not available.
pub fn all(
    scripts: &Result<SocketAddr, String>,
    cell: &Peer,
    throttlecrab: &Peer,
    node: &Result<Node, String>,
) -> Vec<Participant> {
    let mut participants = Vec::new();
    for (script, name) in Script::ALL {
        let claim = match script {
            Script::SlidingWindow => Claim::Log,
            Script::TokenBucket | Script::Gcra => Claim::Bucket,
        };
        let connect = scripts.clone().map(|addr| {
            Box::new(move || {
                let mut redis = Redis::connect(addr)?;
                let sha = redis::load(&mut redis, script)?;
                let command = match script {
                    Script::SlidingWindow => log_script,
                    Script::TokenBucket | Script::Gcra => bucket_script,
                };
                let (reply, retry, prefix) = (Reply::Allowed, SCRIPT_RETRY, name);
                let client = CommandClient { redis, prefix, command, sha, reply, retry };
                Ok(Box::new(client) as Box<dyn Client>)
            }) as Connect
        });
        participants.push(Participant { name: name.into(), claim, connect });
    }
    let resp = node.clone().and_then(|node| {
        node.target(crate::peers::NEVER_REACHED).map_err(|error| error.to_string())
    });
    let targets: [CommandTarget<'_>; 3] = [
        (cell.name, cell.target.clone(), cl_throttle, CL_THROTTLE_RETRY),
        (throttlecrab.name, throttlecrab.target.clone(), throttle, THROTTLECRAB_RETRY),
        ("tidegate, CL.THROTTLE", resp, cl_throttle, CL_THROTTLE_RETRY),
    ];
    for (name, target, command, retry) in targets {
        let connect = target.map(|target| {
            let (addr, reply) = (target.addr, target.reply);
            Box::new(move || {
                let (redis, sha, prefix) = (Redis::connect(addr)?, String::new(), "accuracy");
                let client = CommandClient { redis, prefix, command, sha, reply, retry };
                Ok(Box::new(client) as Box<dyn Client>)
            }) as Connect
        });
        participants.push(Participant { name: name.into(), claim: Claim::Bucket, connect });
    }
    for (algorithm, claim) in ALGORITHMS {
        let rls = node.clone().map(|Node { grpc, .. }| {
            Box::new(move || {
                let client = Rls::connect(grpc)?;
                Ok(Box::new(RuleClient { client, algorithm }) as Box<dyn Client>)
            }) as Connect
        });
        participants.push(Participant {
            name: format!("tidegate, gRPC, {algorithm}"),
            claim,
            connect: rls,
        });
    }
    for (algorithm, claim) in ALGORITHMS {
        let http = node.clone().map(|Node { http, .. }| {
            Box::new(move || {
                let client = Http::connect(http)?;
                Ok(Box::new(RuleClient { client, algorithm }) as Box<dyn Client>)
            }) as Connect
        });
        participants.push(Participant {
            name: format!("tidegate, HTTP, {algorithm}"),
            claim,
            connect: http,
        });
    }
    participants
}

fn bucket_script(Limit { burst, count, period }: Limit) -> Vec<String> {
    words(&format!("EVALSHA SHA 1 {KEY} {burst} {count} {period} 1"))
}

fn log_script(Limit { count, period, .. }: Limit) -> Vec<String> {
    words(&format!("EVALSHA SHA 1 {KEY} {count} {period} 1"))
}

fn throttle(Limit { burst, count, period }: Limit) -> Vec<String> {
    words(&format!("THROTTLE {KEY} {burst} {count} {period}"))
}

impl Client for CommandClient {
    fn check(&mut self, key: &str, limit: Limit) -> io::Result<Verdict> {
        let key = format!("{}:{key}", self.prefix);
        let command = (self.command)(limit);
        let words: Vec<&str> = command
            .iter()
            .map(|word| match word.as_str() {
                KEY => key.as_str(),
                "SHA" => self.sha.as_str(),
                word => word,
            })
            .collect();
        let Value::Array(items) = self.redis.command(&words)? else {
            return Err(io::Error::other("the reply is not an array"));
        };
        let int = |index: usize| match items.get(index) {
            Some(Value::Int(number)) => Ok(*number),
            other => Err(io::Error::other(format!("not a number: {other:?}"))),
        };
        let is_admitted = int(0)? == i64::from(self.reply == Reply::Allowed);
        let retry = int(self.retry.index)? as f64 / self.retry.per_second;
        let retry_s = (!is_admitted && retry >= 0.0).then_some(retry);
        Ok(Verdict { is_admitted, retry_s, is_reset: false })
    }
}

impl Client for RuleClient<Rls> {
    fn check(&mut self, key: &str, limit: Limit) -> io::Result<Verdict> {
        let value = format!("grpc:{key}");
        let response = self.client.check(DOMAIN, &rule(self.algorithm, limit), &value)?;
        let until = response.statuses.first().and_then(|status| status.duration_until_reset);
        // The protocol only has the time until the whole limit is available. For a limit of one
        // that is the retry time.
        let retry_s = until.map(|until| until.seconds as f64 + f64::from(until.nanos) / 1e9);
        let is_admitted = response.overall_code() == Code::Ok;
        Ok(Verdict { is_admitted, retry_s, is_reset: true })
    }
}

impl Client for RuleClient<Http> {
    fn check(&mut self, key: &str, limit: Limit) -> io::Result<Verdict> {
        let entry = json!({
            "key": rule(self.algorithm, limit),
            "value": format!("http:{key}"),
        });
        let request = json!({"domain": DOMAIN, "descriptors": [{"entries": [entry]}]});
        let response = self.client.post("/v1/check", &request.to_string())?;
        let header = |name: &str| {
            let value = response.headers.iter().find(|(other, _)| other == name);
            value.and_then(|(_, value)| value.parse().ok())
        };
        match response.status {
            200 => Ok(Verdict { is_admitted: true, retry_s: None, is_reset: false }),
            429 => {
                let retry_s = header("x-ratelimit-retry-after");
                Ok(Verdict { is_admitted: false, retry_s, is_reset: false })
            }
            status => Err(io::Error::other(format!("status {status}: {}", response.body))),
        }
    }
}
