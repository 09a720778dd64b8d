//! Snapshots of the whole cluster, for `/events` and the dashboard.
//!
//! While there is a receiver, a round begins each second: the report of every peer is requested
//! once, however many receivers there are, and a snapshot is built from those that have arrived.
//! One is also built at once when a member is lost, found, drains or is evicted, which is polled
//! ten times a second. Without a receiver nothing is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_cluster::mesh::codec::SNAPSHOTS;
use tidegate_cluster::mesh::wire::{Call, Reply, SNAPSHOT_BYTES_MAX};
use tidegate_cluster::mesh::{Mesh, Peer, StreamClass};
use tidegate_limiter::engine::Verdict;
use tidegate_limiter::policy::Mode;
use tidegate_limiter::quota::Quota;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ring::Ring;
use tidegate_ownership::route::Topology;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::inspect::View;
use super::keys;
use super::members;
use super::per_topology::PerTopology;
use crate::admin::Inspect;
use crate::admin::events::{Overview, event};
use crate::admin::key::Key;
use crate::admin::report::{MapMemberState, MemberReport, MemberState};
use crate::admin::snapshot::{
    ClusterSnapshot, KeyReport, LimitReport, MemberRow, NodeSnapshot, RING_PLACES, RINGS_MAX,
    Received, RingPicture,
};
use crate::decide::{CarriedVerdict, Peeked, VerdictSource};

/// How often a snapshot is built.
const ROUND: Duration = Duration::from_secs(1);
/// How often the states of the members are polled.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a snapshot waits for the reports of its round; later ones are in the next.
const GATHER_TIMEOUT: Duration = Duration::from_millis(300);
/// Timeout of the request to a peer.
const PEER_TIMEOUT: Duration = Duration::from_millis(900);
/// Most peers per round. In a larger cluster the others have their turn in the next rounds.
const PEERS_PER_ROUND: usize = 64;

/// Builds the snapshots and publishes them.
pub(super) struct ClusterOverview {
    view: Arc<View>,
    snapshots: watch::Sender<Bytes>,
    /// Notified when there is a new receiver.
    opened: Notify,
    rings: PerTopology<Vec<RingPicture>>,
}

/// The reports of peers since there is a receiver.
#[derive(Default)]
struct Round {
    received: BTreeMap<NodeId, (Instant, NodeSnapshot)>,
    pending: JoinSet<(NodeId, Option<NodeSnapshot>)>,
    /// The last peer whose report was requested.
    last: Option<NodeId>,
}

/// A snapshot as JSON of at most [`SNAPSHOT_BYTES_MAX`]. Leaves out keys and rules that do not fit:
/// their names may be long.
pub(super) fn render(mut snapshot: NodeSnapshot) -> Vec<u8> {
    loop {
        // Reports are plain structs; only a map whose keys are not strings can fail.
        let text = serde_json::to_vec(&snapshot).unwrap_or_default();
        let (rules, keys) = (snapshot.rules.len(), snapshot.refused_keys.len());
        if text.len() <= SNAPSHOT_BYTES_MAX || rules + keys == 0 {
            return text;
        }
        snapshot.rules.truncate(rules / 2);
        snapshot.refused_keys.truncate(keys / 2);
    }
}

impl Overview for ClusterOverview {
    fn snapshots(&self) -> watch::Receiver<Bytes> {
        let snapshots = self.snapshots.subscribe();
        self.opened.notify_one();
        snapshots
    }

    fn key(&self, key: Key) -> BoxFuture<'_, KeyReport> {
        let found = async move {
            let (begun_anew_ago_ms, blocked_for_ms) = self.view.done_by_hand(&key);
            let by_hand = KeyReport { begun_anew_ago_ms, blocked_for_ms, ..KeyReport::default() };
            match &key {
                Key::Descriptor { domain, entries } => {
                    let owner = self.view.owner(domain, entries);
                    let replicas = self.view.replicas(&owner);
                    let report = KeyReport { owner, replicas, ..by_hand };
                    let peeked = self.view.core.decider.peek(domain, &keys::pairs(entries)).await;
                    match peeked {
                        Some(peeked) => with_limits(self.viewed(report, &peeked), &peeked),
                        None => report,
                    }
                }
                Key::Carried(carried) => {
                    let Some(found) = self.view.decide_carried_key(carried, 0).await else {
                        return by_hand;
                    };
                    let owner = self.view.carried_owner(found.hash.token());
                    let replicas = self.view.replicas(&owner);
                    let CarriedVerdict { verdict, source, .. } = &found.decided;
                    KeyReport {
                        owner,
                        replicas,
                        source: Some(source.name().to_owned()),
                        limits: vec![limit_report(&found.quota, verdict)],
                        ..by_hand
                    }
                }
            }
        };
        found.boxed()
    }
}

