//! The upper bound for gRPC: a handler for `ShouldRateLimit` that only returns OK.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tidegate::front::rls::SERVICE_NAME;
use tidegate::front::rls::message::{Code, RateLimitRequest, RateLimitResponse};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::processes::{self, Server};

/// The argument with which this program is the server.
pub const PART: &str = "part=empty-tonic";

/// Starts the server process and waits until it listens.
pub fn start(folder: &Path) -> io::Result<(Rc<Server>, SocketAddr)> {
    let addr = processes::free_tcp()?;
    let mut command = processes::command(std::env::current_exe()?);
    command.args([PART, &addr.to_string()]);
    let mut server = Server::start(&mut command, folder, "empty-tonic")?;
    server.wait_for(addr)?;
    Ok((Rc::new(server), addr))
}

/// Serves until it is killed.
pub fn serve() -> io::Result<()> {
    let addr = std::env::args().find_map(|argument| argument.parse::<SocketAddr>().ok());
    let addr = addr.ok_or_else(|| io::Error::other("no address to serve on"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let server = tonic::transport::Server::builder().add_service(Empty);
    runtime.block_on(server.serve(addr)).map_err(io::Error::other)
}

/// The service, as tonic's code generator would write it.
#[derive(Clone, Copy, Debug)]
struct Empty;

struct ShouldRateLimit;

// === impl Empty ===

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

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, _: Request<RateLimitRequest>) -> Self::Future {
        let overall_code = Code::Ok.into();
        ready(Ok(Response::new(RateLimitResponse { overall_code, ..Default::default() })))
    }
}
