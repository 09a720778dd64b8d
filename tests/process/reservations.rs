//! Reservations of three nodes: all or nothing, each counted once, and over the death of an owner.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use http::uri::PathAndQuery;
use prost::Message;
use serde_json::{Value, json};
use tidegate_proto::kuadrant_rls::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse, SERVICE_NAME,
};
use tidegate_proto::rls::{
    Code, Duration as Ttl, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_testkit::http_client::{Reply, hits_body};
use tidegate_testkit::process::{Cluster, ClusterOptions, THREE};
use tidegate_testkit::wait::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::TIDEGATE;

const RULES: &str = "
domain: llm
descriptors:
  - key: tenant
    on_unavailable: deny
    durability: replicated
    rate_limit: {window: 7d, requests_per_unit: 1000}
  - key: model
    on_unavailable: deny
    durability: replicated
    rate_limit: {window: 7d, requests_per_unit: 300}
  - key: leased
    mode: leased
    on_unavailable: deny
    rate_limit: {window: 7d, requests_per_unit: 1000}
  - key: eventual
    mode: eventual
    rate_limit: {window: 7d, requests_per_unit: 1000}
  - key: plan
    quota_mode: true
    rate_limit: {window: 7d, requests_per_unit: 5}
  - key: extra
    quota_mode: true
    rate_limit: {window: 7d, requests_per_unit: 5}
  - key: vip
    rate_limit: {unlimited: true}
";
/// The node that owns the keys that are asked about, and is killed.
const VICTIM: &str = "n3";
const TIMEOUT: Duration = Duration::from_secs(10);

async fn start() -> Cluster {
    let sets = &["cluster.deadline=1000ms"];
    let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..ClusterOptions::default() };
    Cluster::start(TIDEGATE, options).await
}

fn descriptors(entries: &[(&str, &str)]) -> Value {
    let of = |(key, value): &(&str, &str)| json!({ "entries": [{ "key": key, "value": value }] });
    json!({ "domain": "llm", "descriptors": entries.iter().map(of).collect::<Vec<_>>() })
}

fn with(mut body: Value, more: &[(&str, Value)]) -> Value {
    for (field, value) in more {
        body[*field] = value.clone();
    }
    body
}

/// An HTTP client of one node.
#[derive(Clone, Copy)]
struct At<'a>(&'a Cluster, SocketAddr);

impl At<'_> {
    async fn post(self, target: &str, body: &Value) -> (u16, Value) {
        let Reply { status, body, .. } = self.0.http.post(self.1, target, body).await.unwrap();
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}")))
    }

    /// The id, if it was reserved.
    async fn reserve(self, of: &[(&str, &str)], amount: u64, ttl: &str) -> Option<String> {
        let more = [("amount", amount.into()), ("ttl", ttl.into())];
        let (status, reply) = self.post("/v1/reserve", &with(descriptors(of), &more)).await;
        assert_eq!(status == 200, reply["code"] == "OK", "{status} {reply}");
        assert!([200, 429].contains(&status), "{status} {reply}");
        reply["reservationId"].as_str().map(str::to_owned)
    }

    /// The outcome, asked for until an owner confirms it.
    async fn commit(self, of: &[(&str, &str)], id: &str, cost: u64) -> String {
        let more = [("reservationId", id.into()), ("actualAmount", cost.into())];
        loop {
            let (status, reply) = self.post("/v1/commit", &with(descriptors(of), &more)).await;
            match status {
                200 => return reply["outcome"].as_str().unwrap().to_owned(),
                503 => {}
                _ => panic!("{status} {reply}"),
            }
        }
    }

    async fn check(self, key: &str, value: &str, hits: u64) -> (u16, Value) {
        self.post("/v1/check", &hits_body("llm", key, value, hits)).await
    }

    async fn left(self, key: &str, value: &str) -> u64 {
        let (status, reply) = self.check(key, value, 0).await;
        assert_eq!(status, 200, "{reply}");
        reply["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)
    }
}

