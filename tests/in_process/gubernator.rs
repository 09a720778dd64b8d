//! Gubernator's V1 API, by the answers that were recorded of it and in the bytes that clients see,
//! on a node whose clock is set.

use std::convert::Infallible;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use prost::Message;
use serde_json::{Value, json};
use tidegate::config::Config;
use tidegate::decide::Decider;
use tidegate::front::Probes;
use tidegate::front::bounds::Bounds;
use tidegate::front::gubernator::calendar::Interval;
use tidegate::front::gubernator::{GubernatorListener, Settings, router};
use tidegate::node::{self, Core};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_proto::gubernator::{
    Algorithm, GetRateLimitsReq, GetRateLimitsResp, HealthCheckReq, HealthCheckResp, LiveCheckReq,
    LiveCheckResp, RateLimitReq, RateLimitResp,
};
use tidegate_rules::book::Book;
use tidegate_testkit::clock::ManualClock;
use tidegate_testkit::gubernator::response_of_json;
use tidegate_testkit::in_process::standalone;
use tonic::Status;
use tonic_prost::ProstCodec;
use tower::ServiceExt;

const CASES: &str = include_str!("../golden/gubernator.json");
/// 2026-11-26 12:00:20 UTC, a Thursday.
const START: Timestamp = Timestamp::from_secs(1_795_694_420);

