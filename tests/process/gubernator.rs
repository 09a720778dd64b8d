//! Clients of Gubernator in front of three nodes: any of them, in any order, over gRPC and JSON.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use http::uri::PathAndQuery;
use serde_json::{Value, json};
use tidegate::admin::snapshot::ClusterSnapshot;
use tidegate_proto::gubernator::{
    Algorithm, GetRateLimitsReq, GetRateLimitsResp, RateLimitReq, RateLimitResp,
};
use tidegate_testkit::gubernator::response_of_json;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::variable;
use tidegate_testkit::wait::until;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::TIDEGATE;

const CASES: &str = include_str!("../golden/gubernator.json");
const OPTIONS: ClusterOptions<'static> = ClusterOptions {
    nodes: THREE,
    rules: "domain: unused\n",
    // Requests carry their limits.
    config: "[gubernator]\n",
    // A busy machine may need longer than the ten milliseconds of the default.
    sets: &["cluster.deadline=1s", "rules.may_be_empty=true"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
/// Times of cases that sleep are this many times as long: a busy machine takes some ten
/// milliseconds between two requests, and the shortest window is 100 ms.
const SLOWER: i64 = 5;
const OVER: &str = "OVER_LIMIT";

/// A client of all nodes, which takes them in turn.
struct Client<'c> {
    cluster: &'c Cluster,
    channels: Vec<Channel>,
    next: AtomicUsize,
}

impl<'c> Client<'c> {
    fn of(cluster: &'c Cluster) -> Self {
        let channel = |node: &Node| {
            let endpoint = Endpoint::from_shared(format!("http://{}", node.gubernator.0));
            endpoint.expect("an address").connect_lazy()
        };
        let channels = cluster.nodes.iter().map(channel).collect();
        Self { cluster, channels, next: AtomicUsize::new(0) }
    }

    /// The responses of the next node.
    async fn ask(&self, is_grpc: bool, requests: Vec<RateLimitReq>) -> Vec<RateLimitResp> {
        let node = self.next.fetch_add(1, Ordering::Relaxed) % self.channels.len();
        if is_grpc {
            self.over_grpc(node, requests).await
        } else {
            self.as_json(node, requests).await
        }
    }

    async fn over_grpc(&self, node: usize, requests: Vec<RateLimitReq>) -> Vec<RateLimitResp> {
        let mut grpc = tonic::client::Grpc::new(self.channels[node].clone());
        grpc.ready().await.expect("a connection");
        let path = PathAndQuery::from_static("/pb.gubernator.V1/GetRateLimits");
        let codec = ProstCodec::<GetRateLimitsReq, GetRateLimitsResp>::default();
        let message = tonic::Request::new(GetRateLimitsReq { requests });
        grpc.unary(message, path, codec).await.expect("a response").into_inner().responses
    }

    async fn as_json(&self, node: usize, requests: Vec<RateLimitReq>) -> Vec<RateLimitResp> {
        let body = json!({ "requests": requests.iter().map(as_json).collect::<Vec<_>>() });
        let addr: SocketAddr = self.cluster.nodes[node].gubernator.1;
        let reply =
            self.cluster.http.post(addr, "/v1/GetRateLimits", &body).await.expect("a reply");
        assert_eq!(reply.status, 200, "{reply:?}");
        let reply: Value = serde_json::from_str(&reply.body).expect("JSON");
        reply["responses"].as_array().expect("a list").iter().map(response_of_json).collect()
    }
}

fn as_json(request: &RateLimitReq) -> Value {
    let mut json = json!({
        "name": request.name,
        "uniqueKey": request.unique_key,
        "hits": request.hits.to_string(),
        "limit": request.limit,
        "duration": request.duration,
        "algorithm": request.algorithm,
        "behavior": request.behavior,
        "burst": request.burst,
    });
    if let Some(created_at) = request.created_at {
        json["createdAt"] = json!(created_at);
    }
    json
}

#[expect(clippy::disallowed_methods, reason = "the time at which a client sends")]
fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_millis()).expect("near")
}

fn hit(key: &str, hits: i64, limit: i64) -> RateLimitReq {
    RateLimitReq {
        name: "test".to_owned(),
        unique_key: key.to_owned(),
        hits,
        limit,
        duration: 3_600_000,
        ..RateLimitReq::default()
    }
}