async fn comes(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let condition = async || if holds().await { Ok(()) } else { Err(String::new()) };
    until(what, TIMEOUT, condition).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_reservations_at_once_are_ten_and_each_counts_once() {
    let cluster = start().await;
    let node = |n: usize| At(&cluster, cluster.nodes[n % 3].http);
    for key in ["tenant", "leased", "eventual"] {
        let of = [(key, "a")];
        let all = (0..100).map(|n| async move { node(n).reserve(&of, 100, "60s").await });
        let ids: Vec<String> = join_all(all).await.into_iter().flatten().collect();
        assert_eq!(ids.len(), 10, "{key}");
        // Every node may be told, more than once and at the same time.
        let told = ids
            .iter()
            .map(|id| async move { join_all((0..3).map(|n| node(n).commit(&of, id, 50))).await });
        for mut outcomes in join_all(told).await {
            outcomes.sort_unstable();
            assert_eq!(outcomes, ["COMMITTED", "REPEATED", "REPEATED"], "{key}");
        }
        if key != "eventual" {
            assert_eq!(cluster.admitted(&[0, 1, 2], "llm", key, "a", 700).await, 500, "{key}");
            continue;
        }
        // A node learns of an eventual count while it uses the key, and a replica some milliseconds
        // later that a reservation has ended.
        for n in 0..3 {
            comes("a hit passes", async || node(n).check(key, "a", 1).await.0 == 200).await;
        }
        let known = async || {
            let left = join_all((0..3).map(|n| node(n).left(key, "a"))).await;
            if left == [497; 3] { Ok(()) } else { Err(format!("{left:?} are left")) }
        };
        until("all nodes know the costs", TIMEOUT, known).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_limit_refuses_is_reserved_of_none_and_ends_by_itself() {
    let cluster = start().await;
    let node = At(&cluster, cluster.nodes[0].http);
    let of = [("tenant", "b"), ("model", "large")];
    assert_eq!(node.reserve(&of, 400, "60s").await, None, "the model allows 300");
    // The release of the tenant's part is on its way.
    let is_free = async || node.left("tenant", "b").await == 1_000;
    comes("nothing is reserved", is_free).await;
    let (status, reply) =
        node.post("/v1/reserve", &with(descriptors(&of), &[("amount", 0.into())])).await;
    assert_eq!((status, &reply["ttl"]), (200, &json!("60s")), "{reply}");
    let id = node.reserve(&of, 300, "2s").await.expect("it fits");
    assert_eq!((node.left("tenant", "b").await, node.left("model", "large").await), (700, 0));
    // It is reserved for longer, under the same id.
    let more = [("amount", 300.into()), ("ttl", "3s".into()), ("reservationId", id.into())];
    let (status, reply) = node.post("/v1/reserve", &with(descriptors(&of), &more)).await;
    assert_eq!((status, &reply["ttl"]), (200, &json!("3s")), "{reply}");
    assert_eq!(node.left("model", "large").await, 0);
    let is_free = async || node.left("model", "large").await == 300;
    comes("the reservation ends", is_free).await;
    assert_eq!(node.left("tenant", "b").await, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_dies_between_reserve_and_commit_loses_nothing() {
    let mut cluster = start().await;
    let values = cluster.owned("llm", "tenant", "user", VICTIM, 8).await;
    let mut ids = Vec::new();
    for value in &values {
        let node = At(&cluster, cluster.nodes[0].http);
        for amount in [300, 200] {
            let id = node.reserve(&[("tenant", value)], amount, "60s").await;
            ids.push((value, id.expect("it fits")));
        }
        assert_eq!(node.left("tenant", value).await, 500);
    }
    cluster.nodes[2].kill();
    let node = |n: usize| At(&cluster, cluster.nodes[n % 2].http);
    let (node, ids) = (&node, &ids);
    let told = ids.iter().enumerate().map(|(n, (value, id))| async move {
        let outcome = node(n).commit(&[("tenant", value)], id, 40).await;
        let again = node(n + 1).commit(&[("tenant", value)], id, 40).await;
        (outcome, again)
    });
    for (outcome, again) in join_all(told).await {
        // A node that gets no answer from the owner in time asks it again.
        assert!(["COMMITTED", "REPEATED"].contains(&&*outcome), "{outcome}");
        assert_eq!(again, "REPEATED");
    }
    for value in &values {
        assert_eq!(node(0).left("tenant", value).await, 920, "{value}");
        assert_eq!(cluster.admitted(&[0, 1], "llm", "tenant", value, 1_000).await, 920);
    }
}

// === gRPC, as Kuadrant published it ===

/// A client of Kuadrant's service.
struct Kuadrant(tonic::client::Grpc<Channel>);

impl Kuadrant {
    fn of(node: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{node}")).unwrap();
        Self(tonic::client::Grpc::new(endpoint.connect_lazy()))
    }

    async fn call<Q, A>(&mut self, method: &str, request: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        self.0.ready().await.unwrap();
        let path: PathAndQuery = format!("/{SERVICE_NAME}/{method}").parse().unwrap();
        let codec = ProstCodec::<Q, A>::default();
        Ok(self.0.unary(Request::new(request), path, codec).await?.into_inner())
    }

    async fn left_for_one(&mut self, value: &str) -> Code {
        let (domain, descriptors) = ("llm".into(), vec![descriptor("tenant", value)]);
        let request = RateLimitRequest { domain, descriptors, hits_addend: 7 };
        let response: RateLimitResponse = self.call("CheckRateLimit", request).await.unwrap();
        response.overall_code()
    }
}

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    let entries = vec![Entry { key: key.into(), value: value.into() }];
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_kuadrant_reserves_commits_and_reports() {
    let cluster = start().await;
    let mut client = Kuadrant::of(cluster.nodes[0].grpc);
    let (domain, descriptors) = ("llm".to_owned(), vec![descriptor("tenant", "k")]);
    let reserve = |amount| ReserveRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        amount,
        ttl: Some(Ttl { seconds: 30, nanos: 0 }),
    };
    let commit = |reservation_id: &str, actual_amount| CommitRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        reservation_id: reservation_id.into(),
        actual_amount,
    };
    let report = |hits_addend| RateLimitRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        hits_addend,
    };
    let reserved: ReserveResponse = client.call("Reserve", reserve(1_000)).await.unwrap();
    assert_eq!(reserved.code(), Code::Ok);
    assert_eq!(client.left_for_one("k").await, Code::OverLimit);
    let refused: ReserveResponse = client.call("Reserve", reserve(1)).await.unwrap();
    assert_eq!((refused.code(), refused.reservation_id.as_str()), (Code::OverLimit, ""));
    for is_released in [true, false] {
        let id = &reserved.reservation_id;
        let committed: CommitResponse = client.call("Commit", commit(id, 600)).await.unwrap();
        assert_eq!(committed.reservation_released, is_released);
    }
    let node = At(&cluster, cluster.nodes[1].http);
    assert_eq!(node.left("tenant", "k").await, 400, "committed once");
    // A check counts nothing, and a report counts beyond the limit.
    assert_eq!(client.left_for_one("k").await, Code::Ok);
    let reported: RateLimitResponse = client.call("Report", report(0)).await.unwrap();
    assert_eq!((reported.overall_code(), node.left("tenant", "k").await), (Code::Ok, 399));
    let reported: RateLimitResponse = client.call("Report", report(5_000)).await.unwrap();
    assert_eq!(reported.overall_code(), Code::Ok);
    assert_eq!(client.left_for_one("k").await, Code::OverLimit);
    // An id that was never given out is a report, too.
    let committed: CommitResponse = client.call("Commit", commit("none", 1)).await.unwrap();
    assert!(!committed.reservation_released);

    // Of quotas one with room is enough.
    for (used, is_left) in [("plan", Code::Ok), ("extra", Code::OverLimit)] {
        let of = |keys: &[&str], hits_addend| RateLimitRequest {
            descriptors: keys.iter().map(|key| descriptor(key, "k")).collect(),
            ..report(hits_addend)
        };
        let _: RateLimitResponse = client.call("Report", of(&[used], 5)).await.unwrap();
        let left: RateLimitResponse =
            client.call("CheckRateLimit", of(&["plan", "extra"], 1)).await.unwrap();
        assert_eq!(left.overall_code(), is_left, "{used}");
    }

    let descriptors = vec![descriptor("vip", "k")];
    let unlimited = ReserveRequest { descriptors: descriptors.clone(), ..reserve(1_000_000) };
    let reserved: ReserveResponse = client.call("Reserve", unlimited).await.unwrap();
    assert_eq!(reserved.code(), Code::Ok);
    let unlimited = CommitRequest { descriptors, ..commit(&reserved.reservation_id, 1) };
    let committed: CommitResponse = client.call("Commit", unlimited).await.unwrap();
    assert!(!committed.reservation_released, "no limit counts it");
    assert_eq!(node.commit(&[("vip", "k")], &reserved.reservation_id, 1).await, "UNLIMITED");

    let nameless = ReserveRequest { domain: String::new(), ..reserve(1) };
    let unknown: ReserveResponse = client.call("Reserve", nameless).await.unwrap();
    assert_eq!(unknown.code(), Code::Unknown);
    let early = ReserveRequest { ttl: Some(Ttl { seconds: -1, nanos: 0 }), ..reserve(1) };
    let refused = client.call::<_, ReserveResponse>("Reserve", early).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let unknown = client.call::<_, ReserveResponse>("Cancel", reserve(1)).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::Unimplemented);
}

// === RESP ===

/// The replies to a command, without line ends.
async fn ask(stream: &mut TcpStream, command: &str, lines: usize) -> Vec<String> {
    stream.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    while text.matches("\r\n").count() < lines {
        let mut bytes = [0; 1_024];
        let length = stream.read(&mut bytes).await.unwrap();
        assert!(length > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
    }
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_client_reserves_commits_and_releases() {
    let cluster = start().await;
    let mut stream = TcpStream::connect(cluster.nodes[0].resp).await.unwrap();
    let stream = &mut stream;
    let reserved = ask(stream, "TG.RESERVE llm tenant r AMOUNT 900 TTL 30", 9).await;
    assert_eq!(reserved[..2], ["*2", "$32"]);
    assert_eq!(reserved[3..7], ["*5", ":0", ":1000", ":100"]);
    let id = &reserved[2];
    let refused = ask(stream, "TG.RESERVE llm tenant r AMOUNT 101", 8).await;
    assert_eq!(refused[..6], ["*2", "$-1", "*5", ":1", ":1000", ":100"]);
    for outcome in ["COMMITTED", "REPEATED"] {
        let commit = format!("TG.COMMIT llm tenant r COST 150 ID {id}");
        let committed = ask(stream, &commit, 9).await;
        assert_eq!(committed[2..6], [outcome, "*5", ":0", ":1000"]);
        assert_eq!(committed[6], ":850");
    }
    let reserved = ask(stream, "TG.RESERVE llm tenant r AMOUNT 850", 9).await;
    let released = ask(stream, &format!("TG.RELEASE llm tenant r ID {}", reserved[2]), 9).await;
    assert_eq!((released[2].as_str(), released[6].as_str()), ("COMMITTED", ":850"));
    let reported = ask(stream, "TG.COMMIT llm tenant r COST 50", 9).await;
    assert_eq!((reported[2].as_str(), reported[6].as_str()), ("REPORTED", ":800"));
    let unlimited = ask(stream, &format!("TG.COMMIT llm vip r COST 50 ID {id}"), 9).await;
    assert_eq!(unlimited[2..5], ["UNLIMITED", "*5", ":0"]);
    let error = ask(stream, "TG.RESERVE llm tenant r", 1).await;
    assert!(error[0].starts_with("-ERR"), "{error:?}");
}
