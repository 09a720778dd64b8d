//! The show, step by step. Every number in it is counted, none is written down beforehand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::time::{Instant, sleep};

use super::super::client;
use super::super::{Failure, ca};
use super::envoy::Envoy;
use super::fleet::{Fleet, Node};
use super::gateway::{Gateway, NODE};
use super::load::{self, Tally};
use super::screen::Screen;
use super::site::{DEADLINE_MS, Site};
use super::stage::{AT_ONCE, Stage, VICTIM, decides_its_region, living, mesh_of, wait_for};
use crate::config::UserError;

const NODES: [(&str, &str); 3] = [("eu-1", "eu"), ("eu-2", "eu"), ("us-1", "us")];

// As in rules.yaml.
const STRICT_LIMIT: u32 = 50;
const EVENTUAL_LIMIT: u32 = 500;

/// Gives the whole show; whether all was as promised. Without `once` it then stays for ever.
pub(super) async fn run(
    once: bool,
    envoy: Option<PathBuf>,
    site: &Site,
    fleet: &mut Fleet,
    screen: &mut Screen<'_>,
) -> Result<bool, Failure> {
    let nodes = start(site, fleet, screen).await?;
    let gateway = Gateway::start(&nodes).await.map_err(|error| {
        UserError::new(format!("start the load balancer: {error}"), "raise `ulimit -n`")
    })?;
    let stage = Stage { http: client::http(), gateway: gateway.addr, nodes };
    screen.line(&format!(
        "   a load balancer on http://{} asks them in turn, before its upstream",
        gateway.addr
    ))?;

    away_from_midnight(screen).await?;
    let mut as_promised = strict(&stage, screen).await?;
    as_promised &= eventual(&stage, screen).await?;
    let envoy = match envoy {
        Some(program) => Some(Envoy::start(program, site, &stage.nodes, fleet).await?),
        None => None,
    };
    if let Some(envoy) = &envoy {
        as_promised &= in_front(&stage, envoy, screen).await?;
    }
    as_promised &= death(&stage, fleet, screen).await?;
    if once {
        screen.line("\nEnd of the show: nodes stopped, files removed.")?;
        return Ok(as_promised);
    }
    invite(&stage, envoy.as_ref(), site, screen)?;
    std::future::pending().await
}

// === the steps ===

async fn start(
    site: &Site,
    fleet: &mut Fleet,
    screen: &mut Screen<'_>,
) -> Result<Vec<Node>, Failure> {
    screen.step("Three nodes, two regions")?;
    screen.line(&format!(
        "   certificates, rules, configurations and logs: {}",
        site.path().display()
    ))?;
    let http = client::http();
    let mut nodes: Vec<Node> = Vec::new();
    let mut seed = None;
    for (id, region) in NODES {
        let node = fleet.start(site, id, region, seed).await?;
        if seed.is_none() {
            seed = Some(mesh_of(&http, &node).await?);
        }
        nodes.push(node);
    }
    screen.line("   started; waiting until each sees all ...")?;
    let begin = Instant::now();
    let mut rows = Vec::new();
    for node in &nodes {
        let sees = wait_for(&http, node, "all nodes", |report| {
            let seen: Vec<&str> = living(report);
            (seen.len() == NODES.len() && report.not_ready.is_none()).then(|| seen.join(" "))
        })
        .await?;
        rows.push([
            node.id.to_owned(),
            node.region.to_owned(),
            node.pid.to_string(),
            node.http.to_string(),
            node.admin.to_string(),
            sees,
        ]);
    }
    screen.table(["NODE", "REGION", "PID", "HTTP", "ADMIN", "SEES"], rows)?;
    screen.line(&format!("   {:.1} s until each saw all", begin.elapsed().as_secs_f64()))?;
    Ok(nodes)
}

async fn strict(stage: &Stage, screen: &mut Screen<'_>) -> Result<bool, Failure> {
    const ASKED: usize = 300;
    screen.step("Strict: exactly the limit, whichever node is asked")?;
    screen.line(&format!(
        "   {STRICT_LIMIT} logins a day in each region; {ASKED} at once, {AT_ONCE} clients, round robin"
    ))?;
    let late = stage.by_policy().await?;
    let tally = stage.burst("x-login", "alice", ASKED).await;
    screen.table(["REGION", "ASKED", "PASSED", "LIMIT"], rows(&tally, STRICT_LIMIT))?;
    let exact = |count: &load::Count| count.passed == STRICT_LIMIT.min(count.asked);
    let holds = tally.regions.values().all(exact) && tally.regions.len() == 2 && tally.errors == 0;
    let mut as_promised = screen.verdict(holds, "strict, each region by itself: exact")?;

    screen.line(&format!(
        "\n   the same with `scope: global`: {STRICT_LIMIT} a day over both regions"
    ))?;
    let tally = stage.burst("x-licence", "acme", ASKED).await;
    let count = tally.all();
    screen.line(&format!("   asked {}, passed {}", count.asked, count.passed))?;
    let holds = count.passed == STRICT_LIMIT && tally.errors == 0;
    as_promised &= screen.verdict(holds, "strict, all regions together: exact")?;
    let late = stage.by_policy().await?.saturating_sub(late);
    if late > 0 {
        screen.line(&format!(
            "   ({late} answers came by on_unavailable: this machine was too busy for the {DEADLINE_MS} \
             ms that an owner has)"
        ))?;
    }

    screen.line("\n   a refusal:")?;
    let gateway = stage.gateway;
    screen.line(&format!("   $ curl -i -H 'x-login: alice' http://{gateway}/"))?;
    if let Some(refusal) = load::one(&stage.http, gateway, "x-login", "alice").await {
        write_head(screen, &refusal)?;
        as_promised &= refusal.status() == StatusCode::TOO_MANY_REQUESTS;
    }
    Ok(as_promised)
}

