//! What may happen to a cluster next, within bounds.

use super::cluster::{Cluster, CountingMode, Flight};

/// How much of each fault is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bounds {
    /// Ticks of time; a lease is two.
    pub(crate) ticks: u8,
    /// Times gossip gives up a node that is alive.
    pub(crate) lies: u8,
    /// Ticks in which not everybody reaches everybody.
    pub(crate) cuts: u8,
    /// Crashes, each with the loss of all memory.
    pub(crate) crashes: u8,
    /// Nodes that begin to leave.
    pub(crate) drains: u8,
    /// Messages that arrive later than they might, or never.
    pub(crate) late: u8,
    /// Messages that arrive twice.
    pub(crate) doubled: u8,
    /// Pings out of turn.
    pub(crate) pings: u8,
    /// Whether each step of a handover is one of its own, or only its beginning and its end.
    pub(crate) is_fine: bool,
}

/// A cluster, and what may still go wrong.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) left: Bounds,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Move {
    /// A tick; the pairs whose bit is set do not reach each other.
    Pass { cut: u32 },
    /// Gossip tells the first the truth about the second.
    Hear(usize, usize),
    /// Gossip tells the first that the second is dead, which lives.
    Lie(usize, usize),
    /// The first pings the second.
    Ping(usize, usize, CountingMode),
    /// The first does what it owes the second.
    Work(usize, usize, CountingMode),
    /// A message arrives; it may do so again.
    Deliver { index: usize, stays: bool },
    /// Loses its memory.
    Crash(usize),
    /// Starts again.
    Rejoin(usize),
    /// Begins to leave.
    Drain(usize),
}

const LATE: [CountingMode; 2] = [CountingMode::AskLate, CountingMode::AnswerLate];

impl World {
    /// All that may happen next.
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
            let Some(machines) = &cluster.nodes[node].machines else { continue };
            if machines.view[other] != cluster.fact(other) {
                moves.push(Move::Hear(node, other));
            } else if left.lies > 0 && machines.view[other].is_some() {
                moves.push(Move::Lie(node, other));
            }
            if left.pings > 0 && cluster.is_up(other) {
                moves.push(Move::Ping(node, other, CountingMode::Clear));
                if left.late > 0 {
                    moves.push(Move::Ping(node, other, CountingMode::AnswerLate));
                }
            }
            moves.push(Move::Work(node, other, CountingMode::Clear));
            if left.late > 0 {
                moves.extend(LATE.map(|way| Move::Work(node, other, way)));
            }
        }
        for index in 0..cluster.flying.len() {
            moves.push(Move::Deliver { index, stays: false });
            if left.doubled > 0 {
                moves.push(Move::Deliver { index, stays: true });
            }
        }
        let nodes = 0..cluster.nodes.len();
        if left.crashes > 0 {
            moves.extend(nodes.clone().filter(up).map(Move::Crash));
        }
        if left.drains > 0 {
            moves.extend(nodes.clone().filter(up).map(Move::Drain));
        }
        moves.extend(nodes.filter(|node| !up(node)).map(Move::Rejoin));
        moves
    }

    /// What follows from a move; the same world if nothing does.
    pub(crate) fn after(&self, next: Move) -> Self {
        let mut world = self.clone();
        let Self { cluster, left } = &mut world;
        match next {
            Move::Pass { cut } => {
                left.ticks -= 1;
                left.cuts -= u8::from(cut != 0);
                let nodes = cluster.nodes.len();
                cluster.pass(|a, b| cut & 1 << pair(nodes, a, b) == 0);
            }
            Move::Hear(node, other) => cluster.hear(node, other, cluster.fact(other)),
            Move::Lie(node, other) => {
                left.lies -= 1;
                cluster.hear(node, other, None);
            }
            Move::Ping(node, other, way) => {
                left.pings -= 1;
                left.late -= u8::from(way != CountingMode::Clear);
                cluster.ping(node, other, way);
            }
            Move::Work(node, other, way) => {
                if !Self::work(cluster, node, other, way, left.is_fine) {
                    return self.clone();
                }
                left.late -= u8::from(way != CountingMode::Clear);
            }
            Move::Deliver { index, stays } => {
                left.doubled -= u8::from(stays);
                cluster.deliver(index, stays);
            }
            Move::Crash(node) => {
                left.crashes -= 1;
                cluster.crash(node);
            }
            Move::Rejoin(node) => cluster.rejoin(node),
            Move::Drain(node) => {
                left.drains -= 1;
                cluster.drain(node);
            }
        }
        if world.cluster == self.cluster { self.clone() } else { world }
    }

    /// One step, or all up to one that the network may spoil. Returns whether the fault happened.
    fn work(
        cluster: &mut Cluster,
        node: usize,
        other: usize,
        way: CountingMode,
        is_fine: bool,
    ) -> bool {
        if is_fine {
            return cluster.work(node, other, way);
        }
        let is_late = way != CountingMode::Clear;
        for _ in 0..6 {
            let flying = cluster.flying.len();
            let before = cluster.clone();
            // All but the release goes well: what else fails has changed nothing.
            let mut tried = before.clone();
            let has_worked = tried.work(node, other, way);
            let is_release = matches!(
                tried.flying.iter().find(|flight| !before.flying.contains(flight)),
                Some(Flight::Release { .. } | Flight::Released { .. })
            );
            if is_late && tried.flying.len() > flying && is_release {
                *cluster = tried;
                return true;
            }
            if !has_worked || !cluster.work(node, other, CountingMode::Clear) || *cluster == before
            {
                return !is_late;
            }
        }
        !is_late
    }
}

/// The number of a pair, whoever is named first.
fn pair(nodes: usize, a: usize, b: usize) -> usize {
    let (low, high) = (a.min(b), a.max(b));
    low * nodes - low * (low + 1) / 2 + high - low - 1
}
