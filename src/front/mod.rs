//! The listeners: HTTP, gRPC, RESP and the proxy.
//!
//! Each parses the form of its protocol, checks the request against the [`bounds`], passes it to
//! [`Decide`](crate::decide::Decide) and renders the response. No listener decides anything.
//!
//! **Invariant:** a request that is refused for its form is never passed to `Decide`, so nothing is
//! counted for it (`tests/front`).

pub mod bounds;
pub mod client_addr;
pub mod cross_site;
pub mod framing;
pub mod gubernator;
pub mod http;
pub mod pages;
pub mod proxy;
pub mod proxy_protocol;
pub mod render;
pub mod resp;
pub mod rls;
pub mod serve;
pub mod socket;
pub mod stats;
pub mod tls;
pub mod traced;

mod address_bound;
mod connection;
mod lingering;
mod timeouts;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Health and metrics of the node, as listeners report them.
pub trait Probes: Send + Sync + 'static {
    /// Whether traffic may be sent here.
    ///
    /// # Errors
    ///
    /// Why not, in one line for people.
    fn ready(&self) -> Result<(), String>;

    /// The metrics in `OpenMetrics` text form.
    fn metrics(&self) -> String;
}

/// The output of `future`, or `None` when it takes longer than `limit`. Most futures are ready at
/// once and start no timer. It is pinned by the caller, because the state of an `async fn` has room
/// for an argument twice, and that of a decision is large.
async fn within<F: Future>(limit: Duration, mut future: Pin<&mut F>) -> Option<F::Output> {
    let first_poll = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    match first_poll {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(limit, future).await.ok(),
    }
}
