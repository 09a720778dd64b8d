//! The steps of the demo. Every number in the output is measured.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, DEADLINE_MS, NODES};
use crate::envoy;
use crate::error::Error;
use crate::gateway::{self, NODE};
use crate::node::{self, Counts, Node};
use crate::output::Output;
use crate::requests::{self, CONCURRENCY, Count, Header, Http, Tally};

/// The node that is killed.
const VICTIM: &str = "eu-2";

// As in rules.yaml.
const STRICT_LIMIT: u32 = 50;
const MODES_LIMIT: u32 = 500;

/// Two exchanges between regions.
const SYNC_TIME: Duration = Duration::from_millis(500);

/// What each mode does, and when to choose it.
const ADVICE: [(&str, &str); 6] = [
    ("strict", "the owner of the key decides, the other nodes wait for it."),
    ("", "Choose it where each hit counts and a round trip does not: logins, orders."),
    ("leased", "the owner grants hits in advance; near the limit checks wait for it."),
    ("", "Choose it for busy keys, with limits of ten hits a node and more: never over."),
    ("eventual", "no check waits; the nodes exchange their counts afterwards."),
    ("", "Choose it for limits of minutes of traffic, which may be exceeded by a little."),
];

/// What to run, and how to print it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `tidegate` binary.
    pub executable: PathBuf,
    /// End after the last step. Otherwise the cluster stays up until `shutdown`.
    pub once: bool,
    /// Add a step with Envoy: the one in the `PATH`, or the one that `scripts/envoy-tools` fetched.
    pub envoy: bool,
    /// Use colours, as on a terminal.
    pub color: bool,
}

/// Runs all steps. Unless `once` is set, the future then stays pending, so that the cluster can be
/// tried.
pub(crate) async fn run(
    options: &Options,
    envoy: Option<PathBuf>,
    cluster: &mut Cluster,
    out: &mut Output<'_>,
) -> Result<(), Error> {
    let http = requests::client();
    let nodes = start(cluster, out).await?;
    let gateway = gateway::start(&nodes).await;
    let gateway =
        gateway.map_err(Error::context("start the load balancer", "raise `ulimit -n`"))?;
    writeln!(out, "   load balancer: http://{gateway}, checks each request with a node, in turn")?;
    avoid_midnight(out).await?;
    let mut demo = Demo { http, nodes, gateway, cluster, out };
    demo.strict().await?;
    demo.modes().await?;
    let envoy = match envoy {
        Some(program) => Some(demo.envoy(&program).await?),
        None => None,
    };
    demo.node_failure().await?;
    if options.once {
        writeln!(demo.out, "\nEnd of the demo: stopping the nodes, removing the files.")?;
        return Ok(());
    }
    demo.invite(&options.executable, envoy)?;
    std::future::pending().await
}

