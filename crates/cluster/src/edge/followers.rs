//! Who follows this core, and what is due to whom. Pure.
//!
//! What a core knows has a *revision*. An edge that says it follows names the revision that it has
//! of this core, so a message that was lost is repaired by the next one. A change of the map is due
//! at once; other changes, such as of gossip, are collected for [`COLLECTED_FOR`].
//!
//! **How many edges there are** a core tells from its own: each follows [`HOMES`] of the cores, and
//! they spread evenly. Followers are counted up to the next power of two, and down when fewer than
//! a quarter of that are left, so that the number changes seldom. Example: 100 edges of 4 cores:
//! each has about 50, counts 64, and takes them for 128.
//!
//! **Bound:** one entry for each connected edge, at most [`EDGES_MAX`](crate::mesh::EDGES_MAX).

use std::collections::BTreeMap;

use tidegate_limiter::units::{Monotonic, Span};
use tidegate_ownership::identity::{Generation, NodeId};

use super::FOLLOW_INTERVAL;
use super::homes::HOMES;
use crate::mesh::wire::ClusterView;

/// How long changes wait for each other that do not move keys.
pub(super) const COLLECTED_FOR: Span = Span::from_secs(1);
/// An edge that does not say so for this many intervals does not follow any more.
const INTERVALS_MAX: u64 = 3;

#[derive(Debug, Default)]
pub(super) struct Followers {
    edges: BTreeMap<NodeId, Follower>,
    /// As many or more.
    counted: u32,
    view: ClusterView,
    changed_at: Monotonic,
}

#[derive(Debug)]
struct Follower {
    generation: Generation,
    /// What it has, or was sent.
    revision: u64,
    until: Monotonic,
}

