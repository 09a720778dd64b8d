//! One key by hand: `POST /key/reset`, `/key/adjust`, `/key/block` and `/key/unblock`, each with a
//! line in the log (target `audit`).

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tidegate_limiter::units::Span;

use super::operate::Refusal;

/// The log target of orders.
pub const AUDIT: &str = "audit";

/// The node behind the orders about a key.
pub trait Keys: Send + Sync + 'static {
    /// Carries out an order at all nodes.
    ///
    /// # Errors
    ///
    /// No limit applies to the key, this node takes no orders, or no owner has confirmed it.
    fn order(&self, key: Key, order: KeyOrder) -> BoxFuture<'_, Result<KeyOrdered, Refusal>>;
}

/// A descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub domain: String,
    /// Outermost first.
    pub entries: Vec<(String, String)>,
}

/// What is to be done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// Its counters begin anew.
    Reset,
    /// So many hits are counted, also beyond the limit, or given back where it is negative.
    Adjust(i64),
    /// It is refused for so long, or until it is unblocked.
    Block(Option<Span>),
    Unblock,
}

impl KeyOrder {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Adjust(_) => "adjust",
            Self::Block(_) => "block",
            Self::Unblock => "unblock",
        }
    }
}

/// What became of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOrdered {
    /// `reset`, `adjust`, `block`, `unblock`.
    pub order: String,
    /// The other nodes that have confirmed it; of `adjust` none has to.
    pub confirmed: Vec<String>,
    /// Connected nodes that have not confirmed it within a second. They hear of it from others.
    pub missed: Vec<String>,
}
