//! Answers the calls of peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_cluster::edge::Publisher;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::membership::PingAnswer;
use tidegate_cluster::mesh::wire::{
    Call, Check, CombinedCheck, Digest, EdgeCall, GrantAsk, Group, InterventionCall, PingStatus,
    PongStatus, Reply, RevocationCall, SyncRole, TRACE_STATE_BYTES_MAX, TracedCheck,
};
use tidegate_cluster::mesh::{Peer, Service, ServiceReply};
use tidegate_cluster::pki::Role;
use tidegate_cluster::{replication, revocations};
use tidegate_limiter::units::Hits;
use tidegate_ownership::Epoch;
use tidegate_ownership::autopilot::COMPLAINTS_MAX;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::standstill::ClockReading;

use super::clock_sync::ClockSync;
use super::join::Joined;
use super::own_report::OwnReport;
use crate::decide::{Decider, Decisions};
use crate::enrolment::Issuer;

/// Answers the calls of peers without blocking.
pub(super) struct PeerService {
    pub(super) decider: Decider,
    pub(super) joined: Joined,
    pub(super) publisher: Arc<Publisher>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) clock_sync: Arc<ClockSync>,
    pub(super) own_report: Arc<OwnReport>,
    /// Of a node that signs certificates.
    pub(super) issuer: Option<Arc<Issuer>>,
}

impl Service for PeerService {
    fn handle_call(&self, from: &Peer, call: Call) -> ServiceReply {
        let Joined { ownership_driver: driver, membership, mesh, .. } = &self.joined;
        if !may_send(from.role, &call) {
            return ServiceReply::Ready(self.noted(from, Reply::Malformed));
        }
        let reply = match call {
            Call::Ping { .. } if from.role == Role::Edge => {
                let (clock, status) = (self.clock.system(), driver.pong_to_edge());
                Reply::Pong { clock, decision_clock: self.clock_sync.decision_clock(), status }
            }
            Call::Edge(EdgeCall::Follow { revision }) => {
                self.publisher.follow_received(from, revision, mesh);
                Reply::Done
            }
            Call::Edge(EdgeCall::Cluster(_)) => Reply::Malformed,
            Call::Ping { status, .. } => self.ping(from, status),
            Call::Handoff(handoff) => Reply::Handoff(driver.handoff_received(from, handoff)),
            Call::Digests(digests) => return self.compare_digests(from, digests),
            Call::Refunded { token } => {
                self.decider.refunded(token);
                Reply::Done
            }
            Call::Check(check) => return self.check(from, &check, &[], None),
            Call::CombinedCheck(CombinedCheck { first, further, ask }) => {
                return self.check(from, &first, &further, ask);
            }
            Call::TracedCheck(call) => return self.traced_check(from, &call),
            Call::Carried(call) => {
                if from.has_run_for(call.deadline, self.clock.monotonic()) {
                    let checks = call.checks.len() as u64;
                    self.decider.counters().expired.fetch_add(checks, Ordering::Relaxed);
                    return ServiceReply::Ready(Reply::Expired);
                }
                let sender = (&from.id, from.generation);
                return self.once_copied(from, self.decider.carried_for_peer(sender, &call));
            }
            Call::Reserve(call) => {
                if from.has_run_for(call.deadline, self.clock.monotonic()) {
                    self.decider.counters().expired.fetch_add(1, Ordering::Relaxed);
                    return ServiceReply::Ready(Reply::Expired);
                }
                return self.once_copied(from, self.decider.reserve_for_peer(&call));
            }
            Call::Commit(call) => {
                return self.once_copied(from, self.decider.commit_for_peer(&call));
            }
            Call::GiveBack(unspent) => {
                self.decider.given_back((&from.id, from.generation), &unspent);
                Reply::Done
            }
            Call::Recall(key) => {
                self.decider.recalled(key);
                Reply::Done
            }
            Call::Sync(sync) => self.joined.synchroniser.receive(from, sync),
            Call::States(entries) => self.joined.replicator.receive(&from.id, entries),
            Call::Gossip(bytes) => {
                self.joined.gossip.deliver(from.advertise, &bytes);
                Reply::Done
            }
            Call::Map(Group::Region, call) => membership.call_received(from, call),
            Call::Map(Group::Global, call) => match &self.joined.global {
                Some(global) => global.membership.call_received(from, call),
                None => Reply::Done,
            },
            Call::Interventions(call) => self.decider.interventions().call_received(from, call),
            Call::Revocations(call) => return revocations::call_received(mesh, from, call),
            Call::Certificate(request) => {
                let issuer = self.issuer.as_ref();
                return ServiceReply::Deferred(Issuer::reply_to(issuer, from, request));
            }
            Call::Snapshot => Reply::Snapshot(self.own_report.json()),
            Call::GlobalPing(ping) => match &self.joined.global {
                Some(global) => global.ping_received(from, ping),
                None => Reply::Done,
            },
        };
        ServiceReply::Ready(self.noted(from, reply))
    }

    fn ping_interval(&self, peer: &Peer) -> Duration {
        if peer.role == Role::Edge {
            return EDGE_PING_INTERVAL;
        }
        self.joined.ownership_driver.ping_interval(peer)
    }

    fn ping_status(&self, peer: &Peer) -> PingStatus {
        let Joined { membership, ownership_driver, synchroniser, .. } = &self.joined;
        if peer.role == Role::Edge {
            // It has no use for it.
            return PingStatus::default();
        }
        let mut status = ownership_driver.ping_status(peer);
        status.complaints.pushed = synchroniser.pushed(status.cluster);
        if status.epoch == Epoch(0) {
            status.cluster = membership.founding();
        }
        status
    }

