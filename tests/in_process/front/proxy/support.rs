//! A proxy with a table of answers, and applications behind it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tidegate::config::Config;
use tidegate::config::load::{Inputs, assemble};
use tidegate::decide::LimitInFlight;
use tidegate::front::bounds::Bounds;
use tidegate::front::proxy::{
    AccessLog, Observers, ProxyListener, ServerTls, UpstreamStats, bounds, service,
};
use tidegate::front::serve::{Protocols, serve};
use tidegate::front::tls::Tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
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
    proxy_to(table, &urls(upstreams), more).await
}

pub(super) fn urls(upstreams: &[SocketAddr]) -> Vec<String> {
    upstreams.iter().map(|addr| format!("http://{addr}")).collect()
}

pub(super) async fn proxy_to<D: LimitInFlight>(
    table: &Arc<D>,
    servers: &[String],
    more: &str,
) -> Proxy {
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
    let parts = ProxyListener::new(
        &config,
        table.clone(),
        &bounds,
        config.proxy.in_flight_max,
        tls_to_servers,
        observers,
    );
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

type Answers = Arc<dyn Fn(&str) -> String + Send + Sync>;

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
        let answers: VecDeque<String> = answers.iter().map(ToString::to_string).collect();
        let answers = Mutex::new(answers);
        Self::with(move |_| answers.lock().pop_front().unwrap_or_default()).await
    }

    /// Answers what has come on a connection by the time that there is a head.
    pub(super) async fn with(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let received = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let answers: Answers = Arc::new(answer);
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
                tasks.spawn(respond(stream, index, seen.clone(), answers.clone()));
            }
        });
        Self { addr, received, _running: AbortOnDropHandle::new(running) }
    }

    /// Everything that was received, as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.received.lock().concat()).into_owned()
    }
}

async fn respond(
    mut stream: TcpStream,
    index: usize,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    answers: Answers,
) {
    let mut answered = 0;
    loop {
        let text = String::from_utf8_lossy(&received.lock()[index]).into_owned();
        let heads = text.matches("\r\n\r\n").count();
        if heads > answered {
            answered += 1;
            let answer = answers(&text);
            if answer.is_empty() {
                return;
            }
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

/// A body whose parts are sent through a channel.
pub(super) fn channel()
-> (mpsc::Sender<Frame<Bytes>>, impl hyper::body::Body<Data = Bytes, Error = BoxError>) {
    let (sender, receiver) = mpsc::channel::<Frame<Bytes>>(1);
    let parts = futures_util::stream::unfold(receiver, |mut receiver| async {
        let frame = receiver.recv().await?;
        Some((Ok::<_, BoxError>(frame), receiver))
    });
    (sender, StreamBody::new(parts.boxed()))
}

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

// === frames of HTTP/2 ===

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
/// A flag of `DATA` and `HEADERS`.
pub(super) const END_STREAM: u8 = 1;
/// A flag of `HEADERS`.
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame of settings, all of them the usual ones.
pub(super) const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// A frame of the first stream.
pub(super) fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("a short payload");
    [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
}

/// Reads frames until there is one of this kind, or the stream ends.
pub(super) async fn until_frame(stream: &mut TcpStream, kind: u8) -> std::io::Result<()> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, read, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await?;
        if read == kind {
            return Ok(());
        }
    }
}

/// A server that answers the first request of each connection with bytes, and lets the connection
/// go on or not.
pub(super) async fn byte_server(
    is_http2: bool,
    answer: Vec<u8>,
    goes_on: bool,
) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let running = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let answer = answer.clone();
            tasks.spawn(async move {
                if is_http2 {
                    stream.read_exact(&mut [0; PREFACE.len()]).await?;
                    stream.write_all(SETTINGS).await?;
                    until_frame(&mut stream, HEADERS).await?;
                } else {
                    read_until(&mut stream, "\r\n\r\n").await;
                }
                stream.write_all(&answer).await?;
                if goes_on {
                    stream.read_to_end(&mut Vec::new()).await?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    (addr, AbortOnDropHandle::new(running))
}
