//! Runs the common load tools and parses their output.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::processes::{self, Server, own_cpu};

/// Longer than any run.
const LIMIT: Duration = Duration::from_secs(60);

/// The measurements of one run of a load tool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    /// CPU time per request in microseconds.
    pub server_us: f64,
    pub client_us: f64,
}

/// The columns that a [`Run`] fills.
pub const COLUMNS: [&str; 6] =
    ["req/s", "p50 ms", "p99 ms", "p99.9 ms", "server CPU µs/req", "client CPU µs/req"];

/// The part of a script of `wrk` that prints the percentiles.
pub const WRK_REPORT: &str = r"
done = function(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('measured %d %d %d %d %d %d\n', summary.requests, summary.duration, failed,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
";

impl Run {
    pub fn cells(&self) -> Vec<f64> {
        vec![
            self.per_second,
            self.p50_ms,
            self.p99_ms,
            self.p999_ms,
            self.server_us,
            self.client_us,
        ]
    }
}

/// Runs `redis-benchmark` with 50 connections and 100,000 random keys.
pub fn redis_benchmark(
    addr: SocketAddr,
    server: &Server,
    words: &[String],
    pipeline: u32,
    requests: u64,
) -> io::Result<Run> {
    let mut command = processes::command("redis-benchmark");
    command.args(redis_benchmark_args(addr, pipeline, requests)).args(words);
    let (output, server_cpu, client_cpu) = timed(&mut command, &[server])?;
    let unexpected = || io::Error::other(format!("redis-benchmark printed {output:?}"));
    // Progress output ends with a carriage return in the same line.
    let lines = || output.split(['\n', '\r']).map(str::trim);
    let rate = lines().find_map(|line| line.strip_prefix("throughput summary: "));
    let rate = rate.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let summary = lines().skip_while(|line| !line.starts_with("latency summary")).nth(2);
    let summary: Vec<f64> = summary
        .map(|line| line.split_whitespace().filter_map(|cell| cell.parse().ok()).collect())
        .unwrap_or_default();
    let [_, _, p50, _, p99, _] = summary[..] else {
        return Err(unexpected());
    };
    // "99.902% <= 0.583 milliseconds (cumulative count 99902)"; the last line is 100 %.
    let p999 = lines().find_map(|line| {
        let (percent, rest) = line.split_once("% <= ")?;
        let is_reached = percent.parse::<f64>().ok()? >= 99.9;
        let value = rest.split_once(" milliseconds (cumulative")?.0.parse::<f64>().ok()?;
        is_reached.then_some(value)
    });
    Ok(Run {
        per_second: rate.ok_or_else(unexpected)?,
        p50_ms: p50,
        p99_ms: p99,
        p999_ms: p999.ok_or_else(unexpected)?,
        server_us: per(server_cpu, requests),
        client_us: per(client_cpu, requests),
    })
}

fn redis_benchmark_args(addr: SocketAddr, pipeline: u32, requests: u64) -> Vec<String> {
    let fixed = ["-c", "50", "-r", "100000", "--precision", "3"].map(str::to_owned);
    let port = addr.port().to_string();
    let (pipeline, requests) = (pipeline.to_string(), requests.to_string());
    let own = ["-p".into(), port, "-P".into(), pipeline, "-n".into(), requests];
    own.into_iter().chain(fixed).collect()
}

/// Runs `h2load` with 50 connections of `depth` streams. It prints no percentiles.
pub fn h2load(
    addr: SocketAddr,
    server: &Server,
    body: &Path,
    depth: u32,
    requests: u64,
) -> io::Result<Run> {
    let mut command = processes::command("h2load");
    command.args(["-c50", &format!("-m{depth}"), &format!("-n{requests}"), "-t1", "-p", "h2c"]);
    command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]).arg(body);
    command
        .arg(format!("http://{addr}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"));
    let (output, server_cpu, client_cpu) = timed(&mut command, &[server])?;
    let rate = output.lines().find_map(|line| line.strip_prefix("finished in "));
    let rate = rate.and_then(|rest| rest.split(", ").nth(1)?.split(' ').next()?.parse().ok());
    let failed = output
        .lines()
        .find_map(|line| line.strip_prefix("requests: "))
        .map(|line| line.split(", ").any(|part| part.ends_with(" failed") && part != "0 failed"));
    let (Some(per_second), Some(false)) = (rate, failed) else {
        return Err(io::Error::other(format!("h2load printed {output:?}")));
    };
    Ok(Run {
        per_second,
        server_us: per(server_cpu, requests),
        client_us: per(client_cpu, requests),
        ..Run::default()
    })
}

/// Runs `wrk` with 50 connections. The script ends with [`WRK_REPORT`].
pub fn wrk(
    addr: SocketAddr,
    servers: &[&Server],
    script: &Path,
    span: Duration,
) -> io::Result<Run> {
    let mut command = processes::command("wrk");
    let seconds = format!("{}s", span.as_secs_f64().ceil());
    command.args(["-t1", "-c50", "-d", &seconds, "-s"]).arg(script);
    command.arg(format!("http://{addr}/"));
    let (output, server_cpu, client_cpu) = timed(&mut command, servers)?;
    // The script's last line: "measured" and the numbers.
    let line = output.lines().find_map(|line| line.strip_prefix("measured "));
    let numbers: Vec<f64> = line
        .map(|line| line.split(' ').filter_map(|number| number.parse().ok()).collect())
        .unwrap_or_default();
    let [requests, us, errors, p50, p99, p999] = numbers[..] else {
        return Err(io::Error::other(format!("wrk printed {output:?}")));
    };
    if errors > 0.0 {
        return Err(io::Error::other(format!("{errors} of {requests} requests failed")));
    }
    Ok(Run {
        per_second: requests / us * 1e6,
        p50_ms: p50 / 1e3,
        p99_ms: p99 / 1e3,
        p999_ms: p999 / 1e3,
        server_us: server_cpu.as_secs_f64() * 1e6 / requests,
        client_us: client_cpu.as_secs_f64() * 1e6 / requests,
    })
}

/// Runs a command. Returns its output, and the CPU time of the servers and of the command.
fn timed(command: &mut Command, servers: &[&Server]) -> io::Result<(String, Duration, Duration)> {
    let used =
        || servers.iter().map(|server| Ok(server.usage()?.cpu)).sum::<io::Result<Duration>>();
    let (server, (_, client)) = (used()?, own_cpu());
    let output = processes::run(command, LIMIT)?;
    Ok((output, used()?.saturating_sub(server), own_cpu().1.saturating_sub(client)))
}

fn per(cpu: Duration, requests: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / requests as f64
}