async fn start(cluster: &mut Cluster, out: &mut Output<'_>) -> Result<Vec<Node>, Error> {
    out.step("Three nodes, two regions")?;
    let folder = cluster.folder().display();
    writeln!(out, "   certificates, rules, configurations and logs: {folder}")?;
    let mut nodes: Vec<Node> = Vec::new();
    let mut seed = None;
    for (id, region) in NODES {
        let node = cluster.start(id, region, seed).await?;
        if seed.is_none() {
            seed = Some(node.wait_for("its own address", node::mesh).await?);
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
        let sees = node.wait_for("all nodes", all_up).await?;
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
struct Demo<'a, 'b> {
    http: Http,
    nodes: Vec<Node>,
    /// The load balancer.
    gateway: SocketAddr,
    cluster: &'a mut Cluster,
    out: &'a mut Output<'b>,
}

impl Demo<'_, '_> {
    async fn strict(&mut self) -> Result<(), Error> {
        self.out.step("Strict: exactly the limit, whichever node is used")?;
        writeln!(self.out, "   {STRICT_LIMIT} logins a day in each region")?;
        let before = self.fallbacks().await?;
        let tally = self.burst(("x-login", "alice"), 300).await?;
        write_regions(&tally, self.out)?;
        let met = tally.is_exact_by_region(STRICT_LIMIT) && tally.regions.len() == 2;
        self.out.verdict(met, "strict, each region on its own: exact")?;

        writeln!(self.out, "\n   with `scope: global`: {STRICT_LIMIT} a day over both regions")?;
        let tally = self.burst(("x-licence", "acme"), 300).await?;
        write_sum(&tally, self.out)?;
        self.out.verdict(tally.is_exact(STRICT_LIMIT), "strict, all regions together: exact")?;
        self.write_fallbacks(before).await?;
        self.refusal(self.gateway, ("x-login", "alice")).await
    }

    /// The modes side by side, each with a limit of its own over all nodes.
    async fn modes(&mut self) -> Result<(), Error> {
        const SENT: u32 = 3 * MODES_LIMIT;
        self.out.step("Strict, leased, eventual: the same burst on each")?;
        writeln!(
            self.out,
            "   {MODES_LIMIT} a day over all three nodes; {SENT} requests each from {CONCURRENCY} \
             clients, round robin"
        )?;
        let before = self.fallbacks().await?;
        let strict = self.burst_of_mode("x-strict", SENT).await;
        let leased = self.burst_of_mode("x-leased", SENT).await;
        let eventual = self.burst_of_mode("x-eventual", SENT).await;
        let mut rows = Vec::new();
        for (mode, tally) in [("strict", &strict), ("leased", &leased), ("eventual", &eventual)] {
            rows.push(mode_row(mode, tally, self.counts(mode).await?));
        }
        self.out.table(["MODE", "PASSED", "OF", "OVER", "HERE", "WAITED", "P50", "P99"], &rows)?;
        writeln!(
            self.out,
            "   HERE and WAITED: those that passed, decided by the node that was asked or, after a \
             round\n   trip, by the owner of the key. P50 and P99: all responses, through the load \
             balancer."
        )?;
        self.write_fallbacks(before).await?;
        writeln!(self.out)?;
        for (mode, advice) in ADVICE {
            writeln!(self.out, "   {mode:8}  {advice}")?;
        }
        self.out.verdict(strict.is_exact(MODES_LIMIT), "strict: exactly the limit")?;
        let passed = leased.all().passed;
        let is_used = leased.errors == 0 && passed * 100 >= MODES_LIMIT * 99;
        let met = is_used && passed <= MODES_LIMIT;
        self.out.verdict(met, "leased: never over, and at least 99 % of the limit")?;
        self.convergence(&eventual).await
    }

    /// A burst on a key of one of the modes.
    async fn burst_of_mode(&self, header: &str, count: u32) -> Tally {
        requests::burst(&self.http, self.gateway, (header, "burst"), count).await
    }

    /// What the error of the eventual mode was, and that it ends.
    async fn convergence(&mut self, first: &Tally) -> Result<(), Error> {
        let Count { sent, passed } = first.all();
        let over = passed.saturating_sub(MODES_LIMIT);
        let per_request = first.took / sent.max(1);
        writeln!(
            self.out,
            "\n   eventual: {over} over, as many as arrived in {:.1?} of this burst of {:.1?}: the \
             nodes had\n   not heard of each other yet. A larger limit is exceeded by as much \
             traffic, not by as many percent.",
            per_request * over,
            first.took,
        )?;
        let begin = Instant::now();
        for node in &self.nodes {
            node.wait_until_exhausted("eventual", "burst").await?;
        }
        let took = begin.elapsed();
        writeln!(self.out, "   {took:.1?} later the limit is exhausted on every node")?;
        let again = self.burst(("x-eventual", "burst"), 60).await?;
        write_sum(&again, self.out)?;
        // Each measures by its refusals how far the window is over, once it knows of all hits.
        sleep(SYNC_TIME).await;
        for node in &self.nodes {
            node.wait_until_exhausted("eventual", "burst").await?;
        }
        let Counts { full_hits, over_hits, .. } = self.counts("eventual").await?;
        if let Some(percent) = over_hits.saturating_mul(100).checked_div(full_hits) {
            writeln!(self.out, "   the nodes' own estimate: {percent} % over (`tidegate status`)")?;
        }
        let met = passed >= MODES_LIMIT && again.is_exact(0);
        let expectation = "eventual: never under the limit, nothing over it once synchronised";
        Ok(self.out.verdict(met, expectation)?)
    }

    /// Envoy checks requests with the nodes over gRPC, in turn. Returns its address.
    async fn envoy(&mut self, program: &Path) -> Result<SocketAddr, Error> {
        let addr = envoy::start(program, &self.nodes, &self.http, self.cluster).await?;
        self.out.step("In front: a real Envoy")?;
        let program = relative(program);
        writeln!(self.out, "   {program} on http://{addr}, with docs/examples/envoy.yaml")?;
        writeln!(self.out, "   {STRICT_LIMIT} requests a day over both regions, 300 requests")?;
        let tally = requests::burst(&self.http, addr, ("x-user", "envoy"), 300).await;
        write_sum(&tally, self.out)?;
        self.out.verdict(tally.is_exact(STRICT_LIMIT), "strict, behind Envoy: exact")?;
        self.refusal(addr, ("x-user", "envoy")).await?;
        Ok(addr)
    }

    async fn node_failure(&mut self) -> Result<(), Error> {
        const COUNT: u32 = 800;
        const PAUSE: Duration = Duration::from_millis(5);
        const KILLED_AFTER: Duration = Duration::from_secs(1);
        self.out.step("A node is killed")?;
        writeln!(self.out, "   {COUNT} requests of 200 visitors, one each {PAUSE:?}")?;
        writeln!(self.out, "   after {KILLED_AFTER:?}: kill -9 {VICTIM}")?;
        let before = self.fallbacks().await?;
        let (http, nodes, cluster) = (&self.http, &self.nodes, &mut *self.cluster);
        let kill = async {
            sleep(KILLED_AFTER).await;
            cluster.kill(VICTIM).await?;
            let begin = Instant::now();
            // Each region has one node left.
            let took_over = |status: &Value| {
                let is_up = node::up(status).contains(&VICTIM);
                (!is_up && node::decides_whole_region(status)).then_some(())
            };
            for node in survivors(nodes) {
                node.wait_for("that a node failed", took_over).await?;
            }
            Ok::<_, Error>(begin.elapsed())
        };
        let load = requests::steady(http, self.gateway, COUNT, PAUSE);
        let ((tally, slowest), took_over) = tokio::join!(load, kill);
        let took_over = took_over?;
        let fallbacks = self.fallbacks().await?.saturating_sub(before);
        let Count { sent, passed } = tally.all();
        let errors = tally.errors;
        writeln!(
            self.out,
            "   {sent} responses, {passed} passed, {errors} errors, slowest {slowest:.1?}\n   \
             {fallbacks} of them decided by on_unavailable, after the {DEADLINE_MS} ms that an \
             owner has here (by default 10 ms),\n   \
             until the keys of {VICTIM} had new owners: {took_over:.1?}"
        )?;
        self.out.verdict(sent == COUNT && errors == 0, "every request got a response")?;

        writeln!(self.out, "\n   strict limits on the remaining two nodes, a new login")?;
        let tally = self.burst(("x-login", "bob"), 180).await?;
        write_regions(&tally, self.out)?;
        let met = tally.is_exact_by_region(STRICT_LIMIT);
        self.out.verdict(met, "strict on the remaining nodes: exact")?;

        writeln!(self.out, "\n   alice, whose logins were exhausted before {VICTIM} was killed")?;
        let tally = self.burst(("x-login", "alice"), 60).await?;
        write_sum(&tally, self.out)?;
        Ok(self.out.verdict(tally.is_exact(0), "counts outlive the node that made them")?)
    }

    fn invite(self, executable: &Path, envoy: Option<SocketAddr>) -> Result<(), Error> {
        let (program, gateway) = (relative(executable), self.gateway);
        let (folder, out) = (self.cluster.folder().display(), self.out);
        out.step("Your turn")?;
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
        if let Some(Node { id, http, grpc, admin, .. }) = survivors(&self.nodes).next() {
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
        Ok(writeln!(out, "\n   Ctrl-C ends the demo and removes everything.")?)
    }

    // === parts of steps ===

    async fn burst(&mut self, header: Header<'_>, count: u32) -> Result<Tally, Error> {
        writeln!(self.out, "   {count} requests from {CONCURRENCY} clients, round robin:")?;
        Ok(requests::burst(&self.http, self.gateway, header, count).await)
    }

    /// What all nodes counted of the rule of `key`.
    async fn counts(&self, key: &str) -> Result<Counts, Error> {
        let mut sum = Counts::default();
        for node in &self.nodes {
            let counts = node.counts(&format!("demo.{key}")).await?;
            sum.waited += counts.waited;
            sum.full_hits += counts.full_hits;
            sum.over_hits += counts.over_hits;
        }
        Ok(sum)
    }

    /// Says how many checks were decided by `on_unavailable` since there were `before`, if any:
    /// then limits may not be exact.
    async fn write_fallbacks(&mut self, before: u64) -> Result<(), Error> {
        let fallbacks = self.fallbacks().await?.saturating_sub(before);
        if fallbacks > 0 {
            writeln!(
                self.out,
                "   ({fallbacks} decided by on_unavailable: this machine was too busy"
            )?;
            writeln!(self.out, "   for an owner to respond within {DEADLINE_MS} ms)")?;
        }
        Ok(())
    }

    /// How many checks the surviving nodes decided by `on_unavailable` so far.
    async fn fallbacks(&self) -> Result<u64, Error> {
        let mut sum = 0;
        for node in survivors(&self.nodes) {
            sum += node.fallbacks().await?;
        }
        Ok(sum)
    }

    /// Sends one request more than the limit, and prints status and headers as `curl -i` does.
    async fn refusal(&mut self, addr: SocketAddr, (name, value): Header<'_>) -> Result<(), Error> {
        writeln!(self.out, "\n   a refused request:")?;
        writeln!(self.out, "   $ curl -i -H '{name}: {value}' http://{addr}/")?;
        let Some(response) = requests::one(&self.http, addr, (name, value)).await else {
            return Ok(self.out.verdict(false, "a response")?);
        };
        writeln!(self.out, "   HTTP/1.1 {}", response.status())?;
        for (name, value) in response.headers() {
            if name.as_str().contains("ratelimit") || [header::RETRY_AFTER, NODE].contains(name) {
                writeln!(self.out, "   {name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
            }
        }
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            self.out.verdict(false, "a status of 429")?;
        }
        Ok(())
    }
}

fn survivors(nodes: &[Node]) -> impl Iterator<Item = &Node> {
    nodes.iter().filter(|node| node.id != VICTIM)
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

fn mode_row(mode: &str, tally: &Tally, counts: Counts) -> [String; 8] {
    let passed = tally.all().passed;
    let over = i64::from(passed) - i64::from(MODES_LIMIT);
    let percent = 100.0 * (f64::from(passed) / f64::from(MODES_LIMIT) - 1.0);
    let over = if over == 0 { "0".to_owned() } else { format!("{over:+} ({percent:+.1} %)") };
    let times = [50, 99].map(|percent| format!("{:.1?}", tally.latency(percent)));
    let [p50, p99] = times;
    let here = u64::from(passed).saturating_sub(counts.waited);
    let numbers = [passed.into(), MODES_LIMIT.into(), here, counts.waited];
    let [passed, limit, here, waited] = numbers.map(|number: u64| number.to_string());
    [mode.to_owned(), passed, limit, over, here, waited, p50, p99]
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
