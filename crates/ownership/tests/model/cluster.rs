//! A cluster as one value: the committed maps, the state machines of every node, and the messages
//! in flight.
//!
//! The state machines are driven as a node drives them. The consensus engine is what it promises: a
//! sequence of maps, of which each node knows a prefix. What the next map is, when it is committed
//! and when a node learns it are events, so a member may be evicted at any moment, however alive.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_limiter::units::Span;
use tidegate_ownership::cluster_map::{ClusterId, MapMember, MapState, Voters};
use tidegate_ownership::grants::{Grants, hold};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::ranges::{Range, Ranges};
use tidegate_ownership::{
    ClusterMap, Epoch, HandoffReply, Identity, MemberId, Monotonic, QuorumRule, RingMembers,
    RingOwnership, TransferStep, Versions, VoteGrant,
};

/// Ticks of true time for which a grant is valid on a clock of the right speed.
pub(crate) const LEASE: u64 = 2;
/// Ticks after which every grant has expired by every clock.
pub(crate) const EXPIRED: u64 = 3;
/// A clock advances by its speed at each tick: a tenth too slow, right, or a tenth too fast.
pub(crate) const SPEEDS: [u64; 3] = [9, 10, 11];
const LEASE_SPAN: Span = Span::from_nanos(LEASE * 10);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cluster {
    pub(crate) now: u64,
    pub(crate) arcs: usize,
    /// The committed maps, oldest first.
    pub(crate) maps: Vec<Arc<ClusterMap>>,
    pub(crate) nodes: Vec<Node>,
    /// Unordered: any may arrive next.
    pub(crate) flying: Vec<Flight>,
    /// Since when majorities have reported the joint phase that is in progress.
    joint_since: Option<u64>,
    /// Whether any release was refused, so that its ranges returned.
    pub(crate) has_rolled_back: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) identity: Identity,
    start: u64,
    speed: u64,
    /// Index of the newest map that it follows.
    known: usize,
    /// Index of the newest map that is on its disk.
    saved: usize,
    /// `None` while it is down.
    pub(crate) machines: Option<Arc<Machines>>,
}

/// The state of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Machines {
    pub(crate) ring: RingOwnership,
    grants: Grants,
    /// The hits of each arc that it knows.
    counts: Vec<u16>,
    /// Those that it has confirmed to the node that decided them, under its present admission.
    confirmed: Vec<u16>,
}

/// What the network does to one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Delivery {
    /// Request and reply arrive at once.
    Immediate,
    /// The request arrives later.
    RequestDelayed,
    /// The reply arrives later, or never.
    ReplyDelayed,
}

/// A change of the map, committed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    Admit(usize),
    Evict(usize),
    Drain(usize),
    /// Begins a joint phase, in which the second votes in the place of the first.
    Replace(usize, usize),
    EndJoint,
}

/// A message in flight. A reply reaches only the process that sent the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flight {
    Pong {
        to: usize,
        start: u64,
        pong: Pong,
    },
    Ready {
        from: usize,
        to: usize,
        start: u64,
        epoch: Epoch,
        reply: HandoffReply,
    },
    Release {
        from: usize,
        start: u64,
        member: MemberId,
        to: usize,
        epoch: Epoch,
        number: u64,
        ranges: Ranges,
    },
    Released {
        from: usize,
        to: usize,
        start: u64,
        number: u64,
        reply: HandoffReply,
    },
}

/// The answer to a ping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pong {
    voter: Identity,
    sent: Monotonic,
    report: Epoch,
    grant: Option<VoteGrant>,
}

