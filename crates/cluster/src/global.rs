//! The lease of this node's region, and who stands for the region in the global map.
//!
//! One task on every node, where `global.founders` is set: it pings the global voters, which grant
//! the region a lease ([`region_right`]); it answers as one of
//! them; and it copies keys whose home moves to another region there ([`home_copies`]), of which it
//! tells the global voters.
//!
//! The node that stands for a region is the longest-standing voter of the region that is up: every
//! node of the region reads it from the region's own map. It becomes a member of the global map,
//! and remains one until it leaves or is silent.
//!
//! **Traffic.** Each node pings the global voters, at most seven, five times in a lease: with the
//! default of 5 s at most seven pings a second, however many nodes and regions there are. A node
//! that has started pings ten times a second until its region has the lease: it gets ranges at
//! once, and the global keys in them are undecided until then.
//!
//! [`home_copies`]: crate::home_copies

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::autopilot::{COMPLAINTS_MAX, Complaints};
use tidegate_ownership::cluster_map::{ClusterId, MapState, REGIONS_MAX};
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::region_right::{self, RegionGrants};
use tidegate_ownership::{ClusterMap, Epoch, MemberId};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::home_copies::{Due, HomeCopies};
use crate::membership::{Membership, PingAnswer};
use crate::mesh::wire::{Call, GlobalPing, GlobalPong, Reply};
use crate::mesh::{Mesh, Peer, StreamClass};
use crate::ownership::driver::{pause, silent, skip_pause};
use crate::ownership::{Driver, Ownership};
use crate::replication::Replicator;

#[derive(Clone, Debug)]
pub struct Options {
    pub founders: BTreeSet<NodeId>,
    /// How long a grant of a global voter is valid.
    pub lease: Span,
    /// How long a member may be silent before this node, as a voter, says so.
    pub down_after: Span,
    /// Whether the keys of a lost region move without an operator; for display.
    pub fails_over: bool,
}

/// Keeps the lease of this node's region.
#[derive(Debug)]
pub struct Global {
    options: Options,
    pub membership: Arc<Membership>,
    driver: Arc<Driver>,
    ownership: Ownership,
    mesh: Arc<Mesh>,
    replicator: Arc<Replicator>,
    state: Mutex<State>,
    /// Counts copied to regions to which their keys have moved.
    pub copied: AtomicU64,
}

#[derive(Debug)]
struct State {
    grants: RegionGrants,
    map: Arc<ClusterMap>,
    /// When each member was heard last, or seen to be one.
    heard: BTreeMap<MemberId, Monotonic>,
    ticked: Monotonic,
    copies: HomeCopies,
    /// Why a node lacks counts, where that was logged. **Bound:** one entry per node in sight.
    obstacles: BTreeMap<NodeId, Obstacle>,
    /// What each node said last about its own. **Bound:** one entry per node in sight.
    reports: BTreeMap<NodeId, CopiesReport>,
    /// Homes whose clocks are not accepted, as the log says. **Bound:** one entry per home.
    refused: BTreeSet<String>,
    /// Counts the rounds, so that each asks another peer for a map.
    round: usize,
}

/// The regions, no homes since a change, that have all counts of a node.
#[derive(Debug)]
struct CopiesReport {
    at: Monotonic,
    homes_changed_at: Epoch,
    regions: Vec<String>,
}

/// Why a node of a region that returns does not have all counts of this one. It may last until an
/// operator acts, so it is logged once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Its clock is further from this one's than either accepts.
    Clock,
    /// It does not merge all of them.
    Refused,
    /// It does not answer.
    Failed,
}

/// How often the reports are computed.
const TICK: Duration = Duration::from_millis(100);
/// Pings in a lease, all but one of which may be lost.
const PINGS_PER_LEASE: u32 = 5;
/// A report of copies is valid for as many intervals of the pings that carry it.
const REPORT_PINGS: u64 = 2;
/// The pause after a copy that failed.
const COPY_PAUSE: Duration = Duration::from_secs(1);