impl ClusterOverview {
    /// The count of an eventual rule is what one node knows.
    fn viewed(&self, report: KeyReport, peeked: &Peeked) -> KeyReport {
        let core = &self.view.core;
        let is_view = peeked.rule.mode == Mode::Eventual && core.mesh().is_some();
        let known_by = is_view.then(|| core.incarnation.node().to_string());
        KeyReport { known_by, ..report }
    }

    pub(super) fn new(view: Arc<View>) -> Self {
        let (snapshots, opened) = (watch::Sender::default(), Notify::new());
        Self { view, snapshots, opened, rings: PerTopology::default() }
    }

    /// Publishes snapshots while there is a receiver, until `stop`.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let watched = async {
            loop {
                self.opened.notified().await;
                self.while_watched().await;
                // The next receiver waits for a new one.
                self.snapshots.send_replace(Bytes::new());
            }
        };
        stop.run_until_cancelled(watched).await;
    }

    async fn while_watched(&self) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = Round::default();
        let mut begins = Instant::now();
        // Until when the snapshot of this round waits for peers; none once it is published.
        let mut due: Option<Instant> = None;
        let mut shown = Vec::new();
        while self.snapshots.receiver_count() > 0 {
            tokio::select! {
                _ = looks.tick() => {}
                Some(answered) = round.pending.join_next() => round.answered(answered),
            }
            let now = Instant::now();
            if now >= begins {
                (begins, due) = (now + ROUND, Some(now + GATHER_TIMEOUT));
                if let Some(mesh) = self.mesh() {
                    round.request(&mesh);
                }
            }
            let rows = self.rows(&round);
            let states: Vec<_> =
                rows.iter().map(|row| (row.member.id.clone(), row.member.state)).collect();
            let is_due = due.is_some_and(|due| now >= due || round.pending.is_empty());
            if is_due || states != shown {
                due = due.filter(|_| !is_due);
                shown = states;
                self.publish(rows, &mut round);
            }
        }
    }

    /// `None` for an edge, which cores do not answer.
    fn mesh(&self) -> Option<Arc<Mesh>> {
        self.view.core.joined.as_ref().map(|joined| joined.mesh.clone())
    }

    fn publish(&self, members: Vec<MemberRow>, round: &mut Round) {
        let core = &self.view.core;
        let topology = core.topology.load_full();
        let is_shown = |id: &NodeId| members.iter().any(|row| row.member.id == id.as_str());
        round.received.retain(|id, _| is_shown(id));
        let age_ms = |at: &Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut received: BTreeMap<String, Received> = round
            .received
            .iter()
            .map(|(id, (at, snapshot))| {
                (id.to_string(), Received { snapshot: snapshot.clone(), age_ms: age_ms(at) })
            })
            .collect();
        let own = Received { snapshot: self.view.snapshot(), age_ms: 0 };
        received.insert(topology.me.to_string(), own);
        let seen = ClusterSnapshot {
            node: topology.me.to_string(),
            cluster: self.view.config.cluster.name.clone(),
            cluster_id: members::cluster_id(core),
            epoch: format!("{:016x}", topology.view.fingerprint()),
            unix_ms: core.clock.system().as_nanos() / 1_000_000,
            members,
            rings: self.rings.get(&topology, draw_all),
            ..ClusterSnapshot::default()
        };
        // Plain structs; only a map whose keys are not strings can fail.
        if let Ok(json) = serde_json::to_string(&seen.with(&received)) {
            self.snapshots.send_replace(event(&json));
        }
    }

    /// The members as this node sees them, without their reports.
    fn rows(&self, round: &Round) -> Vec<MemberRow> {
        let core = &self.view.core;
        let peers = core.mesh().map(|mesh| mesh.peers()).unwrap_or_default();
        // Gossip forgets a member that is gone before the map does, and names it for a while after
        // it was evicted.
        let map = members::report(core);
        let is_gone = |state| matches!(state, MapMemberState::Down | MapMemberState::Lost);
        let members = map.map.iter().flat_map(|map| &map.members);
        let evicted: Vec<_> = members.filter(|member| is_gone(member.state)).collect();
        let is_lost = |report: &MemberReport| match find(&peers, &report.id) {
            Some(peer) => peer.is_unreachable(),
            None => {
                // It was connected since there is a receiver.
                round.received.keys().any(|id| id.as_str() == report.id)
                    || evicted.iter().any(|member| member.node == report.id)
            }
        };
        let seen = |report: MemberReport| {
            let is_lost = report.state != MemberState::This && is_lost(&report);
            let state = if is_lost { MemberState::Down } else { report.state };
            MemberReport { state, ..report }
        };
        let mut reports: Vec<MemberReport> =
            self.view.member_reports().into_iter().map(seen).collect();
        for member in evicted {
            if !reports.iter().any(|report| report.id == member.node) {
                reports.push(MemberReport {
                    id: member.node.clone(),
                    region: map.region.clone(),
                    zone: member.zone.clone().unwrap_or_default(),
                    addr: member.addr.clone(),
                    state: MemberState::Down,
                    ..MemberReport::default()
                });
            }
        }
        reports.sort_by(|a, b| (&a.region, &a.id).cmp(&(&b.region, &b.id)));
        reports.into_iter().map(|member| MemberRow { member, ..MemberRow::default() }).collect()
    }
}