/// What tidegate answers to a case that is no `compat`: status, remaining and the offset of the
/// reset of each step, and why it is not what was recorded.
type Step = (&'static str, i64, i64);
const DIFFERENT: &[(&str, &str, &[Step])] = &[
    (
        "TB06",
        "a look is never over the limit; there it repeats the last answer",
        &[
            (UNDER, 10, 5_000),
            (UNDER, 10, 5_000),
            (UNDER, 0, 5_000),
            (UNDER, 0, 5_000),
            (OVER, 0, 5_000),
            (UNDER, 0, 5_000),
        ],
    ),
    (
        "LB03",
        "a token every half millisecond is not one every 0 ms",
        &[
            (UNDER, 1_000, 500),
            (OVER, 1_000, 500),
            (UNDER, 500, 750),
            (UNDER, 100, 950),
            (UNDER, 0, 1_000),
            (OVER, 0, 1_000),
        ],
    ),
    (
        "LB06",
        "a refused request takes nothing, also the first",
        &[(OVER, 10, 0), (UNDER, 10, 0), (UNDER, 10, 0)],
    ),
    ("LB12", "a bucket is never more than full", &[(UNDER, 10, 0), (UNDER, 10, 0)]),
    (
        "LB14",
        "a bucket of 5 is full with 5, whatever the limit",
        &[(UNDER, 5, 0), (UNDER, 0, 5_000), (UNDER, 1, 4_000)],
    ),
    (
        "LB11",
        "no fraction of a token is lost: 3 a second and not 2.5",
        &[
            (UNDER, 2, 333),
            (UNDER, 1, 666),
            (UNDER, 0, 1_000),
            (OVER, 0, 1_000),
            (UNDER, 0, 1_000),
            (OVER, 0, 1_000),
            (OVER, 0, 1_000),
            (UNDER, 0, 1_000),
            (OVER, 0, 1_000),
            (OVER, 0, 1_000),
            (UNDER, 0, 1_000),
            (OVER, 0, 1_000),
            (OVER, 0, 1_000),
        ],
    ),
    (
        "GR07",
        "a month in milliseconds does not overflow",
        &[(UNDER, 59, 43_200_000), (UNDER, 29, 1_339_200_000), (UNDER, 29, 1_339_200_000)],
    ),
    (
        "GR08",
        "the first reset time is one like the others",
        &[(UNDER, 59, 1_000), (UNDER, 58, 2_000), (UNDER, 58, 2_000)],
    ),
    (
        "CA01",
        "a window begins by the clock of the owner",
        &[(UNDER, 1, 6_000), (UNDER, 0, 6_000), (OVER, 0, 6_000), (OVER, 0, 6_000)],
    ),
];
const UNDER: &str = "UNDER_LIMIT";
const OVER: &str = "OVER_LIMIT";

struct Node {
    core: Arc<Core>,
    clock: Arc<ManualClock>,
    listener: Arc<GubernatorListener<Decider, Ready>>,
}

/// It is ready, or says why not.
#[derive(Debug)]
struct Ready(Result<(), String>);

impl Probes for Ready {
    fn ready(&self) -> Result<(), String> {
        self.0.clone()
    }

    fn metrics(&self) -> String {
        "# EOF\n".to_owned()
    }
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Grpc,
    Json,
}

impl Node {
    async fn start(zone: &str, quirks: bool) -> Self {
        Self::that_is(Ok(()), zone, quirks, Config::default()).await
    }

    async fn that_is(
        ready: Result<(), String>,
        zone: &str,
        quirks: bool,
        mut config: Config,
    ) -> Self {
        let (mut environment, _) = node::system_environment();
        let clock = Arc::new(ManualClock::at(START));
        environment.clock = clock.clone();
        config.cluster.listen = None;
        let book = Arc::new(ArcSwap::from_pointee(Book::unloaded()));
        let core = standalone(config, book, environment).await;
        let zone = jiff::tz::TimeZone::get(zone).expect("a zone");
        let listener = Arc::new(GubernatorListener {
            decide: Arc::new(core.decider.clone()),
            probes: Arc::new(Ready(ready)),
            settings: Settings { zone, quirks },
            bounds: Bounds::default(),
            topology: core.topology.clone(),
            advertise: "127.0.0.1:1051".to_owned(),
            stats: Arc::default(),
            calls: Arc::default(),
            metrics: tidegate::front::pages::Page::default(),
        });
        Self { core, clock, listener }
    }

    /// A call over gRPC.
    async fn grpc<Q, R>(&self, method: &'static str, request: Q) -> Result<R, Status>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        let listener = self.listener.clone();
        let mut grpc = tonic::client::Grpc::new(tower::service_fn(move |request: Request<_>| {
            let listener = listener.clone();
            async move { Ok::<_, Infallible>(listener.call(request).await) }
        }));
        let path = PathAndQuery::from_static(method);
        let codec = ProstCodec::<Q, R>::default();
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Status, headers and body of a request over HTTP.
    async fn http(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> (StatusCode, HeaderMap, String) {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::from(body.into())).expect("a request");
        let response = router(self.listener.clone()).oneshot(request).await.expect("a response");
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn post(&self, body: impl Into<Bytes>) -> (u16, String) {
        let (status, _, body) = self.http("POST", "/v1/GetRateLimits", body).await;
        (status.as_u16(), body)
    }

    /// The answers to several requests, in either form.
    async fn ask(&self, form: Form, requests: Vec<RateLimitReq>) -> Vec<RateLimitResp> {
        let message = GetRateLimitsReq { requests };
        match form {
            Form::Grpc => {
                let answer: GetRateLimitsResp =
                    self.grpc("/pb.gubernator.V1/GetRateLimits", message).await.expect("an answer");
                answer.responses
            }
            Form::Json => {
                let requests: Vec<Value> = message.requests.iter().map(as_json).collect();
                let (status, body) = self.post(json!({ "requests": requests }).to_string()).await;
                assert_eq!(status, 200, "{body}");
                let answer: Value = serde_json::from_str(&body).expect("JSON");
                answer["responses"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(response_of_json)
                    .collect()
            }
        }
    }

    async fn one(&self, form: Form, request: RateLimitReq) -> RateLimitResp {
        self.ask(form, vec![request]).await.remove(0)
    }

    fn pass(&self, millis: u64) {
        self.clock.set_to(self.now().plus(Span::from_millis(millis)));
    }

    fn now(&self) -> Timestamp {
        tidegate::decide::DecideCarried::now(&*self.listener.decide)
    }
}

fn as_json(request: &RateLimitReq) -> Value {
    let mut json = json!({
        "name": request.name,
        "unique_key": request.unique_key,
        "hits": request.hits,
        "limit": request.limit.to_string(),
        "duration": request.duration,
        "algorithm": request.algorithm().as_str_name(),
        "behavior": request.behavior,
        "burst": request.burst,
    });
    if let Some(created_at) = request.created_at {
        json["created_at"] = json!(created_at.to_string());
    }
    json
}

fn millis(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanos() / 1_000_000).expect("near")
}

fn request(key: &str, hits: i64, limit: i64, duration: i64) -> RateLimitReq {
    RateLimitReq {
        name: "n".to_owned(),
        unique_key: key.to_owned(),
        hits,
        limit,
        duration,
        ..RateLimitReq::default()
    }
}

fn bucket(key: &str, hits: i64, limit: i64, duration: i64) -> RateLimitReq {
    RateLimitReq { algorithm: 1, ..request(key, hits, limit, duration) }
}

/// The request of a step.
fn of_step(id: &str, step: &Value, begun: Timestamp) -> RateLimitReq {
    let number = |name: &str| step[name].as_i64().unwrap_or(0);
    let algorithm = step["algorithm"].as_str().and_then(Algorithm::from_str_name);
    RateLimitReq {
        name: "case".to_owned(),
        unique_key: id.to_owned(),
        hits: number("hits"),
        limit: number("limit"),
        duration: number("duration"),
        algorithm: algorithm.expect("an algorithm").into(),
        behavior: i32::try_from(number("behavior")).expect("small"),
        burst: number("burst"),
        created_at: step["created_at_offset_ms"].as_i64().map(|it| millis(begun) + it),
    }
}

/// The reset time that was recorded, and how far ours may be off.
fn expected_reset(recorded: &Value, from: i64, now: Timestamp) -> (i64, i64) {
    let kinds = ["end_of_minute", "end_of_hour", "end_of_day", "end_of_week", "end_of_month"];
    if recorded == "zero" {
        return (0, 0);
    }
    let name = recorded[0].as_str().expect("a kind");
    if let Some(kind) = kinds.iter().position(|kind| *kind == name) {
        let kind = i64::try_from(kind).expect("small");
        let interval = Interval::around(kind, now, &jiff::tz::TimeZone::UTC).expect("a kind");
        return (millis(interval.ends) - 1, 0);
    }
    assert_eq!(name, "offset_ms");
    (from + recorded[1].as_i64().expect("a number"), 20)
}

#[tokio::test]
async fn recorded_requests_get_the_recorded_responses() {
    let cases: Value = serde_json::from_str(CASES).expect("JSON");
    let cases = cases["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 33);
    let mut alike = 0;
    for form in [Form::Grpc, Form::Json] {
        for case in cases {
            let (id, class) = (case["id"].as_str().expect("an id"), &case["klass"]);
            let different = DIFFERENT.iter().find(|(listed, ..)| *listed == id);
            assert!(different.is_none() || class != "compat", "{id} is to be answered alike");
            let (node, begun) = (Node::start("UTC", false).await, START);
            for (number, step) in case["steps"].as_array().expect("a list").iter().enumerate() {
                node.pass(step["sleep_before_ms"].as_u64().unwrap_or(0));
                let request = of_step(id, step, begun);
                let answer = node.one(form, request.clone()).await;
                let what = format!("{form:?} {id} step {number}: {answer:?}");
                let from = request.created_at.unwrap_or_else(|| millis(node.now()));
                let (status, remaining, (reset, tolerance)) = if let Some((_, _, steps)) = different
                {
                    let (status, remaining, offset) = steps[number];
                    (status, remaining, (from + offset, 0))
                } else {
                    let expect = &step["expect"];
                    (
                        expect["status"].as_str().expect("a name"),
                        expect["remaining"].as_i64().expect("a number"),
                        expected_reset(&expect["reset_time"], from, node.now()),
                    )
                };
                assert_eq!(answer.status().as_str_name(), status, "{what}");
                assert_eq!((answer.remaining, answer.limit), (remaining, request.limit), "{what}");
                assert!((answer.reset_time - reset).abs() <= tolerance, "{what}, not {reset}");
                assert_eq!(answer.error, "", "{what}");
            }
            alike += usize::from(different.is_none());
        }
    }
    println!("{alike} of {} cases are answered as recorded, in either form", 2 * cases.len());
    assert_eq!(alike, 2 * (cases.len() - DIFFERENT.len()));
}

#[tokio::test]
async fn with_quirks_reset_times_of_buckets_are_computed_as_there() {
    let node = Node::start("UTC", true).await;
    let cut = node.one(Form::Grpc, bucket("cut", 1_000, 2_000, 1_000)).await;
    assert_eq!(cut.reset_time, millis(START), "a rate of half a millisecond is 0");
    let small = RateLimitReq { burst: 5, ..bucket("small", 0, 10, 10_000) };
    let small = node.one(Form::Grpc, small).await;
    assert_eq!((small.remaining, small.reset_time), (5, millis(START) + 5_000));
    let large = RateLimitReq { burst: 20, ..bucket("large", 0, 10, 10_000) };
    let large = node.one(Form::Grpc, large).await;
    assert_eq!((large.remaining, large.reset_time), (20, millis(START) - 10_000));
}

#[tokio::test]
async fn the_gateway_answers_in_the_same_bytes() {
    let node = Node::start("UTC", false).await;
    let body =
        r#"{"requests":[{"name":"n","unique_key":"k","hits":1,"limit":10,"duration":5000}]}"#;
    let (status, headers, body) = node.http("POST", "/v1/GetRateLimits", body).await;
    assert_eq!(status, 200);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["grpc-metadata-content-type"], "application/grpc");
    let reset = millis(START) + 5_000;
    assert_eq!(
        body,
        format!(
            "{{\"responses\":[{{\"status\":\"UNDER_LIMIT\",\"limit\":\"10\",\"remaining\":\"9\",\
             \"reset_time\":\"{reset}\",\"error\":\"\",\"metadata\":{{}}}}]}}"
        )
    );
    for empty in ["", "{}", "{\"requests\":[]}"] {
        assert_eq!(node.post(empty).await, (200, "{\"responses\":[]}".to_owned()));
    }
    let error = |code: u8, message: &str| {
        format!("{{\"code\":{code},\"message\":\"{message}\",\"details\":[]}}")
    };
    let cut = node.post("{\"requests\":[{").await;
    assert_eq!(cut, (400, error(3, "unexpected EOF")));
    let fraction = r#"{"requests":[{"name":"a","unique_key":"b","hits":1.5}]}"#;
    let invalid = "proto: (line 1:50): invalid value for int64 field hits: 1.5";
    assert_eq!(node.post(fraction).await, (400, error(3, invalid)));
    let twice = node.post(r#"{"requests":[{"unique_key":"a","uniqueKey":"a"}]}"#).await;
    assert!(twice.0 == 400 && twice.1.contains("duplicate field"), "{twice:?}");
    let none = node.post("{\"requests\":[null]}").await;
    assert!(none.0 == 400 && none.1.starts_with("{\"code\":3,"), "{none:?}");
    let over = node.post(
        r#"{"requests":[{"name":"n","unique_key":"o","hits":11,"limit":10,"duration":5000}]}"#,
    );
    let (status, body) = over.await;
    assert!(status == 200 && body.contains("\"OVER_LIMIT\""), "{body}");

    for (method, path, status, body) in [
        ("GET", "/v1/GetRateLimits", 501, error(12, "Method Not Allowed")),
        ("POST", "/v1/HealthCheck", 501, error(12, "Method Not Allowed")),
        ("GET", "/v1/Nothing", 404, error(5, "Not Found")),
        ("GET", "/v1/LiveCheck", 200, "{}".to_owned()),
        ("GET", "/metrics", 200, "# EOF\n".to_owned()),
    ] {
        let (got, _, text) = node.http(method, path, "").await;
        assert_eq!((got.as_u16(), text), (status, body), "{method} {path}");
    }
}

#[tokio::test]
async fn requests_without_a_key_or_a_name_get_an_error_of_their_own() {
    let node = Node::start("UTC", false).await;
    let names = |name: &str, unique_key: &str| RateLimitReq {
        name: name.to_owned(),
        ..request(unique_key, 1, 10, 1_000)
    };
    let requests = vec![names("", ""), names("n", ""), names("", "k"), names("n", "k")];
    for form in [Form::Grpc, Form::Json] {
        let answers = node.ask(form, requests.clone()).await;
        let errors: Vec<&str> = answers.iter().map(|answer| &*answer.error).collect();
        let (no_key, no_name) =
            ("field 'unique_key' cannot be empty", "field 'namespace' cannot be empty");
        assert_eq!(errors, [no_key, no_key, no_name, ""]);
        let zero = RateLimitResp { error: no_key.to_owned(), ..RateLimitResp::default() };
        assert_eq!(answers[0], zero);
        assert_eq!(answers[3].limit, 10);
    }
}

#[tokio::test]
async fn messages_beyond_the_bounds_are_refused_as_there() {
    let node = Node::start("UTC", false).await;
    let many = |count| GetRateLimitsReq { requests: vec![request("m", 0, 10, 1_000); count] };
    let path = "/pb.gubernator.V1/GetRateLimits";
    let answer: GetRateLimitsResp = node.grpc(path, many(1_000)).await.expect("an answer");
    assert_eq!(answer.responses.len(), 1_000);
    let refused = node.grpc::<_, GetRateLimitsResp>(path, many(1_001)).await.expect_err("too many");
    let text = "Requests.RateLimits list too large; max size is '1000'";
    assert_eq!((refused.code(), refused.message()), (tonic::Code::OutOfRange, text));
    let (status, body) = node.post(format!("{{\"requests\":[{}{{}}]}}", "{},".repeat(1_000))).await;
    let expected = format!("{{\"code\":11,\"message\":\"{text}\",\"details\":[]}}");
    assert_eq!((status, body), (400, expected));

    let mut large = many(1);
    large.requests[0].unique_key = "x".repeat(1024 * 1024);
    let bytes = large.encoded_len();
    let text = format!("grpc: received message larger than max ({bytes} vs. 1048576)");
    let refused = node.grpc::<_, GetRateLimitsResp>(path, large.clone()).await.expect_err("large");
    assert_eq!((refused.code(), refused.message()), (tonic::Code::ResourceExhausted, &*text));
    let body = json!({ "requests": [as_json(&large.requests[0])] }).to_string();
    let (status, headers, body) = node.http("POST", "/v1/GetRateLimits", body).await;
    assert_eq!((status.as_u16(), headers["connection"].to_str().ok()), (429, Some("close")));
    assert!(body.starts_with("{\"code\":8,\"message\":\"grpc: received message larger than max ("));
    // An escape is longer than what it stands for.
    let escaped = "\\u00e9".repeat(500_000);
    let body = format!(
        r#"{{"requests":[{{"name":"m","unique_key":"{escaped}","limit":"1","duration":"1000"}}]}}"#
    );
    assert_eq!(node.post(body).await.0, 200);
    for (method, path) in [("PUT", "/v1/GetRateLimits"), ("POST", "/v1/Nothing")] {
        let (_, headers, _) = node.http(method, path, "{}").await;
        assert_eq!(headers["connection"], "close", "{method} {path}: its body is not read");
        let (_, headers, _) = node.http(method, path, "").await;
        assert!(!headers.contains_key("connection"));
    }

    let unknown = node
        .grpc::<_, LiveCheckResp>("/pb.gubernator.V1/Nothing", LiveCheckReq {})
        .await
        .expect_err("unknown");
    assert_eq!(unknown.code(), tonic::Code::Unimplemented);
}

/// Two bytes a request would be fifty times as much in memory.
#[tokio::test]
async fn a_message_of_half_a_million_requests_is_refused_before_they_are_read() {
    let node = Node::start("UTC", false).await;
    let mut body = BytesMut::new();
    let requests = [0x0a, 0x00].repeat(500_000);
    body.put_u8(0);
    body.put_u32(u32::try_from(requests.len()).expect("small"));
    body.extend_from_slice(&requests);
    let path = "/pb.gubernator.V1/GetRateLimits";
    let request = Request::post(path).body(Full::new(body.freeze())).expect("a request");
    let response = node.listener.call(request).await;
    assert_eq!(response.headers()["grpc-status"], "11");
}

#[tokio::test]
async fn a_web_page_of_another_site_gets_nothing_over_grpc() {
    let node = Node::start("UTC", false).await;
    let request = GetRateLimitsReq { requests: vec![request("page", 1, 10, 60_000)] };
    let body = request.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(body.len()).expect("short"));
    frame.extend_from_slice(&body);
    let request = Request::post("http://127.0.0.1:1051/pb.gubernator.V1/GetRateLimits")
        .header("origin", "https://page.example")
        .header("content-type", "text/plain")
        .body(Full::new(frame.freeze()))
        .expect("a request");
    let response = node.listener.call(request).await;
    assert_eq!(response.headers()["grpc-status"], "7");
    let look = node.one(Form::Grpc, self::request("page", 0, 10, 60_000)).await;
    assert_eq!(look.remaining, 10);
}

#[tokio::test]
async fn numbers_beyond_the_bounds_get_nobody_past_a_limit() {
    let node = Node::start("UTC", false).await;
    let form = Form::Json;
    for hits in [i64::MAX, 1 << 40] {
        let answer = node.one(form, request("hits", hits, 10, 60_000)).await;
        assert_eq!((answer.status().as_str_name(), answer.remaining), (OVER, 10));
    }
    let back = node.one(form, bucket("back", i64::MIN, 10, 60_000)).await;
    assert_eq!((back.status().as_str_name(), back.remaining), (UNDER, 10));
    let credit = node.one(form, request("credit", i64::MIN, 10, 60_000)).await;
    assert_eq!(credit.remaining, 10 + i64::from(u16::MAX), "a window has so much credit");

    let negative = node.one(form, request("d", 1, 10, -1)).await;
    assert_eq!(negative.error, "field 'duration' must not be below 0");
    assert_eq!((negative.status().as_str_name(), negative.limit), (OVER, 0));
    let algorithm = RateLimitReq { algorithm: 2, ..request("a", 1, 10, 1_000) };
    let answer = node.one(Form::Grpc, algorithm).await;
    assert_eq!(answer.error, "field 'algorithm' must be TOKEN_BUCKET or LEAKY_BUCKET, not 2");
    let interval = RateLimitReq { behavior: 4, ..request("i", 1, 10, 6) };
    let answer = node.one(form, interval).await;
    assert!(answer.error.contains("must be 0 to 5"), "{answer:?}");

    let limit = node.one(form, request("l", 1, -5, 60_000)).await;
    assert_eq!((limit.status().as_str_name(), limit.limit), (OVER, 0));
    let limit = node.one(form, request("l2", 1, i64::MAX, i64::MAX)).await;
    assert_eq!((limit.limit, limit.remaining), (4_294_901_760, 4_294_901_759));
    assert_eq!(limit.reset_time, millis(START) + 400 * 86_400_000);
    let slow = RateLimitReq { burst: i64::MAX, ..bucket("s", 0, 1, i64::MAX) };
    assert_eq!(node.one(form, slow).await.error, "");

    // A bucket of ten a second, whose client says that every hit is old, or from next week.
    for (key, ahead) in [("old", -86_400_000), ("new", 7 * 86_400_000)] {
        let mut passed = 0;
        for _ in 0..200 {
            let created_at = Some(millis(node.now()) + ahead);
            let hit = RateLimitReq { created_at, ..bucket(key, 1, 10, 1_000) };
            passed += usize::from(node.one(form, hit).await.status().as_str_name() == UNDER);
            node.pass(10);
        }
        assert!((29..=31).contains(&passed), "{key}: {passed} of 200 in two seconds");
    }
}

#[tokio::test]
async fn a_batch_keeps_its_order_and_one_key_in_it_is_counted_in_order() {
    let node = Node::start("UTC", false).await;
    for form in [Form::Grpc, Form::Json] {
        let key = format!("{form:?}");
        let mut requests: Vec<_> = (0..500)
            .map(|number| request(&format!("{form:?}{number}"), 1, 1_000 + number, 60_000))
            .collect();
        requests.extend((0..500).map(|_| request(&key, 1, 400, 60_000)));
        let answers = node.ask(form, requests).await;
        for (number, answer) in (0_i64..).zip(&answers[..500]) {
            assert_eq!((answer.limit, answer.remaining), (1_000 + number, 999 + number));
        }
        for (number, answer) in (0_i64..).zip(&answers[500..]) {
            let status = if number < 400 { UNDER } else { OVER };
            assert_eq!(
                (answer.remaining, answer.status().as_str_name()),
                ((399 - number).max(0), status)
            );
        }
    }
}

#[tokio::test]
async fn names_and_keys_that_read_alike_together_are_two() {
    let node = Node::start("UTC", false).await;
    let names = |name: &str, key: &str| RateLimitReq {
        name: name.to_owned(),
        ..request(key, 1, 10, 60_000)
    };
    for (name, key) in [("a", "b_c"), ("a_b", "c"), ("a_b_", "c"), ("a", "_b_c")] {
        assert_eq!(node.one(Form::Json, names(name, key)).await.remaining, 9, "{name} {key}");
    }
}

#[tokio::test]
async fn an_algorithm_that_changes_begins_another_counter() {
    let node = Node::start("UTC", false).await;
    let (window, leaky) = (request("k", 1, 10, 60_000), bucket("k", 1, 10, 60_000));
    for (request, remaining) in [(&window, 9), (&leaky, 9), (&window, 8), (&leaky, 8)] {
        assert_eq!(node.one(Form::Grpc, request.clone()).await.remaining, remaining);
    }
}

/// One instant does not tell how many tokens there were at another rate.
#[tokio::test]
async fn a_bucket_of_another_rate_begins_full() {
    let node = Node::start("UTC", false).await;
    let of = |limit, burst, duration| RateLimitReq { burst, ..bucket("k", 0, limit, duration) };
    let first = of(1_000, 50, 60_000);
    let all = RateLimitReq { hits: 50, ..first.clone() };
    assert_eq!(node.one(Form::Grpc, all).await.remaining, 0);
    for other in [
        of(10, 50, 60_000),
        of(2_000, 50, 60_000),
        of(1_000, 50, 59_000),
        of(1_000, 50, 300),
        // Four and three times these are 1,200 ms.
        of(1_000, 50, 400),
        of(1_000, 50, 1_200),
        of(1_000, 49, 60_000),
    ] {
        let size = other.burst;
        let look = node.one(Form::Grpc, other.clone()).await;
        assert_eq!((look.status().as_str_name(), look.remaining), (UNDER, size), "{other:?}");
        let all = RateLimitReq { hits: size, ..other.clone() };
        assert_eq!(node.one(Form::Grpc, all).await.status().as_str_name(), UNDER);
        let more = node.one(Form::Grpc, RateLimitReq { hits: 1, ..other }).await;
        assert_eq!(more.status().as_str_name(), OVER);
    }
    assert_eq!(node.one(Form::Grpc, first).await.remaining, 0, "it is as it was left");
}

#[tokio::test]
async fn intervals_that_begin_together_are_counted_apart() {
    let node = Node::start("UTC", false).await;
    // 2029-01-01 00:00:20 UTC, a Monday.
    node.clock.set_to(Timestamp::from_secs(1_861_920_020));
    for algorithm in [0, 1] {
        for kind in 0..6 {
            let request = RateLimitReq { behavior: 4, algorithm, ..request("k", 1, 10, kind) };
            let answer = node.one(Form::Grpc, request.clone()).await;
            assert_eq!(answer.remaining, 9, "{kind} of {algorithm}");
            assert_eq!(node.one(Form::Grpc, request).await.remaining, 8);
        }
    }
}

#[tokio::test]
async fn a_look_is_never_over_the_limit() {
    let node = Node::start("UTC", false).await;
    for (hits, limit, remaining) in [(8, 10, 2), (0, 5, 0), (0, 8, 0), (0, 9, 1), (0, 0, 0)] {
        let answer = node.one(Form::Json, request("k", hits, limit, 60_000)).await;
        assert_eq!((answer.status().as_str_name(), answer.remaining), (UNDER, remaining));
    }
    let hit = node.one(Form::Json, request("k", 1, 5, 60_000)).await;
    assert_eq!(hit.status().as_str_name(), OVER);
    assert_eq!(node.listener.calls.over_limit.get(), 1);
}

#[tokio::test]
async fn the_largest_limit_refuses_beyond_what_was_given_back() {
    let node = Node::start("UTC", false).await;
    let of = |hits| request("k", hits, i64::MAX, 60_000);
    let (limit, credit) = (4_294_901_760, 65_535);
    let back = node.one(Form::Grpc, of(-70_000)).await;
    assert_eq!((back.limit, back.remaining), (limit, limit + credit));
    let all = node.one(Form::Grpc, of(limit + credit)).await;
    assert_eq!((all.status().as_str_name(), all.remaining), (UNDER, 0));
    for hits in [1, 65_535] {
        let more = node.one(Form::Grpc, of(hits)).await;
        assert_eq!((more.status().as_str_name(), more.remaining), (OVER, 0), "{hits}");
    }
}

#[tokio::test]
async fn every_call_and_every_request_of_it_is_counted() {
    let node = Node::start("UTC", false).await;
    let calls = &node.listener.calls;
    let of = |hits, duration| request("k", hits, 10, duration);
    for form in [Form::Grpc, Form::Json] {
        let global = RateLimitReq { behavior: 2, ..of(11, 0) };
        node.ask(form, vec![of(11, 0), of(1, 0), of(11, 1_000), global, of(1, -1)]).await;
    }
    let counted = [&calls.local, &calls.global, &calls.over_limit, &calls.invalid, &calls.ok];
    assert_eq!(counted.map(tidegate::front::stats::Counter::get), [6, 2, 6, 2, 2]);

    let path = "/pb.gubernator.V1/GetRateLimits";
    let mut large = GetRateLimitsReq { requests: vec![of(1, 1_000)] };
    large.requests[0].unique_key = "x".repeat(1024 * 1024);
    node.grpc::<_, GetRateLimitsResp>(path, large.clone()).await.expect_err("large");
    assert_eq!(calls.failed.get(), 1);
    let framed = [&[0, 0, 0, 0, 2][..], &[0x0a, 0x05]].concat();
    let body = Full::new(Bytes::from(framed));
    let request = Request::post(path).body(body).expect("a request");
    let cut = node.listener.call(request).await;
    assert_eq!(cut.headers()["grpc-status"], "13");
    assert_eq!(calls.failed.get(), 2);
    let body = json!({ "requests": [as_json(&large.requests[0])] }).to_string();
    for (number, body) in (3..).zip([body, "{".to_owned(), "x".repeat(3 * 1024 * 1024)]) {
        assert_ne!(node.post(body).await.0, 200);
        assert_eq!(calls.failed.get(), number);
    }
    assert_eq!(calls.ok.get(), 2);
}

#[tokio::test]
async fn messages_that_cannot_be_read_are_bad_requests() {
    let node = Node::start("UTC", false).await;
    let refused = || node.listener.stats.refused.get();
    let invalid = [&[0, 0, 0, 0, 2][..], &[0x0a, 0x05]].concat();
    let cut = vec![0, 0, 0, 0, 9, 0x0a];
    let compressed = vec![1, 0, 0, 0, 0];
    let mut expected = 0;
    for method in ["GetRateLimits", "HealthCheck", "LiveCheck"] {
        for body in [&invalid, &cut, &compressed, &Vec::new()] {
            let request = Request::post(format!("/pb.gubernator.V1/{method}"));
            let request = request.body(Full::new(Bytes::from(body.clone()))).expect("a request");
            let response = node.listener.call(request).await;
            assert_eq!(response.headers()["grpc-status"], "13", "{method} {body:?}");
            expected += 1;
            assert_eq!(refused(), expected, "{method} {body:?}");
        }
    }
    node.post("{").await;
    assert_eq!(refused(), expected + 1);
}

/// Nothing is kept of it, so the next request has the whole limit again.
#[tokio::test]
async fn without_a_duration_there_is_nothing_to_drain() {
    let node = Node::start("UTC", false).await;
    for form in [Form::Grpc, Form::Json] {
        for of in [request, bucket] {
            let drain = RateLimitReq { behavior: 32, ..of("k", 11, 10, 0) };
            let refused = node.one(form, drain).await;
            assert_eq!((refused.status().as_str_name(), refused.remaining), (OVER, 10));
            let next = node.one(form, of("k", 1, 10, 0)).await;
            assert_eq!((next.status().as_str_name(), next.remaining), (UNDER, 9));
        }
    }
}

/// A rate is stored as a whole number for a second, or for somewhat more.
#[tokio::test]
async fn a_bucket_gets_at_most_four_tokens_a_nanosecond() {
    let node = Node::start("UTC", false).await;
    let of = |hits| bucket("fast", hits, 100_000_000, 10);
    let all = node.one(Form::Grpc, of(100_000_000)).await;
    assert_eq!((all.status().as_str_name(), all.remaining), (UNDER, 0));
    node.pass(10);
    // 4,294,967,295 a second.
    assert_eq!(node.one(Form::Grpc, of(0)).await.remaining, 42_949_672);
}

#[tokio::test]
async fn flags_without_a_counterpart_change_nothing() {
    let node = Node::start("UTC", false).await;
    for (behavior, remaining) in [(0, 9), (1, 8), (16, 7), (2, 6), (2 | 16 | 1, 5), (1 << 20, 4)] {
        let request = RateLimitReq { behavior, ..request("k", 1, 10, 60_000) };
        assert_eq!(node.one(Form::Json, request).await.remaining, remaining, "{behavior}");
    }
}

#[tokio::test]
async fn calendar_intervals_begin_in_the_zone_of_the_node() {
    let node = Node::start("Asia/Kolkata", false).await;
    let day = |hits| RateLimitReq { behavior: 4, ..request("day", hits, 10, 2) };
    let first = node.one(Form::Json, day(4)).await;
    // Midnight is at 18:30 UTC.
    let midnight = 1_795_694_420 / 86_400 * 86_400 + 18 * 3_600 + 1_800;
    assert_eq!((first.remaining, first.reset_time), (6, midnight * 1_000 - 1));
    node.clock.set_to(Timestamp::from_secs(midnight.unsigned_abs() - 1));
    assert_eq!(node.one(Form::Json, day(1)).await.remaining, 5);
    node.clock.set_to(Timestamp::from_secs(midnight.unsigned_abs()));
    let next = node.one(Form::Json, day(1)).await;
    assert_eq!((next.remaining, next.reset_time), (9, (midnight + 86_400) * 1_000 - 1));
}

#[tokio::test]
async fn health_says_who_is_there_and_why_not() {
    let node = Node::start("UTC", false).await;
    let (status, _, body) = node.http("GET", "/v1/HealthCheck", "").await;
    let health: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 200);
    assert_eq!(health["status"], "healthy");
    assert_eq!(health["advertise_address"], "127.0.0.1:1051");
    let peers = health["local_peers"].as_array().expect("a list");
    assert_eq!(health["peer_count"], peers.len());
    assert_eq!(peers[0]["grpc_address"], "127.0.0.1:1051", "it has no mesh");
    let path = "/pb.gubernator.V1/HealthCheck";
    let over_grpc: HealthCheckResp = node.grpc(path, HealthCheckReq {}).await.expect("healthy");
    assert_eq!(over_grpc.status, "healthy");
    let alive = node.grpc::<_, LiveCheckResp>("/pb.gubernator.V1/LiveCheck", LiveCheckReq {}).await;
    assert!(alive.is_ok());

    let reason = Err("it drains".to_owned());
    let node = Node::that_is(reason, "UTC", false, Config::default()).await;
    let (status, _, body) = node.http("GET", "/v1/HealthCheck", "").await;
    let expected = "{\"code\":14,\"message\":\"it drains\",\"details\":[]}";
    assert_eq!((status.as_u16(), &*body), (503, expected));
    let refused = node.grpc::<_, HealthCheckResp>(path, HealthCheckReq {}).await.expect_err("not");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    let (status, _, _) = node.http("GET", "/v1/LiveCheck", "").await;
    assert_eq!(status, 200);
}

/// `scripts/check-long names` invents a million.
#[tokio::test]
async fn invented_names_leave_memory_bounded() {
    const KEYS_MAX: usize = 4_096;
    let mut config = Config::default();
    config.limits.keys_max = KEYS_MAX;
    let node = Node::that_is(Ok(()), "UTC", false, config).await;
    for batch in 0..20 {
        let of = |number| request(&format!("{batch}-{number}"), 1, 10, 3_600_000);
        let answers = node.ask(Form::Grpc, (0..1_000).map(of).collect()).await;
        assert!(answers.iter().all(|answer| answer.error.is_empty()));
    }
    let stats = node.core.store.stats();
    assert!(stats.keys <= KEYS_MAX, "{} keys", stats.keys);
}