async fn eventual(stage: &Stage, screen: &mut Screen<'_>) -> Result<bool, Failure> {
    const AGAIN: usize = 60;
    let asked = EVENTUAL_LIMIT as usize * 3;
    screen.step("Eventual: every node decides on the spot")?;
    screen.line(&format!(
        "   {EVENTUAL_LIMIT} views a day over both regions; {asked} at once, {AT_ONCE} clients, round robin"
    ))?;
    let begin = Instant::now();
    let first = stage.burst("x-page", "/home", asked).await.all();
    let took = begin.elapsed();
    let over = f64::from(first.passed) / f64::from(EVENTUAL_LIMIT) - 1.0;
    screen.line(&format!(
        "   asked {} within {:.0} ms, passed {}: {:+.1} %, what came before the nodes had told \
         each other",
        first.asked,
        took.as_secs_f64() * 1_000.0,
        first.passed,
        over * 100.0
    ))?;
    let begin = Instant::now();
    for node in &stage.nodes {
        stage.wait_until_nothing_remains(node, "page", "/home").await?;
    }
    screen.line(&format!(
        "   {:.0} ms later no node has anything left for it",
        begin.elapsed().as_secs_f64() * 1_000.0
    ))?;
    let again = stage.burst("x-page", "/home", AGAIN).await.all();
    screen.line(&format!("   asked {} more, passed {}", again.asked, again.passed))?;
    let holds = first.passed >= EVENTUAL_LIMIT && again.passed == 0;
    Ok(screen.verdict(holds, "eventual: never under the limit, nothing over it once told")?)
}

/// Envoy asks the nodes over gRPC, in turn, as its configuration says.
async fn in_front(stage: &Stage, envoy: &Envoy, screen: &mut Screen<'_>) -> Result<bool, Failure> {
    const ASKED: usize = 300;
    let Envoy { addr, program, .. } = envoy;
    screen.step("In front: a real Envoy")?;
    screen
        .line(&format!("   {} on http://{addr}, with docs/examples/envoy.yaml", shown(program)))?;
    screen.line(&format!(
        "   {STRICT_LIMIT} requests a day over both regions; {ASKED} at once, {AT_ONCE} clients"
    ))?;
    let tally = load::burst(&stage.http, *addr, ("x-user", "envoy"), ASKED, AT_ONCE).await;
    let count = tally.all();
    screen.line(&format!("   asked {}, passed {}", count.asked, count.passed))?;
    let exact = count.passed == STRICT_LIMIT && tally.errors == 0;
    screen.line("\n   a refusal:")?;
    screen.line(&format!("   $ curl -i -H 'x-user: envoy' http://{addr}/"))?;
    let refusal = load::one(&stage.http, *addr, "x-user", "envoy").await;
    if let Some(refusal) = &refusal {
        write_head(screen, refusal)?;
    }
    let refused = refusal.is_some_and(|answer| answer.status() == StatusCode::TOO_MANY_REQUESTS);
    Ok(screen.verdict(exact && refused, "strict, behind Envoy: exact")?)
}

