//! Orders of operators about single keys, the same at all nodes.
//!
//! How they reach all nodes: `comparison`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_limiter::engine::AHEAD_MAX;
use tidegate_limiter::store::interventions;
use tidegate_limiter::store::{DescriptorHash, INTERVENTIONS_MAX, Intervention};
use tidegate_limiter::units::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::comparison::{self, Announced, Compared};
use crate::environment::Clock;
use crate::mesh::codec::INTERVENTIONS;
use crate::mesh::wire::{Call, InterventionCall, Reply};
use crate::mesh::{Mesh, Peer};
use crate::pki::Role;

/// The interventions of this node; read with every check.
#[derive(Debug)]
pub struct Interventions {
    clock: Arc<dyn Clock>,
    /// Changed under this lock alone.
    changing: Mutex<()>,
    /// Whether there is anything to find: mostly there is not.
    is_any: AtomicBool,
    known: ArcSwap<interventions::Interventions>,
}

impl Interventions {
    /// None yet. `clock` is that of decisions.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            changing: Mutex::default(),
            is_any: AtomicBool::new(false),
            known: ArcSwap::default(),
        }
    }

    /// What was done to a descriptor.
    #[inline]
    pub fn find(&self, descriptor: DescriptorHash) -> Option<Intervention> {
        // Acquire: pairs with the store that follows the set.
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        self.known.load().get(descriptor).copied()
    }

    /// The same; the descriptor is hashed only if anything was done to any.
    #[inline]
    pub fn find_with(&self, descriptor: impl FnOnce() -> DescriptorHash) -> Option<Intervention> {
        // Acquire: as above.
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        self.find(descriptor())
    }

    /// How many descriptors something was done to.
    pub fn count(&self) -> usize {
        self.known.load().len()
    }

    /// Begins a descriptor anew at this node. To be [announced](Self::announce).
    pub fn begin_anew(&self, descriptor: DescriptorHash) -> Intervention {
        let now = self.clock.now();
        self.change(|known| known.begin_anew(descriptor, now))
    }

    /// Refuses a descriptor at this node until a time, [`Timestamp::EPOCH`] to lift the block. To
    /// be [announced](Self::announce).
    pub fn block(&self, descriptor: DescriptorHash, until: Timestamp) -> Intervention {
        let now = self.clock.now();
        self.change(|known| known.block(descriptor, until, now))
    }

    /// Sends an intervention to all connected nodes, and waits for each for a second at most.
    pub async fn announce(&self, intervention: Intervention, mesh: &Mesh) -> Announced {
        let order = || Call::Interventions(InterventionCall::Announce(intervention));
        comparison::announce::<Self>(mesh, None, order).await.into()
    }

    /// The reply to a call of a peer.
    pub fn call_received(&self, from: &Peer, call: InterventionCall) -> Reply {
        match call {
            InterventionCall::Announce(_) if from.role == Role::Edge => Reply::Malformed,
            InterventionCall::Announce(announced) => {
                if self.merge([announced]) {
                    Reply::Done
                } else {
                    Reply::Unconfirmed
                }
            }
            InterventionCall::Compare { digest } => {
                let known = self.known.load();
                if known.digest() == digest {
                    return Reply::Done;
                }
                Reply::Interventions(known.iter().copied().collect())
            }
        }
    }

    /// Compares with peers until `stop`.
    pub async fn run(self: Arc<Self>, mesh: Arc<Mesh>, stop: CancellationToken) {
        comparison::run(self, mesh, stop).await;
    }

    /// Merges the interventions of another node; returns false if not all of them could be.
    fn merge(&self, entries: impl IntoIterator<Item = Intervention>) -> bool {
        // One of the far future could never be replaced.
        let latest = self.clock.now().plus(AHEAD_MAX);
        let is_sane = |it: &Intervention| it.begun_anew.max(it.block.set_at) <= latest;
        self.change(|known| {
            entries.into_iter().fold(true, |all, entry| {
                let is_sane = is_sane(&entry);
                if is_sane {
                    known.merge(entry);
                }
                all && is_sane
            })
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut interventions::Interventions) -> T) -> T {
        let _changing = self.changing.lock();
        let mut known = interventions::Interventions::clone(&self.known.load());
        let result = change(&mut known);
        let is_any = !known.is_empty();
        self.known.store(Arc::new(known));
        self.is_any.store(is_any, Ordering::Release);
        result
    }
}

impl Compared for Interventions {
    const VERSION: u8 = INTERVENTIONS;

    fn compare(&self) -> Call {
        let digest = self.known.load().digest();
        Call::Interventions(InterventionCall::Compare { digest })
    }

    fn merge_reply(&self, _: &Peer, reply: Reply, _: &Mesh) {
        if let Reply::Interventions(entries) = reply
            && entries.len() <= INTERVENTIONS_MAX
        {
            self.merge(entries);
        }
    }
}