    fn pong_received(&self, from: &Peer, reading: ClockReading, status: PongStatus) {
        let Joined { membership, ownership_driver, .. } = &self.joined;
        if from.role == Role::Edge {
            return;
        }
        // In this order: the ping was not sent later than that.
        let now = membership.now();
        let age = self.clock.monotonic().since(reading.sent);
        let answer = PingAnswer { report: status.report, asked_at: now.minus(age) };
        membership.peer_seen(from, status.cluster, status.epoch, Some(answer));
        ownership_driver.pong_received(from, reading, status);
    }

    fn malformed(&self, from: &NodeId) {
        self.joined.malformed.count(from);
    }
}

/// How often an edge is pinged that is not called: it pings this node.
const EDGE_PING_INTERVAL: Duration = Duration::from_secs(60);

/// Whether a node of this role may send the call. An edge has no say in what other nodes hold, or
/// who they are.
fn may_send(role: Role, call: &Call) -> bool {
    match call {
        Call::Ping { .. }
        | Call::Check(_)
        | Call::CombinedCheck(_)
        | Call::TracedCheck(_)
        | Call::Carried(_)
        | Call::GiveBack(_)
        | Call::Reserve(_)
        | Call::Commit(_)
        | Call::Interventions(InterventionCall::Compare { .. })
        | Call::Revocations(RevocationCall::Compare { .. })
        | Call::Certificate(_) => true,
        Call::Sync(sync) => role == Role::Core || sync.role == SyncRole::Node,
        Call::Edge(_) => role == Role::Edge,
        _ => role == Role::Core,
    }
}

impl PeerService {
    fn ping(&self, from: &Peer, status: PingStatus) -> Reply {
        let complaints = &status.complaints;
        if complaints.silent.len().max(complaints.waits_for.len()) > COMPLAINTS_MAX {
            return Reply::Malformed;
        }
        let Joined { ownership_driver, membership, .. } = &self.joined;
        membership.peer_seen(from, status.cluster, status.epoch, None);
        let (mut pong, member) = ownership_driver.ping_received(from, &status);
        if pong.epoch == Epoch(0) {
            pong.cluster = membership.founding();
        }
        if let Some(member) = member {
            membership.complained(member, status.complaints);
        }
        let decision_clock = self.clock_sync.decision_clock();
        Reply::Pong { clock: self.clock.system(), decision_clock, status: pong }
    }

    /// Decides checks; with durability `replicated` the verdicts wait for a replica.
    fn check(
        &self,
        from: &Peer,
        check: &Check,
        further: &[Hits],
        ask: Option<GrantAsk>,
    ) -> ServiceReply {
        // The sender has answered by fallback: what is counted for it now takes from others.
        if from.has_run_for(check.deadline, self.clock.monotonic()) {
            let checks = 1 + further.len() as u64;
            self.decider.counters().expired.fetch_add(checks, Ordering::Relaxed);
            return ServiceReply::Ready(Reply::Expired);
        }
        let sender = (&from.id, from.generation);
        let (reply, owner_term) = self.decider.decide_for_peer(sender, check, further, ask);
        let reply = self.noted(from, reply);
        match self.decider.confirmation(sender, check, further, (&reply, owner_term)) {
            Some(confirmed) => ServiceReply::Deferred(Box::pin(confirmed)),
            None => ServiceReply::Ready(reply),
        }
    }

    /// As [`PeerService::check`], in spans below those of the sender.
    fn traced_check(&self, from: &Peer, call: &TracedCheck) -> ServiceReply {
        let TracedCheck { check: CombinedCheck { first, further, ask }, traces } = call;
        if traces.iter().any(|context| context.state.len() > TRACE_STATE_BYTES_MAX) {
            return ServiceReply::Ready(self.noted(from, Reply::Malformed));
        }
        let recorder = self.decider.recorder();
        let decisions = Decisions::begin(recorder, &from.id, 1 + further.len(), traces);
        match self.check(from, first, further, *ask) {
            ServiceReply::Ready(reply) => {
                decisions.end(&reply);
                ServiceReply::Ready(reply)
            }
            ServiceReply::Deferred(confirmed) => ServiceReply::Deferred(Box::pin(async move {
                let reply = confirmed.await;
                decisions.end(&reply);
                reply
            })),
        }
    }

    /// The reply, or the one that waits for a replica.
    fn once_copied(
        &self,
        from: &Peer,
        (reply, copied): (Reply, Option<impl Future<Output = Reply> + Send + 'static>),
    ) -> ServiceReply {
        match copied {
            Some(copied) => ServiceReply::Deferred(Box::pin(copied)),
            None => ServiceReply::Ready(self.noted(from, reply)),
        }
    }

    /// Compares copies with their owner's digests, which scans the store.
    fn compare_digests(&self, from: &Peer, digests: Vec<Digest>) -> ServiceReply {
        if !replication::are_valid_digests(&digests) {
            return ServiceReply::Ready(self.noted(from, Reply::Malformed));
        }
        let (replicator, from) = (self.joined.replicator.clone(), from.id.clone());
        let compared = async move { replicator.compare_digests(&from, digests).await };
        ServiceReply::Deferred(Box::pin(compared))
    }

    fn noted(&self, from: &Peer, reply: Reply) -> Reply {
        if reply == Reply::Malformed {
            self.malformed(&from.id);
        }
        reply
    }
}
