//! The whole cluster, for those who look at it: `/events` and the dashboard.
//!
//! While somebody holds a receiver of the pictures, a round begins each second: every peer is asked
//! once what it says about itself, however many look, and a picture is made of what has come. One
//! is also made at once when a member is lost, found, drains or is evicted, which is looked for
//! ten times a second. While nobody looks, nothing is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tidegate_cluster::mesh::codec::SNAPSHOTS;
use tidegate_cluster::mesh::wire::{Call, Reply, SNAPSHOT_BYTES_MAX};
use tidegate_cluster::mesh::{Mesh, Peer, StreamClass};
use tidegate_limiter::descriptor::Entry;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::ring::Ring;
use tidegate_ownership::route::Topology;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::inspect::View;
use super::members;
use crate::admin::Inspect;
use crate::admin::events::{Overview, event};
use crate::admin::key::Key;
use crate::admin::report::{MapMemberState, MemberReport, MemberState};
use crate::admin::snapshot::{
    ClusterSnapshot, Heard, KeyReport, LimitReport, MemberRow, NodeSnapshot, RING_PLACES,
    RINGS_MAX, RingPicture,
};
use crate::decide::{Peeked, VerdictSource};

/// How often a picture is made.
const ROUND: Duration = Duration::from_secs(1);
/// How often it is looked whether the state of a member has changed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a picture waits for the peers that were asked for it; later ones are in the next.
const GATHER_TIMEOUT: Duration = Duration::from_millis(300);
/// How long a peer may take to say what it has to say.
const PEER_TIMEOUT: Duration = Duration::from_millis(900);
/// Most peers that are asked in a round. Of a larger cluster the others have their turn later.
const PEERS_PER_ROUND: usize = 64;

/// The pictures, and who looks at them.
pub(super) struct Gallery {
    view: Arc<View>,
    pictures: watch::Sender<Bytes>,
    /// Somebody looks.
    opened: Notify,
    /// Those of the topology that they were drawn from.
    rings: Mutex<Option<(Arc<Topology>, Vec<RingPicture>)>>,
}

/// What was heard of the peers by those who look now.
#[derive(Default)]
struct Round {
    heard: BTreeMap<NodeId, (Instant, NodeSnapshot)>,
    asked: JoinSet<(NodeId, Option<NodeSnapshot>)>,
    /// The last one that was asked.
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

impl Overview for Gallery {
    fn pictures(&self) -> watch::Receiver<Bytes> {
        let pictures = self.pictures.subscribe();
        self.opened.notify_one();
        pictures
    }

    fn key(&self, domain: String, entries: Vec<(String, String)>) -> BoxFuture<'_, KeyReport> {
        let found = async move {
            let owner = self.view.owner(&domain, &entries);
            let replicas = self.view.replicas(&owner.token);
            let key = Key { domain, entries };
            let (begun_anew_ago_ms, blocked_for_ms) = self.view.done_by_hand(&key);
            let entries = key.entries.iter();
            let entries: Vec<Entry<'_>> =
                entries.map(|(key, value)| Entry { key, value }).collect();
            let peeked = self.view.core.decider.peek(&key.domain, &entries).await;
            let report = KeyReport {
                owner,
                replicas,
                begun_anew_ago_ms,
                blocked_for_ms,
                ..KeyReport::default()
            };
            match peeked {
                Some(peeked) => with_limits(report, &peeked),
                None => report,
            }
        };
        found.boxed()
    }
}

impl Gallery {
    pub(super) fn new(view: Arc<View>) -> Self {
        let (pictures, opened) = (watch::Sender::default(), Notify::new());
        Self { view, pictures, opened, rings: Mutex::default() }
    }

