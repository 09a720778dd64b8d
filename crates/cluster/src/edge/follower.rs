//! The edge: follows its homes, and knows by what they send where keys are decided.
//!
//! - *The map in force* is the newest of those that the homes sent; one of another cluster only
//!   when no home has the present one. What an edge knows it goes on by when all cores are gone.
//! - *Its lease* ends [`SILENT_AFTER`] after the last ping that any core answered: then it is cut
//!   off. It decides nothing as an owner with it. Granted hits are spent under it, because a pong
//!   also shows that the clock of this machine stood still: what was held then may have ended at
//!   its owner, and is not spent ([`GRANTS_END_WITHIN`]).
//! - *Connections* to cores that are not homes are closed when they were not used for
//!   [`IDLE_AFTER`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::cluster_map::MapState;
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::membership::View;
use tidegate_ownership::region_right::RegionRight;
use tidegate_ownership::route::Topology;
use tidegate_ownership::standstill::ClockReading;
use tidegate_ownership::{ClusterMap, Epoch, Identity};
use tokio_util::sync::CancellationToken;

use super::FOLLOW_INTERVAL;
use super::homes::{self, Choice, HOMES, Reach};
use crate::environment::Net;
use crate::mesh::wire::{Call, ClusterView, EdgeCall, PingStatus};
use crate::mesh::{Mesh, Peer, StreamClass};
use crate::ownership::topology::{Known, homes as homes_of};
use crate::ownership::{Leases, Ownership};

#[derive(Clone, Debug)]
pub struct Options {
    /// This run of the edge.
    pub me: Identity,
    pub region: String,
    /// `host:port` of some cores.
    pub seeds: Vec<String>,
    /// Virtual nodes per member, as at the cores.
    pub vnodes: u32,
    /// How long a grant of a global voter is valid; `None` without a global map.
    pub global_lease: Option<Span>,
    /// All regions that may be homes of global keys.
    pub home_regions: Vec<String>,
}

/// Follows some cores.
#[derive(Debug)]
pub struct Follower {
    options: Options,
    mesh: Arc<Mesh>,
    net: Arc<dyn Net>,
    ownership: Ownership,
    topology: Arc<ArcSwap<Topology>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The cores that are followed, and what each sent last.
    homes: BTreeMap<NodeId, Home>,
    map: ClusterMap,
    /// `None` without a global map.
    region_right: Option<RegionRight>,
    /// The last reading of each core's clock.
    readings: BTreeMap<NodeId, (Generation, ClockReading)>,
    lease_until: Monotonic,
    /// No lease begins before that.
    blocked_until: Monotonic,
    round: usize,
}

#[derive(Debug)]
struct Home {
    generation: Generation,
    view: Option<ClusterView>,
    /// When it was told last that it is followed.
    told_at: Option<Monotonic>,
}

/// How often the homes are chosen.
const INTERVAL: Duration = Duration::from_millis(100);
/// An edge that no core has answered for so long is cut off.
const SILENT_AFTER: Span = Span::from_secs(16);
/// A connection to a core that is no home is closed when it was not used for so long.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// How often seeds are resolved and dialed while there are too few homes.
const SEED_INTERVAL: Duration = Duration::from_secs(1);
/// Whatever was granted before has ended by then: the longest term of a grant.
const GRANTS_END_WITHIN: Span = Span::from_secs(4);
/// The least standstill of the clock after which nothing is spent. Pings are 100 ms apart while
/// something is.
const STANDSTILL_MAX: Span = Span::from_millis(75);

impl Follower {
    /// Follows no core until [`Follower::run`].
    pub fn new(
        options: Options,
        mesh: Arc<Mesh>,
        net: Arc<dyn Net>,
        ownership: Ownership,
        topology: Arc<ArcSwap<Topology>>,
    ) -> Arc<Self> {
        let Options { me, region, global_lease, .. } = &options;
        let region_right =
            global_lease.map(|lease| RegionRight::new(me.clone(), region.clone(), lease));
        let state = Mutex::new(State { region_right, ..State::default() });
        Arc::new(Self { options, mesh, net, ownership, topology, state })
    }

    // === inputs ===

