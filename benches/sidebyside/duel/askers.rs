//! How each target is asked for one hit, and how its answer is read.

use std::io;
use std::net::SocketAddr;

use serde_json::json;
use tidegate::front::rls::message::Code;

use super::{ALGORITHMS, Asker, Claim, Connect, Told, rule};
use crate::engine::resp::{KEY, Reply, Value};
use crate::peers::redis::Script;
use crate::peers::{Limit, Peer, Target, redis};
use crate::peers::tidegate::Node;
use crate::questions::{Http, Redis, Rls};

/// The domain of the rules.
const DOMAIN: &str = "duel";
/// Keys of one run do not meet those of another.
const PREFIX: &str = "duel:";

/// A target of the duel.
pub struct Listed {
    pub name: String,
    pub claim: Claim,
    pub connect: Result<Connect, String>,
}

/// What names its limit in each command: where it listens, the command for a limit, its answer's
/// form and whether it names times in milliseconds.
struct Commands {
    redis: Redis,
    command: fn(Limit) -> Vec<String>,
    sha: Option<String>,
    reply: Reply,
}

struct ByRule<C> {
    client: C,
    algorithm: &'static str,
}

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
                let sha = Some(redis::load(&mut redis, script)?);
                let command = match script {
                    Script::SlidingWindow => log_script,
                    Script::TokenBucket | Script::Gcra => bucket_script,
                };
                let reply = Reply::Allowed;
                Ok(Box::new(Commands { redis, command, sha, reply }) as Box<dyn Asker>)
            }) as Connect
        });
        listed.push(Listed { name: name.into(), claim, connect });
    }
    let resp = node.clone().and_then(|node| {
        node.target(crate::peers::NEVER_REACHED).map_err(|error| error.to_string())
    });
    let named: [(&str, Result<Target, String>, fn(Limit) -> Vec<String>); 3] = [
        (cell.name, cell.target.clone(), crate::peers::cl_throttle),
        (throttlecrab.name, throttlecrab.target.clone(), throttle),
        ("tidegate, CL.THROTTLE", resp, crate::peers::cl_throttle),
    ];
    for (name, target, command) in named {
        let connect = target.map(|target| {
            let (addr, reply) = (target.addr, target.reply);
            Box::new(move || {
                let redis = Redis::connect(addr)?;
                Ok(Box::new(Commands { redis, command, sha: None, reply }) as Box<dyn Asker>)
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
    crate::peers::words(&format!("EVALSHA SHA 1 {KEY} {burst} {count} {period} 1"))
}

fn log_script(Limit { count, period, .. }: Limit) -> Vec<String> {
    crate::peers::words(&format!("EVALSHA SHA 1 {KEY} {count} {period} 1"))
}

fn throttle(Limit { burst, count, period }: Limit) -> Vec<String> {
    crate::peers::words(&format!("THROTTLE {KEY} {burst} {count} {period}"))
}

impl Asker for Commands {
    fn ask(&mut self, key: &str, limit: Limit) -> io::Result<Told> {
        let key = format!("{PREFIX}{key}");
        let command = (self.command)(limit);
        let sha = self.sha.as_deref().unwrap_or_default();
        let words: Vec<&str> = command
            .iter()
            .map(|word| match word.as_str() {
                KEY => key.as_str(),
                "SHA" => sha,
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
        // Our scripts answer milliseconds in the third place, the others seconds in the fourth.
        let retry = match self.sha {
            Some(_) => int(2)? as f64 / 1e3,
            None => int(3)? as f64,
        };
        let retry_s = (!is_admitted && retry >= 0.0).then_some(retry);
        Ok(Told { is_admitted, retry_s, is_reset: false })
    }
}

impl Asker for ByRule<Rls> {
    fn ask(&mut self, key: &str, limit: Limit) -> io::Result<Told> {
        let value = format!("{PREFIX}grpc:{key}");
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
            "value": format!("{PREFIX}http:{key}"),
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