    /// Makes pictures while somebody looks, until `stop`.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let watched = async {
            loop {
                self.opened.notified().await;
                self.while_watched().await;
                // Whoever looks next waits for a new one.
                self.pictures.send_replace(Bytes::new());
            }
        };
        stop.run_until_cancelled(watched).await;
    }

    async fn while_watched(&self) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = Round::default();
        let mut begins = Instant::now();
        // Until when the picture of this round waits for peers; none once it is made.
        let mut due: Option<Instant> = None;
        let mut shown = Vec::new();
        while self.pictures.receiver_count() > 0 {
            tokio::select! {
                _ = looks.tick() => {}
                Some(answered) = round.asked.join_next() => round.answered(answered),
            }
            let now = Instant::now();
            if now >= begins {
                (begins, due) = (now + ROUND, Some(now + GATHER_TIMEOUT));
                if let Some(mesh) = self.mesh() {
                    round.ask(&mesh);
                }
            }
            let rows = self.rows(&round);
            let states: Vec<_> =
                rows.iter().map(|row| (row.member.id.clone(), row.member.state)).collect();
            let is_due = due.is_some_and(|due| now >= due || round.asked.is_empty());
            if is_due || states != shown {
                due = due.filter(|_| !is_due);
                shown = states;
                self.publish(rows, &mut round);
            }
        }
    }

    /// An edge asks nobody: cores do not tell it.
    fn mesh(&self) -> Option<Arc<Mesh>> {
        self.view.core.joined.as_ref().map(|joined| joined.mesh.clone())
    }

    fn publish(&self, members: Vec<MemberRow>, round: &mut Round) {
        let core = &self.view.core;
        let topology = core.topology.load_full();
        let is_shown = |id: &NodeId| members.iter().any(|row| row.member.id == id.as_str());
        round.heard.retain(|id, _| is_shown(id));
        let age_ms = |at: &Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut heard: BTreeMap<String, Heard> = round
            .heard
            .iter()
            .map(|(id, (at, snapshot))| {
                (id.to_string(), Heard { snapshot: snapshot.clone(), age_ms: age_ms(at) })
            })
            .collect();
        let own = Heard { snapshot: self.view.snapshot(), age_ms: 0 };
        heard.insert(topology.me.to_string(), own);
        let seen = ClusterSnapshot {
            node: topology.me.to_string(),
            cluster: self.view.config.cluster.name.clone(),
            cluster_id: members::cluster_id(core),
            epoch: format!("{:016x}", topology.view.fingerprint()),
            unix_ms: core.clock.system().as_nanos() / 1_000_000,
            members,
            rings: self.rings(&topology),
            ..ClusterSnapshot::default()
        };
        // Plain structs; only a map whose keys are not strings can fail.
        if let Ok(json) = serde_json::to_string(&seen.with(&heard)) {
            self.pictures.send_replace(event(&json));
        }
    }

    /// The members as they are seen from here, without what they say.
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
                // It was connected since somebody looks.
                round.heard.keys().any(|id| id.as_str() == report.id)
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

    fn rings(&self, topology: &Arc<Topology>) -> Vec<RingPicture> {
        let mut drawn = self.rings.lock();
        match &*drawn {
            Some((of, rings)) if Arc::ptr_eq(of, topology) => rings.clone(),
            _ => {
                let ring = |region: &str| Some((region.to_owned(), topology.region_ring(region)?));
                let rings = topology.regions().take(RINGS_MAX).filter_map(ring);
                let rings = rings.map(|(region, ring)| draw(region, ring)).collect();
                drawn.insert((topology.clone(), rings)).1.clone()
            }
        }
    }
}

impl Round {
    /// Asks peers that have not been asked for longest, unless they still owe an answer.
    fn ask(&mut self, mesh: &Arc<Mesh>) {
        if !self.asked.is_empty() {
            return;
        }
        let peers = mesh.peers();
        let speaks = |peer: &&Arc<Peer>| peer.version >= SNAPSHOTS && !peer.is_unreachable();
        let from = peers.partition_point(|peer| self.last.as_ref() >= Some(&peer.id));
        let turn = peers[from..].iter().chain(&peers[..from]).filter(speaks);
        for peer in turn.take(PEERS_PER_ROUND) {
            self.last = Some(peer.id.clone());
            let (mesh, peer) = (mesh.clone(), peer.clone());
            self.asked.spawn(async move {
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
            self.heard.insert(id, (Instant::now(), snapshot));
        }
    }
}

fn find<'a>(peers: &'a [Arc<Peer>], id: &str) -> Option<&'a Peer> {
    peers.iter().find(|peer| peer.id.as_str() == id).map(|peer| &**peer)
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
    let source = match peeked.source {
        VerdictSource::Unlimited | VerdictSource::InFlight => return report,
        VerdictSource::Blocked => "blocked",
        VerdictSource::Local => "local",
        VerdictSource::Owner => "owner",
        VerdictSource::Fallback => "fallback",
        VerdictSource::Grant => "grant",
        VerdictSource::NegativeCache => "negative_cache",
    };
    let limits = peeked.rule.limits.iter().zip(&peeked.verdicts);
    let limits = limits.map(|(quota, verdict)| LimitReport {
        limit: verdict.limit,
        window_ms: quota.window().as_millis_ceil(),
        algorithm: quota.algorithm().name().to_owned(),
        remaining: verdict.remaining,
        reset_ms: verdict.reset.as_millis_ceil(),
    });
    KeyReport {
        shadow: peeked.rule.shadow,
        source: Some(source.to_owned()),
        limits: limits.collect(),
        ..report
    }
}
