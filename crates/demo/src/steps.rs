//! The steps of the demo. Every number in the output is measured.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, DEADLINE_MS};
use crate::envoy;
use crate::error::Error;
use crate::gateway::{self, NODE};
use crate::node::{self, Node};
use crate::options::Options;
use crate::output::Output;
use crate::requests::{self, CONCURRENCY, Count, Http, Tally};

const NODES: [(&str, &str); 3] = [("eu-1", "eu"), ("eu-2", "eu"), ("us-1", "us")];
/// The node that is killed.
const VICTIM: &str = "eu-2";

// As in rules.yaml.
const STRICT_LIMIT: u32 = 50;
const EVENTUAL_LIMIT: u32 = 500;

/// Runs all steps. Unless `once` is set, the future then stays pending, so that the cluster can be
/// tried.
pub(crate) async fn run(
    options: &Options,
    envoy: Option<PathBuf>,
    cluster: &mut Cluster,
    out: &mut Output<'_>,
) -> Result<(), Error> {
    let http = requests::client();
    let nodes = start(&http, cluster, out).await?;
    let gateway = gateway::start(&nodes).await;
    let gateway =
        gateway.map_err(Error::context("start the load balancer", "raise `ulimit -n`"))?;
    writeln!(out, "   load balancer: http://{gateway}, checks each request with a node, in turn")?;
    let demo = Demo { http, nodes, gateway };
    avoid_midnight(out).await?;
    demo.strict(out).await?;
    demo.eventual(out).await?;
    let envoy = match envoy {
        Some(program) => Some(demo.envoy(&program, cluster, out).await?),
        None => None,
    };
    demo.node_failure(cluster, out).await?;
    if options.once {
        writeln!(out, "\nEnd of the demo: stopping the nodes, removing the files.")?;
        return Ok(());
    }
    demo.invite(&options.executable, envoy, cluster.folder(), out)?;
    std::future::pending().await
}

async fn start(
    http: &Http,
    cluster: &mut Cluster,
    out: &mut Output<'_>,
) -> Result<Vec<Node>, Error> {
    out.step("Three nodes, two regions")?;
    let folder = cluster.folder().display();
    writeln!(out, "   certificates, rules, configurations and logs: {folder}")?;
    let mut nodes: Vec<Node> = Vec::new();
    let mut seed = None;
    for (id, region) in NODES {
        let node = cluster.start(id, region, seed).await?;
        if seed.is_none() {
            seed = Some(node.wait_for(http, "its own address", node::mesh).await?);
        }
        nodes.push(node);
    }
    writeln!(out, "   started; waiting until each node sees all ...")?;
    let begin = Instant::now();
    let all_up = |status: &Value| {
        let up = node::up(status);
        (up.len() == NODES.len() && status["not_ready"].is_null()).then(|| up.join(" "))
    };
    let mut rows = Vec::new();
    for node in &nodes {
        let sees = node.wait_for(http, "all nodes", all_up).await?;
        let Node { id, region, pid, http, admin, .. } = node;
        let cells = [id, region, &*pid.to_string(), &http.to_string(), &admin.to_string(), &sees];
        rows.push(cells.map(str::to_owned));
    }
    out.table(["NODE", "REGION", "PID", "HTTP", "ADMIN", "SEES"], &rows)?;
    writeln!(out, "   {:.1?} until each saw all", begin.elapsed())?;
    Ok(nodes)
}

/// The windows of the demo are days in UTC, so that its limits start afresh at midnight.
async fn avoid_midnight(out: &mut Output<'_>) -> Result<(), Error> {
    const DAY: u64 = 86_400;
    /// How long the steps take at most.
    const STEPS: u64 = 60;
    #[expect(clippy::disallowed_methods, reason = "the demo is a client, outside any node")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = DAY - now.as_secs() % DAY;
    if left < STEPS {
        writeln!(out, "   waiting {left} s: all limits start afresh at midnight UTC ...")?;
        sleep(Duration::from_secs(left)).await;
    }
    Ok(())
}

/// What the steps use.
struct Demo {
    http: Http,
    nodes: Vec<Node>,
    /// The load balancer.
    gateway: SocketAddr,
}

