//! What the admin listener returns on each path.

use std::net::IpAddr;
use std::sync::Arc;

use crate::admin_dashboard::FakeOverview;
use axum::Router;
use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tidegate::admin::STREAMS_MAX;
use tidegate::admin::blocked::PAUSE;
use tidegate::admin::certificates::{
    Certificates, RevokedNode, RevokedReport, TokenOrder, TokenReport,
};
use tidegate::admin::key::{CarriedKey, Key, KeyOrder, KeyOrdered, Keys};
use tidegate::admin::report::{MapReport, NodeReport, OwnerOf, RegionsReport};
use tidegate::admin::{
    Access, AdminState, BlockedReport, BlockedSource, DrainReport, Inspect, MembersReport, Operate,
    OwnerReport, Refusal, StatusReport, WatchBlocked, router,
};
use tidegate::front::Probes;
use tidegate::observe::{Health, Metrics};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

#[tokio::test]
async fn each_path_answers_with_its_own() {
    let rows = [
        ("/healthz", StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
        (
            "/readyz",
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain; charset=utf-8",
            "rules: starting\n",
        ),
        (
            "/owner?domain=edge&user=a%20b&ip=::1",
            StatusCode::OK,
            "application/json",
            "{\"token\":\"edge user=a b ip=::1\",\"rule\":null,\"mode\":null,\"scope\":null,\
             \"owners\":[{\"region\":\"eu\",\"node\":\"n1\"}]}\n",
        ),
        (
            "/owner?domain=edge",
            StatusCode::BAD_REQUEST,
            "application/json",
            "{\"error\":\"a domain and at least one entry are required; use \
             /owner?domain=D&KEY=VALUE\"}\n",
        ),
        (
            "/owner?domain=%ff&a=b",
            StatusCode::BAD_REQUEST,
            "application/json",
            "{\"error\":\"query missing or not percent-encoded UTF-8; use \
             /owner?domain=D&KEY=VALUE\"}\n",
        ),
        (
            "/nowhere",
            StatusCode::NOT_FOUND,
            "application/json",
            "{\"error\":\"no such path; GET / lists the paths\"}\n",
        ),
    ];
    for (path, status, content_type, body) in rows {
        let answer = get(path, &Health::starting(&["rules"])).await;
        assert_eq!((answer.0, &*answer.1, &*answer.2), (status, content_type, body), "{path}");
    }
}

#[tokio::test]
async fn orders_about_a_key_are_read_with_their_arguments() {
    let key = "domain=edge&hits=7&for=1h";
    let carried = "name=requests&unique_key=account:1";
    let limit = "limit=10&duration=1m&algorithm=LEAKY_BUCKET&burst=5";
    for (path, status, expected) in [
        (format!("reset?{key}"), StatusCode::OK, "Reset"),
        (format!("adjust?hits=-5&{key}"), StatusCode::OK, "Adjust(-5)"),
        (format!("block?for=10m&{key}"), StatusCode::OK, "Block(Some(Span(600000000000)))"),
        (format!("block?{key}"), StatusCode::OK, "Block(None)"),
        (format!("unblock?{key}"), StatusCode::OK, "Unblock"),
        (format!("adjust?{key}"), StatusCode::BAD_REQUEST, "how many hits"),
        (format!("adjust?hits=x&{key}"), StatusCode::BAD_REQUEST, "how many hits"),
        (format!("block?for=soon&{key}"), StatusCode::BAD_REQUEST, "10m"),
        ("reset?domain=edge".to_owned(), StatusCode::BAD_REQUEST, "use /key/reset?domain"),
        (format!("reset?{carried}"), StatusCode::OK, "Reset"),
        (format!("block?for=10m&{carried}"), StatusCode::OK, "Block(Some(Span(600000000000)))"),
        (format!("adjust?hits=-5&{carried}"), StatusCode::BAD_REQUEST, "say which counter"),
        (format!("adjust?hits=-5&{carried}&{limit}"), StatusCode::OK, "Adjust(-5)"),
        (format!("reset?{carried}&limit=10"), StatusCode::BAD_REQUEST, "goes with a duration"),
        (format!("reset?{carried}&calendar=week&limit=1"), StatusCode::OK, "Reset"),
        (format!("reset?{carried}&calendar=6&limit=1"), StatusCode::BAD_REQUEST, "calendar=6"),
        (format!("reset?{carried}&duration=1us&limit=1"), StatusCode::BAD_REQUEST, "duration=1us"),
        (format!("reset?{carried}&algorithm=GCRA"), StatusCode::BAD_REQUEST, "algorithm=GCRA"),
        (format!("reset?{carried}&hits=1"), StatusCode::BAD_REQUEST, "hits=1"),
        ("reset?name=n&unique_key=".to_owned(), StatusCode::BAD_REQUEST, "are required"),
    ] {
        let request = Request::post(format!("/key/{path}")).body(Body::empty()).unwrap();
        let response = router(state(&Health::default())).oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains(expected), "{path}: {body}");
        if status == StatusCode::OK {
            let is_carried = path.contains(carried);
            let of_key =
                if is_carried { "requests account:1" } else { "(\\\"hits\\\", \\\"7\\\")" };
            assert!(body.contains(of_key), "{path}: {body}");
        }
    }
}

