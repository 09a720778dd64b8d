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

/// What an order is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A descriptor that a rule limits; its entries with the outermost first.
    Descriptor { domain: String, entries: Vec<(String, String)> },
    /// A key whose requests carry their limit.
    Carried(CarriedKey),
}

/// The name and the key of requests that carry their limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarriedKey {
    pub name: String,
    pub unique_key: String,
    /// Which of its counters. What holds for all of them needs none.
    pub limit: Option<CarriedLimit>,
}

/// What tells the counters of one such key apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedLimit {
    pub limit: u32,
    pub period: Period,
    /// `LEAKY_BUCKET`.
    pub is_bucket: bool,
    /// Size of a bucket; 0 is the limit.
    pub burst: u32,
}

/// Over which time a limit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// At least a millisecond.
    Span(Span),
    /// An interval of the calendar, by its place in [`INTERVALS`].
    Calendar(u8),
}

/// The intervals of the calendar, in the order of Gubernator's numbers.
pub const INTERVALS: [&str; 6] = ["minute", "hour", "day", "week", "month", "year"];

impl CarriedKey {
    /// Reads the pairs of a query; none of them may be another.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn of_query(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut key = Self::default();
        let (mut limit, mut period, mut is_bucket, mut burst) = (None, None, false, 0);
        for (field, value) in pairs {
            let wrong = || format!("{field}={value} is not understood");
            match &**field {
                "name" => key.name.clone_from(value),
                "unique_key" => key.unique_key.clone_from(value),
                "limit" => limit = Some(value.parse().map_err(|_| wrong())?),
                "burst" => burst = value.parse().map_err(|_| wrong())?,
                "duration" => {
                    let span = value.parse().ok().filter(|span| *span >= Span::from_millis(1));
                    period = Some(Period::Span(span.ok_or_else(wrong)?));
                }
                "calendar" => {
                    let kind = (0..).zip(INTERVALS).find(|(_, name)| name == value);
                    period = Some(Period::Calendar(kind.ok_or_else(wrong)?.0));
                }
                "algorithm" => {
                    is_bucket = match &**value {
                        "TOKEN_BUCKET" => false,
                        "LEAKY_BUCKET" => true,
                        _ => return Err(wrong()),
                    }
                }
                _ => return Err(wrong()),
            }
        }
        if key.name.is_empty() || key.unique_key.is_empty() {
            return Err("a name and a unique_key are required".to_owned());
        }
        key.limit = match (limit, period) {
            (Some(limit), Some(period)) => Some(CarriedLimit { limit, period, is_bucket, burst }),
            (None, None) => None,
            _ => return Err("a limit goes with a duration, or an interval of the calendar".into()),
        };
        Ok(key)
    }
}

/// What is to be done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// Its counters begin anew.
    Reset,
    /// So many hits are counted, or given back where it is negative; to a descriptor also beyond
    /// the limit.
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
    /// Of `adjust`, which the owner carries out, it names none.
    #[serde(flatten)]
    pub reached: Reached,
    /// Hits that were given back, where they are fewer than was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_back: Option<u64>,
}

/// Which nodes an order for all nodes has reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The other nodes that have confirmed it.
    pub confirmed: Vec<String>,
    /// Members, and connected edges, that have not confirmed it within a second. They receive it
    /// from others once they are connected.
    pub missed: Vec<String>,
    /// Evicted members that are not forgotten: they receive it if they return.
    #[serde(default)]
    pub down: Vec<String>,
}

impl Reached {
    /// Whether all have confirmed it.
    pub fn is_confirmed(&self) -> bool {
        self.missed.is_empty() && self.down.is_empty()
    }
}
