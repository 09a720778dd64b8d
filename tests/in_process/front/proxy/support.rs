//! A proxy with a table of answers, and applications behind it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tidegate::config::Config;
use tidegate::config::load::{Inputs, assemble};
use tidegate::front::bounds::Bounds;
use tidegate::front::proxy::{
    AccessLog, Observers, ProxyListener, ServerTls, UpstreamStats, bounds, service,
};
use tidegate::front::serve::{Protocols, serve};
use tidegate::front::tls::Tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::BoxError;

use super::super::support::{Listener, Table, in_time};

// === the proxy ===

/// A running proxy, with `more` keys of `[proxy]` and further sections.
pub(super) struct Proxy {
    pub(super) listener: Listener,
    pub(super) upstreams: Arc<UpstreamStats>,
}

fn config(servers: &[String], more: &str) -> Config {
    let servers: Vec<String> = servers.iter().map(|url| format!("\"{url}\"")).collect();
    let servers = servers.join(", ");
    let text = format!("[proxy]\nlisten = \"127.0.0.1:0\"\nupstream = [{servers}]\n{more}");
    let inputs = Inputs { file: Some((Path::new("c.toml"), &text)), ..Inputs::default() };
    assemble(&inputs).expect("a valid configuration").0
}

/// The domain of the table that answers, in `[auth]` with one descriptor.
pub(super) fn domain(domain: &str) -> String {
    format!(
        "[auth]\ndomain = \"{domain}\"\n[[auth.descriptors]]\nentries = [{{ key = \"a\", value = \"b\" }}]\n"
    )
}

pub(super) async fn proxy(table: &Arc<Table>, upstreams: &[SocketAddr], more: &str) -> Proxy {
    let servers: Vec<String> = upstreams.iter().map(|addr| format!("http://{addr}")).collect();
    proxy_to(table, &servers, more).await
}

pub(super) async fn proxy_to(table: &Arc<Table>, servers: &[String], more: &str) -> Proxy {
    let config = config(servers, more);
    let usual = Bounds::from(&config);
    let bounds = bounds(&Bounds { request_timeout: Duration::from_millis(500), ..usual });
    let observers = Observers {
        access_log: config.proxy.access_log.as_deref().map(|path| {
            AccessLog::open(path, tidegate::node::system_environment().0.clock).expect("a log")
        }),
        ..Observers::default()
    };
    let (stats, upstreams) = (observers.listener.clone(), observers.upstreams.clone());
    let tls_to_servers = ServerTls::of(&config.proxy).expect("valid authorities");
    let parts = ProxyListener::new(&config, table.clone(), &bounds, tls_to_servers, observers);
    let maintenance = parts.maintenance();
    let (tls, reloader) = Tls::of(config.proxy.tls()).expect("valid files").unzip();
    let announcers = config.proxy.proxy_protocol_from.clone().into();
    let protocols = Protocols::Proxy { tls, announcers };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let drain = CancellationToken::new();
    let served = {
        let (stats, drain) = (stats.clone(), drain.clone());
        tokio::spawn(async move {
            let checks = drain.run_until_cancelled(maintenance);
            let serving = serve(listener, service(parts), protocols, &bounds, stats, drain.clone());
            let reloading = async {
                if let Some(reloader) = reloader {
                    reloader.run(drain.clone()).await;
                }
            };
            tokio::join!(serving, checks, reloading);
        })
    };
    Proxy { listener: Listener { addr, stats, drain, served }, upstreams }
}

impl Proxy {
    pub(super) fn addr(&self) -> SocketAddr {
        self.listener.addr
    }
}

// === an application on hyper ===

pub(super) type AppBody = UnsyncBoxBody<Bytes, BoxError>;

/// An HTTP server, of either version, that stops when it is dropped.
pub(super) struct App {
    pub(super) addr: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
    _running: AbortOnDropHandle<()>,
}

pub(super) async fn app<F, Fut>(respond: F) -> App
where
    F: Fn(Request<Incoming>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response<AppBody>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let connections = Arc::<AtomicUsize>::default();
    let count = connections.clone();
    let running = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            count.fetch_add(1, Ordering::Relaxed);
            let respond = respond.clone();
            tasks.spawn(async move {
                let respond = hyper::service::service_fn(move |request| {
                    let response = respond(request);
                    async move { Ok::<_, Infallible>(response.await) }
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), respond).await;
            });
        }
    });
    App { addr, connections, _running: AbortOnDropHandle::new(running) }
}

pub(super) fn whole(bytes: impl Into<Bytes>) -> AppBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn ok(bytes: impl Into<Bytes>) -> Response<AppBody> {
    Response::new(whole(bytes))
}

// === an application on a socket ===

/// A server that reads one head and answers it with bytes, again and again, on each connection. It
/// keeps what it has read.
pub(super) struct RawApp {
    pub(super) addr: SocketAddr,
    /// All bytes of each connection.
    pub(super) received: Arc<Mutex<Vec<Vec<u8>>>>,
    _running: AbortOnDropHandle<()>,
}

impl RawApp {
    /// Gives `answers` in turn, one for each head; closes a connection that has none left, and
    /// those whose answer is empty.
    pub(super) async fn start(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let received = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let answers: VecDeque<String> = answers.iter().map(ToString::to_string).collect();
        let answers = Arc::new(Mutex::new(answers));
        let seen = received.clone();
        let running = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let index = {
                    let mut seen = seen.lock();
                    seen.push(Vec::new());
                    seen.len() - 1
                };
                tasks.spawn(answer(stream, index, seen.clone(), answers.clone()));
            }
        });
        Self { addr, received, _running: AbortOnDropHandle::new(running) }
    }

    /// Everything that was received, as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.received.lock().concat()).into_owned()
    }
}

async fn answer(
    mut stream: TcpStream,
    index: usize,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    answers: Arc<Mutex<VecDeque<String>>>,
) {
    let mut answered = 0;
    loop {
        let heads = {
            let text = String::from_utf8_lossy(&received.lock()[index]).into_owned();
            text.matches("\r\n\r\n").count()
        };
        if heads > answered {
            answered += 1;
            let Some(answer) = answers.lock().pop_front().filter(|answer| !answer.is_empty())
            else {
                return;
            };
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(n) => received.lock()[index].extend_from_slice(&bytes[..n]),
        }
    }
}

pub(super) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

// === clients ===

/// A connection of HTTP/2 to the proxy.
pub(super) async fn http2<B>(addr: SocketAddr) -> SendRequest<B>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(addr).await.expect("a connection");
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("a handshake");
    tokio::spawn(async move { drop(connection.await) });
    sender
}

/// Reads from `stream` until what has arrived contains `end`.
pub(super) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if text.contains(end) {
                return text;
            }
            let read = stream.read_buf(&mut bytes).await.expect("bytes");
            assert_ne!(read, 0, "closed after {text:?}");
        }
    };
    in_time(end, reading).await
}