#[tokio::test]
async fn a_node_is_ready_when_its_conditions_are_green() {
    let health = Health::starting(&["rules"]);
    health.green("rules");
    let (status, _, body) = get("/readyz", &health).await;
    assert_eq!((status, &*body), (StatusCode::OK, "ready\n"));
}

#[tokio::test]
async fn metrics_are_openmetrics_text() {
    let (status, content_type, body) = get("/metrics", &Health::default()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(body.ends_with("# EOF\n"), "{body}");
}

#[tokio::test]
async fn a_status_is_read_back_as_it_was_written() {
    let (_, _, body) = get("/status", &Health::default()).await;
    let report: StatusReport = serde_json::from_str(&body).unwrap();
    assert_eq!(report, Fake.status());
}

#[tokio::test]
async fn regions_are_read_back_as_they_were_written() {
    let (_, content_type, body) = get("/regions", &Health::default()).await;
    let report: RegionsReport = serde_json::from_str(&body).unwrap();
    assert_eq!((&*content_type, report), ("application/json", Fake.regions()));
}

#[tokio::test]
async fn members_are_read_back_as_they_were_written() {
    let (_, content_type, body) = get("/members", &Health::default()).await;
    let report: MembersReport = serde_json::from_str(&body).unwrap();
    assert_eq!((&*content_type, report), ("application/json", Fake.members()));
}

#[tokio::test]
async fn orders_of_an_operator_are_carried_out_or_refused_with_a_reason() {
    let wrong = "{\"error\":\"name the evicted node; use POST /forget?node=NODE\"}\n";
    for (path, status, body) in [
        ("/bootstrap", StatusCode::CONFLICT, "{\"error\":\"it knows cluster 7\"}\n"),
        ("/forget?node=n4", StatusCode::ACCEPTED, "{\"forgetting\":\"n4\"}\n"),
        ("/forget?node=n%2F5", StatusCode::NOT_FOUND, "{\"error\":\"no n/5\"}\n"),
        ("/forget?node=", StatusCode::BAD_REQUEST, wrong),
        ("/forget?node=n4&node=n5", StatusCode::BAD_REQUEST, wrong),
        ("/forget", StatusCode::BAD_REQUEST, wrong),
    ] {
        let request = Request::post(path).body(Body::empty()).unwrap();
        let response = router(state(&Health::default())).oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(String::from_utf8_lossy(&answer), body, "{path}");
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router(state(&Health::default())).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
    }
}

#[tokio::test]
async fn a_web_page_of_another_site_orders_nothing() {
    for path in ["/bootstrap", "/forget?node=n4"] {
        for (name, value) in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
            let request = Request::post(path).header("host", "127.0.0.1:8082").header(name, value);
            let request = request.body(Body::empty()).unwrap();
            let response = router(state(&Health::default())).oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path} {name}: {value}");
        }
    }
}