impl Cluster {
    /// `nodes` nodes that start now; the first three vote, and `members` of them are members. Their
    /// clocks run at `speeds`.
    pub(crate) fn start(nodes: usize, members: usize, arcs: usize, speeds: &[u64]) -> Self {
        let node = |index: usize| Node {
            identity: Identity { node: id(index), birth: 1 },
            start: 0,
            speed: speeds[index % speeds.len()],
            known: 0,
            saved: 0,
            machines: None,
        };
        let mut cluster = Self {
            now: 10,
            arcs,
            maps: Vec::new(),
            nodes: (0..nodes).map(node).collect(),
            flying: Vec::new(),
            joint_since: None,
            has_rolled_back: false,
        };
        let voters = Voters::of((0..3).map(|index| cluster.nodes[index].identity.clone()));
        let (cluster_id, epoch) = (ClusterId(1), Epoch(1));
        let first = ClusterMap { cluster: cluster_id, epoch, voters, ..ClusterMap::default() };
        cluster.maps.push(Arc::new(first));
        for index in 0..nodes {
            cluster.restart(index, true);
        }
        for index in 0..members {
            cluster.commit(Change::Admit(index));
        }
        cluster
    }

    /// The same, after every member has claimed its arcs.
    pub(crate) fn settled(nodes: usize, members: usize, arcs: usize, speeds: &[u64]) -> Self {
        let mut cluster = Self::start(nodes, members, arcs, speeds);
        cluster.settle();
        cluster
    }

    /// Lets time pass without faults until every member decides its arcs.
    pub(crate) fn settle(&mut self) {
        self.flying.clear();
        self.now += EXPIRED;
        for node in 0..self.nodes.len() {
            self.learn(node);
            self.save(node);
        }
        for _ in 0..4 * EXPIRED {
            self.pass(|_, _| true);
            for _ in 0..6 {
                for (node, other) in self.pairs() {
                    self.step(node, other, Delivery::Immediate);
                }
            }
        }
    }

    // === events ===

    /// A tick, at which pairs that reach each other ping.
    pub(crate) fn pass(&mut self, reach: impl Fn(usize, usize) -> bool) {
        self.wait();
        for (node, other) in self.pairs() {
            if reach(node, other) {
                self.ping(node, other, Delivery::Immediate);
            }
        }
        for node in 0..self.nodes.len() {
            self.tick(node);
        }
    }

    /// A tick without any activity.
    pub(crate) fn wait(&mut self) {
        self.now += 1;
    }

    pub(crate) fn crash(&mut self, node: usize) {
        self.nodes[node].machines = None;
    }

    /// Starts a process of `node`, with its disk or under a new birth.
    pub(crate) fn restart(&mut self, node: usize, has_disk: bool) {
        let now = self.clock(node);
        let restarted = &mut self.nodes[node];
        restarted.start += 1;
        if !has_disk {
            restarted.identity.birth += 1;
            restarted.saved = 0;
        }
        restarted.known = restarted.saved;
        let (identity, start) = (restarted.identity.clone(), restarted.start);
        let ring = RingOwnership::new(identity, start, LEASE_SPAN, QuorumRule::Majority);
        let (counts, confirmed) = (vec![0; self.arcs], vec![0; self.arcs]);
        let grants = Grants::new(now, LEASE_SPAN);
        restarted.machines = Some(Arc::new(Machines { ring, grants, counts, confirmed }));
        self.follow(node);
    }

    /// `node` learns the newest map.
    pub(crate) fn learn(&mut self, node: usize) {
        if self.is_up(node) {
            self.nodes[node].known = self.maps.len() - 1;
            self.follow(node);
        }
    }

    /// What `node` knows is on its disk.
    pub(crate) fn save(&mut self, node: usize) {
        if self.is_up(node) {
            self.nodes[node].saved = self.nodes[node].known;
        }
    }

