//! One key by hand, for `tidegate key`.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_cluster::interventions::Told;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::store::{DescriptorHash, Intervention};
use tidegate_limiter::units::{Hits, Timestamp};
use tidegate_rules::book::Rule;

use super::inspect::View;
use crate::admin::key::{Key, KeyLimit, KeyOrder, KeyOrdered, KeyReport, Keys};
use crate::admin::{Inspect, Refusal};
use crate::decide::{CheckRequest, CommitRequest, Decide, Reserve, VerdictSource};

/// Of the lines about orders in the log.
const AUDIT: &str = "audit";

impl Keys for View {
    fn show(&self, key: Key) -> BoxFuture<'_, Result<KeyReport, Refusal>> {
        self.shown(key).boxed()
    }

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

/// A descriptor with the rule that limits it.
struct Found {
    rule: Arc<Rule>,
    hash: DescriptorHash,
}

impl View {
    fn found(&self, key: &Key) -> Result<Found, Refusal> {
        let entries = entries(key);
        let book = self.core.book.load();
        let found = book.find(&key.domain, &entries);
        let found = found.filter(|found| !found.rule.limits.is_empty()).ok_or_else(|| {
            let text = "no rule limits it; `tidegate rules test` says which rule applies";
            Refusal::Unknown(text.to_owned())
        })?;
        let shared = found.counted_as(&entries);
        let counted_as = shared.as_deref().unwrap_or(&entries);
        let hash = self.core.hasher.descriptor(&key.domain, counted_as);
        Ok(Found { rule: found.rule.clone(), hash })
    }

    async fn shown(&self, key: Key) -> Result<KeyReport, Refusal> {
        let Found { rule, hash } = self.found(&key)?;
        let descriptors = [descriptor(&key)];
        let peek = CheckRequest {
            domain: &key.domain,
            descriptors: &descriptors,
            hits: Hits::PEEK,
            for_envoy: false,
        };
        let answer = self.core.decider.decide(peek).await;
        let status = answer.statuses.first();
        let verdicts = status.map(|status| status.verdicts.as_slice()).unwrap_or_default();
        let limit = |(index, verdict): (usize, &tidegate_limiter::engine::Verdict)| KeyLimit {
            name: rule.limit_name(index).into_owned(),
            limit: verdict.limit,
            window_ms: rule.limits.get(index).map_or(0, |it| it.window().as_millis_ceil()),
            remaining: verdict.remaining,
            reset_ms: verdict.reset.as_millis_ceil(),
        };
        let now = self.core.clock.now();
        let intervention = self.core.decider.interventions().find(hash);
        let begun_anew = intervention.map(|it| it.begun_anew);
        let blocked_until = intervention.and_then(|it| it.blocked_until(now));
        Ok(KeyReport {
            owner: self.owner(&key.domain, &key.entries),
            is_exact: status.is_some_and(|status| status.source != VerdictSource::Fallback),
            limits: verdicts.iter().enumerate().map(limit).collect(),
            begun_anew_ago_ms: begun_anew
                .filter(|at| *at > Timestamp::EPOCH)
                .map(|at| now.since(at).as_millis_ceil()),
            blocked_for_ms: blocked_until.map(|until| match until {
                Timestamp::NEVER => 0,
                until => until.since(now).as_millis_ceil(),
            }),
        })
    }

    async fn ordered(&self, key: &Key, order: KeyOrder) -> Result<KeyOrdered, Refusal> {
        if self.core.edge.is_some() {
            let text = "this is an edge, which gives no orders; ask a core";
            return Err(Refusal::Conflict(text.to_owned()));
        }
        let Found { hash, .. } = self.found(key)?;
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
        let Told { nodes, missed } = self.told(intervention).await;
        let names = |nodes: Vec<_>| nodes.iter().map(ToString::to_string).collect();
        let order = order.name().to_owned();
        Ok(KeyOrdered { order, confirmed: names(nodes), missed: names(missed) })
    }

    async fn told(&self, intervention: Intervention) -> Told {
        match self.core.mesh() {
            Some(mesh) => self.core.decider.interventions().tell(intervention, mesh).await,
            None => Told::default(),
        }
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

fn entries(key: &Key) -> Vec<Entry<'_>> {
    key.entries.iter().map(|(key, value)| Entry { key, value }).collect()
}

fn descriptor(key: &Key) -> Descriptor<'_> {
    Descriptor { entries: entries(key), hits: None, limit: None }
}
