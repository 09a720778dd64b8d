//! The keys of the load: a few groups, each with one rule.
//!
//! An answer does not name who decided, but its content shows it, because each fallback returns
//! something that an owner cannot:
//!
//! - `local` names the node's share as the limit, not the rule's;
//! - `deny` refuses until a whole window later; an owner's window has begun already. Of a limit
//!   that the load never reaches, any refusal is one by policy;
//! - `allow` leaves the whole limit after a hit.

/// Keys of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    /// Never reaches its limit, so that what the owner counted can be read off what remains.
    Count,
    /// Reaches its limit; refused while it has no owner. Exact whatever happens, but for a crash.
    Strict,
    /// Likewise, and an answer waits for a replica: exact in a crash as well.
    Durable,
    /// Likewise, but each node answers from its share while there is no owner.
    Local,
    /// A window that a clock can jump out of.
    Window,
}

/// One counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) group: Group,
    pub(crate) index: usize,
}

/// The fields of a reply for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) is_allowed: bool,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_s: u64,
}

/// The domain of all of them.
pub(crate) const DOMAIN: &str = "chaos";
/// Window of [`Group::Window`].
pub(crate) const WINDOW_S: u64 = 300;

/// Key of the flood.
pub(crate) const JUNK: &str = "junk";

const JUNK_LIMIT: u64 = 100;
/// As long as the flood, so that its keys do not make room for each other.
const JUNK_WINDOW_S: u64 = 24 * 3_600;
const WEEK_S: u64 = 7 * 24 * 3_600;

impl Group {
    pub(crate) const ALL: [Self; 5] =
        [Self::Count, Self::Strict, Self::Durable, Self::Local, Self::Window];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Strict => "strict",
            Self::Durable => "durable",
            Self::Local => "local",
            Self::Window => "window",
        }
    }

    pub(crate) fn limit(self) -> u64 {
        match self {
            Self::Count => 1_000_000,
            Self::Strict | Self::Durable | Self::Local | Self::Window => 20,
        }
    }

    pub(crate) fn window_s(self) -> u64 {
        match self {
            Self::Window => WINDOW_S,
            Self::Count | Self::Strict | Self::Durable | Self::Local => WEEK_S,
        }
    }

    /// Number of keys: so few that each is checked several times a second, which is the resolution
    /// of a time without a right answer, and so many that each of five nodes owns some.
    pub(crate) fn keys(self) -> usize {
        match self {
            Self::Count | Self::Strict | Self::Durable | Self::Window => 20,
            Self::Local => 10,
        }
    }

    /// Whether the load is to go beyond its limit.
    pub(crate) fn has_limit_reached(self) -> bool {
        self != Self::Count
    }

    /// Whether an answer is one of `on_unavailable`.
    pub(crate) fn is_by_policy(self, fields: Fields) -> bool {
        match self {
            Self::Local => fields.limit != self.limit(),
            Self::Count => !fields.is_allowed,
            Self::Strict | Self::Durable | Self::Window => {
                !fields.is_allowed && fields.reset_s == self.window_s()
            }
        }
    }

    fn more(self) -> &'static str {
        match self {
            Self::Local => "on_unavailable: local",
            Self::Durable => "on_unavailable: deny, durability: replicated",
            Self::Count | Self::Strict | Self::Window => "on_unavailable: deny",
        }
    }
}

/// The rules of every node.
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
    /// As a descriptor's value.
    pub(crate) fn value(self) -> String {
        format!("k{}", self.index)
    }
}
