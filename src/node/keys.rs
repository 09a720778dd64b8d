//! One key by hand, for `tidegate key`.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_cluster::Announced;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::store::DescriptorHash;
use tidegate_limiter::units::{Hits, Timestamp};

use super::inspect::View;
use crate::admin::Refusal;
use crate::admin::key::{AUDIT, Key, KeyOrder, KeyOrdered, Keys};
use crate::decide::{CheckRequest, CommitRequest, Decide, Reserve, VerdictSource, descriptor_hash};

impl Keys for View {
    fn order(&self, key: Key, order: KeyOrder) -> BoxFuture<'_, Result<KeyOrdered, Refusal>> {
        async move {
            let ordered = self.ordered(&key, order).await;
            let entries: Vec<String> =
                key.entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let entries = entries.join(" ");
            match &ordered {
                Ok(KeyOrdered { confirmed, missed, .. }) => tracing::info!(
                    target: AUDIT, ?order, domain = %key.domain, %entries,
                    confirmed = confirmed.len(), ?missed, "carried out an order about a key"
                ),
                Err(refusal) => tracing::info!(
                    target: AUDIT, ?order, domain = %key.domain, %entries, %refusal,
                    "refused an order about a key"
                ),
            }
            ordered
        }
        .boxed()
    }
}

impl View {
    /// The hash of a descriptor that a rule limits.
    fn hash(&self, key: &Key) -> Result<DescriptorHash, Refusal> {
        let entries = entries(key);
        let book = self.core.book.load();
        let found = book.find(&key.domain, &entries);
        let found = found.filter(|found| !found.rule.limits.is_empty()).ok_or_else(|| {
            let text = "no rule limits it; `tidegate rules test` says which rule applies";
            Refusal::Unknown(text.to_owned())
        })?;
        Ok(descriptor_hash(&self.core.hasher, &key.domain, &entries, &found))
    }

    /// What was done to a key by hand: how long ago it was begun anew, and how much longer it is
    /// blocked, in milliseconds; 0 is until it is unblocked.
    pub(super) fn done_by_hand(&self, key: &Key) -> (Option<u64>, Option<u64>) {
        let Ok(hash) = self.hash(key) else { return (None, None) };
        let Some(done) = self.core.decider.interventions().find(hash) else {
            return (None, None);
        };
        let now = self.core.clock.now();
        let begun_anew = Some(done.begun_anew).filter(|at| *at > Timestamp::EPOCH);
        let blocked_for_ms = done.blocked_until(now).map(|until| match until {
            Timestamp::NEVER => 0,
            until => until.since(now).as_millis_ceil(),
        });
        (begun_anew.map(|at| now.since(at).as_millis_ceil()), blocked_for_ms)
    }

    async fn ordered(&self, key: &Key, order: KeyOrder) -> Result<KeyOrdered, Refusal> {
        if self.core.edge.is_some() {
            let text = "this is an edge, which gives no orders; ask a core";
            return Err(Refusal::Conflict(text.to_owned()));
        }
        let hash = self.hash(key)?;
        let interventions = self.core.decider.interventions();
        let now = self.core.clock.now();
        let intervention = match order {
            KeyOrder::Reset => interventions.begin_anew(hash),
            KeyOrder::Block(span) => {
                let until = span.map_or(Timestamp::NEVER, |span| now.plus(span));
                interventions.block(hash, until)
            }
            KeyOrder::Unblock => interventions.block(hash, Timestamp::EPOCH),
            KeyOrder::Adjust(hits) => {
                self.adjust(key, hits).await?;
                return Ok(KeyOrdered { order: order.name().to_owned(), ..KeyOrdered::default() });
            }
        };
        let Announced { confirmed, missed } = match self.core.mesh() {
            Some(mesh) => interventions.announce(intervention, mesh).await,
            None => Announced::default(),
        };
        let names = |nodes: Vec<_>| nodes.iter().map(ToString::to_string).collect();
        let order = order.name().to_owned();
        Ok(KeyOrdered { order, confirmed: names(confirmed), missed: names(missed) })
    }

    /// Counts hits whatever the limit is, or gives them back.
    async fn adjust(&self, key: &Key, hits: i64) -> Result<(), Refusal> {
        let (domain, descriptors) = (&*key.domain, &[descriptor(key)][..]);
        let unconfirmed = |text: String| Refusal::Conflict(text);
        if let Ok(cost) = u64::try_from(hits) {
            let report = CommitRequest { domain, descriptors, id: None, cost };
            let committed = self.core.decider.commit(report).await;
            return committed.map(drop).map_err(|error| unconfirmed(error.to_string()));
        }
        let hits = Hits::new(hits);
        let refund = CheckRequest { domain, descriptors, hits, for_envoy: false };
        let answer = self.core.decider.decide(refund).await;
        let is_applied = |source| source != VerdictSource::Fallback;
        if answer.statuses.iter().all(|status| is_applied(status.source)) {
            return Ok(());
        }
        Err(unconfirmed(
            "no owner has answered in time; look at the key, then try again".to_owned(),
        ))
    }
}

pub(super) fn entries(key: &Key) -> Vec<Entry<'_>> {
    key.entries.iter().map(|(key, value)| Entry { key, value }).collect()
}

fn descriptor(key: &Key) -> Descriptor<'_> {
    Descriptor { entries: entries(key), hits: None, limit: None }
}
