//! The keys of the load: groups of keys with one rule each.
//!
//! A response does not name its source. It can be derived from the content, because each fallback
//! returns something that an owner cannot:
//!
//! - `local` returns the node's share as the limit;
//! - `deny` returns a whole window as the time to reset; an owner's window has already begun. For a
//!   limit that the load never reaches, every refusal is from the fallback;
//! - `allow` returns the whole limit as remaining.

/// The keys of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// Never reaches its limit, so the owner's count follows from the remaining hits.
    Count,
    /// Reaches its limit; `on_unavailable: deny`. Exact except after a crash.
    Strict,
    /// As `Strict`, with `durability: replicated`: exact after a crash too.
    Durable,
    /// As `Strict`, with `on_unavailable: local`: each node has a share.
    Local,
    /// Has a window that a clock step can leave.
    Window,
    /// As `Strict`, one limit for all regions.
    Global,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) group: Group,
    pub(crate) index: usize,
}

/// The fields of a response for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) is_allowed: bool,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_s: u64,
}

/// The domain of all groups.
pub(crate) const DOMAIN: &str = "chaos";
pub(crate) const WINDOW_S: u64 = 300;

/// Descriptor key of the flood.
pub(crate) const JUNK: &str = "junk";

const JUNK_LIMIT: u64 = 100;
/// Longer than the flood, so its keys do not expire during it.
const JUNK_WINDOW_S: u64 = 24 * 3_600;
const WEEK_S: u64 = 7 * 24 * 3_600;

impl Group {
    pub(crate) const ALL: [Self; 6] =
        [Self::Count, Self::Strict, Self::Durable, Self::Local, Self::Window, Self::Global];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Strict => "strict",
            Self::Durable => "durable",
            Self::Local => "local",
            Self::Window => "window",
            Self::Global => "global",
        }
    }

    pub(crate) fn limit(self) -> u64 {
        match self {
            Self::Count => 1_000_000,
            Self::Strict | Self::Durable | Self::Local | Self::Window | Self::Global => 20,
        }
    }

    pub(crate) fn window_s(self) -> u64 {
        match self {
            Self::Window => WINDOW_S,
            _ => WEEK_S,
        }
    }

    /// Number of keys. Few enough that each is checked several times a second, which is the
    /// resolution of the time without an exact answer; enough that each of five nodes owns some.
    pub(crate) fn keys(self) -> usize {
        match self {
            Self::Local => 10,
            // The only group of its load: its limits must last into the fault.
            Self::Global => 120,
            _ => 20,
        }
    }

    /// Whether the load exceeds its limit.
    pub(crate) fn reaches_limit(self) -> bool {
        self != Self::Count
    }

    /// Whether a response comes from `on_unavailable`.
    pub(crate) fn is_fallback(self, fields: Fields) -> bool {
        match self {
            Self::Local => fields.limit != self.limit(),
            Self::Count => !fields.is_allowed,
            Self::Strict | Self::Durable | Self::Window | Self::Global => {
                !fields.is_allowed && fields.reset_s == self.window_s()
            }
        }
    }

    fn more(self) -> &'static str {
        match self {
            Self::Local => "on_unavailable: local",
            Self::Durable => "on_unavailable: deny, durability: replicated",
            Self::Global => "on_unavailable: deny, scope: global",
            Self::Count | Self::Strict | Self::Window => "on_unavailable: deny",
        }
    }
}

pub(crate) fn rules() -> String {
    let rule = |name, window, limit, more| {
        format!(
            "  - {{key: {name}, rate_limit: {{window: {window}s, requests_per_unit: {limit}, \
             {more}}}}}\n"
        )
    };
    let groups = Group::ALL
        .into_iter()
        .map(|group| rule(group.name(), group.window_s(), group.limit(), group.more()));
    let junk = rule(JUNK, JUNK_WINDOW_S, JUNK_LIMIT, "on_unavailable: allow");
    format!("domain: {DOMAIN}\ndescriptors:\n{}{junk}", groups.collect::<String>())
}

impl Key {
    /// The descriptor value.
    pub(crate) fn value(self) -> String {
        format!("k{}", self.index)
    }
}