#[tokio::test]
async fn a_node_is_drained_by_a_post_and_by_nothing_else() {
    let listeners = state(&Health::default());
    for (request, status, drains) in [
        (Request::get("/drain"), StatusCode::METHOD_NOT_ALLOWED, false),
        (Request::post("/status"), StatusCode::METHOD_NOT_ALLOWED, false),
        (Request::post("/drain"), StatusCode::ACCEPTED, true),
        (Request::post("/drain?wait=true"), StatusCode::OK, true),
    ] {
        let request = request.body(Body::empty()).unwrap();
        let response = router(listeners.clone()).oneshot(request).await.unwrap();
        assert_eq!((response.status(), listeners.drain.is_cancelled()), (status, drains));
    }
}

#[tokio::test]
async fn a_web_page_of_another_site_drains_nothing() {
    let listeners = state(&Health::default());
    for (name, value, status) in [
        ("origin", "http://evil.example", StatusCode::FORBIDDEN),
        ("origin", "null", StatusCode::FORBIDDEN),
        ("sec-fetch-site", "cross-site", StatusCode::FORBIDDEN),
        ("origin", "http://127.0.0.1:8082", StatusCode::ACCEPTED),
    ] {
        let request = Request::post("/drain").header("host", "127.0.0.1:8082").header(name, value);
        let request = request.body(Body::empty()).unwrap();
        let response = router(listeners.clone()).oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{name}: {value}");
        assert_eq!(listeners.drain.is_cancelled(), status == StatusCode::ACCEPTED);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let says = String::from_utf8_lossy(&body).contains("send it from a program such as curl");
        assert_eq!(says, status == StatusCode::FORBIDDEN, "{name}: {value}");
    }
}

/// Sources that change when the test says so.
struct FakeBlocked(watch::Sender<usize>);

impl WatchBlocked for FakeBlocked {
    fn report(&self) -> BlockedReport {
        let source = |n| BlockedSource {
            source: IpAddr::from([203, 0, 113, n]).into(),
            rule: "edge.remote_address".to_owned(),
            expires_in_ms: 60_000,
        };
        let count = u8::try_from(*self.0.borrow()).unwrap();
        BlockedReport {
            node: "n1".to_owned(),
            addresses: vec![[10, 0, 0, 1].into()],
            sources: (0..count).map(source).collect(),
        }
    }

    fn changes(&self) -> watch::Receiver<()> {
        let (changes, mut counts) = (watch::Sender::default(), self.0.subscribe());
        let receiver = changes.subscribe();
        tokio::spawn(async move {
            while counts.changed().await.is_ok() {
                changes.send_replace(());
            }
        });
        receiver
    }
}

/// The listener, and what sets the number of sources.
fn with_blocked() -> (AdminState, watch::Sender<usize>) {
    let counts = watch::Sender::new(1);
    let blocked: Arc<dyn WatchBlocked> = Arc::new(FakeBlocked(counts.clone()));
    (AdminState { blocked: Some(blocked), ..state(&Health::default()) }, counts)
}

async fn open(router: &Router) -> Response<Body> {
    let request = Request::get("/blocked/stream").body(Body::empty()).unwrap();
    router.clone().oneshot(request).await.unwrap()
}

