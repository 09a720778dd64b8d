//! The front doors: where requests come in and verdicts are put in words.
//!
//! Each door reads its protocol's own form, checks it against the [`bounds`], asks the one
//! [`Decide`](crate::decide::Decide) and renders the answer. No door decides anything.
//!
//! **Invariant:** a request that is refused for its form is never passed to `Decide`, so nothing is
//! counted for it (`tests/front`).

pub mod bounds;
pub mod client_addr;
pub mod http;
pub mod render;
pub mod resp;
pub mod rls;
pub mod serve;
pub mod tls;

mod connection;
mod timeouts;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// What a door tells about the node behind it.
pub trait Probes: Send + Sync + 'static {
    /// Whether traffic may be sent here; otherwise why not, in one line for people.
    fn ready(&self) -> Result<(), String>;

    /// The metrics in `OpenMetrics` text form.
    fn metrics(&self) -> String;
}

/// The output of `future`, unless it takes longer than `limit`. Most are ready at once, and those
/// need neither a timer nor to know the time.
async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let at_once = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    match at_once {
        Poll::Ready(output) => Some(output),
        Poll::Pending => tokio::time::timeout(limit, future).await.ok(),
    }
}
