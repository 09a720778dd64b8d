//! The steps of the demo. Every number in the output is measured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, DEADLINE_MS};
use crate::error::Error;
use crate::gateway::{self, NODE};
use crate::node::{Node, Status};
use crate::output::Output;
use crate::requests::{self, CONCURRENCY, Http, Tally};
use crate::{Options, envoy};

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
    output: &mut Output<'_>,
) -> Result<(), Error> {
    let http = requests::client();
    let nodes = start(&http, cluster, output).await?;
    let gateway = gateway::start(&nodes)
        .await
        .map_err(Error::context("start the load balancer", "raise `ulimit -n`"))?;
    writeln!(
        output,
        "   load balancer on http://{gateway}: checks each request with a node, in turn"
    )?;
    let mut demo = Demo { http, nodes, gateway, cluster, output };
    demo.avoid_midnight().await?;
    demo.strict().await?;
    demo.eventual().await?;
    let envoy = match envoy {
        Some(program) => Some(demo.envoy(&program).await?),
        None => None,
    };
    demo.node_failure().await?;
    if options.once {
        writeln!(demo.output, "\nEnd of the demo: stopping the nodes, removing the files.")?;
        return Ok(());
    }
    demo.invite(&options.executable, envoy)?;
    std::future::pending().await
}

async fn start(
    http: &Http,
    cluster: &mut Cluster,
    output: &mut Output<'_>,
) -> Result<Vec<Node>, Error> {
    output.step("Three nodes, two regions")?;
    let folder = cluster.folder().display();
    writeln!(output, "   certificates, rules, configurations and logs: {folder}")?;
    let mut nodes: Vec<Node> = Vec::new();
    let mut seed = None;
    for (id, region) in NODES {
        let node = cluster.start(id, region, seed).await?;
        if seed.is_none() {
            seed = Some(node.wait_for(http, "its own address", Status::mesh).await?);
        }
        nodes.push(node);
    }
    writeln!(output, "   started; waiting until each node sees all ...")?;
    let begin = Instant::now();
    let mut rows = Vec::new();
    for node in &nodes {
        let all_up = |status: &Status| {
            let up = status.up();
            (up.len() == NODES.len() && status.is_ready()).then(|| up.join(" "))
        };
        let sees = node.wait_for(http, "all nodes", all_up).await?;
        let Node { id, region, pid, http, admin, .. } = node;
        rows.push([
            (*id).to_owned(),
            (*region).to_owned(),
            pid.to_string(),
            http.to_string(),
            admin.to_string(),
            sees,
        ]);
    }
    output.table(["NODE", "REGION", "PID", "HTTP", "ADMIN", "SEES"], &rows)?;
    writeln!(output, "   {:.1} s until each saw all", begin.elapsed().as_secs_f64())?;
    Ok(nodes)
}

/// What the steps use.
struct Demo<'a, 'o> {
    http: Http,
    nodes: Vec<Node>,
    /// The load balancer.
    gateway: SocketAddr,
    cluster: &'a mut Cluster,
    output: &'a mut Output<'o>,
}

impl Demo<'_, '_> {
    async fn strict(&mut self) -> Result<(), Error> {
        const COUNT: u32 = 300;
        self.output.step("Strict: exactly the limit, whichever node is used")?;
        writeln!(
            self.output,
            "   {STRICT_LIMIT} logins a day in each region; {COUNT} requests from {CONCURRENCY} clients, round robin"
        )?;
        let before = self.fallbacks().await?;
        let tally = self.burst("x-login", "alice", COUNT).await;
        self.write_regions(&tally)?;
        let met = tally.is_exact_by_region(STRICT_LIMIT) && tally.regions.len() == 2;
        self.output.verdict(met, "strict, each region on its own: exact")?;

        writeln!(
            self.output,
            "\n   the same with `scope: global`: {STRICT_LIMIT} a day over both regions"
        )?;
        let tally = self.burst("x-licence", "acme", COUNT).await;
        self.write_sum(&tally)?;
        self.output.verdict(tally.is_exact(STRICT_LIMIT), "strict, all regions together: exact")?;
        let fallbacks = self.fallbacks().await?.saturating_sub(before);
        if fallbacks > 0 {
            writeln!(
                self.output,
                "   ({fallbacks} decided by on_unavailable: this machine was too busy for an owner \
                 to respond within {DEADLINE_MS} ms)"
            )?;
        }
        self.refusal(self.gateway, "x-login", "alice").await
    }