    /// Commits a change if it is possible now; returns whether it is.
    pub(crate) fn commit(&mut self, change: Change) -> bool {
        let before = &self.maps[self.maps.len() - 1];
        let mut next = ClusterMap::clone(before);
        next.epoch = before.epoch.next();
        match change {
            Change::Admit(node) if self.is_up(node) && !self.is_member(node) => {
                let node = &self.nodes[node];
                next.last_member.0 += 1;
                next.members.retain(|member| member.identity.node != node.identity.node);
                next.members.push(MapMember {
                    id: next.last_member,
                    identity: node.identity.clone(),
                    start: node.start,
                    generation: Generation(node.start),
                    addr: ([127, 0, 0, 1], 1).into(),
                    zone: String::new(),
                    versions: Versions::default(),
                    state: MapState::Up,
                });
                next.members.sort_by(|a, b| a.identity.node.cmp(&b.identity.node));
            }
            Change::Evict(node) | Change::Drain(node) => {
                let to =
                    if let Change::Evict(_) = change { MapState::Down } else { MapState::Draining };
                let name = id(node);
                let of_node = |member: &&mut MapMember| member.identity.node == name;
                let Some(member) = next.members.iter_mut().find(of_node) else { return false };
                if member.state >= to {
                    return false;
                }
                member.state = to;
            }
            Change::Replace(gone, by) => {
                let by = &self.nodes[by].identity;
                if next.voters.are_joint() || next.voters.contains(by) {
                    return false;
                }
                let of_node = |voter: &Identity| voter.node == id(gone);
                let Some(at) = next.voters.current.iter().position(of_node) else { return false };
                next.voters.replaced.clone_from(&next.voters.current);
                next.voters.current[at] = by.clone();
                next.voters.current.sort();
                next.voters.changed_at = next.epoch;
                self.joint_since = None;
            }
            Change::EndJoint if self.may_end_joint() => next.voters.replaced.clear(),
            Change::Admit(_) | Change::EndJoint => return false,
        }
        self.maps.push(Arc::new(next));
        for node in 0..self.nodes.len() {
            // A claim waits for members only.
            if !self.is_member(node) {
                self.change(node, |machines| machines.confirmed.fill(0));
            }
        }
        true
    }

    /// The autopilot's rule, on the fastest clock.
    fn may_end_joint(&mut self) -> bool {
        let newest = &self.maps[self.maps.len() - 1];
        let reported = |voter: &Identity| {
            let node = self.nodes.iter().find(|node| node.identity == *voter);
            let machines = node.and_then(|node| node.machines.as_deref());
            machines.is_some_and(|machines| machines.grants.reported() >= newest.voters.changed_at)
        };
        if !newest.voters.are_joint() || !newest.voters.is_majority(reported) {
            return false;
        }
        let since = *self.joint_since.get_or_insert(self.now);
        (self.now - since) * SPEEDS[2] >= hold(LEASE_SPAN).as_nanos()
    }

    /// `node` renews its lease and claims ranges.
    pub(crate) fn tick(&mut self, node: usize) {
        let (now, map) = (self.clock(node), self.known(node).clone());
        let (identity, saved) = (self.nodes[node].identity.clone(), self.saved(node));
        self.change(node, |machines| {
            let report = machines.grants.report(now, &map, saved);
            machines.ring.report_received(&identity, report);
            machines.ring.tick(now);
        });
    }

    pub(crate) fn ping(&mut self, node: usize, other: usize, delivery: Delivery) {
        let Some(member) = self.ring(node).map(RingOwnership::own_id) else { return };
        let (sent, received) = (self.clock(node), self.clock(other));
        let (voter, map) = (self.nodes[other].identity.clone(), self.known(other).clone());
        let saved = self.saved(other);
        let waits_for_none = self.ring(node).filter(|ring| ring.waits_for().next().is_none());
        if let (Some(epoch), Some(member)) = (waits_for_none.map(RingOwnership::epoch), member) {
            self.change(other, |machines| {
                machines.ring.peer_waits_for_none(&id(node), member, epoch);
            });
        }
        let pong = self.change(other, |machines| {
            let grant = member.and_then(|id| machines.grants.grant(received, id, &map));
            let report = machines.grants.report(received, &map, saved);
            Pong { voter, sent, report, grant }
        });
        let Some(pong) = pong else { return };
        self.reply(Flight::Pong { to: node, start: self.nodes[node].start, pong }, delivery);
    }

