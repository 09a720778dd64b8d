//! The application behind a proxy: it responds and counts.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// A server that stops when it is dropped.
pub struct Upstream {
    pub addr: SocketAddr,
    served: Arc<AtomicU64>,
    _running: AbortOnDropHandle<()>,
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let served = Arc::<AtomicU64>::default();
        let count = served.clone();
        let running = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let count = count.clone();
                let service = service_fn(move |_: Request<Incoming>| {
                    count.fetch_add(1, Ordering::Relaxed);
                    async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("ok\n")))) }
                });
                let io = TokioIo::new(stream);
                connections.spawn(http1::Builder::new().serve_connection(io, service));
            }
        });
        Self { addr, served, _running: AbortOnDropHandle::new(running) }
    }

    /// Requests that reached it.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}