    /// `from` sent what it knows.
    pub fn view_received(&self, from: &Peer, view: ClusterView) {
        let state = &mut *self.state.lock();
        let Some(home) = state.homes.get_mut(&from.id) else { return };
        if home.generation != from.generation {
            return;
        }
        home.view = Some(view);
        self.update(state);
    }

    /// A core answered a ping.
    pub fn pong_received(&self, from: &Peer, reading: ClockReading) {
        let state = &mut *self.state.lock();
        let before = state.readings.insert(from.id.clone(), (from.generation, reading));
        let before = before.filter(|(generation, _)| *generation == from.generation);
        let stood_still = before.map_or(Span::ZERO, |(_, before)| before.lost_until(reading));
        if stood_still > STANDSTILL_MAX {
            tracing::warn!(
                peer = %from.id, for_ms = stood_still.as_nanos() / 1_000_000,
                "this node's clock stood still, as when a virtual machine is stopped: granted hits \
                 are not spent until they have ended"
            );
            let now = self.ownership.monotonic();
            state.blocked_until = now.plus(GRANTS_END_WITHIN);
            state.lease_until = Monotonic::START;
        } else if reading.sent >= state.blocked_until {
            state.lease_until = state.lease_until.max(reading.sent.plus(SILENT_AFTER));
        }
        let leases = Leases { own: state.lease_until, region: Monotonic::NEVER };
        self.ownership.renew(leases);
    }

    // === state ===

    /// Whether a core has said where keys are decided.
    pub fn has_map(&self) -> bool {
        self.state.lock().map.epoch > Epoch(0)
    }

    /// The map by which it finds owners; epoch 0 before the first.
    pub fn map(&self) -> ClusterMap {
        self.state.lock().map.clone()
    }

    /// The cores that it follows, and that have sent it what they know.
    pub fn homes(&self) -> Vec<NodeId> {
        let state = self.state.lock();
        let homes = state.homes.iter().filter(|(_, home)| home.view.is_some());
        homes.map(|(id, _)| id.clone()).collect()
    }

    /// What it says of itself in a ping.
    pub fn ping_status(&self) -> PingStatus {
        let state = self.state.lock();
        let (cluster, epoch) = (state.map.cluster, state.map.epoch);
        PingStatus { cluster, epoch, ..PingStatus::default() }
    }

    // === loop ===