    /// `node` takes the next step of its transfer to `other`. Returns whether there was one.
    pub(crate) fn step(&mut self, node: usize, other: usize, delivery: Delivery) -> bool {
        let (now, start) = (self.clock(node), self.nodes[node].start);
        let step = self.change(node, |machines| machines.ring.next_step(&id(other), now)).flatten();
        let Some(ring) = self.ring(node) else { return false };
        let (epoch, member) = (ring.epoch(), ring.own_id());
        match (step, member) {
            (None, _) | (_, None) => return false,
            (Some(TransferStep::Offer(epoch)), _) => {
                let Some(ring) = self.ring(other) else { return true };
                let reply = ring.offer_received(&id(node), epoch);
                let ready = Flight::Ready { from: other, to: node, start, epoch, reply };
                self.reply(ready, delivery);
            }
            (Some(TransferStep::Copy { follows, copies }), _) => {
                if self.copy(node, other, &follows.with(&copies)) {
                    self.change(node, |machines| machines.ring.copied(&id(other), epoch));
                }
            }
            (Some(TransferStep::Flush), _) => {
                let frozen = ring.held().shared_with(&ring.members().arcs(&id(other)));
                let is_done = delivery == Delivery::Immediate && self.copy(node, other, &frozen);
                self.change(node, |machines| machines.ring.flushed(&id(other), epoch, is_done));
            }
            (Some(TransferStep::Release { epoch, number, ranges }), Some(member)) => {
                let (from, to) = (node, other);
                let flight = Flight::Release { from, start, member, to, epoch, number, ranges };
                if delivery == Delivery::RequestDelayed {
                    self.send(flight);
                } else {
                    self.arrive(flight, delivery);
                }
            }
        }
        true
    }

    /// `node` takes a hit for each arc that it decides, and `replica` confirms it. It promises to
    /// keep them if both know its present admission: no node waits for the copies of a former one.
    /// Returns whether there was a hit.
    pub(crate) fn hit(&mut self, node: usize, replica: usize) -> bool {
        let decided: Vec<usize> =
            (0..self.arcs).filter(|arc| self.deciders(*arc).contains(&node)).collect();
        if decided.is_empty() || !self.accepts_states(node, replica) {
            return false;
        }
        let arcs = decided.iter().map(|arc| Range { first: token(*arc), last: token(*arc) });
        let counts = self.change(node, |machines| {
            for arc in &decided {
                machines.counts[*arc] += 1;
            }
            machines.counts.clone()
        });
        self.copy(node, replica, &Ranges::of(arcs));
        let admission = self.maps[self.maps.len() - 1].get(&id(replica)).map(|member| member.id);
        let is_known = |node: usize| {
            self.ring(node).is_some_and(|ring| ring.members().id(&id(replica)) == admission)
        };
        let does_promise = self.is_member(replica) && is_known(node) && is_known(replica);
        if let Some(counts) = counts.filter(|_| does_promise) {
            self.change(replica, |machines| {
                for arc in &decided {
                    machines.confirmed[*arc] = counts[*arc];
                }
            });
        }
        true
    }

    /// `node` drops the hits of the arcs of others, if each of them has said that it decides what it
    /// owns; from now on the owners alone promise what it had confirmed. Returns whether it did.
    pub(crate) fn drop_strays(&mut self, node: usize) -> bool {
        let is_settled = self.ring(node).is_some_and(RingOwnership::are_all_settled);
        if !is_settled || !self.has_lease(node) {
            return false;
        }
        let map = self.known(node).clone();
        let up: BTreeSet<usize> = (0..self.nodes.len()).filter(|n| is_up_in(&map, *n)).collect();
        for arc in 0..self.arcs {
            let Some(owner) = owner(&up, self.nodes.len(), arc).filter(|it| *it != node) else {
                continue;
            };
            let confirmed = self.change(node, |machines| {
                machines.counts[arc] = 0;
                std::mem::take(&mut machines.confirmed[arc])
            });
            if self.is_member(owner)
                && let Some(confirmed) = confirmed
            {
                self.change(owner, |machines| {
                    machines.confirmed[arc] = machines.confirmed[arc].max(confirmed);
                });
            }
        }
        true
    }