    async fn eventual(&mut self) -> Result<(), Error> {
        self.output.step("Eventual: every node decides locally")?;
        writeln!(
            self.output,
            "   {EVENTUAL_LIMIT} views a day over both regions; {} requests from {CONCURRENCY} clients, round \
             robin",
            EVENTUAL_LIMIT * 3
        )?;
        let begin = Instant::now();
        let first = self.burst("x-page", "/home", EVENTUAL_LIMIT * 3).await.all();
        let over = f64::from(first.passed) / f64::from(EVENTUAL_LIMIT) - 1.0;
        writeln!(
            self.output,
            "   sent {} within {:.0} ms, passed {}: {:+.1} %, until the nodes had synchronised",
            first.sent,
            millis(begin.elapsed()),
            first.passed,
            over * 100.0
        )?;
        let begin = Instant::now();
        for node in &self.nodes {
            node.wait_until_exhausted(&self.http, "page", "/home").await?;
        }
        let took = millis(begin.elapsed());
        writeln!(self.output, "   {took:.0} ms later the limit is exhausted on every node")?;
        let again = self.burst("x-page", "/home", 60).await.all();
        writeln!(self.output, "   sent {} more, passed {}", again.sent, again.passed)?;
        let met = first.passed >= EVENTUAL_LIMIT && again.passed == 0;
        self.output
            .verdict(met, "eventual: never under the limit, nothing over it once synchronised")?;
        Ok(())
    }

    /// Envoy checks requests with the nodes over gRPC, in turn. Returns its address.
    async fn envoy(&mut self, program: &Path) -> Result<SocketAddr, Error> {
        const COUNT: u32 = 300;
        let addr = envoy::start(program, &self.nodes, &self.http, self.cluster).await?;
        self.output.step("In front: a real Envoy")?;
        writeln!(
            self.output,
            "   {} on http://{addr}, with docs/examples/envoy.yaml\n   \
             {STRICT_LIMIT} requests a day over both regions; {COUNT} requests from {CONCURRENCY} clients",
            relative(program)
        )?;
        let tally = requests::burst(&self.http, addr, "x-user", "envoy", COUNT).await;
        self.write_sum(&tally)?;
        self.output.verdict(tally.is_exact(STRICT_LIMIT), "strict, behind Envoy: exact")?;
        self.refusal(addr, "x-user", "envoy").await?;
        Ok(addr)
    }

    async fn node_failure(&mut self) -> Result<(), Error> {
        const COUNT: u32 = 800;
        const PAUSE: Duration = Duration::from_millis(5);
        const KILLED_AFTER: Duration = Duration::from_secs(1);
        self.output.step("A node is killed")?;
        writeln!(
            self.output,
            "   {COUNT} requests of 200 visitors, one each {PAUSE:?}; after {KILLED_AFTER:?}: kill -9 {VICTIM}"
        )?;
        let before = self.fallbacks().await?;
        let Self { http, nodes, gateway, cluster, .. } = &mut *self;
        let http = &*http;
        let kill = async {
            sleep(KILLED_AFTER).await;
            cluster.kill(VICTIM).await?;
            let begin = Instant::now();
            // Each region has one node left.
            let took_over = |status: &Status| {
                (!status.up().contains(&VICTIM) && status.owns_whole_region()).then_some(())
            };
            for node in survivors(nodes) {
                node.wait_for(http, "that a node failed", took_over).await?;
            }
            Ok::<_, Error>(begin.elapsed())
        };
        let load = requests::steady(http, *gateway, COUNT, PAUSE);
        let ((tally, slowest), took_over) = tokio::join!(load, kill);
        let took_over = took_over?;
        let fallbacks = self.fallbacks().await?.saturating_sub(before);
        let all = tally.all();
        writeln!(
            self.output,
            "   {} responses, {} passed, {} errors, slowest {:.0} ms\n   \
             {fallbacks} of them decided by on_unavailable, after the {DEADLINE_MS} ms that an owner has here (by \
             default 10 ms),\n   until the keys of {VICTIM} had new owners: {:.1} s",
            all.sent,
            all.passed,
            tally.errors,
            millis(slowest),
            took_over.as_secs_f64()
        )?;
        let met = all.sent == COUNT && tally.errors == 0;
        self.output.verdict(met, "every request got a response")?;

        writeln!(
            self.output,
            "\n   strict limits on the remaining two nodes, a new login, 120 requests:"
        )?;
        let tally = self.burst("x-login", "bob", 120).await;
        self.write_regions(&tally)?;
        let met = tally.is_exact_by_region(STRICT_LIMIT);
        self.output.verdict(met, "strict on the remaining nodes: exact")?;

        let tally = self.burst("x-login", "alice", 60).await;
        writeln!(self.output, "   alice, whose logins were exhausted before {VICTIM} was killed:")?;
        self.write_sum(&tally)?;
        self.output.verdict(tally.is_exact(0), "counts outlive the node that made them")?;
        Ok(())
    }