impl Followers {
    /// The edge says that it follows, and has this revision.
    pub(super) fn follows(
        &mut self,
        edge: &NodeId,
        generation: Generation,
        revision: u64,
        now: Monotonic,
    ) {
        let interval = u64::try_from(FOLLOW_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
        let until = now.plus(Span::from_nanos(interval.saturating_mul(INTERVALS_MAX)));
        self.edges.insert(edge.clone(), Follower { generation, revision, until });
    }

    /// Forgets those that do not follow any more.
    pub(super) fn forget(
        &mut self,
        now: Monotonic,
        is_connected: impl Fn(&NodeId, Generation) -> bool,
    ) {
        self.edges.retain(|edge, it| now < it.until && is_connected(edge, it.generation));
        let count = u32::try_from(self.edges.len()).unwrap_or(u32::MAX);
        if count > self.counted || count < self.counted / 4 {
            self.counted = if count == 0 { 0 } else { count.next_power_of_two() };
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// About how many edges follow any of so many cores.
    pub(super) fn edges_of(&self, cores: usize) -> u32 {
        let cores = u32::try_from(cores.max(HOMES)).unwrap_or(u32::MAX);
        let homes = u32::try_from(HOMES).unwrap_or(u32::MAX);
        self.counted.saturating_mul(cores) / homes
    }

    /// This core knows `next`, whatever its revision. `revision` is a number that grows with time.
    pub(super) fn knows(&mut self, next: ClusterView, revision: u64, now: Monotonic) {
        let next = ClusterView { revision: self.view.revision, ..next };
        let map = |view: &ClusterView| {
            let global = view.global.as_ref().map(|map| (map.cluster, map.epoch));
            (view.region.cluster, view.region.epoch, global)
        };
        let is_due = map(&next) != map(&self.view) || now >= self.changed_at.plus(COLLECTED_FOR);
        if next != self.view && is_due {
            let revision = revision.max(self.view.revision.saturating_add(1));
            (self.view, self.changed_at) = (ClusterView { revision, ..next }, now);
        }
    }

    /// Sends what followers lack; `send` returns whether it is on its way.
    pub(super) fn send_due(&mut self, mut send: impl FnMut(&NodeId, &ClusterView) -> bool) {
        for (edge, follower) in &mut self.edges {
            if follower.revision != self.view.revision && send(edge, &self.view) {
                follower.revision = self.view.revision;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use serde::Serialize;
    use tidegate_limiter::units::Timestamp;
    use tidegate_ownership::cluster_map::{MapMember, MapState};
    use tidegate_ownership::membership::{Member, MemberState};
    use tidegate_ownership::{ClusterMap, Epoch, Identity, MemberId, Versions};

    use super::*;
    use crate::mesh::codec::{self, VERSION};
    use crate::mesh::wire::{Call, EdgeCall, Numbered, PingStatus, PongStatus, Reply};

    fn id(name: &str) -> NodeId {
        NodeId::new(name).expect("a valid name")
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_nanos(ms * 1_000_000)
    }

    fn view(epoch: u64, has_lease: bool) -> ClusterView {
        let region = ClusterMap { epoch: Epoch(epoch), ..ClusterMap::default() };
        ClusterView { region, has_lease, ..ClusterView::default() }
    }

    fn sent(followers: &mut Followers) -> Vec<(String, u64)> {
        let mut sent = Vec::new();
        followers.send_due(|edge, view| {
            sent.push((edge.to_string(), view.revision));
            true
        });
        sent
    }

    #[test]
    fn a_follower_is_sent_each_revision_once_and_what_it_lost_again() {
        let mut followers = Followers::default();
        followers.knows(view(1, true), 70, at(0));
        followers.follows(&id("e"), Generation(1), 0, at(0));
        assert_eq!(sent(&mut followers), [("e".to_owned(), 70)]);
        followers.knows(view(1, true), 71, at(5_000));
        assert_eq!(sent(&mut followers), [], "nothing has changed");
        followers.follows(&id("e"), Generation(1), 70, at(5_000));
        assert_eq!(sent(&mut followers), [], "it has it");
        followers.follows(&id("e"), Generation(1), 0, at(6_000));
        assert_eq!(sent(&mut followers), [("e".to_owned(), 70)], "it was lost");
        followers.send_due(|_, _| false);
        followers.knows(view(2, true), 60, at(6_001));
        followers.send_due(|_, _| false);
        assert_eq!(sent(&mut followers), [("e".to_owned(), 71)], "the queue was full before");
    }

    #[test]
    fn changes_of_the_map_are_sent_at_once_and_others_are_collected() {
        let mut followers = Followers::default();
        followers.follows(&id("e"), Generation(1), 0, at(0));
        followers.knows(view(1, true), 1, at(5_000));
        sent(&mut followers);
        followers.knows(view(2, true), 2, at(5_010));
        assert_eq!(sent(&mut followers).len(), 1);
        followers.knows(view(2, false), 3, at(5_020));
        followers.knows(view(2, true), 4, at(5_990));
        followers.knows(view(2, false), 5, at(6_000));
        assert_eq!(sent(&mut followers), []);
        followers.knows(view(2, false), 6, at(6_010));
        assert_eq!(sent(&mut followers), [("e".to_owned(), 6)]);
    }

    #[test]
    fn edges_are_counted_in_powers_of_two() {
        let mut followers = Followers::default();
        let mut count = |edges: usize| {
            followers.edges.clear();
            for edge in 0..edges {
                followers.follows(&id(&format!("e{edge}")), Generation(1), 0, at(0));
            }
            followers.forget(at(1), |_, _| true);
            (followers.edges_of(1), followers.edges_of(4))
        };
        assert_eq!(count(1), (1, 2));
        assert_eq!(count(50), (64, 128));
        assert_eq!(count(20), (64, 128));
        assert_eq!(count(15), (16, 32));
        assert_eq!(count(0), (0, 0));
        followers.follows(&id("e"), Generation(1), 0, at(0));
        followers.forget(at(15_000), |_, _| true);
        assert!(followers.is_empty(), "it is silent");
        followers.follows(&id("e"), Generation(1), 0, at(0));
        followers.forget(at(1), |_, _| false);
        assert!(followers.is_empty(), "it has gone");
    }

    /// A region of so many cores.
    fn region(cores: u64, epoch: u64) -> ClusterView {
        let name = |n: u64| id(&format!("core-{n}-in-rack-{n}"));
        let member = |n: u64| MapMember {
            id: MemberId(n),
            identity: Identity { node: name(n), birth: u64::MAX },
            start: u64::MAX,
            generation: Generation(1_800_000_000_000),
            addr: ([10, 0, 0, 1], 7600).into(),
            zone: "zone-a".to_owned(),
            versions: Versions::default(),
            state: MapState::Up,
        };
        let known = |n: u64| Member {
            id: name(n),
            generation: Generation(1_800_000_000_000),
            addr: ([10, 0, 0, 1], 7600).into(),
            region: "eu-central".to_owned(),
            zone: "zone-a".to_owned(),
            state: MemberState::Up,
            rule_book: u64::MAX,
            http: Some(([10, 0, 0, 1], 8080).into()),
            has_lease: true,
        };
        let members = (0..cores).map(member).collect();
        let region = ClusterMap { epoch: Epoch(epoch), members, ..ClusterMap::default() };
        let members = (0..cores).map(known).collect();
        ClusterView { region, members, ..ClusterView::default() }
    }

    /// Bytes of a message on the wire.
    fn bytes<T: Serialize>(message: T) -> usize {
        let mut frame = BytesMut::new();
        codec::encode(&Numbered { id: 1_000, body: message }, VERSION, &mut frame).expect("small");
        frame.len()
    }

    /// What an idle edge and a core with a thousand of them send, by the state machines: an edge
    /// says to each home that it follows and pings it, and the map changes once a minute.
    #[test]
    #[expect(clippy::print_stdout, reason = "what was counted belongs in the output of the test")]
    fn a_thousand_edges_cost_a_core_little() {
        const EDGES: u64 = 1_000;
        const MINUTES: u64 = 5;
        let clock = Timestamp::from_secs(1_800_000_000);
        let ping = bytes(Call::Ping { clock, status: PingStatus::default() });
        let running = Span::from_secs(86_400);
        let status = PongStatus { running, ..PongStatus::default() };
        let pong = bytes(Reply::Pong { clock, decision_clock: Some(clock), status });
        let (mut core, mut edge, mut maps) = ((0, 0), (0, 0), 0);
        let send = |of: &mut (u64, usize), bytes: usize| *of = (of.0 + 1, of.1 + bytes);
        let mut followers = Followers::default();
        let mut has: BTreeMap<NodeId, u64> = BTreeMap::new();
        let names: Vec<NodeId> = (0..EDGES).map(|n| id(&format!("edge-{n}"))).collect();
        let interval = u64::try_from(FOLLOW_INTERVAL.as_millis()).expect("short");
        for ms in (0..MINUTES * 60_000).step_by(100) {
            let now = at(ms);
            for (edge_id, n) in names.iter().zip(0_u64..) {
                if (ms + n * 100 % interval).is_multiple_of(interval) {
                    let revision = has.get(edge_id).copied().unwrap_or(0);
                    send(&mut edge, bytes(Call::Edge(EdgeCall::Follow { revision })));
                    send(&mut edge, ping);
                    send(&mut core, pong);
                    followers.follows(edge_id, Generation(1), revision, now);
                }
                if (ms + n * 100).is_multiple_of(60_000) {
                    send(&mut core, ping);
                    send(&mut edge, pong);
                }
            }
            followers.forget(now, |_, _| true);
            followers.knows(region(32, 1 + ms / 60_000), 1 + ms, now);
            followers.send_due(|to, view| {
                has.insert(to.clone(), view.revision);
                maps += 1;
                let view = Box::new(view.clone());
                send(&mut core, bytes(Call::Edge(EdgeCall::Cluster(view))));
                true
            });
        }
        let (seconds, homes) = (MINUTES * 60, HOMES as u64);
        let per_second = |sent: (u64, usize)| (sent.0 / seconds, sent.1 as u64 / seconds);
        let of_core = per_second(core);
        // Each edge pays for all of its homes.
        let of_edge = (homes * edge.0, (homes * edge.1 as u64) / EDGES / seconds);
        let milli = of_edge.0 * 1_000 / EDGES / seconds;
        println!(
            "an edge sends 0.{milli:03} messages, {} bytes a second; a core {} messages, {} bytes to \
             {EDGES} edges; a map of 32 cores has {} bytes",
            of_edge.1,
            of_core.0,
            of_core.1,
            bytes(Call::Edge(EdgeCall::Cluster(Box::new(region(32, 1))))),
        );
        assert_eq!(maps, EDGES * MINUTES, "each map once");
        assert!(milli < 1_000 && of_edge.1 < 200, "an edge: {milli} {of_edge:?}");
        assert!(of_core.0 < 300 && of_core.1 < 120_000, "a core: {of_core:?}");
    }
}
