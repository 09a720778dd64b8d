//! Traces of real nodes, as a receiver of OTLP gets them.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use parking_lot::Mutex;
use prost::Message;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_proto::rls::SHOULD_RATE_LIMIT;
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::ports;
use tidegate_testkit::process::{Cluster, ClusterOptions, Process, THREE};
use tidegate_testkit::site::{Authority, Issued};
use tidegate_testkit::wait::until;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Endpoint, ServerTlsConfig};
use tonic_prost::ProstCodec;

use crate::TIDEGATE;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: few, rate_limit: {unit: day, requests_per_unit: 5}}
";

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

const SENT: &str = "tidegate_trace_spans_total{outcome=\"sent\"}";

/// The time in which spans that were recorded arrive.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_leads_from_the_node_that_was_asked_to_the_owner() {
    let receiver = Receiver::start_http().await;
    let endpoint = format!("traces.endpoint=http://{}", receiver.addr);
    let sets = &[&*endpoint, "traces.sampling_rate=0", "cluster.deadline=1000ms"];
    let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let users = cluster.owned("shop", "user", "secret", "n2", 6).await;
    let asked = cluster.nodes[0].http;
    let check = async |user: &str, headers: &[(&str, &str)]| {
        let body = check_body("shop", "user", user).to_string();
        let reply = cluster.http.send(Method::POST, asked, "/v1/check", headers, body).await;
        assert_eq!(reply.unwrap().status, 200);
    };

    // Nothing is recorded of those: no trace, one that its sender does not record, in each form.
    check(&users[0], &[]).await;
    check(&users[0], &[("traceparent", &format!("00-{TRACE}-{PARENT}-00"))]).await;
    check(&users[0], &[("b3", &format!("{TRACE}-{PARENT}-0"))]).await;
    check(&users[0], &[("b3", "0")]).await;
    check(&users[0], &[("x-b3-traceid", TRACE), ("x-b3-spanid", PARENT), ("x-b3-sampled", "0")])
        .await;

    let trace = |number: usize| format!("{number}{}", &TRACE[1..]);
    let parent = format!("00-{}-{PARENT}-01", trace(1));
    check(&users[1], &[("traceparent", &parent), ("tracestate", "vendor=1")]).await;
    check(&users[2], &[("b3", &format!("{}-{PARENT}-1", trace(2)))]).await;
    let third = trace(3);
    let parts = [("x-b3-traceid", &*third), ("x-b3-spanid", PARENT), ("x-b3-sampled", "1")];
    check(&users[3], &parts).await;
    grpc_check(cluster.nodes[0].grpc, &users[4], &format!("00-{}-{PARENT}-01", trace(4))).await;

    for (number, name) in [
        (1, "POST /v1/check"),
        (2, "POST /v1/check"),
        (3, "POST /v1/check"),
        (4, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
    ] {
        let [request, forward, decide] =
            receiver.trace(&trace(number), 3).await.try_into().unwrap();
        let state = if number == 1 { "vendor=1" } else { "" };
        for recorded in [&request, &forward, &decide] {
            assert_eq!(recorded.span.trace_state, state);
            assert!(recorded.span.start_time_unix_nano <= recorded.span.end_time_unix_nano);
        }
        assert_eq!(request.span.name, name);
        assert_eq!(hex(&request.span.parent_span_id), PARENT);
        assert_eq!((request.node(), request.kind()), ("n1", SpanKind::Server));
        for (key, value) in [
            ("tidegate.domain", "shop"),
            ("tidegate.rule", "shop.user"),
            ("tidegate.verdict", "allowed"),
            ("tidegate.mode", "strict"),
            ("tidegate.source", "owner"),
        ] {
            assert_eq!(request.text(key), value, "{key}");
        }
        assert_eq!(forward.span.name, "forward");
        assert_eq!(forward.span.parent_span_id, request.span.span_id);
        assert_eq!((forward.node(), forward.kind()), ("n1", SpanKind::Client));
        assert_eq!(forward.text("tidegate.owner"), "n2");
        assert_eq!(decide.span.name, "decide");
        assert_eq!(decide.span.parent_span_id, forward.span.span_id);
        assert_eq!((decide.node(), decide.kind()), ("n2", SpanKind::Server));
        assert_eq!(decide.text("tidegate.asker"), "n1");
        assert_eq!(decide.text("tidegate.verdict"), "allowed");
    }
    let all = receiver.recorded();
    assert_eq!(all.len(), 12, "of the others nothing was sent: {all:#?}");
    assert!(!format!("{all:?}").contains("secret"), "no value of a descriptor: {all:#?}");
    // Those of the owner are sent by the owner.
    let counted = async || match cluster.nodes[0].metric(SENT).await {
        8 => Ok(()),
        count => Err(format!("{count} sent")),
    };
    until("what was sent is counted", SOON, counted).await;
}