    fn invite(&mut self, executable: &Path, envoy: Option<SocketAddr>) -> Result<(), Error> {
        self.output.step("Your turn")?;
        let program = relative(executable);
        let gateway = self.gateway;
        writeln!(
            self.output,
            "   the upstream, ten requests a minute for each x-user in each region:\n     \
             curl -i -H 'x-user: me' http://{gateway}/\n     \
             for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' -H 'x-user: me' \
             http://{gateway}/; done; echo"
        )?;
        if let Some(addr) = envoy {
            writeln!(
                self.output,
                "   the same behind Envoy:\n     curl -i -H 'x-user: me' http://{addr}/"
            )?;
        }
        if let Some(Node { id, http, grpc, admin, .. }) = survivors(&self.nodes).next() {
            writeln!(
                self.output,
                "   {id} without the load balancer:\n     \
                 {program} check demo user=me --url http://{http}\n     \
                 {program} status --url http://{admin}\n     \
                 {program} status --url http://{admin} --key demo user=me\n     \
                 curl http://{admin}/metrics\n     \
                 Envoy's rate limit service (gRPC) is on {grpc}"
            )?;
        }
        writeln!(
            self.output,
            "   change a limit while the nodes run; it applies within two seconds:\n     $EDITOR {}\n\n   \
             Ctrl-C ends the demo and removes everything.",
            self.cluster.folder().join("rules/demo.yaml").display()
        )?;
        Ok(())
    }

    // === parts of steps ===

    /// The windows of the demo are days in UTC, so that its limits start afresh at midnight.
    async fn avoid_midnight(&mut self) -> Result<(), Error> {
        const DAY: u64 = 86_400;
        /// How long the steps take at most.
        const STEPS: u64 = 60;
        #[expect(clippy::disallowed_methods, reason = "the demo is a client, outside any node")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = DAY - now.as_secs() % DAY;
        if left < STEPS {
            writeln!(
                self.output,
                "   waiting {left} s: all limits start afresh at midnight UTC ..."
            )?;
            sleep(Duration::from_secs(left)).await;
        }
        Ok(())
    }

    async fn burst(&self, header: &str, value: &str, count: u32) -> Tally {
        requests::burst(&self.http, self.gateway, header, value, count).await
    }

    /// How many checks the surviving nodes decided by `on_unavailable` so far.
    async fn fallbacks(&self) -> Result<u64, Error> {
        let mut sum = 0;
        for node in survivors(&self.nodes) {
            sum += node.fallbacks(&self.http).await?;
        }
        Ok(sum)
    }

    /// Sends one request more than the limit, and prints status and headers as `curl -i` does.
    async fn refusal(&mut self, addr: SocketAddr, name: &str, value: &str) -> Result<(), Error> {
        writeln!(
            self.output,
            "\n   a refused request:\n   $ curl -i -H '{name}: {value}' http://{addr}/"
        )?;
        let Some(response) = requests::one(&self.http, addr, name, value).await else {
            self.output.verdict(false, "a response")?;
            return Ok(());
        };
        writeln!(self.output, "   HTTP/1.1 {}", response.status())?;
        for (name, value) in response.headers() {
            let is_printed =
                name.as_str().contains("ratelimit") || [header::RETRY_AFTER, NODE].contains(name);
            if is_printed {
                writeln!(self.output, "   {name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
            }
        }
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            self.output.verdict(false, "a status of 429")?;
        }
        Ok(())
    }

    fn write_regions(&mut self, tally: &Tally) -> Result<(), Error> {
        let rows: Vec<_> = tally
            .regions
            .iter()
            .map(|(region, count)| {
                [
                    region.clone(),
                    count.sent.to_string(),
                    count.passed.to_string(),
                    STRICT_LIMIT.to_string(),
                ]
            })
            .collect();
        self.output.table(["REGION", "SENT", "PASSED", "LIMIT"], &rows)?;
        Ok(())
    }

    fn write_sum(&mut self, tally: &Tally) -> Result<(), Error> {
        let all = tally.all();
        writeln!(self.output, "   sent {}, passed {}", all.sent, all.passed)?;
        Ok(())
    }
}

fn survivors(nodes: &[Node]) -> impl Iterator<Item = &Node> {
    nodes.iter().filter(|node| node.id != VICTIM)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// A path relative to the working folder, as the user may type it.
fn relative(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
