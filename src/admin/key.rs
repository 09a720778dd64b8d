//! One key by hand: `/key` shows it; `POST /key/reset`, `/key/adjust`, `/key/block` and
//! `/key/unblock` change it, each with one line in the log (target `audit`).

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tidegate_limiter::units::Span;

use super::operate::Refusal;
use super::report::OwnerReport;

/// The node behind `/key`.
pub trait Keys: Send + Sync + 'static {
    /// The limits of a key, as its owner has them.
    ///
    /// # Errors
    ///
    /// No limit applies to it.
    fn show(&self, key: Key) -> BoxFuture<'_, Result<KeyReport, Refusal>>;

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

/// The limits of a key. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReport {
    #[serde(flatten)]
    pub owner: OwnerReport,
    /// Whether the owner has said so; otherwise `on_unavailable` has.
    pub is_exact: bool,
    /// In the order of the rule.
    pub limits: Vec<KeyLimit>,
    /// How long ago it was begun anew by hand.
    pub begun_anew_ago_ms: Option<u64>,
    /// How much longer it is blocked by hand; `0` until it is unblocked.
    pub blocked_for_ms: Option<u64>,
}

/// One limit of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyLimit {
    /// Its name in responses.
    pub name: String,
    pub limit: u32,
    pub window_ms: u64,
    /// Hits that would pass now.
    pub remaining: u32,
    /// Until the whole limit is there again if no hit comes.
    pub reset_ms: u64,
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
