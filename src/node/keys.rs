//! One key by hand, for `tidegate key`.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_cluster::Announced;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::store::DescriptorHash;
use tidegate_limiter::units::{Hits, Timestamp};

use super::carried_keys::CarriedFound;
use super::inspect::View;
use super::unreached;
use crate::admin::Refusal;
use crate::admin::key::{AUDIT, CarriedKey, Key, KeyOrder, KeyOrdered, Keys, Reached};
use crate::decide::{CommitRequest, Reserve, VerdictSource, carried_key, descriptor_hash};
use crate::observe::log::one_line;

impl Keys for View {
    fn order(&self, key: Key, order: KeyOrder) -> BoxFuture<'_, Result<KeyOrdered, Refusal>> {
        async move {
            let ordered = self.ordered(&key, order).await;
            let (domain, entries) = words(&key);
            let (domain, entries) = (one_line(&domain), one_line(&entries));
            match &ordered {
                Ok(KeyOrdered {
                    reached: Reached { confirmed, missed, down }, given_back, ..
                }) => {
                    tracing::info!(
                        target: AUDIT, ?order, %domain, %entries, confirmed = confirmed.len(),
                        ?missed, ?down, given_back, "carried out an order about a key"
                    );
                }
                Err(refusal) => tracing::info!(
                    target: AUDIT, ?order, %domain, %entries, %refusal,
                    "refused an order about a key"
                ),
            }
            ordered
        }
        .boxed()
    }
}

impl View {
    /// The hash of a descriptor that a rule limits, or of a key whose requests carry their limit.
    fn hash(&self, key: &Key) -> Result<DescriptorHash, Refusal> {
        let (domain, entries) = match key {
            Key::Descriptor { domain, entries } => (domain, pairs(entries)),
            Key::Carried(CarriedKey { name, unique_key, .. }) => {
                return Ok(carried_key(&self.core.hasher, name, unique_key));
            }
        };
        let book = self.core.book.load();
        let found = book.find(domain, &entries);
        let found = found.ok_or_else(|| {
            let text = "no rule limits it; `tidegate rules test` says which rule applies";
            Refusal::Unknown(text.to_owned())
        })?;
        if found.rule.limits.is_empty() {
            let text = "its rule has no limit with a count, so there is nothing that an order \
                        could change; `tidegate rules test` shows the rule";
            return Err(Refusal::Unknown(text.to_owned()));
        }
        Ok(descriptor_hash(&self.core.hasher, domain, &entries, &found))
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
                let given_back = self.adjust(key, hits).await?;
                let order = order.name().to_owned();
                return Ok(KeyOrdered { order, given_back, ..KeyOrdered::default() });
            }
        };
        let announced = match self.core.mesh() {
            Some(mesh) => interventions.announce(intervention, mesh).await,
            None => Announced::default(),
        };
        let reached = unreached::reached(&self.core, &announced, None);
        Ok(KeyOrdered { order: order.name().to_owned(), reached, ..KeyOrdered::default() })
    }

    /// Counts hits whatever the limit is, or gives them back, of a blocked key too. Returns how
    /// many were given back, if that is less.
    async fn adjust(&self, key: &Key, hits: i64) -> Result<Option<u64>, Refusal> {
        let unanswered = "no owner has answered in time; look at the key, then try again";
        let (domain, entries) = match key {
            Key::Descriptor { domain, entries } => (&**domain, entries),
            Key::Carried(key) => {
                let found = self.decide_carried_key(key, hits).await;
                let source = found.map(|found: CarriedFound| found.decided.source);
                return match source {
                    Some(FALLBACK) => Err(Refusal::Conflict(unanswered.to_owned())),
                    Some(VerdictSource::Blocked) => {
                        let text = "nothing was counted: the key is blocked by hand; unblock it";
                        Err(Refusal::Conflict(text.to_owned()))
                    }
                    Some(_) => Ok(None),
                    None => Err(Refusal::Unknown("there is no such counter".to_owned())),
                };
            }
        };
        let conflict = |text: &str| Err(Refusal::Conflict(text.to_owned()));
        if let Ok(cost) = u64::try_from(hits) {
            let descriptor = Descriptor { entries: pairs(entries), hits: None, limit: None };
            let report = CommitRequest { domain, descriptors: &[descriptor], id: None, cost };
            return match self.core.decider.commit(report).await {
                Ok(committed) if committed.settled.is_some() => Ok(None),
                Ok(_) => conflict("nothing was counted: no limit applies to the key any more"),
                Err(_) => conflict(unanswered),
            };
        }
        let hits = Hits::new(hits);
        let given = self.core.decider.refund_by_hand(domain, &pairs(entries), hits).await;
        let Some(given) = given else {
            return conflict("nothing was given back: no limit applies to the key any more");
        };
        match given.known {
            _ if given.source == FALLBACK => conflict(unanswered),
            Some(0) => conflict(
                "nothing was given back: no hits of the key are known; of an eventual rule, ask a \
                 node that counted them, or its owner as `tidegate key show` has it",
            ),
            Some(known) => Ok(Some(known).filter(|known| *known < hits.refund())),
            None => Ok(None),
        }
    }
}

const FALLBACK: VerdictSource = VerdictSource::Fallback;

pub(super) fn pairs(entries: &[(String, String)]) -> Vec<Entry<'_>> {
    entries.iter().map(|(key, value)| Entry { key, value }).collect()
}

/// Domain and entries for the log.
fn words(key: &Key) -> (String, String) {
    match key {
        Key::Descriptor { domain, entries } => {
            let entries = entries.iter().map(|(key, value)| format!("{key}={value}"));
            (domain.clone(), entries.collect::<Vec<_>>().join(" "))
        }
        Key::Carried(CarriedKey { name, unique_key, .. }) => {
            // No domain of rules has this name.
            (String::new(), format!("name={name} unique_key={unique_key}"))
        }
    }
}
