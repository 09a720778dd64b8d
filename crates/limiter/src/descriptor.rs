//! What a request says about itself: an ordered list of key/value entries, borrowed from the
//! request that carried them.

use super::quota::Quota;
use crate::units::Hits;

/// One key/value pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key a rule names.
    pub key: &'a str,
    /// The value a rule may name; each value has a counter of its own.
    pub value: &'a str,
}

/// An ordered list of entries, matched against the rules as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Outermost first; order matters. (A `SmallVec` would be invariant in `'a`, and a question
    /// that borrows from its request could not be shortened to the life of an `Ask`.)
    pub entries: Vec<Entry<'a>>,
    /// Hits of this descriptor alone, in place of the request's.
    pub hits: Option<Hits>,
    /// A limit that the request brings along, in place of the rule's.
    pub limit: Option<Quota>,
}