    /// Delivers the message at this index; if it stays, it can be delivered again.
    pub(crate) fn deliver(&mut self, index: usize, stays: bool) {
        let flight = if stays { self.flying[index].clone() } else { self.flying.remove(index) };
        self.arrive(flight, Delivery::Immediate);
    }

    // === state ===

    /// The nodes that decide the keys of this arc now.
    pub(crate) fn deciders(&self, arc: usize) -> Vec<usize> {
        let decides = |node: &usize| {
            self.has_lease(*node)
                && self.ring(*node).is_some_and(|ring| ring.decides().contains(token(arc)))
        };
        (0..self.nodes.len()).filter(decides).collect()
    }

    /// Whether a node decides this arc without hits that a member has confirmed, however the node
    /// that decided them ended.
    pub(crate) fn has_lost_hits(&self, arc: usize) -> bool {
        let count = |node: usize, of: fn(&Machines) -> &[u16]| {
            self.nodes[node].machines.as_deref().map_or(0, |machines| of(machines)[arc])
        };
        let confirmed = (0..self.nodes.len()).map(|node| count(node, |it| &it.confirmed)).max();
        let deciders = self.deciders(arc);
        deciders.iter().any(|node| Some(count(*node, |it| &it.counts)) < confirmed)
    }

    pub(crate) fn has_lease(&self, node: usize) -> bool {
        self.ring(node).is_some_and(|ring| self.clock(node) < ring.lease_until())
    }

    /// The owner of `arc` on the ring of the newest map.
    pub(crate) fn owner(&self, arc: usize) -> Option<usize> {
        let newest = &self.maps[self.maps.len() - 1];
        let up: BTreeSet<usize> = (0..self.nodes.len()).filter(|n| is_up_in(newest, *n)).collect();
        owner(&up, self.nodes.len(), arc)
    }

    pub(crate) fn ring(&self, node: usize) -> Option<&RingOwnership> {
        self.nodes[node].machines.as_deref().map(|machines| &machines.ring)
    }