impl Global {
    /// A node that follows no global map yet. Nothing is sent until [`Global::run`].
    pub fn new(
        options: Options,
        membership: Arc<Membership>,
        driver: Arc<Driver>,
        ownership: Ownership,
        mesh: Arc<Mesh>,
        replicator: Arc<Replicator>,
    ) -> Arc<Self> {
        let now = ownership.monotonic();
        let state = State {
            grants: RegionGrants::new(now, options.lease),
            map: Arc::default(),
            heard: BTreeMap::new(),
            ticked: now,
            copies: HomeCopies::default(),
            obstacles: BTreeMap::new(),
            reports: BTreeMap::new(),
            refused: BTreeSet::new(),
            round: 0,
        };
        let (state, copied) = (Mutex::new(state), AtomicU64::new(0));
        Arc::new(Self { options, membership, driver, ownership, mesh, replicator, state, copied })
    }

    /// How the keys of a lost region move: `auto` or `manual`.
    pub fn failover(&self) -> &'static str {
        if self.options.fails_over { "auto" } else { "manual" }
    }

    /// How long ago each other member of the map was heard last, or seen to be one.
    pub fn heard(&self) -> BTreeMap<MemberId, Span> {
        let now = self.ownership.monotonic();
        let state = self.state.lock();
        let own = self.own_id(&state.map);
        let others = state.heard.iter().filter(|(id, _)| Some(**id) != own);
        others.map(|(id, heard)| (*id, now.since(*heard))).collect()
    }

    /// `peer` pinged. Returns the reply to send.
    pub fn ping_received(&self, peer: &Peer, ping: GlobalPing) -> Reply {
        if ping.complaints.silent.len().max(ping.complaints.waits_for.len()) > COMPLAINTS_MAX
            || ping.copied.len() > REGIONS_MAX
        {
            return Reply::Malformed;
        }
        self.membership.peer_seen(peer, ping.cluster, ping.epoch, None);
        let now = self.ownership.monotonic();
        let state = &mut *self.state.lock();
        let State { grants, map, heard, reports, refused, .. } = state;
        let is_same = ping.cluster == map.cluster;
        let is_home = map.homes.contains(&peer.region);
        let clock = if is_home { self.accepts_clock(peer, map) } else { Some(true) };
        let is_own = |id: &MemberId| {
            map.get(&peer.id).is_some_and(|one| one.id == *id && one.identity == peer.identity)
        };
        if let Some(member) = ping.member.filter(|id| is_same && is_own(id)) {
            if clock != Some(false) {
                heard.insert(member, now);
            }
            self.membership.complained(member, ping.complaints);
        }
        let (homes_changed_at, regions) = (ping.homes_changed_at, ping.copied);
        let copied = CopiesReport { at: now, homes_changed_at, regions };
        if is_same && !copied.regions.is_empty() {
            reports.insert(peer.id.clone(), copied);
        } else {
            reports.remove(&peer.id);
        }
        let report = grants.report(now, self.saved(map.cluster));
        let is_granted = is_same && clock == Some(true);
        let granted = if is_granted { grants.grant(now, &peer.region) } else { None };
        if clock == Some(true) {
            refused.remove(&peer.region);
        } else if clock == Some(false) && refused.insert(peer.region.clone()) {
            log_refused_clock(peer, self.replicator.clock_distance(peer));
        }
        Reply::GlobalPong(GlobalPong { cluster: map.cluster, epoch: map.epoch, report, granted })
    }

    /// Whether this node, as a global voter, accepts the clock of a node of a home
    /// ([`region_right::accepts_clock`]). `None` before its own clock is in use, and before it has
    /// measured the other: nothing is granted then. A node whose clock is not in use decides
    /// nothing, and will follow others. Where an operator moves the keys, they stay.
    fn accepts_clock(&self, peer: &Peer, map: &ClusterMap) -> Option<bool> {
        if !self.options.fails_over {
            return Some(true);
        }
        if !self.driver.is_clock_right() || peer.rtt_ns() == 0 {
            return None;
        }
        let now = self.ownership.monotonic();
        let Some(theirs) = peer.decision_clock(now) else { return Some(true) };
        let (own, peers) = (self.replicator.decision_clock(), self.mesh.peers());
        let clocks_of = |home: &String| {
            let heard = peers.iter().filter(|it| it.region == *home && !it.is_unreachable());
            let mut clocks: Vec<_> = heard.filter_map(|it| it.decision_clock(now)).collect();
            // One that is not heard, or is this node's region, has the time of this node.
            if clocks.is_empty() || *home == self.driver.topology().region {
                clocks.push(own);
            }
            clocks
        };
        let others = map.homes.names.iter().filter(|home| **home != peer.region);
        let others = others.flat_map(clocks_of);
        Some(region_right::accepts_clock(own, theirs, others, self.replicator.ahead_max()))
    }

    /// Runs until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut maps = self.membership.maps();
        // The map of before a restart.
        maps.mark_changed();
        let mut ticks = self.mesh.ticks.every(TICK);
        let mut pings = self.mesh.ticks.every(self.options.lease.to_std() / PINGS_PER_LEASE);
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = maps.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let map = maps.borrow_and_update().clone();
                    // A voter that is new has granted nothing yet: until it does, the lease may
                    // lack a majority.
                    pings.reset_immediately();
                    self.follow(&map);
                }
                _ = ticks.tick() => {
                    self.tick();
                    if self.lacks_lease() {
                        pings.reset_immediately();
                    }
                    for due in self.due_copies() {
                        tasks.spawn(self.clone().copy(due));
                    }
                }
                _ = pings.tick() => {
                    for to in self.ping_targets() {
                        tasks.spawn(self.clone().ping(to));
                    }
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    /// Whether this node has no lease that its region may have by the map that it knows.
    fn lacks_lease(&self) -> bool {
        let (map, topology) = (self.state.lock().map.clone(), self.driver.topology());
        let may_be_home = map.epoch == Epoch(0) || map.homes.contains(&topology.region);
        may_be_home && !self.ownership.may_hold_global_keys()
    }

    /// Follows a newer map, before anything is granted or reported under it.
    fn follow(&self, map: &Arc<ClusterMap>) {
        let now = self.ownership.monotonic();
        let before = self.ownership.owned_ranges().homes.clone();
        self.driver.global_map_changed(map);
        let state = &mut *self.state.lock();
        let is_moved = state.map.homes != map.homes && state.map.cluster == map.cluster;
        state.grants.follow(now, map);
        state.map = map.clone();
        state.heard.retain(|id, _| map.has(*id));
        state.refused.retain(|region| map.homes.contains(region));
        for member in map.present() {
            state.heard.entry(member.id).or_insert(now);
            self.mesh.request_dial(member.addr);
        }
        if is_moved {
            let after = self.ownership.owned_ranges().homes.clone();
            state.copies.homes_changed(now, &before, &after);
            state.reports.clear();
        }
    }

    /// The nodes of other regions that are to get counts of keys that move there.
    fn due_copies(&self) -> Vec<Due> {
        let (now, topology) = (self.ownership.monotonic(), self.driver.topology());
        let State { copies, obstacles, .. } = &mut *self.state.lock();
        obstacles.retain(|node, _| topology.view.get(node).is_some());
        copies.due(now, &topology, |to| {
            let peer = self.mesh.peer(to).filter(|peer| !peer.is_unreachable())?;
            let distance = self.replicator.clock_distance(&peer)?;
            if distance <= self.replicator.ahead_max() {
                return Some(self.replicator.missed(to));
            }
            if obstacles.insert(to.clone(), Obstacle::Clock) != Some(Obstacle::Clock) {
                tracing::warn!(
                    peer = %to,
                    region = %peer.region,
                    distance_ms = distance.as_millis_ceil(),
                    "the clocks of a region are too far from those of this one for the counts of \
                     global keys: it is no home of them until they agree. Look at the time of the \
                     machines of both"
                );
            }
            None
        })
    }

    /// The homes that have copied to a region that is none all counts of the keys that would move
    /// there: those of which each node has said so of late.
    fn regions_copied(&self, state: &mut State, now: Monotonic) -> BTreeSet<(String, String)> {
        let topology = self.driver.topology();
        let age_max =
            Span::from_nanos(self.options.lease.as_nanos() * REPORT_PINGS / PINGS_PER_LEASE as u64);
        let changed_at = state.map.homes.changed_at;
        state.reports.retain(|node, report| {
            topology.view.get(node).is_some()
                && now < report.at.plus(age_max)
                && report.homes_changed_at == changed_at
        });
        let own: Vec<&str> = state.copies.complete(now).collect();
        let has_copied = |node: &NodeId, to: &String| {
            if *node == topology.me {
                return own.contains(&to.as_str());
            }
            state.reports.get(node).is_some_and(|report| report.regions.contains(to))
        };
        let have_all = |from: &String, to: &String| {
            let ring = topology.region_ring(from);
            ring.is_some_and(|ring| ring.nodes().all(|node| has_copied(node, to)))
        };
        let homes = topology.homes();
        let pairs = homes.regions().iter().flat_map(|from| {
            homes.absent().iter().map(move |to| (from, to)).filter(|(from, to)| have_all(from, to))
        });
        pairs.map(|(from, to)| (from.clone(), to.clone())).collect()
    }

    fn tick(&self) {
        let now = self.ownership.monotonic();
        let (report, complaints, own, copied) = {
            let state = &mut *self.state.lock();
            let paused = self.pause(state, now);
            skip_pause(&mut state.heard, now, paused);
            state.ticked = now;
            let own = self.own_id(&state.map);
            let saved = self.saved(state.map.cluster);
            let copied = self.regions_copied(state, now);
            (state.grants.report(now, saved), self.complaints(state, now), own, copied)
        };
        self.membership.regions_copied(copied);
        self.driver.global_reported(report);
        self.membership.reported(report);
        if let Some(own) = own {
            self.membership.complained(own, complaints);
        }
        let stands = self.stands();
        self.membership.stand(stands);
    }

    /// The newest epoch of `cluster` that is on the disk.
    fn saved(&self, cluster: ClusterId) -> Epoch {
        let (of, epoch) = *self.membership.saved().borrow();
        if of == cluster { epoch } else { Epoch(0) }
    }

    /// Whether this node is to be a member of the global map.
    fn stands(&self) -> bool {
        let me = self.membership.identity();
        let map = self.driver.map();
        let up = map.present().filter(|member| {
            member.state == MapState::Up && map.voters.current.contains(&member.identity)
        });
        let stands_first = up.min_by_key(|member| member.id).is_some_and(|one| one.identity == *me);
        let global = self.membership.maps().borrow().clone();
        let votes = global.voters.all().any(|voter| voter.node == me.node);
        // The founders come first, so that the configuration says who founds.
        let is_founder = global.epoch == Epoch(0) && self.options.founders.contains(&me.node);
        is_founder || votes || stands_first && global.epoch > Epoch(0)
    }

    fn own_id(&self, map: &ClusterMap) -> Option<MemberId> {
        self.membership
            .is_in(map)
            .then(|| map.get(&self.membership.identity().node))?
            .map(|own| own.id)
    }

    fn pause(&self, state: &State, now: Monotonic) -> Span {
        pause(state.ticked, now, Span::from_nanos(self.options.lease.as_nanos() / 2))
    }

    fn complaints(&self, state: &State, now: Monotonic) -> Complaints {
        let own = self.own_id(&state.map);
        let silent = silent(&state.heard, self.pause(state, now), now, self.options.down_after);
        let silent = silent.filter(|id| Some(*id) != own);
        Complaints { silent: silent.take(COMPLAINTS_MAX).collect(), ..Complaints::default() }
    }

    /// The global voters; without a map the founders. And one peer in turn: the voters of an old
    /// map may all be gone.
    fn ping_targets(&self) -> BTreeSet<NodeId> {
        let state = &mut *self.state.lock();
        let me = &self.membership.identity().node;
        let voters = state.map.voters.all().map(|voter| voter.node.clone());
        let mut targets: BTreeSet<NodeId> = if state.map.epoch > Epoch(0) {
            voters.collect()
        } else {
            self.options.founders.clone()
        };
        let peers = self.mesh.peers();
        if let Some(at) = state.round.checked_rem(peers.len())
            && let Some(peer) = peers.get(at)
        {
            targets.insert(peer.id.clone());
        }
        state.round = state.round.wrapping_add(1);
        targets.remove(me);
        targets
    }

    async fn ping(self: Arc<Self>, to: NodeId) {
        let Some(peer) = self.mesh.peer(&to) else { return };
        let ping = {
            let (now, state) = (self.ownership.monotonic(), &*self.state.lock());
            GlobalPing {
                cluster: state.map.cluster,
                epoch: state.map.epoch,
                member: self.own_id(&state.map),
                complaints: self.complaints(state, now),
                copied: state.copies.complete(now).map(str::to_owned).collect(),
                homes_changed_at: state.map.homes.changed_at,
            }
        };
        let (sent, asked_at) = (self.ownership.monotonic(), self.membership.now());
        let timeout = self.options.lease.to_std() / 2;
        let call = Call::GlobalPing(ping);
        let reply = self.mesh.call_peer(&peer, StreamClass::Control, call, timeout).await;
        if let Ok(Reply::GlobalPong(pong)) = reply {
            let answer = PingAnswer { report: pong.report, asked_at };
            self.membership.peer_seen(&peer, pong.cluster, pong.epoch, Some(answer));
            self.driver.global_pong_received(&peer.identity, sent, pong);
        }
    }

    /// Copies to a node the counts of the global keys that move to it.
    async fn copy(self: Arc<Self>, due: Due) {
        let copied = AtomicU64::new(0);
        let result = self.replicator.copy(&due.to, |key| due.includes(key), &copied).await;
        let copied = copied.into_inner();
        self.copied.fetch_add(copied, Ordering::Relaxed);
        let is_done = result.is_ok() && self.replicator.missed(&due.to) == due.missed;
        match result {
            Ok(()) if !is_done => {
                if self.is_news(&due.to, Obstacle::Refused) {
                    tracing::warn!(
                        peer = %due.to,
                        "the next home of global keys does not take all of their counts; trying \
                         again. Look whether its store is full (tidegate_store_keys) or its clock \
                         is off"
                    );
                }
            }
            Ok(()) if copied > 0 => {
                tracing::info!(peer = %due.to, copied, "copied counts of global keys to their next home");
            }
            Ok(()) => {}
            Err(error) => {
                if self.is_news(&due.to, Obstacle::Failed) {
                    tracing::warn!(
                        peer = %due.to,
                        %error,
                        "failed to copy counts of global keys to their next home; trying again"
                    );
                }
            }
        }
        if !is_done {
            tokio::time::sleep(COPY_PAUSE).await;
        }
        let state = &mut *self.state.lock();
        if is_done {
            state.obstacles.remove(&due.to);
        }
        state.copies.finished(&due, is_done);
    }

    /// Whether another obstacle, or none, was logged of this node before.
    fn is_news(&self, to: &NodeId, obstacle: Obstacle) -> bool {
        self.state.lock().obstacles.insert(to.clone(), obstacle) != Some(obstacle)
    }
}

fn log_refused_clock(peer: &Peer, distance: Option<Span>) {
    tracing::warn!(
        peer = %peer.id,
        region = %peer.region,
        distance_ms = distance.unwrap_or_default().as_millis_ceil(),
        "the clocks of a home of global keys are too far from those of another home: this node \
         grants it no lease, and if most do not, its keys move. Look at the time of the machines \
         of both; docs/operations.md says how a home returns"
    );
}
