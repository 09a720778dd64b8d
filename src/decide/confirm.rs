//! Waiting until a replica has what was counted: `durability: replicated`.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::store::KeyHash;

/// Knows whether replicas have the counts of this node.
pub trait Confirm: Debug + Send + Sync + 'static {
    /// Whether one replica has the counts of `keys` as they are now, or there is none to be had;
    /// false when that is not known within `deadline`.
    fn confirm<'a>(&'a self, keys: &'a [KeyHash], deadline: Duration) -> BoxFuture<'a, bool>;
}