    /// Follows until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let follows = async {
            let mut ticks = self.mesh.ticks.every(INTERVAL);
            loop {
                ticks.tick().await;
                self.follow();
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follows => {}
            () = self.dial_seeds() => {}
        }
    }

    /// Chooses the homes, dials those that are missing, tells them that they are followed, and
    /// closes connections that are not used.
    fn follow(&self) {
        let now = self.ownership.monotonic();
        let (dial, due) = {
            let state = &mut *self.state.lock();
            let Choice { homes, dial } = self.choose(state);
            let addr = |id: &NodeId| state.map.get(id).map(|member| member.addr);
            let dial: Vec<_> = dial.iter().filter_map(addr).collect();
            (dial, self.take_due(state, &homes, now))
        };
        for addr in dial {
            self.mesh.request_dial(addr);
        }
        for (home, revision) in due {
            let call = Call::Edge(EdgeCall::Follow { revision });
            self.mesh.notify(&home, StreamClass::Control, call);
        }
        let state = self.state.lock();
        for peer in self.mesh.peers() {
            if peer.unused_for() > IDLE_AFTER && !state.homes.contains_key(&peer.id) {
                peer.let_go();
            }
        }
    }

    fn choose(&self, state: &mut State) -> Choice {
        state.round = state.round.wrapping_add(1);
        let Options { me, region, .. } = &self.options;
        let up = state.map.members.iter().filter(|member| member.state == MapState::Up);
        let up: BTreeSet<NodeId> = up.map(|member| member.identity.node.clone()).collect();
        // Before the first map, and where all that it names are gone: the seeds.
        let connected = self.mesh.peers().into_iter().filter(|peer| peer.region == *region);
        let others = connected.map(|peer| peer.id.clone()).filter(|id| !up.contains(id));
        let others = homes::preferred(&me.node, others);
        let mut preferred = homes::preferred(&me.node, up.iter().cloned());
        preferred.extend(others);
        homes::choose(&preferred, state.round, |core| {
            let Some(peer) = self.mesh.peer(core).filter(|peer| !peer.is_unreachable()) else {
                return Reach::None;
            };
            let home = state.homes.get(core).filter(|home| home.generation == peer.generation);
            match home.and_then(|home| home.view.as_ref()) {
                Some(view) if !view.has_lease => Reach::WithoutLease,
                _ => Reach::Usable,
            }
        })
    }

    /// Takes `homes` for its homes. Returns those that are to be told so now, with the revision
    /// that this edge has of each.
    fn take_due(&self, state: &mut State, homes: &[NodeId], now: Monotonic) -> Vec<(NodeId, u64)> {
        let mut due = Vec::new();
        for id in homes {
            let Some(peer) = self.mesh.peer(id) else { continue };
            let generation = peer.generation;
            let new = || Home { generation, view: None, told_at: None };
            let home = state.homes.entry(id.clone()).or_insert_with(new);
            if home.generation != generation {
                *home = new();
            }
            let is_due = home.told_at.is_none_or(|at| now >= at.plus(FOLLOW_INTERVAL.into()));
            if is_due {
                home.told_at = Some(now);
                due.push((id.clone(), home.view.as_ref().map_or(0, |view| view.revision)));
            }
        }
        // The views of those that are gone are all that is known while there are no others.
        let has_view = |id: &NodeId| state.homes.get(id).is_some_and(|home| home.view.is_some());
        if homes.iter().any(has_view) {
            state.homes.retain(|id, _| homes.contains(id));
        }
        state.readings.retain(|id, _| state.map.get(id).is_some() || state.homes.contains_key(id));
        due
    }

    /// Takes over what the homes know.
    fn update(&self, state: &mut State) {
        let State { homes, map, region_right, .. } = state;
        let is_connected = |(id, home): &(&NodeId, &Home)| {
            self.mesh.peer(id).is_some_and(|peer| peer.generation == home.generation)
        };
        let has_any = homes.iter().any(|home| is_connected(&home));
        let views = || {
            let homes = homes.iter().filter(|home| !has_any || is_connected(home));
            homes.filter_map(|(_, home)| home.view.as_ref())
        };
        let rank = |view: &&ClusterView| {
            let is_same = view.region.cluster == map.cluster;
            (
                view.region.epoch > Epoch(0),
                is_same,
                view.region.epoch,
                view.has_lease,
                view.revision,
            )
        };
        let Some(best) = views().max_by_key(rank) else { return };
        let globals = views().filter_map(|view| view.global.as_ref());
        if let Some(right) = region_right
            && let Some(global) = globals.max_by_key(|map| map.epoch)
            && (global.cluster != right.map().cluster || global.epoch > right.map().epoch)
        {
            right.follow(&Arc::new(global.clone()));
        }
        let is_newer = best.region.cluster != map.cluster || best.region.epoch > map.epoch;
        if is_newer && best.region.epoch > Epoch(0) {
            let (epoch, members) = (best.region.epoch, best.region.present().count());
            tracing::info!(%epoch, members, "cluster map changed");
            *map = best.region.clone();
        }
        let Options { me, region, vnodes, home_regions, .. } = &self.options;
        let view = View::new(best.members.iter().cloned());
        let edges = views().map(|view| view.edges).max().unwrap_or(0);
        let homes = homes_of(region_right.as_ref(), map, region, home_regions);
        let (me, vnodes, view) = (&me.node, *vnodes, &view);
        let topology = Known { me, region, vnodes, map, view, homes, edges }.topology();
        self.topology.store(Arc::new(topology.after(&self.topology.load())));
    }

    /// Resolves and dials the seeds while there are too few homes, because their addresses may
    /// change.
    async fn dial_seeds(&self) {
        loop {
            let connected = {
                let state = self.state.lock();
                let is_connected = |id: &&NodeId| self.mesh.peer(id).is_some();
                state.homes.keys().filter(is_connected).count()
            };
            if connected < HOMES {
                for seed in &self.options.seeds {
                    match self.net.resolve(seed).await {
                        Ok(addrs) => {
                            for addr in addrs {
                                self.mesh.request_dial(addr);
                            }
                        }
                        Err(error) => tracing::debug!(%seed, %error, "failed to resolve a seed"),
                    }
                }
            }
            tokio::time::sleep(SEED_INTERVAL).await;
        }
    }
}
