//! A management server whose responses the test writes: streams are handed over as they are opened.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Stream as ResponseStream, stream};
use tidegate_proto::xds::{DiscoveryRequest, DiscoveryResponse, STREAM_AGGREGATED_RESOURCES};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::wait::in_time;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A running server.
pub struct Server {
    pub addr: SocketAddr,
    streams: mpsc::UnboundedReceiver<Stream>,
    serving: JoinHandle<()>,
}

/// A stream that a client opened. Dropped, it ends without an error.
pub struct Stream {
    /// Headers of the call.
    pub metadata: MetadataMap,
    requests: Streaming<DiscoveryRequest>,
    responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
}

impl Server {
    /// A server on a port of its own.
    pub async fn start() -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap(), None).await
    }

    /// A server at `addr`, with TLS if there is any.
    pub async fn start_on(addr: SocketAddr, tls: Option<ServerTlsConfig>) -> Self {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (opened, streams) = mpsc::unbounded_channel();
        let mut builder = tonic::transport::Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        let serving = builder
            .add_service(Discovery { opened })
            .serve_with_incoming(TcpIncoming::from(listener));
        let serving = tokio::spawn(async move { serving.await.unwrap() });
        Self { addr, streams, serving }
    }

    /// The next stream that a client opens.
    pub async fn accept(&mut self) -> Stream {
        in_time("a client opens a stream", self.streams.recv()).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Stream {
    /// The next request.
    pub async fn request(&mut self) -> DiscoveryRequest {
        in_time("the client sends a request", self.requests.message()).await.unwrap().unwrap()
    }

    /// Sends a response.
    pub async fn send(&self, response: DiscoveryResponse) {
        self.responses.send(Ok(response)).await.unwrap();
    }

    /// Sends a response and waits for the client's ACK or NACK.
    pub async fn exchange(&mut self, response: DiscoveryResponse) -> DiscoveryRequest {
        self.send(response).await;
        self.request().await
    }

    /// Ends the stream with an error.
    pub async fn break_off(self) {
        self.responses.send(Err(Status::unavailable("restarting"))).await.unwrap();
    }
}

// === the service ===

#[derive(Clone)]
struct Discovery {
    opened: mpsc::UnboundedSender<Stream>,
}

impl StreamingService<DiscoveryRequest> for Discovery {
    type Response = DiscoveryResponse;
    type ResponseStream =
        Pin<Box<dyn ResponseStream<Item = Result<DiscoveryResponse, Status>> + Send>>;
    type Future = BoxFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let (responses, outgoing) = mpsc::channel(1);
        let metadata = request.metadata().clone();
        let stream = Stream { metadata, requests: request.into_inner(), responses };
        // A finished test accepts no more streams.
        let _ = self.opened.send(stream);
        let outgoing = stream::unfold(outgoing, async |mut outgoing| {
            outgoing.recv().await.map(|response| (response, outgoing))
        });
        Box::pin(async move { Ok(Response::new(Box::pin(outgoing) as Self::ResponseStream)) })
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for Discovery {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            assert_eq!(request.uri().path(), STREAM_AGGREGATED_RESOURCES);
            Ok(Grpc::new(ProstCodec::default()).streaming(service, request).await)
        })
    }
}

impl NamedService for Discovery {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}
