//! What identifies a request: an ordered list of key/value entries, borrowed from the request.

use crate::quota::Quota;
use crate::units::Hits;

/// One key/value pair. A rule matches keys; each value has a counter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub key: &'a str,
    pub value: &'a str,
}

/// An ordered list of entries that is matched against the rules as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Outermost first; order matters. Not a `SmallVec`, which is invariant in `'a`: a borrowed
    /// request could then not be shortened to the lifetime of a check.
    pub entries: Vec<Entry<'a>>,
    /// Hits of this descriptor alone, overriding those of the request.
    pub hits: Option<Hits>,
    /// A limit carried by the request, overriding that of the rule.
    pub limit: Option<Quota>,
}
