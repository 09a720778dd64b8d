//! How each target is asked for one hit, and how its answer is read.

use std::io;
use std::net::SocketAddr;

use serde_json::json;
use tidegate::front::rls::message::Code;

use super::{ALGORITHMS, Asker, Claim, Connect, Told, rule};
use crate::engine::resp::{KEY, Reply, Value};
use crate::peers::redis::Script;
use crate::peers::tidegate::Node;
use crate::peers::{Limit, Peer, Target, cl_throttle, redis, words};
use crate::questions::{Http, Redis, Rls};

/// The domain of the rules.
const DOMAIN: &str = "duel";

/// A target of the duel.
pub struct Listed {
    pub name: String,
    pub claim: Claim,
    pub connect: Result<Connect, String>,
}

/// What names its limit in each command.
struct Commands {
    redis: Redis,
    /// What its keys begin with: the scripts share a server.
    prefix: &'static str,
    command: fn(Limit) -> Vec<String>,
    sha: String,
    reply: Reply,
    retry: Retry,
}

/// Where in its answer the time to try again stands, and how many of its units make a second.
#[derive(Clone, Copy)]
struct Retry {
    index: usize,
    per_second: f64,
}

const OF_SCRIPTS: Retry = Retry { index: 2, per_second: 1_000.0 };
const OF_CL_THROTTLE: Retry = Retry { index: 3, per_second: 1.0 };
const OF_THROTTLECRAB: Retry = Retry { index: 4, per_second: 1.0 };

struct ByRule<C> {
    client: C,
    algorithm: &'static str,
}

/// A target that names its limit: its name, where it is, its command, and where its time stands.
type Named<'a> = (&'a str, Result<Target, String>, fn(Limit) -> Vec<String>, Retry);

/// Everybody who can be had.
pub fn all(
    scripts: &Result<SocketAddr, String>,
    cell: &Peer,
    throttlecrab: &Peer,
    node: &Result<Node, String>,
) -> Vec<Listed> {
    let mut listed = Vec::new();
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
                let (reply, retry, prefix) = (Reply::Allowed, OF_SCRIPTS, name);
                let asker = Commands { redis, prefix, command, sha, reply, retry };
                Ok(Box::new(asker) as Box<dyn Asker>)
            }) as Connect
        });
        listed.push(Listed { name: name.into(), claim, connect });
    }
    let resp = node.clone().and_then(|node| {
        node.target(crate::peers::NEVER_REACHED).map_err(|error| error.to_string())
    });
    let named: [Named<'_>; 3] = [
        (cell.name, cell.target.clone(), cl_throttle, OF_CL_THROTTLE),
        (throttlecrab.name, throttlecrab.target.clone(), throttle, OF_THROTTLECRAB),
        ("tidegate, CL.THROTTLE", resp, cl_throttle, OF_CL_THROTTLE),
    ];
    for (name, target, command, retry) in named {
        let connect = target.map(|target| {
            let (addr, reply) = (target.addr, target.reply);
            Box::new(move || {
                let (redis, sha, prefix) = (Redis::connect(addr)?, String::new(), "duel");
                let asker = Commands { redis, prefix, command, sha, reply, retry };
                Ok(Box::new(asker) as Box<dyn Asker>)
            }) as Connect
        });
        listed.push(Listed { name: name.into(), claim: Claim::Bucket, connect });
    }
    for (algorithm, claim) in ALGORITHMS {
        let rls = node.clone().map(|Node { grpc, .. }| {
            Box::new(move || {
                let client = Rls::connect(grpc)?;
                Ok(Box::new(ByRule { client, algorithm }) as Box<dyn Asker>)
            }) as Connect
        });
        listed.push(Listed { name: format!("tidegate, gRPC, {algorithm}"), claim, connect: rls });
    }
    for (algorithm, claim) in ALGORITHMS {
        let http = node.clone().map(|Node { http, .. }| {
            Box::new(move || {
                let client = Http::connect(http)?;
                Ok(Box::new(ByRule { client, algorithm }) as Box<dyn Asker>)
            }) as Connect
        });
        listed.push(Listed { name: format!("tidegate, HTTP, {algorithm}"), claim, connect: http });
    }
    listed
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

impl Asker for Commands {
    fn ask(&mut self, key: &str, limit: Limit) -> io::Result<Told> {
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
        let Value::Array(items) = self.redis.ask(&words)? else {
            return Err(io::Error::other("the reply is no array"));
        };
        let int = |index: usize| match items.get(index) {
            Some(Value::Int(number)) => Ok(*number),
            other => Err(io::Error::other(format!("not a number: {other:?}"))),
        };
        let is_admitted = int(0)? == i64::from(self.reply == Reply::Allowed);
        let retry = int(self.retry.index)? as f64 / self.retry.per_second;
        let retry_s = (!is_admitted && retry >= 0.0).then_some(retry);
        Ok(Told { is_admitted, retry_s, is_reset: false })
    }
}

impl Asker for ByRule<Rls> {
    fn ask(&mut self, key: &str, limit: Limit) -> io::Result<Told> {
        let value = format!("grpc:{key}");
        let answer = self.client.ask(DOMAIN, &rule(self.algorithm, limit), &value)?;
        let until = answer.statuses.first().and_then(|status| status.duration_until_reset);
        // The time until the whole limit is there again is all that the protocol has; where the
        // limit is one, it is the time to try again.
        let retry_s = until.map(|until| until.seconds as f64 + f64::from(until.nanos) / 1e9);
        let is_admitted = answer.overall_code() == Code::Ok;
        Ok(Told { is_admitted, retry_s, is_reset: true })
    }
}

impl Asker for ByRule<Http> {
    fn ask(&mut self, key: &str, limit: Limit) -> io::Result<Told> {
        let entry = json!({
            "key": rule(self.algorithm, limit),
            "value": format!("http:{key}"),
        });
        let ask = json!({"domain": DOMAIN, "descriptors": [{"entries": [entry]}]});
        let answer = self.client.post("/v1/check", &ask.to_string())?;
        let header = |name: &str| {
            let value = answer.headers.iter().find(|(other, _)| other == name);
            value.and_then(|(_, value)| value.parse().ok())
        };
        match answer.status {
            200 => Ok(Told { is_admitted: true, retry_s: None, is_reset: false }),
            429 => {
                let retry_s = header("x-ratelimit-retry-after");
                Ok(Told { is_admitted: false, retry_s, is_reset: false })
            }
            status => Err(io::Error::other(format!("answered {status}: {}", answer.body))),
        }
    }
}
