//! Rules from a management server: the client against one in this process, a whole node against one,
//! and a whole node against one in another language.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod follow;
mod node;
mod published_protos;
mod resources;
mod server;
mod serving;
mod tls;

use std::time::Duration;

/// Far longer than anything takes: it ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits, but not for ever.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, future).await else {
        panic!("{what}: not within {PATIENCE:?}");
    };
    value
}