    pub(crate) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].machines.is_some()
    }

    /// Whether the newest map has this process of the node.
    pub(crate) fn is_member(&self, node: usize) -> bool {
        let newest = &self.maps[self.maps.len() - 1];
        let (node, state) = (&self.nodes[node], MapState::Down);
        newest.get(&node.identity.node).is_some_and(|member| {
            member.identity == node.identity && member.start == node.start && member.state != state
        })
    }

    /// Whether the node does not know the newest map.
    pub(crate) fn is_behind(&self, node: usize) -> bool {
        self.is_up(node) && self.nodes[node].known + 1 < self.maps.len()
    }

    /// Whether the newest map that the node knows is not on its disk.
    pub(crate) fn is_unsaved(&self, node: usize) -> bool {
        self.is_up(node) && self.nodes[node].saved < self.nodes[node].known
    }

    /// All ordered pairs of distinct nodes.
    pub(crate) fn pairs(&self) -> Vec<(usize, usize)> {
        let all = 0..self.nodes.len();
        all.clone().flat_map(|a| all.clone().map(move |b| (a, b))).filter(|(a, b)| a != b).collect()
    }

    fn known(&self, node: usize) -> &Arc<ClusterMap> {
        &self.maps[self.nodes[node].known]
    }

    fn saved(&self, node: usize) -> Epoch {
        self.maps[self.nodes[node].saved].epoch
    }

    fn clock(&self, node: usize) -> Monotonic {
        Monotonic::from_nanos(self.now * self.nodes[node].speed)
    }

    // === deliveries ===

    fn follow(&mut self, node: usize) {
        let (map, nodes, arcs) = (self.known(node).clone(), self.nodes.len(), self.arcs);
        let up: BTreeSet<usize> = (0..nodes).filter(|node| is_up_in(&map, *node)).collect();
        let members = RingMembers::new(map, |name| {
            let own = |arc: &usize| owner(&up, nodes, *arc).is_some_and(|owner| id(owner) == *name);
            Ranges::of(
                (0..arcs).filter(own).map(|arc| Range { first: token(arc), last: token(arc) }),
            )
        });
        self.change(node, |machines| machines.ring.follow(members));
    }

    /// Whether `to` merges what `from` sends: it does by its map, whatever the sender's one is.
    fn accepts_states(&self, from: usize, to: usize) -> bool {
        self.ring(to).is_some_and(|ring| ring.members().contains(&id(from)))
    }

    /// Copies the hits of the arcs in `ranges`. Returns whether that is done.
    fn copy(&mut self, from: usize, to: usize, ranges: &Ranges) -> bool {
        if ranges.is_empty() {
            return true;
        }
        let sent = self.nodes[from].machines.clone();
        let Some(sent) = sent.filter(|_| self.accepts_states(from, to)) else { return false };
        let arcs = (0..self.arcs).filter(|arc| ranges.contains(token(*arc)));
        self.change(to, |machines| {
            for arc in arcs {
                machines.counts[arc] = machines.counts[arc].max(sent.counts[arc]);
            }
        });
        true
    }

    fn change<T>(&mut self, node: usize, by: impl FnOnce(&mut Machines) -> T) -> Option<T> {
        Some(by(Arc::make_mut(self.nodes[node].machines.as_mut()?)))
    }

    fn reply(&mut self, flight: Flight, delivery: Delivery) {
        match delivery {
            Delivery::Immediate => self.arrive(flight, Delivery::Immediate),
            Delivery::RequestDelayed | Delivery::ReplyDelayed => self.send(flight),
        }
    }

    fn send(&mut self, flight: Flight) {
        self.flying.push(flight);
        // Equal sets of messages have to be equal values.
        self.flying.sort_by_cached_key(|flight| format!("{flight:?}"));
    }

    fn arrive(&mut self, flight: Flight, reply_delivery: Delivery) {
        let is_current = |node: usize, start| self.nodes[node].start == start;
        match flight {
            Flight::Pong { to, start, pong } if is_current(to, start) => {
                let Pong { voter, sent, report, grant } = pong;
                self.change(to, |machines| {
                    machines.ring.pong_received(&voter, sent, report, grant);
                });
                self.tick(to);
            }
            Flight::Ready { from, to, start, epoch, reply } if is_current(to, start) => {
                self.change(to, |machines| machines.ring.offer_replied(&id(from), epoch, reply));
            }
            Flight::Release { from, start, member, to, epoch, number, ranges } => {
                let reply = self.change(to, |machines| {
                    machines.ring.release_received(&id(from), member, epoch, number, &ranges)
                });
                let Some(reply) = reply else { return };
                self.tick(to);
                let (from, to) = (to, from);
                self.reply(Flight::Released { from, to, start, number, reply }, reply_delivery);
            }
            Flight::Released { from, to, start, number, reply } if is_current(to, start) => {
                self.has_rolled_back |= reply == HandoffReply::Refused;
                self.change(to, |machines| {
                    machines.ring.release_replied(&id(from), number, reply);
                });
            }
            _ => {}
        }
    }
}

/// Whether `node` owns keys under `map`.
fn is_up_in(map: &ClusterMap, node: usize) -> bool {
    map.get(&id(node)).is_some_and(|member| member.state == MapState::Up)
}

/// Arc `n` belongs to node `n`, or to the next one that is up.
fn owner(up: &BTreeSet<usize>, nodes: usize, arc: usize) -> Option<usize> {
    (0..nodes).map(|step| (arc + step) % nodes).find(|node| up.contains(node))
}

pub(crate) fn id(node: usize) -> NodeId {
    NodeId::new(["a", "b", "c", "d", "e"][node]).expect("a valid id")
}

fn token(arc: usize) -> u64 {
    arc as u64
}
