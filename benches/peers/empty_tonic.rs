//! What gRPC alone costs: `ShouldRateLimit` on stock tonic, with a handler that answers `OK` and
//! does nothing else. `cargo bench --bench empty_tonic -- 127.0.0.1:8081` serves until its standard
//! input ends.
//!
//! Server, runtime, codec and messages are what a program would have that tonic's code generator
//! wrote. A limiter that is asked the same way can come near its rate and not beyond it, unless it
//! does without parts of tonic.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate::front::rls::SERVICE_NAME;
use tidegate::front::rls::message::{Code, RateLimitRequest, RateLimitResponse};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The service; each call of it is answered the same.
#[derive(Clone, Copy, Debug)]
struct Empty;

/// Its one method.
struct ShouldRateLimit;

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, _: Request<RateLimitRequest>) -> Self::Future {
        let overall_code = Code::Ok.into();
        ready(Ok(Response::new(RateLimitResponse { overall_code, ..Default::default() })))
    }
}

impl NamedService for Empty {
    const NAME: &'static str = SERVICE_NAME;
}

impl tower::Service<http::Request<tonic::body::Body>> for Empty {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.unary(ShouldRateLimit, request).await)
        })
    }
}

fn main() -> io::Result<()> {
    // Cargo adds flags of its own.
    let Some(addr) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) else {
        println!("empty_tonic: give an address to serve on, 127.0.0.1:8081 say");
        return Ok(());
    };
    let addr: SocketAddr = addr.parse().map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let server = tonic::transport::Server::builder().add_service(Empty);
    runtime.block_on(async move {
        let ended = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
        tokio::select! {
            served = server.serve(addr) => served.map_err(io::Error::other),
            _ = ended => Ok(()),
        }
    })
}
