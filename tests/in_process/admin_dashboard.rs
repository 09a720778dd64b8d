//! Whom the admin listener serves, and what the dashboard reads.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tidegate::admin::STREAMS_MAX;
use tidegate::admin::dashboard::FILES;
use tidegate::admin::events::{KEEP_ALIVE, event};
use tidegate::admin::key::Key;
use tidegate::admin::snapshot::KeyReport;
use tidegate::admin::{Access, AdminState, Overview, Tokens, router, routes};
use tidegate::observe::Health;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::admin_router::state;

const TOKEN: &str = "0123456789abcdef";

/// Pictures that the test makes.
#[derive(Default)]
pub(crate) struct FakeOverview {
    snapshots: watch::Sender<Bytes>,
    opened: AtomicUsize,
}

impl Overview for FakeOverview {
    fn snapshots(&self) -> watch::Receiver<Bytes> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.snapshots.subscribe()
    }

    fn key(&self, key: Key) -> BoxFuture<'_, KeyReport> {
        let Key::Descriptor { domain, entries } = key else { unreachable!("of a rule") };
        let entries = entries.into_iter().map(|(key, value)| format!("{key}={value}"));
        let replicas = [domain].into_iter().chain(entries).collect();
        Box::pin(async { KeyReport { replicas, ..KeyReport::default() } })
    }
}

fn with_overview() -> (AdminState, Arc<FakeOverview>) {
    let overview = Arc::new(FakeOverview::default());
    let shown: Arc<dyn Overview> = overview.clone();
    (AdminState { overview: shown, ..state(&Health::default()) }, overview)
}

async fn send(
    state: &AdminState,
    (method, path): (Method, &str),
    headers: &[(&str, &str)],
) -> Response<Body> {
    let request = Request::builder().method(method).uri(path);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    router(state.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn body(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The next event or comment of a stream; none at its end.
async fn part(stream: &mut Body) -> Option<String> {
    let frame = stream.frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn a_request_for_a_foreign_host_gets_a_status_and_nothing_else_on_any_path() {
    let state = state(&Health::default());
    let others = [(Method::GET, "/nowhere"), (Method::DELETE, "/status")];
    for (method, path) in routes().into_iter().map(|it| (it.method, it.path)).chain(others) {
        let foreign = [("host", "evil.example:8082"), ("accept", "text/html")];
        let response = send(&state, (method.clone(), path), &foreign).await;
        assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST, "{method} {path}");
        let told: Vec<_> = response.headers().keys().filter(|it| *it != "content-length").collect();
        assert!(told.is_empty(), "{method} {path}: {told:?}");
        assert_eq!(body(response).await, "", "{method} {path}");
    }
    assert!(!state.drain.is_cancelled());
    for host in ["127.0.0.1:8082", "[::1]:8082", "localhost:8082", "10.0.0.7"] {
        let response = send(&state, (Method::GET, "/status"), &[("host", host)]).await;
        assert_eq!(response.status(), StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn a_browser_is_led_to_the_page_and_a_program_gets_the_list_of_paths() {
    let access = Access::new([], Tokens { write: Some(TOKEN.to_owned()), read: None });
    let guarded = AdminState { access, ..state(&Health::default()) };
    for state in [&state(&Health::default()), &guarded] {
        let accept = [("accept", "text/html,application/xhtml+xml;q=0.9")];
        let response = send(state, (Method::GET, "/"), &accept).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        assert_eq!(response.headers()["location"], "ui/");
        let response = send(state, (Method::GET, "/ui"), &[]).await;
        assert_eq!(response.headers()["location"], "ui/");
    }
    let response = send(&state(&Health::default()), (Method::GET, "/"), &[]).await;
    assert_eq!(response.headers()["content-type"], "application/json");
}

#[tokio::test]
async fn the_files_are_small_and_load_nothing_from_elsewhere() {
    let state = state(&Health::default());
    let mut gzip_bytes = 0;
    for file in &FILES {
        let response = send(&state, (Method::GET, file.path), &[]).await;
        assert_eq!(response.headers()["content-type"], file.content_type);
        let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        let text = body(response).await;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        gzip_bytes += encoder.finish().unwrap().len();
        if file.path.contains("uplot") {
            continue;
        }
        // Texts of the cluster are only ever set as texts.
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "<style",
            "style=",
            "onclick=",
            "javascript:",
            "src=\"/",
            "href=\"/",
            "src=\"http",
            "href=\"http",
            "url(",
        ] {
            assert!(!text.contains(forbidden), "{} has {forbidden}", file.path);
        }
    }
    assert!(gzip_bytes <= 60_000, "{gzip_bytes} bytes");
    println!("the dashboard has {gzip_bytes} bytes in gzip");
}

#[tokio::test(start_paused = true)]
async fn a_slow_client_gets_the_newest_picture_and_no_queue() {
    let (state, overview) = with_overview();
    overview.snapshots.send_replace(event("0"));
    let response = send(&state, (Method::GET, "/events"), &[]).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let mut stream = response.into_body();
    // The one that is there comes at once.
    assert_eq!(part(&mut stream).await.unwrap(), "event: cluster\ndata: 0\n\n");
    for number in 1..=1_000 {
        overview.snapshots.send_replace(event(&number.to_string()));
    }
    assert_eq!(part(&mut stream).await.unwrap(), "event: cluster\ndata: 1000\n\n");
    // While there is none, there are comments.
    let start = Instant::now();
    assert_eq!(part(&mut stream).await.unwrap(), ":\n\n");
    assert!(start.elapsed() >= KEEP_ALIVE);
    // The first one is not made yet, or nobody looked for a while.
    overview.snapshots.send_replace(Bytes::new());
    assert_eq!(part(&mut stream).await.unwrap(), ":\n\n");
    state.stop.cancel();
    assert_eq!(part(&mut stream).await, None);
}

#[tokio::test]
async fn event_streams_beyond_the_bound_are_refused_and_make_no_snapshots() {
    let (state, overview) = with_overview();
    let router = router(state);
    let open = async || {
        let request = Request::get("/events").body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        streams.push(open().await);
    }
    let refused = open().await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(overview.opened.load(Ordering::Relaxed), STREAMS_MAX);
    assert_eq!(overview.snapshots.receiver_count(), STREAMS_MAX);
    // Those that ended make room, and are no viewers any more.
    streams.pop();
    assert_eq!(overview.snapshots.receiver_count(), STREAMS_MAX - 1);
    assert_eq!(open().await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_key_is_looked_up_by_domain_and_entries() {
    let (state, _) = with_overview();
    let response = send(&state, (Method::GET, "/key?domain=edge&user=a%20b"), &[]).await;
    let report: KeyReport = serde_json::from_str(&body(response).await).unwrap();
    assert_eq!(report.replicas, ["edge", "user=a b"]);
    let response = send(&state, (Method::GET, "/key?domain=edge"), &[]).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(body(response).await.contains("use /key?domain=D&KEY=VALUE"));
}