/// Checks of one key leave together; each still has its own trace to the owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_that_leave_together_have_a_trace_each() {
    const CHECKS: usize = 48;
    let receiver = Receiver::start_http().await;
    let endpoint = format!("traces.endpoint=http://{}", receiver.addr);
    let sets = &[&*endpoint, "traces.sampling_rate=1", "cluster.deadline=1000ms"];
    let options = ClusterOptions { nodes: THREE, rules: RULES, sets, ..ClusterOptions::default() };
    let cluster = Cluster::start(TIDEGATE, options).await;
    let user = &cluster.owned("shop", "user", "hot", "n2", 1).await[0];
    let body = check_body("shop", "user", user);
    let checks = (0..CHECKS).map(|_| cluster.http.check(cluster.nodes[0].http, &body));
    for reply in futures_util::future::join_all(checks).await {
        assert_eq!(reply.unwrap().status, 200);
    }
    let of = |spans: &[Recorded], name: &str| -> Vec<Recorded> {
        spans.iter().filter(|it| it.span.name == name).cloned().collect()
    };
    let condition = async || {
        let spans = receiver.recorded();
        let counts = [of(&spans, "POST /v1/check").len(), of(&spans, "forward").len()];
        if counts == [CHECKS, CHECKS] { Ok(spans) } else { Err(format!("{counts:?}")) }
    };
    let (spans, _) = until("all spans of n1 arrive", SOON, condition).await;
    for forward in of(&spans, "forward") {
        let requests = of(&spans, "POST /v1/check");
        let parent = requests.iter().find(|it| it.span.span_id == forward.span.parent_span_id);
        assert_eq!(parent.unwrap().span.trace_id, forward.span.trace_id);
    }
    // Those of n2 come with their own message.
    let condition = async || match of(&receiver.recorded(), "decide") {
        decides if decides.len() >= CHECKS / 3 => Ok(decides),
        decides => Err(format!("{} of {CHECKS}", decides.len())),
    };
    let (decides, _) = until("spans of n2 arrive", SOON, condition).await;
    println!("{CHECKS} checks: {} have a span of the owner", decides.len());
    for decide in decides {
        let forwards = of(&spans, "forward");
        let parent = forwards.iter().find(|it| it.span.span_id == decide.span.parent_span_id);
        assert_eq!(parent.unwrap().span.trace_id, decide.span.trace_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_behind_the_proxy_goes_on_with_the_trace() {
    let receiver = Receiver::start_http().await;
    let application = Application::start().await;
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    fs::write(&rules, RULES.replace("shop", "http")).unwrap();
    let addr = ports::free();
    let mut command = Command::new(TIDEGATE);
    command.env_clear().arg("proxy").args(["--upstream", &format!("http://{}", application.addr)]);
    command.arg("--rules").arg(&rules).args(["--listen", &addr.to_string()]);
    command.args(["--set", &format!("traces.endpoint=http://{}", receiver.addr)]);
    command.args(["--set", "traces.sampling_rate=0"]);
    let mut process = Process::spawn("proxy", &mut command, &dir.path().join("log"));
    let client = Http::new();
    let first = async || {
        if let Some(status) = process.exit() {
            panic!("it ended with {status}\n{}", process.tail());
        }
        client.get(addr, "/").await
    };
    until("it answers", SOON, first).await;
    let get = async |headers: &[(&str, &str)]| {
        client.send(Method::GET, addr, "/private/path", headers, "").await.unwrap();
        application.received.lock().pop().unwrap()
    };

    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    let passed = get(&[("traceparent", &unsampled), ("tracestate", "a=1")]).await;
    assert_eq!(passed.get("traceparent").unwrap(), &unsampled, "passed on as it came");

    let b3 = format!("{TRACE}-{PARENT}-1");
    let passed = get(&[("b3", &b3)]).await;
    process.terminate();
    assert_eq!(process.ended(SOON).await.code(), Some(0), "{}", process.tail());
    // The node has ended: what it had recorded was sent before.
    let [recorded] = receiver.recorded().try_into().unwrap();
    let own = hex(&recorded.span.span_id);
    assert_eq!(hex(&recorded.span.parent_span_id), PARENT);
    assert_eq!(passed.get("b3").unwrap(), &format!("{TRACE}-{own}-1"));
    assert_eq!(passed.get("traceparent").unwrap(), &format!("00-{TRACE}-{own}-01"));
    assert_eq!(recorded.span.name, "GET");
    assert!(!format!("{recorded:?}").contains("private"), "{recorded:?}");
}

/// Nobody listens, and somebody listens who never answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_gone_changes_no_verdict() {
    const CHECKS: usize = 3_000;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (addr, outcome) in [(ports::free(), "failed"), (silent.local_addr().unwrap(), "dropped")] {
        let endpoint = format!("traces.endpoint=http://{addr}");
        let sets = &[&*endpoint, "traces.sampling_rate=1"];
        let nodes = &["alone"];
        let options = ClusterOptions { nodes, rules: RULES, sets, ..ClusterOptions::default() };
        let mut cluster = Cluster::start(TIDEGATE, options).await;
        assert_eq!(cluster.admitted(&[0], "shop", "few", "x", CHECKS).await, 5);
        let sample = format!("tidegate_trace_spans_total{{outcome=\"{outcome}\"}}");
        let counted = async || match cluster.nodes[0].metric(&sample).await {
            0 => Err("none".to_owned()),
            count => Ok(count),
        };
        let (count, _) = until(outcome, SOON, counted).await;
        println!("of {CHECKS} spans {count} {outcome}");
        let logged = cluster.nodes[0].log().matches("does not take spans").count();
        assert!(logged <= 1, "{logged} lines");
        cluster.nodes[0].terminate();
        assert_eq!(cluster.nodes[0].exit_code(SOON).await, Some(0));
    }
}

/// Over HTTP and gRPC. Of a receiver whose certificate is of another authority, or for another
/// name, nothing is sent to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_go_to_the_receiver_that_the_authority_vouches_for_alone() {
    let (authority, other) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    for (name, authority) in [("ca", &authority), ("other", &other)] {
        fs::write(dir.path().join(name), &authority.pem).unwrap();
    }
    for protocol in ["http", "grpc"] {
        for (server, trusted, arrives) in [
            (authority.issue("127.0.0.1"), Some("ca"), true),
            (authority.issue("127.0.0.1"), Some("other"), false),
            (authority.issue("collector.test"), Some("ca"), false),
            // Those of the system.
            (authority.issue("127.0.0.1"), None, false),
        ] {
            let receiver = match protocol {
                "http" => Receiver::start_https(&server).await,
                _ => Receiver::start_grpcs(&server).await,
            };
            let ca =
                trusted.map(|name| format!("traces.tls_ca={}", dir.path().join(name).display()));
            let endpoint = format!("traces.endpoint=https://{}", receiver.addr);
            let protocol = format!("traces.protocol={protocol}");
            let mut sets = vec![&*endpoint, &*protocol, "traces.sampling_rate=1"];
            sets.extend(ca.as_deref());
            let options = ClusterOptions {
                nodes: &["alone"],
                rules: RULES,
                sets: &sets,
                ..Default::default()
            };
            let cluster = Cluster::start(TIDEGATE, options).await;
            assert_eq!(cluster.admitted(&[0], "shop", "few", "x", 6).await, 5);

            let outcome = if arrives { "sent" } else { "failed" };
            let sample = format!("tidegate_trace_spans_total{{outcome=\"{outcome}\"}}");
            let counted = async || match cluster.nodes[0].metric(&sample).await {
                6 => Ok(()),
                count => Err(format!("{count}, {}", cluster.nodes[0].log())),
            };
            let case = format!("{protocol}, tls_ca {trusted:?}: all spans {outcome}");
            until(&case, SOON, counted).await;
            assert_eq!(receiver.recorded().len(), if arrives { 6 } else { 0 }, "{case}");
            if !arrives {
                cluster.nodes[0].logged("invalid peer certificate", 1).await;
            }
        }
    }
}

