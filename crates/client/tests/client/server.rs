//! A server in this process.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// It stops when it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    served: Arc<AtomicU32>,
    _running: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start<F>(respond: F) -> Self
    where
        F: Fn(Request<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (respond, served) = (Arc::new(respond), Arc::<AtomicU32>::default());
        let count = served.clone();
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (respond, count) = (respond.clone(), count.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (respond, count) = (respond.clone(), count.clone());
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        count.fetch_add(1, Ordering::Relaxed);
                        let response = respond(Request::from_parts(head, body));
                        Ok::<_, Infallible>(response.map(Full::new))
                    }
                });
                let io = TokioIo::new(stream);
                connections.spawn(http1::Builder::new().serve_connection(io, service));
            }
        });
        Self { url, served, _running: running }
    }

    /// Requests that reached it.
    pub(crate) fn served(&self) -> u32 {
        self.served.load(Ordering::Relaxed)
    }
}
