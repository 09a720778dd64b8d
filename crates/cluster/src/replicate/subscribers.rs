//! Who else is told of every change of some ranges: their next owners, while they are handed over.

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;

/// The followers.
///
/// **Bound:** two entries a member, one a ring.
#[derive(Debug, Default)]
pub(super) struct Subscribers {
    all: Vec<Follower>,
}

#[derive(Debug)]
struct Follower {
    scope: Scope,
    to: NodeId,
    ranges: Ranges,
}

impl Subscribers {
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
        self.scope == key.scope() && self.ranges.contains(key.token)
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
        let mut subscribers = Subscribers::default();
        subscribers.set(Scope::Region, id("b"), ranges(0, 5));
        subscribers.set(Scope::Region, id("b"), ranges(10, 20));
        subscribers.set(Scope::Global, id("c"), ranges(10, 20));
        let of = |subscribers: &Subscribers, token, tag| -> Vec<NodeId> {
            subscribers.of(KeyHash { token, tag }).cloned().collect()
        };
        assert_eq!(of(&subscribers, 15, region), [id("b")]);
        assert_eq!(of(&subscribers, 15, global), [id("c")]);
        assert!(of(&subscribers, 3, region).is_empty(), "it follows other ranges now");
        subscribers.unset(Scope::Global, &id("b"));
        assert!(subscribers.follows(&id("b"), KeyHash { token: 15, tag: region }));
        subscribers.unset(Scope::Region, &id("b"));
        subscribers.unset(Scope::Global, &id("c"));
        assert!(subscribers.is_empty());
    }
}