/// The next part of a stream: an event or a comment; none at its end.
async fn part(stream: &mut Body) -> Option<String> {
    let frame = stream.frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

/// The number of sources of an event.
fn count(event: &str) -> usize {
    let data = event.strip_prefix("event: blocked\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
    serde_json::from_str::<BlockedReport>(data).unwrap().sources.len()
}

#[tokio::test]
async fn blocked_sources_are_reported_where_they_are_watched() {
    for path in ["/blocked", "/blocked/stream"] {
        let (status, _, body) = get(path, &Health::default()).await;
        let says = "{\"error\":\"no sources are watched; set blocked_sources.entry\"}\n";
        assert_eq!((status, &*body), (StatusCode::NOT_FOUND, says));
    }
    let (state, _counts) = with_blocked();
    let request = Request::get("/blocked").body(Body::empty()).unwrap();
    let response = router(state).oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(
        String::from_utf8_lossy(&body),
        "{\"node\":\"n1\",\"addresses\":[\"10.0.0.1\"],\"sources\":[{\"source\":\"203.0.113.0\",\
         \"rule\":\"edge.remote_address\",\"expires_in_ms\":60000}]}\n"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_has_the_picture_at_once_and_after_each_pause_with_a_change() {
    let (state, counts) = with_blocked();
    let stop = state.stop.clone();
    let response = open(&router(state)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = response.into_body();
    assert_eq!(count(&part(&mut stream).await.unwrap()), 1);
    // Many changes are one picture, and it is that of the end.
    for sources in 2..=100 {
        counts.send_replace(sources);
        tokio::task::yield_now().await;
    }
    let start = Instant::now();
    assert_eq!(count(&part(&mut stream).await.unwrap()), 100);
    assert!(start.elapsed() >= PAUSE, "{:?}", start.elapsed());
    // Without a change there are comments.
    assert_eq!(part(&mut stream).await.unwrap(), ":\n\n");
    assert_eq!(part(&mut stream).await.unwrap(), ":\n\n");
    counts.send_replace(7);
    assert_eq!(count(&part(&mut stream).await.unwrap()), 7);
    stop.cancel();
    assert_eq!(part(&mut stream).await, None);
}

#[tokio::test]
async fn a_token_is_made_for_whom_the_query_names() {
    let post = async |query: &str| {
        let request = Request::post(format!("/join/tokens{query}")).body(Body::empty()).unwrap();
        let response = router(state(&Health::starting(&[]))).oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    for (query, made) in [
        ("?node=n4", r#""node":"n4","region":"","role":"core","expires_in_s":3600"#),
        (
            "?ttl=10m&role=edge&region=eu&node=e1",
            r#""node":"e1","region":"eu","role":"edge","expires_in_s":600"#,
        ),
    ] {
        let (status, text) = post(query).await;
        assert_eq!(status, StatusCode::OK, "{query}: {text}");
        assert!(text.contains(made), "{query}: {text}");
    }
    let wrong = [
        "",
        "?node=",
        "?region=eu",
        "?node=n4&role=voter",
        "?node=n4&ttl=59s",
        "?node=n4&ttl=8d",
        "?node=n4&ttl=soon",
        "?node=n4&name=x",
    ];
    for query in wrong {
        assert_eq!(post(query).await.0, StatusCode::BAD_REQUEST, "{query}");
    }
}

#[tokio::test]
async fn streams_beyond_the_bound_are_refused() {
    let router = router(with_blocked().0);
    let mut open_streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        let response = open(&router).await;
        assert_eq!(response.status(), StatusCode::OK);
        open_streams.push(response);
    }
    assert_eq!(open(&router).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    open_streams.pop();
    assert_eq!(open(&router).await.status(), StatusCode::OK);
}

const DRAINED: DrainReport =
    DrainReport { handed_over: true, reason: None, leaves_majority: true, generation: 7 };

pub(crate) fn state(health: &Health) -> AdminState {
    AdminState {
        inspect: Arc::new(Fake),
        operate: Arc::new(Fake),
        keys: Arc::new(Fake),
        certificates: Arc::new(Fake),
        overview: Arc::new(FakeOverview::default()),
        access: Access::default(),
        blocked: None,
        probes: Arc::new(FakeProbes { health: health.clone(), metrics: Metrics::new("0") }),
        drain: CancellationToken::new(),
        drained: watch::channel(Some(DRAINED)).1,
        stop: CancellationToken::new(),
    }
}

async fn get(path: &str, health: &Health) -> (StatusCode, String, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router(state(health)).oneshot(request).await.unwrap();
    let status = response.status();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, content_type, String::from_utf8(body.to_vec()).unwrap())
}

struct FakeProbes {
    health: Health,
    metrics: Metrics,
}

impl Probes for FakeProbes {
    fn ready(&self) -> Result<(), String> {
        self.health.ready()
    }

    fn metrics(&self) -> String {
        self.metrics.encode()
    }
}

/// A node that owns everything and returns the request. It refuses all but to forget `n4`.
struct Fake;

impl Keys for Fake {
    /// Returns what it was ordered.
    fn order(&self, key: Key, order: KeyOrder) -> BoxFuture<'_, Result<KeyOrdered, Refusal>> {
        let order = match key {
            Key::Descriptor { domain, entries } => format!("{order:?} {domain} {entries:?}"),
            Key::Carried(CarriedKey { name, unique_key, .. }) => {
                format!("{order:?} {name} {unique_key}")
            }
        };
        async move { Ok(KeyOrdered { order, ..KeyOrdered::default() }) }.boxed()
    }
}

impl Certificates for Fake {
    /// Returns what it was ordered.
    fn make_token(&self, order: TokenOrder) -> BoxFuture<'_, Result<TokenReport, Refusal>> {
        let TokenOrder { node, region, role, ttl } = order;
        let (region, role) = (region.unwrap_or_default(), role.name().to_owned());
        let (token, expires_in_s) = ("tgjoin1_".to_owned(), ttl.as_secs_ceil());
        async move { Ok(TokenReport { token, node, region, role, expires_in_s }) }.boxed()
    }

    fn revoke(
        &self,
        node: String,
        may_be_unknown: bool,
    ) -> BoxFuture<'_, Result<RevokedReport, Refusal>> {
        let node = if may_be_unknown { format!("{node}?") } else { node };
        async move { Ok(RevokedReport { revoked: node, ..RevokedReport::default() }) }.boxed()
    }

    fn revoked(&self) -> Vec<RevokedNode> {
        vec![RevokedNode { node: "n4".to_owned(), at: 7 }]
    }
}

impl Inspect for Fake {
    fn status(&self) -> StatusReport {
        StatusReport {
            node: NodeReport { id: "n1".to_owned(), ..NodeReport::default() },
            cluster: "test".to_owned(),
            epoch: "a7b3c9d100000000".to_owned(),
            ..StatusReport::default()
        }
    }

    fn regions(&self) -> RegionsReport {
        RegionsReport {
            homes: vec!["eu".to_owned(), "us".to_owned()],
            failover: Some("auto".to_owned()),
            ..RegionsReport::default()
        }
    }

    fn members(&self) -> MembersReport {
        MembersReport {
            node: "n1".to_owned(),
            map: Some(MapReport { epoch: 7, ..MapReport::default() }),
            ..MembersReport::default()
        }
    }

    fn owner(&self, domain: &str, entries: &[(String, String)]) -> OwnerReport {
        let entries: Vec<String> = entries.iter().map(|(k, v)| format!("{k}={v}")).collect();
        OwnerReport {
            token: format!("{domain} {}", entries.join(" ")),
            owners: vec![OwnerOf { region: "eu".to_owned(), node: "n1".to_owned() }],
            ..OwnerReport::default()
        }
    }
}

impl Operate for Fake {
    fn bootstrap(&self) -> Result<(), Refusal> {
        Err(Refusal::Conflict("it knows cluster 7".to_owned()))
    }

    fn region_lost(&self, region: &str) -> Result<(), Refusal> {
        if region == "eu" { Ok(()) } else { Err(Refusal::Unknown(format!("no {region}"))) }
    }

    fn forget(&self, node: &str) -> Result<(), Refusal> {
        if node == "n4" { Ok(()) } else { Err(Refusal::Unknown(format!("no {node}"))) }
    }
}
