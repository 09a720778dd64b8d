//! The possible next events of a cluster, within bounds.

use super::cluster::{Change, Cluster, Delivery, Flight};

/// How many events of each kind are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bounds {
    /// Ticks of time; a lease lasts two.
    pub(crate) ticks: u8,
    /// Ticks in which some pairs do not reach each other.
    pub(crate) cuts: u8,
    /// Crashes; a crashed node loses its counts.
    pub(crate) crashes: u8,
    /// Restarts that lose the disk as well.
    pub(crate) wipes: u8,
    /// Members that are evicted, whether they are alive or not.
    pub(crate) evictions: u8,
    /// Members that start to drain.
    pub(crate) drains: u8,
    /// Voters that are replaced.
    pub(crate) replacements: u8,
    /// Messages that are delayed or lost.
    pub(crate) late: u8,
    /// Messages that are delivered twice.
    pub(crate) doubled: u8,
    /// Pings between two ticks.
    pub(crate) pings: u8,
    /// Whether each step of a transfer is an event of its own, or only the start and the end.
    pub(crate) is_fine: bool,
}

/// A cluster, and the events that are left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) left: Bounds,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Move {
    /// A tick; pairs whose bit is set do not reach each other.
    Pass {
        cut: u32,
    },
    /// A change of the map is committed.
    Commit(Change),
    /// A node learns the newest map and saves it.
    Learn(usize),
    /// The first pings the second.
    Ping(usize, usize, Delivery),
    /// The first takes the next step of its transfer to the second.
    Step(usize, usize, Delivery),
    /// A message arrives; if it stays, it may arrive again.
    Deliver {
        index: usize,
        stays: bool,
    },
    Crash(usize),
    /// A crashed node restarts.
    Restart {
        node: usize,
        has_disk: bool,
    },
}

const LATE: [Delivery; 2] = [Delivery::RequestDelayed, Delivery::ReplyDelayed];

impl World {
    /// All possible next events.
    pub(crate) fn moves(&self) -> Vec<Move> {
        let (cluster, left) = (&self.cluster, self.left);
        let mut moves = Vec::new();
        if left.ticks > 0 {
            let pairs = cluster.nodes.len() * (cluster.nodes.len() - 1) / 2;
            let cuts = if left.cuts > 0 { 1_u32 << pairs } else { 1 };
            moves.extend((0..cuts).map(|cut| Move::Pass { cut }));
        }
        let up = |node: &usize| cluster.is_up(*node);
        for (node, other) in cluster.pairs() {
            if !up(&node) {
                continue;
            }
            if left.pings > 0 && up(&other) {
                moves.push(Move::Ping(node, other, Delivery::Immediate));
                if left.late > 0 {
                    moves.push(Move::Ping(node, other, Delivery::ReplyDelayed));
                }
            }
            moves.push(Move::Step(node, other, Delivery::Immediate));
            if left.late > 0 {
                moves.extend(LATE.map(|delivery| Move::Step(node, other, delivery)));
            }
            if left.replacements > 0 {
                moves.push(Move::Commit(Change::Replace(node, other)));
            }
        }
        for index in 0..cluster.flying.len() {
            moves.push(Move::Deliver { index, stays: false });
            if left.doubled > 0 {
                moves.push(Move::Deliver { index, stays: true });
            }
        }
        for node in 0..cluster.nodes.len() {
            if cluster.is_behind(node) {
                moves.push(Move::Learn(node));
            }
            if left.crashes > 0 && up(&node) {
                moves.push(Move::Crash(node));
            }
            if left.evictions > 0 {
                moves.push(Move::Commit(Change::Evict(node)));
            }
            if left.drains > 0 {
                moves.push(Move::Commit(Change::Drain(node)));
            }
            if !up(&node) {
                moves.push(Move::Restart { node, has_disk: true });
                if left.wipes > 0 {
                    moves.push(Move::Restart { node, has_disk: false });
                }
            } else if !cluster.is_member(node) {
                moves.push(Move::Commit(Change::Admit(node)));
            }
        }
        moves.push(Move::Commit(Change::EndJoint));
        moves
    }

    /// The world after a move; the same world if the move has no effect.
    pub(crate) fn after(&self, next: Move) -> Self {
        let mut world = self.clone();
        let (cluster, left) = (&mut world.cluster, &mut world.left);
        let nodes = cluster.nodes.len();
        match next {
            Move::Pass { cut } => {
                left.ticks -= 1;
                left.cuts -= u8::from(cut != 0);
                cluster.pass(|a, b| cut & 1 << pair(nodes, a, b) == 0);
            }
            Move::Commit(change) => {
                if !cluster.commit(change) {
                    return self.clone();
                }
                match change {
                    Change::Evict(_) => left.evictions -= 1,
                    Change::Drain(_) => left.drains -= 1,
                    Change::Replace(..) => left.replacements -= 1,
                    Change::Admit(_) | Change::EndJoint => {}
                }
            }
            Move::Learn(node) => {
                cluster.learn(node);
                cluster.save(node);
            }
            Move::Ping(node, other, delivery) => {
                left.pings -= 1;
                left.late -= u8::from(delivery != Delivery::Immediate);
                cluster.ping(node, other, delivery);
            }
            Move::Step(node, other, delivery) => {
                if !Self::step(cluster, node, other, delivery, left.is_fine) {
                    return self.clone();
                }
                left.late -= u8::from(delivery != Delivery::Immediate);
            }
            Move::Deliver { index, stays } => {
                left.doubled -= u8::from(stays);
                cluster.deliver(index, stays);
            }
            Move::Crash(node) => {
                left.crashes -= 1;
                cluster.crash(node);
            }
            Move::Restart { node, has_disk } => {
                left.wipes -= u8::from(!has_disk);
                cluster.restart(node, has_disk);
            }
        }
        if world.cluster == self.cluster { self.clone() } else { world }
    }

    /// Takes one step, or all steps up to one whose message may be delayed. Returns whether the
    /// delay took place.
    fn step(
        cluster: &mut Cluster,
        node: usize,
        other: usize,
        delivery: Delivery,
        is_fine: bool,
    ) -> bool {
        if is_fine {
            return cluster.step(node, other, delivery);
        }
        let is_late = delivery != Delivery::Immediate;
        for _ in 0..6 {
            let flying = cluster.flying.len();
            let before = cluster.clone();
            // Only releases are delayed: a failure of any other step changes no state.
            let mut tried = before.clone();
            let has_stepped = tried.step(node, other, delivery);
            let is_release = matches!(
                tried.flying.iter().find(|flight| !before.flying.contains(flight)),
                Some(Flight::Release { .. } | Flight::Released { .. })
            );
            if is_late && tried.flying.len() > flying && is_release {
                *cluster = tried;
                return true;
            }
            if !has_stepped || !cluster.step(node, other, Delivery::Immediate) || *cluster == before
            {
                return !is_late;
            }
        }
        !is_late
    }
}

/// The number of an unordered pair.
fn pair(nodes: usize, a: usize, b: usize) -> usize {
    let (low, high) = (a.min(b), a.max(b));
    low * nodes - low * (low + 1) / 2 + high - low - 1
}