impl Demo {
    async fn strict(&self, out: &mut Output<'_>) -> Result<(), Error> {
        out.step("Strict: exactly the limit, whichever node is used")?;
        writeln!(out, "   {STRICT_LIMIT} logins a day in each region")?;
        let before = self.fallbacks().await?;
        let tally = self.burst("x-login", "alice", 300, out).await?;
        write_regions(&tally, out)?;
        let met = tally.is_exact_by_region(STRICT_LIMIT) && tally.regions.len() == 2;
        out.verdict(met, "strict, each region on its own: exact")?;

        writeln!(out, "\n   with `scope: global`: {STRICT_LIMIT} a day over both regions")?;
        let tally = self.burst("x-licence", "acme", 300, out).await?;
        write_sum(&tally, out)?;
        out.verdict(tally.is_exact(STRICT_LIMIT), "strict, all regions together: exact")?;
        let fallbacks = self.fallbacks().await?.saturating_sub(before);
        if fallbacks > 0 {
            writeln!(out, "   ({fallbacks} decided by on_unavailable: this machine was too busy")?;
            writeln!(out, "   for an owner to respond within {DEADLINE_MS} ms)")?;
        }
        self.refusal(self.gateway, "x-login", "alice", out).await
    }

    async fn eventual(&self, out: &mut Output<'_>) -> Result<(), Error> {
        out.step("Eventual: every node decides locally")?;
        writeln!(out, "   {EVENTUAL_LIMIT} views a day over both regions")?;
        let begin = Instant::now();
        let first = self.burst("x-page", "/home", EVENTUAL_LIMIT * 3, out).await?;
        write_sum(&first, out)?;
        let passed = first.all().passed;
        let over = 100.0 * (f64::from(passed) / f64::from(EVENTUAL_LIMIT) - 1.0);
        let took = begin.elapsed();
        writeln!(out, "   {over:+.1} % within {took:.1?}, before the nodes had synchronised")?;
        let begin = Instant::now();
        for node in &self.nodes {
            node.wait_until_exhausted(&self.http, "page", "/home").await?;
        }
        let took = begin.elapsed();
        writeln!(out, "   {took:.1?} later the limit is exhausted on every node")?;
        let again = self.burst("x-page", "/home", 60, out).await?;
        write_sum(&again, out)?;
        let met = passed >= EVENTUAL_LIMIT && again.is_exact(0);
        out.verdict(met, "eventual: never under the limit, nothing over it once synchronised")?;
        Ok(())
    }

    /// Envoy checks requests with the nodes over gRPC, in turn. Returns its address.
    async fn envoy(
        &self,
        program: &Path,
        cluster: &mut Cluster,
        out: &mut Output<'_>,
    ) -> Result<SocketAddr, Error> {
        let addr = envoy::start(program, &self.nodes, &self.http, cluster).await?;
        out.step("In front: a real Envoy")?;
        let program = relative(program);
        writeln!(out, "   {program} on http://{addr}, with docs/examples/envoy.yaml")?;
        writeln!(out, "   {STRICT_LIMIT} requests a day over both regions, 300 requests")?;
        let tally = requests::burst(&self.http, addr, "x-user", "envoy", 300).await;
        write_sum(&tally, out)?;
        out.verdict(tally.is_exact(STRICT_LIMIT), "strict, behind Envoy: exact")?;
        self.refusal(addr, "x-user", "envoy", out).await?;
        Ok(addr)
    }

    async fn node_failure(&self, cluster: &mut Cluster, out: &mut Output<'_>) -> Result<(), Error> {
        const COUNT: u32 = 800;
        const PAUSE: Duration = Duration::from_millis(5);
        const KILLED_AFTER: Duration = Duration::from_secs(1);
        out.step("A node is killed")?;
        writeln!(out, "   {COUNT} requests of 200 visitors, one each {PAUSE:?}")?;
        writeln!(out, "   after {KILLED_AFTER:?}: kill -9 {VICTIM}")?;
        let before = self.fallbacks().await?;
        let kill = async {
            sleep(KILLED_AFTER).await;
            cluster.kill(VICTIM).await?;
            let begin = Instant::now();
            // Each region has one node left.
            let took_over = |status: &Value| {
                let is_up = node::up(status).contains(&VICTIM);
                (!is_up && node::decides_whole_region(status)).then_some(())
            };
            for node in self.survivors() {
                node.wait_for(&self.http, "that a node failed", took_over).await?;
            }
            Ok::<_, Error>(begin.elapsed())
        };
        let load = requests::steady(&self.http, self.gateway, COUNT, PAUSE);
        let ((tally, slowest), took_over) = tokio::join!(load, kill);
        let took_over = took_over?;
        let fallbacks = self.fallbacks().await?.saturating_sub(before);
        let Count { sent, passed } = tally.all();
        let errors = tally.errors;
        writeln!(
            out,
            "   {sent} responses, {passed} passed, {errors} errors, slowest {slowest:.1?}\n   \
             {fallbacks} of them decided by on_unavailable, after the {DEADLINE_MS} ms that an \
             owner has here (by default 10 ms),\n   \
             until the keys of {VICTIM} had new owners: {took_over:.1?}"
        )?;
        out.verdict(sent == COUNT && errors == 0, "every request got a response")?;

        writeln!(out, "\n   strict limits on the remaining two nodes, a new login")?;
        let tally = self.burst("x-login", "bob", 180, out).await?;
        write_regions(&tally, out)?;
        let met = tally.is_exact_by_region(STRICT_LIMIT);
        out.verdict(met, "strict on the remaining nodes: exact")?;

        writeln!(out, "\n   alice, whose logins were exhausted before {VICTIM} was killed")?;
        let tally = self.burst("x-login", "alice", 60, out).await?;
        write_sum(&tally, out)?;
        out.verdict(tally.is_exact(0), "counts outlive the node that made them")?;
        Ok(())
    }