async fn grpc_check(addr: SocketAddr, user: &str, parent: &str) {
    let entries = vec![Entry { key: "user".to_owned(), value: user.to_owned() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let message = RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 1 };
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let channel = Endpoint::try_from(format!("http://{addr}")).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
    client.unary(request, path, codec).await.unwrap();
}

// === a receiver ===

/// A receiver of OTLP.
pub(crate) struct Receiver {
    pub(crate) addr: SocketAddr,
    received: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    _running: AbortOnDropHandle<()>,
}

/// A span, and what its node says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) resource: Vec<KeyValue>,
    pub(crate) span: Span,
}

impl Receiver {
    pub(crate) async fn start_http() -> Self {
        Self::start_http_over(None).await
    }

    async fn start_https(server: &Issued) -> Self {
        let chain = vec![CertificateDer::from_pem_slice(server.pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Self::start_http_over(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start_http_over(tls: Option<TlsAcceptor>) -> Self {
        let received = Arc::<Mutex<Vec<ExportTraceServiceRequest>>>::default();
        let kept = received.clone();
        let (addr, running) = serve(tls, move |request| {
            let kept = kept.clone();
            async move {
                assert_eq!(request.uri().path(), "/v1/traces");
                assert_eq!(request.headers()["content-type"], "application/x-protobuf");
                let body = request.into_body().collect().await.unwrap().to_bytes();
                kept.lock().push(ExportTraceServiceRequest::decode(body).unwrap());
            }
        })
        .await;
        Self { addr, received, _running: running }
    }

    pub(crate) async fn start_grpc() -> Self {
        Self::start_grpc_over(tonic::transport::Server::builder()).await
    }

    async fn start_grpcs(server: &Issued) -> Self {
        let identity = tonic::transport::Identity::from_pem(&server.pem, &server.key);
        let tls = ServerTlsConfig::new().identity(identity);
        let server = tonic::transport::Server::builder().tls_config(tls).unwrap();
        Self::start_grpc_over(server).await
    }

    async fn start_grpc_over(mut server: tonic::transport::Server) -> Self {
        let received = Arc::<Mutex<Vec<ExportTraceServiceRequest>>>::default();
        let addr = ports::free();
        let service = TraceServiceServer::new(Grpc(received.clone()));
        let server = server.add_service(service);
        let running = tokio::spawn(async move { server.serve(addr).await.unwrap() });
        let listens = async || TcpStream::connect(addr).await.map_err(|error| error.to_string());
        until("the receiver listens", SOON, listens).await;
        Self { addr, received, _running: AbortOnDropHandle::new(running) }
    }

    /// All spans that have come.
    pub(crate) fn recorded(&self) -> Vec<Recorded> {
        let received = self.received.lock();
        let resources = received.iter().flat_map(|request| &request.resource_spans);
        let spans = resources.flat_map(|resource| {
            let scopes = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            scopes.map(|span| Recorded { resource: attributes.clone(), span: span.clone() })
        });
        spans.collect()
    }

    /// The spans of one trace, parents first, once there are so many.
    async fn trace(&self, id: &str, count: usize) -> Vec<Recorded> {
        let condition = async || {
            let mut spans = self.recorded();
            spans.retain(|it| hex(&it.span.trace_id) == id);
            if spans.len() == count { Ok(spans) } else { Err(format!("{spans:#?}")) }
        };
        let (mut spans, _) = until(&format!("{count} spans of {id}"), SOON, condition).await;
        let depth = |span: &Recorded, spans: &[Recorded]| {
            let mut parent = &span.span.parent_span_id;
            let mut depth = 0;
            while let Some(above) = spans.iter().find(|it| it.span.span_id == *parent) {
                (parent, depth) = (&above.span.parent_span_id, depth + 1);
            }
            depth
        };
        let unsorted = spans.clone();
        spans.sort_by_key(|span| depth(span, &unsorted));
        spans
    }
}

struct Grpc(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.lock().push(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Recorded {
    fn node(&self) -> &str {
        text_of(&self.resource, "tidegate.node")
    }

    fn text(&self, key: &str) -> &str {
        text_of(&self.span.attributes, key)
    }

    fn kind(&self) -> SpanKind {
        self.span.kind()
    }
}

pub(crate) fn text_of<'a>(attributes: &'a [KeyValue], key: &str) -> &'a str {
    let attribute = attributes.iter().find(|attribute| attribute.key == key);
    let value = attribute.unwrap_or_else(|| panic!("no {key} in {attributes:?}")).value.as_ref();
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
}

/// An application that keeps the headers of requests.
struct Application {
    addr: SocketAddr,
    received: Arc<Mutex<Vec<HeaderMap>>>,
    _running: AbortOnDropHandle<()>,
}

impl Application {
    async fn start() -> Self {
        let received = Arc::<Mutex<Vec<HeaderMap>>>::default();
        let kept = received.clone();
        let (addr, running) = serve(None, move |request| {
            kept.lock().push(request.headers().clone());
            async {}
        })
        .await;
        Self { addr, received, _running: running }
    }
}

/// Answers every request with 200, after `take`.
async fn serve<F: Future<Output = ()> + Send + 'static>(
    tls: Option<TlsAcceptor>,
    take: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let running = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let take = take.clone();
            let service = service_fn(move |request| {
                let taken = take(request);
                async move {
                    taken.await;
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                }
            });
            let tls = tls.clone();
            connections.spawn(async move {
                let http = http1::Builder::new();
                // What a client does not complete is the client's affair.
                let _ = match tls {
                    None => http.serve_connection(TokioIo::new(stream), service).await,
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
                        Err(_) => return,
                    },
                };
            });
        }
    });
    (addr, AbortOnDropHandle::new(running))
}