/// A node that takes keys over has copies of them, which do not learn of a reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credit_that_was_reset_does_not_come_back_when_the_owner_dies() {
    const LIMIT: i64 = 100;
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Client::of(&cluster);
    let of = |hits| (0..40).map(move |key| hit(&format!("credit-{key}"), hits, LIMIT));
    let left = async |requests: Vec<RateLimitReq>| -> Vec<i64> {
        let responses = client.over_grpc(1, requests).await;
        responses.iter().map(|response| response.remaining).collect()
    };
    assert_eq!(left(of(60).collect()).await, [40; 40]);
    assert_eq!(left(of(-160).collect()).await, [200; 40]);
    // Copies are sent within milliseconds, and nothing tells that one has no credit.
    sleep(Duration::from_millis(500)).await;
    let resets = of(0).map(|request| RateLimitReq { behavior: 8, ..request });
    assert_eq!(left(resets.collect()).await, [LIMIT; 40]);

    let channels = client.channels.clone();
    cluster.nodes[0].kill();
    let client = Client { cluster: &cluster, channels, next: AtomicUsize::new(0) };
    until("the other nodes decide all keys", Duration::from_secs(20), async || {
        let responses = client.over_grpc(1, of(0).collect()).await;
        let left: Vec<i64> = responses.iter().map(|response| response.remaining).collect();
        assert!(left.iter().all(|&left| left <= LIMIT), "{left:?}");
        // Of a key of the dead node there is a copy from before the refund, or none.
        let is_decided = |left: &i64| [40, LIMIT].contains(left);
        if left.iter().all(is_decided) { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_answer_as_one() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Client::of(&cluster);
    let cases: Value = serde_json::from_str(CASES).expect("JSON");
    let cases = cases["cases"].as_array().expect("a list");
    let compat: Vec<&Value> = cases.iter().filter(|case| case["klass"] == "compat").collect();
    assert!(compat.len() > 20, "{} cases", compat.len());
    let runs = compat.iter().flat_map(|case| [true, false].map(|grpc| (case, grpc)));
    // At once, each with a key of its own, so that their pauses overlap.
    let runs = runs.map(|(case, is_grpc)| as_recorded(&client, case, is_grpc));
    let wrong: Vec<String> = join_all(runs).await.into_iter().filter_map(Result::err).collect();
    println!("{} cases over gRPC and JSON, {} differ", compat.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let forwarded = cluster.verdicts("owner").await;
    assert!(forwarded > 0, "no request was forwarded");
}

/// Runs a case, each step at another node.
async fn as_recorded(client: &Client<'_>, case: &Value, is_grpc: bool) -> Result<(), String> {
    let id = case["id"].as_str().expect("an id");
    let steps = case["steps"].as_array().expect("a list");
    let pauses = |step: &Value| step["sleep_before_ms"].as_i64().unwrap_or(0);
    let slower = if steps.iter().any(|step| pauses(step) > 0) { SLOWER } else { 1 };
    let (begun, mut paused) = (now_ms(), 0);
    for (number, step) in steps.iter().enumerate() {
        let pause = pauses(step) * slower;
        sleep(Duration::from_millis(pause.unsigned_abs())).await;
        paused += pause;
        let field = |name: &str| step[name].as_i64().unwrap_or(0);
        let behavior = i32::try_from(field("behavior")).expect("small");
        let algorithm = step["algorithm"].as_str().and_then(Algorithm::from_str_name);
        let is_calendar = behavior & 4 != 0;
        let request = RateLimitReq {
            name: "case".to_owned(),
            unique_key: format!("{id} {is_grpc}"),
            hits: field("hits"),
            limit: field("limit"),
            duration: field("duration") * if is_calendar { 1 } else { slower },
            algorithm: algorithm.expect("an algorithm").into(),
            behavior,
            burst: field("burst"),
            created_at: step["created_at_offset_ms"].as_i64().map(|offset| begun + offset),
        };
        let sent = now_ms();
        let from = request.created_at.unwrap_or(sent);
        let limit = request.limit;
        let response = client.ask(is_grpc, vec![request]).await.remove(0);
        let what = format!("{id} over gRPC: {is_grpc}, step {number}: {response:?}");
        let expect = &step["expect"];
        let is_alike = response.status().as_str_name() == expect["status"]
            && response.remaining == expect["remaining"]
            && response.limit == limit
            && response.error.is_empty();
        if !is_alike {
            return Err(format!("{what}, not {expect}"));
        }
        if let Some(offset) = expect["reset_time"][1].as_i64() {
            // What the machine took beside the pauses moves windows that began before.
            let late = now_ms() - begun - paused;
            let off = (response.reset_time - from - offset * slower).abs();
            if off > 20 * slower + late {
                return Err(format!("{what}: reset {off} ms off"));
            }
        } else if expect["reset_time"] == "zero" && response.reset_time != 0 {
            return Err(format!("{what}: a reset time"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_goes_to_all_owners_and_keeps_its_order() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Client::of(&cluster);
    for (turn, is_grpc) in [(1, true), (2, false), (3, true)] {
        let mut requests: Vec<_> =
            (0..700).map(|number| hit(&format!("key-{number}"), 1, 1_000 + number)).collect();
        // Three hundred of one key, among them some that are not decided as the others are.
        let of = |number: i64| {
            let behavior = if number == 100 { 8 } else { 0 };
            let hits = if number == 200 { -1 } else { 1 };
            RateLimitReq { behavior, ..hit(&format!("hot-{turn}"), hits, 200) }
        };
        requests.extend((0..300).map(of));
        let responses = client.ask(is_grpc, requests).await;
        assert_eq!(responses.len(), 1_000);
        for (number, response) in (0_i64..).zip(&responses[..700]) {
            let left = 1_000 + number - turn;
            assert_eq!((response.limit, response.remaining), (1_000 + number, left), "{number}");
        }
        for (number, response) in (0_i64..).zip(&responses[700..]) {
            let left = match number {
                0..100 => 199 - number,
                100 => 200,
                101..200 => 300 - number,
                _ => 302 - number,
            };
            assert_eq!(response.remaining, left, "turn {turn}, number {number}: {response:?}");
        }
    }
    let (local, owner) = (cluster.verdicts("local").await, cluster.verdicts("owner").await);
    println!("{local} decided by the receiving node, {owner} by another");
    assert!(owner > local / 2, "{owner} of {local}");
}

/// Of `GLOBAL` requests Gubernator admits a multiple of the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn global_requests_are_never_over_the_limit() {
    const LIMIT: i64 = 500;
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Client::of(&cluster);
    for key in ["a", "b", "c"] {
        let burst = (0..60).map(|turn| {
            let request = RateLimitReq { behavior: 2, ..hit(key, 1, LIMIT) };
            client.ask(turn % 2 == 0, vec![request; 20])
        });
        let responses: Vec<_> = join_all(burst).await.into_iter().flatten().collect();
        let admitted = responses.iter().filter(|it| it.status().as_str_name() != OVER).count();
        println!("{admitted} of {} GLOBAL hits with a limit of {LIMIT}", responses.len());
        assert!(admitted <= usize::try_from(LIMIT).expect("positive"), "{admitted}");
        assert!(admitted >= 450, "{admitted}");
    }
}

/// The sums from which `tidegate top` and the dashboard take their rates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_of_clients_are_in_the_sums_of_the_cluster() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Client::of(&cluster);
    for turn in 0..30 {
        let global = RateLimitReq { behavior: 2, ..hit("global", 1, 1_000) };
        client.ask(turn % 2 == 0, vec![hit("strict", 1, 20), global]).await;
    }
    let url = format!("http://{}", cluster.nodes[0].admin);
    let mut top = Command::new(TIDEGATE);
    let run = top.env_clear().args(["top", "--once", "--json", "--url", &url]).output();
    let run = run.expect("it runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let snapshot: ClusterSnapshot = serde_json::from_slice(&run.stdout).expect("a snapshot");
    let rules = snapshot.rules.iter().map(|it| {
        let counts = it.counts;
        (&*it.rule, it.mode.as_deref(), counts.checks(), counts.allowed, counts.denied)
    });
    let mut rules: Vec<_> = rules.collect();
    rules.sort_unstable();
    let expected = [
        ("gubernator", Some("strict"), 30, 20, 10),
        ("gubernator-global", Some("leased"), 30, 30, 0),
    ];
    assert_eq!(rules, expected);
}

/// Operators name a key as its requests do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_shown_begun_anew_and_blocked_by_hand() {
    let cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let client = Client::of(&cluster);
    let key = |node: usize, order: &str, more: &[&str]| {
        let url = format!("http://{}", cluster.nodes[node].admin);
        let named = ["key", order, "--name", "test", "--unique-key", "ann", "--url", &url];
        let command = [&named, more].concat();
        let output = Command::new(TIDEGATE).env_clear().args(command).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout) + &text(output.stderr))
    };
    let show = |node: usize, more: &[&str]| {
        let (is_ok, text) = key(node, "show", &[more, &["--limit", "5"]].concat());
        assert!(is_ok, "{text}");
        text
    };
    let admitted = async |behavior, algorithm: Algorithm| {
        let algorithm = algorithm.into();
        let request = RateLimitReq { behavior, algorithm, ..hit("ann", 1, 5) };
        let mut admitted = 0;
        for turn in 0..9 {
            let response = client.ask(turn % 2 == 0, vec![request.clone()]).await.remove(0);
            admitted += usize::from(response.status().as_str_name() != OVER);
        }
        admitted
    };
    let hour = ["--duration", "1h"];
    let bucket = ["--duration", "1h", "--algorithm", "LEAKY_BUCKET"];
    for _ in 0..2 {
        assert_eq!(admitted(0, Algorithm::TokenBucket).await, 5);
        assert_eq!(admitted(0, Algorithm::LeakyBucket).await, 5);
        for node in 0..3 {
            assert!(show(node, &hour).contains("\n0 of 5 in 1h left"), "{}", show(node, &hour));
            assert!(show(node, &bucket).contains("\n0 of 5 in 1h left"));
            assert!(show(node, &["--calendar", "year"]).contains("\n5 of 5 in "));
        }
        // Neither the owner nor its replicas have to be asked.
        let (is_ok, text) = key(1, "reset", &[]);
        assert!(is_ok && text.starts_with("reset: done"), "{text}");
    }
    assert!(show(2, &hour).contains("begun anew by hand"));

    let (is_ok, text) = key(0, "adjust", &["--hits", "4", "--limit", "5", "--duration", "1h"]);
    assert!(is_ok, "{text}");
    assert!(show(2, &hour).contains("\n1 of 5 in 1h left"), "{}", show(2, &hour));
    let (is_ok, text) = key(2, "adjust", &["--hits", "-3", "--limit", "5", "--duration", "1h"]);
    assert!(is_ok, "{text}");
    assert!(show(0, &hour).contains("\n4 of 5 in 1h left"));
    let (is_ok, text) = key(0, "adjust", &["--hits", "1"]);
    assert!(!is_ok && text.contains("say which counter"), "{text}");

    assert!(key(2, "block", &["--for", "1h"]).0);
    let global = 2;
    assert_eq!(admitted(0, Algorithm::TokenBucket).await, 0);
    assert_eq!(admitted(global, Algorithm::TokenBucket).await, 0);
    assert_eq!(admitted(0, Algorithm::LeakyBucket).await, 0);
    let look = client.ask(true, vec![hit("ann", 0, 5)]).await.remove(0);
    let ends_in = look.reset_time - now_ms();
    assert_eq!((look.status().as_str_name(), look.remaining), (OVER, 0));
    assert!((3_500_000..=3_600_000).contains(&ends_in), "{ends_in}");
    assert!(show(1, &hour).contains("blocked by hand for another"));
    assert!(key(1, "unblock", &[]).0);
    assert_eq!(admitted(0, Algorithm::TokenBucket).await, 4);
}

/// `scripts/check-long names` invents a million.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invented_names_leave_memory_bounded() {
    const KEYS_MAX: u64 = 5_000;
    let names = u64::from(variable::number("TIDEGATE_NAMES", 20_000));
    let sets = &["cluster.deadline=1s", "rules.may_be_empty=true", "limits.keys_max=5000"];
    let cluster = Cluster::start(TIDEGATE, ClusterOptions { sets, ..OPTIONS }).await;
    let client = Client::of(&cluster);
    let limited = |hits| hit("limited", hits, 5);
    for _ in 0..5 {
        client.ask(true, vec![limited(1)]).await;
    }
    let before: Vec<u64> = cluster.nodes.iter().map(Node::resident_bytes).collect();
    for batch in 0..names / 1_000 {
        let of = |number: u64| hit(&format!("junk-{batch}-{number}"), 1, 10);
        let responses = client.ask(batch % 2 == 0, (0..1_000).map(of).collect()).await;
        assert!(responses.iter().all(|response| response.error.is_empty()));
    }
    let refused = client.ask(true, vec![limited(1)]).await.remove(0);
    assert_eq!(refused.status().as_str_name(), OVER, "a key that is refused stays refused");
    for (node, before) in cluster.nodes.iter().zip(before) {
        let grown = node.resident_bytes().saturating_sub(before);
        println!("{}: {names} names, {} KiB more", node.id, grown / 1024);
        assert!(grown < KEYS_MAX * 100 + 64 * 1024 * 1024, "{grown} bytes");
    }
}