    fn invite(
        &self,
        executable: &Path,
        envoy: Option<SocketAddr>,
        folder: &Path,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        out.step("Your turn")?;
        let (program, gateway, folder) = (relative(executable), self.gateway, folder.display());
        writeln!(
            out,
            "   the upstream, ten requests a minute for each x-user in each region:\n     \
             curl -i -H 'x-user: me' http://{gateway}/\n     \
             for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' -H 'x-user: me' \
             http://{gateway}/; done; echo"
        )?;
        if let Some(addr) = envoy {
            writeln!(out, "   the same behind Envoy:")?;
            writeln!(out, "     curl -i -H 'x-user: me' http://{addr}/")?;
        }
        if let Some(Node { id, http, grpc, admin, .. }) = self.survivors().next() {
            writeln!(
                out,
                "   {id} without the load balancer:\n     \
                 {program} check demo user=me --url http://{http}\n     \
                 {program} status --url http://{admin}\n     \
                 {program} status --url http://{admin} --key demo user=me\n     \
                 curl http://{admin}/metrics\n     \
                 Envoy's rate limit service (gRPC) is on {grpc}"
            )?;
        }
        writeln!(out, "   change a limit while the nodes run; it applies within two seconds:")?;
        writeln!(out, "     $EDITOR {folder}/rules/demo.yaml")?;
        writeln!(out, "\n   Ctrl-C ends the demo and removes everything.")?;
        Ok(())
    }

    // === parts of steps ===

    async fn burst(
        &self,
        header: &str,
        value: &str,
        count: u32,
        out: &mut Output<'_>,
    ) -> Result<Tally, Error> {
        writeln!(out, "   {count} requests from {CONCURRENCY} clients, round robin:")?;
        Ok(requests::burst(&self.http, self.gateway, header, value, count).await)
    }

    /// How many checks the surviving nodes decided by `on_unavailable` so far.
    async fn fallbacks(&self) -> Result<u64, Error> {
        let mut sum = 0;
        for node in self.survivors() {
            sum += node.fallbacks(&self.http).await?;
        }
        Ok(sum)
    }

    fn survivors(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.id != VICTIM)
    }

    /// Sends one request more than the limit, and prints status and headers as `curl -i` does.
    async fn refusal(
        &self,
        addr: SocketAddr,
        name: &str,
        value: &str,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        writeln!(out, "\n   a refused request:")?;
        writeln!(out, "   $ curl -i -H '{name}: {value}' http://{addr}/")?;
        let Some(response) = requests::one(&self.http, addr, name, value).await else {
            out.verdict(false, "a response")?;
            return Ok(());
        };
        writeln!(out, "   HTTP/1.1 {}", response.status())?;
        for (name, value) in response.headers() {
            if name.as_str().contains("ratelimit") || [header::RETRY_AFTER, NODE].contains(name) {
                writeln!(out, "   {name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
            }
        }
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            out.verdict(false, "a status of 429")?;
        }
        Ok(())
    }
}

fn write_regions(tally: &Tally, out: &mut Output<'_>) -> io::Result<()> {
    let row = |(region, count): (&String, &Count)| {
        let numbers = [count.sent, count.passed, STRICT_LIMIT].map(|number| number.to_string());
        let [sent, passed, limit] = numbers;
        [region.clone(), sent, passed, limit]
    };
    let rows: Vec<_> = tally.regions.iter().map(row).collect();
    out.table(["REGION", "SENT", "PASSED", "LIMIT"], &rows)
}

fn write_sum(tally: &Tally, out: &mut Output<'_>) -> io::Result<()> {
    let Count { sent, passed } = tally.all();
    writeln!(out, "   sent {sent}, passed {passed}")
}

/// A path relative to the working folder, as the user may type it.
fn relative(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