impl Round {
    /// Requests the reports of the next peers in turn, unless requests are pending.
    fn request(&mut self, mesh: &Arc<Mesh>) {
        if !self.pending.is_empty() {
            return;
        }
        let peers = mesh.peers();
        let speaks = |peer: &&Arc<Peer>| peer.version >= SNAPSHOTS && !peer.is_unreachable();
        let from = peers.partition_point(|peer| self.last.as_ref() >= Some(&peer.id));
        let turn = peers[from..].iter().chain(&peers[..from]).filter(speaks);
        for peer in turn.take(PEERS_PER_ROUND) {
            self.last = Some(peer.id.clone());
            let (mesh, peer) = (mesh.clone(), peer.clone());
            self.pending.spawn(async move {
                let (class, timeout) = (StreamClass::Bulk, PEER_TIMEOUT);
                let reply = mesh.call_peer(&peer, class, Call::Snapshot, timeout).await;
                let snapshot = match reply {
                    Ok(Reply::Snapshot(bytes)) if bytes.len() <= SNAPSHOT_BYTES_MAX => {
                        serde_json::from_slice(&bytes).ok()
                    }
                    _ => None,
                };
                (peer.id.clone(), snapshot)
            });
        }
    }

    fn answered(
        &mut self,
        answered: Result<(NodeId, Option<NodeSnapshot>), tokio::task::JoinError>,
    ) {
        if let Ok((id, Some(snapshot))) = answered {
            self.received.insert(id, (Instant::now(), snapshot));
        }
    }
}

fn find<'a>(peers: &'a [Arc<Peer>], id: &str) -> Option<&'a Peer> {
    peers.iter().find(|peer| peer.id.as_str() == id).map(|peer| &**peer)
}

fn draw_all(topology: &Topology) -> Vec<RingPicture> {
    let ring = |region: &str| Some(draw(region.to_owned(), topology.region_ring(region)?));
    topology.regions().take(RINGS_MAX).filter_map(ring).collect()
}

fn draw(region: String, ring: &Ring) -> RingPicture {
    let nodes: Vec<&NodeId> = ring.nodes().collect();
    let step = u64::MAX / RING_PLACES as u64;
    let owner = |place: u64| {
        let owner = ring.owner(place * step)?;
        u16::try_from(nodes.binary_search(&owner).ok()?).ok()
    };
    let owners = (0..RING_PLACES as u64).filter_map(owner).collect();
    RingPicture { region, nodes: nodes.into_iter().map(ToString::to_string).collect(), owners }
}

fn with_limits(report: KeyReport, peeked: &Peeked) -> KeyReport {
    if matches!(peeked.source, VerdictSource::Unlimited | VerdictSource::InFlight) {
        return report;
    }
    let limits = peeked.rule.limits.iter().zip(&peeked.verdicts);
    KeyReport {
        shadow: peeked.rule.shadow,
        source: Some(peeked.source.name().to_owned()),
        limits: limits.map(|(quota, verdict)| limit_report(quota, verdict)).collect(),
        ..report
    }
}

fn limit_report(quota: &Quota, verdict: &Verdict) -> LimitReport {
    LimitReport {
        limit: verdict.limit,
        window_ms: quota.window().as_millis_ceil(),
        algorithm: quota.algorithm().name().to_owned(),
        remaining: verdict.remaining,
        reset_ms: verdict.reset.as_millis_ceil(),
    }
}
