//! Who else is told of every change of some ranges: their next owners, while they are handed over.

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;

/// The followers.
///
/// **Bound:** two entries a member, one a ring.
#[derive(Debug, Default)]
pub(super) struct Followers {
    all: Vec<Follower>,
}

#[derive(Debug)]
struct Follower {
    scope: Scope,
    to: NodeId,
    ranges: Ranges,
}

impl Followers {
    /// `to` follows these ranges of that ring from now on, and no others of it.
    pub(super) fn set(&mut self, scope: Scope, to: NodeId, ranges: Ranges) {
        self.unset(scope, &to);
        self.all.push(Follower { scope, to, ranges });
    }

    /// `to` follows nothing of that ring any more.
    pub(super) fn unset(&mut self, scope: Scope, to: &NodeId) {
        self.all.retain(|follower| follower.scope != scope || follower.to != *to);
    }

    /// Who follows a key.
    pub(super) fn of(&self, key: KeyHash) -> impl Iterator<Item = &NodeId> {
        self.all.iter().filter(move |follower| follower.has(key)).map(|follower| &follower.to)
    }

    /// Whether `id` follows a key.
    pub(super) fn follows(&self, id: &NodeId, key: KeyHash) -> bool {
        self.all.iter().any(|follower| follower.to == *id && follower.has(key))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl Follower {
    fn has(&self, key: KeyHash) -> bool {
        self.scope == key.scope() && self.ranges.contains(key.place)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::ranges::Range;

    use super::*;

    #[test]
    fn a_follower_hears_of_its_ranges_of_its_ring_until_it_stops() {
        let id = |id| NodeId::new(id).expect("a valid id");
        let ranges = |first, last| Ranges::of([Range { first, last }]);
        let (region, global) = (16, 16 | 0b10);
        let mut followers = Followers::default();
        followers.set(Scope::Region, id("b"), ranges(0, 5));
        followers.set(Scope::Region, id("b"), ranges(10, 20));
        followers.set(Scope::Global, id("c"), ranges(10, 20));
        let of = |followers: &Followers, place, tag| -> Vec<NodeId> {
            followers.of(KeyHash { place, tag }).cloned().collect()
        };
        assert_eq!(of(&followers, 15, region), [id("b")]);
        assert_eq!(of(&followers, 15, global), [id("c")]);
        assert!(of(&followers, 3, region).is_empty(), "it follows other ranges now");
        followers.unset(Scope::Global, &id("b"));
        assert!(followers.follows(&id("b"), KeyHash { place: 15, tag: region }));
        followers.unset(Scope::Region, &id("b"));
        followers.unset(Scope::Global, &id("c"));
        assert!(followers.is_empty());
    }
}