async fn death(stage: &Stage, fleet: &mut Fleet, screen: &mut Screen<'_>) -> Result<bool, Failure> {
    const COUNT: u32 = 800;
    const PAUSE: Duration = Duration::from_millis(5);
    const KILLED_AFTER: Duration = Duration::from_secs(1);
    screen.step("A node dies")?;
    screen.line(&format!(
        "   {COUNT} requests of 200 visitors, one each {PAUSE:?}; after {KILLED_AFTER:?}: kill -9 {VICTIM}"
    ))?;
    let late = stage.by_policy().await?;
    let kill = async {
        sleep(KILLED_AFTER).await;
        fleet.kill(VICTIM).await?;
        let begin = Instant::now();
        for node in stage.survivors() {
            wait_for(&stage.http, node, "the death", |report| {
                (!living(report).contains(&VICTIM) && decides_its_region(report)).then_some(())
            })
            .await?;
        }
        Ok::<_, Failure>(begin.elapsed())
    };
    let load = load::steady(&stage.http, stage.gateway, COUNT, PAUSE);
    let (tally, noticed) = tokio::join!(load, kill);
    let noticed = noticed?;
    let all = tally.all();
    screen.line(&format!(
        "   {} answers, {} passed, {} errors, slowest {:.0} ms",
        all.asked,
        all.passed,
        tally.errors,
        tally.slowest.as_secs_f64() * 1_000.0
    ))?;
    let late = stage.by_policy().await?.saturating_sub(late);
    screen.line(&format!(
        "   {late} of them by on_unavailable, after the {DEADLINE_MS} ms that an owner has here (by \
         default 10 ms),\n   until the others had given {VICTIM}'s keys new owners: {:.1} s",
        noticed.as_secs_f64()
    ))?;
    let holds = all.asked == COUNT && tally.errors == 0;
    let mut as_promised = screen.verdict(holds, "every request was answered")?;

    let tally = stage.burst("x-login", "bob", 120).await;
    screen.line("\n   strict limits on the two that live, a new login, 120 at once:")?;
    screen.table(["REGION", "ASKED", "PASSED", "LIMIT"], rows(&tally, STRICT_LIMIT))?;
    let exact = |count: &load::Count| count.passed == STRICT_LIMIT.min(count.asked);
    let holds = tally.regions.values().all(exact) && tally.errors == 0;
    as_promised &= screen.verdict(holds, "strict on the living nodes: exact")?;

    let tally = stage.burst("x-login", "alice", 60).await;
    let all = tally.all();
    screen.line(&format!(
        "   alice, whose logins were used up before {VICTIM} died: asked {}, passed {}",
        all.asked, all.passed
    ))?;
    let holds = all.passed == 0 && tally.errors == 0;
    as_promised &= screen.verdict(holds, "what was counted outlives the node that counted it")?;
    Ok(as_promised)
}

fn invite(
    stage: &Stage,
    envoy: Option<&Envoy>,
    site: &Site,
    screen: &mut Screen<'_>,
) -> Result<(), Failure> {
    screen.step("Your turn")?;
    let program = program();
    let gateway = stage.gateway;
    screen.line(&format!(
        "   the upstream, ten requests a minute for each x-user in each region:\n     \
         curl -i -H 'x-user: me' http://{gateway}/\n     \
         for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' -H 'x-user: me' \
         http://{gateway}/; done; echo"
    ))?;
    if let Some(Envoy { addr, .. }) = envoy {
        screen.line(&format!(
            "   the same behind Envoy:\n     curl -i -H 'x-user: me' http://{addr}/"
        ))?;
    }
    if let Some(node) = stage.survivors().next() {
        let Node { id, http, grpc, admin, .. } = node;
        screen.line(&format!(
            "   {id}, asked directly:\n     \
             {program} check demo user=me --url http://{http}\n     \
             {program} status --url http://{admin}\n     \
             {program} status --url http://{admin} --key demo user=me\n     \
             curl http://{admin}/metrics\n     \
             Envoy's rate limit service (gRPC) is on {grpc}"
        ))?;
    }
    screen.line(&format!(
        "   change a limit while they run; it applies within two seconds:\n     $EDITOR {}",
        site.path().join("rules/demo.yaml").display()
    ))?;
    screen.line("\n   Ctrl-C ends it and removes everything.")?;
    Ok(())
}

// === words ===

fn rows(tally: &Tally, limit: u32) -> Vec<[String; 4]> {
    let row = |(region, count): (&String, &load::Count)| {
        [region.clone(), count.asked.to_string(), count.passed.to_string(), limit.to_string()]
    };
    tally.regions.iter().map(row).collect()
}

/// Status and headers, as `curl -i` shows them.
fn write_head(screen: &mut Screen<'_>, answer: &Response<Bytes>) -> Result<(), Failure> {
    screen.line(&format!("   HTTP/1.1 {}", answer.status()))?;
    for (name, value) in answer.headers() {
        if name.as_str().contains("ratelimit") || name == http::header::RETRY_AFTER || name == NODE
        {
            screen.line(&format!("   {name}: {}", String::from_utf8_lossy(value.as_bytes())))?;
        }
    }
    Ok(())
}

/// The windows of the show are days in UTC, and at midnight a limit begins anew.
async fn away_from_midnight(screen: &mut Screen<'_>) -> Result<(), Failure> {
    const DAY: u64 = 86_400;
    const SHOW: u64 = 60;
    let left = DAY - ca::now().as_secs() % DAY;
    if left < SHOW {
        screen.line(&format!("   waiting {left} s: at midnight UTC all limits begin anew ..."))?;
        sleep(Duration::from_secs(left)).await;
    }
    Ok(())
}

/// How the person called this program, near enough to be typed again.
fn program() -> String {
    shown(&std::env::current_exe().unwrap_or_else(|_| PathBuf::from("tidegate")))
}

/// A path as seen from the person's folder.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
