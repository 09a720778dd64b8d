//! Peers that receive every change of some ranges: their next owners, during a handoff.

use tidegate_limiter::policy::Scope;
use tidegate_limiter::store::KeyHash;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ranges::Ranges;

/// **Bound:** two subscriptions per member, one per ring.
#[derive(Debug, Default)]
pub(super) struct Subscribers {
    subscriptions: Vec<Subscription>,
}

#[derive(Debug)]
struct Subscription {
    scope: Scope,
    to: NodeId,
    ranges: Ranges,
}

impl Subscribers {
    /// Subscribes `to` to these ranges of the ring, instead of those it had there.
    pub(super) fn insert(&mut self, scope: Scope, to: NodeId, ranges: Ranges) {
        self.remove(scope, &to);
        self.subscriptions.push(Subscription { scope, to, ranges });
    }

    pub(super) fn remove(&mut self, scope: Scope, to: &NodeId) {
        self.subscriptions.retain(|it| it.scope != scope || it.to != *to);
    }

    /// The subscribers of a key.
    pub(super) fn of(&self, key: KeyHash) -> impl Iterator<Item = &NodeId> {
        self.subscriptions.iter().filter(move |it| it.contains(key)).map(|it| &it.to)
    }

    /// Whether `id` subscribes to a key.
    pub(super) fn contains(&self, id: &NodeId, key: KeyHash) -> bool {
        self.of(key).any(|to| to == id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }
}

impl Subscription {
    fn contains(&self, key: KeyHash) -> bool {
        self.scope == key.scope() && self.ranges.contains(key.token)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::ranges::Range;

    use super::*;

    #[test]
    fn a_subscription_covers_its_ranges_of_its_ring_until_it_ends() {
        let id = |id| NodeId::new(id).expect("a valid id");
        let ranges = |first, last| Ranges::of([Range { first, last }]);
        let (region, global) = (16, 16 | 0b10);
        let mut subscribers = Subscribers::default();
        subscribers.insert(Scope::Region, id("b"), ranges(0, 5));
        subscribers.insert(Scope::Region, id("b"), ranges(10, 20));
        subscribers.insert(Scope::Global, id("c"), ranges(10, 20));
        let of = |subscribers: &Subscribers, token, tag| -> Vec<NodeId> {
            subscribers.of(KeyHash { token, tag }).cloned().collect()
        };
        assert_eq!(of(&subscribers, 15, region), [id("b")]);
        assert_eq!(of(&subscribers, 15, global), [id("c")]);
        assert!(of(&subscribers, 3, region).is_empty(), "the second call replaced the first");
        subscribers.remove(Scope::Global, &id("b"));
        assert!(subscribers.contains(&id("b"), KeyHash { token: 15, tag: region }));
        subscribers.remove(Scope::Region, &id("b"));
        subscribers.remove(Scope::Global, &id("c"));
        assert!(subscribers.is_empty());
    }
}
