//! The consensus engine: `raft` (of `TiKV`) behind the few calls that this product needs.
//!
//! What is agreed on is one small value, the cluster map. Each entry of the log is a whole map, and
//! the log is cut after every commit, so what a voter keeps is one map and the few entries behind
//! it: one record, written whole. Nothing outside of this file knows Raft; another engine would
//! replace this file alone.
//!
//! - **Time and randomness are the caller's.** The library draws election timeouts from the
//!   thread's generator; each of its draws is replaced by one of ours.
//! - **Nothing is parsed with protobuf that came from outside.** [`Message`] mirrors the library's
//!   messages in serde.
//! - **Bytes of a peer do not stop the node.** The library panics on messages that contradict its
//!   log. Such a message is dropped, and the engine restarts from its record, as after a crash.

use std::collections::BTreeSet;
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};

use protobuf::Message as _;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, EntryType,
    HardState, MessageType, Snapshot,
};
use raft::{
    Config, GetEntriesContext, RaftState, RawNode, StateRole, Storage, StorageError, eraftpb,
};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use tidegate_ownership::cluster_map::{ClusterId, ClusterMap, Identity};

use crate::encoding;

/// The consensus engine of one voter, or of a member that may become one.
pub struct Engine {
    node: RawNode<Log>,
    id: u64,
    /// [`ClusterMap::lineage`] of its maps.
    cluster: ClusterId,
    /// Draws the election timeouts.
    random: u64,
    timeout: usize,
    elapsed: usize,
    output: Output,
}

/// What has to be done, in this order.
#[derive(Debug, Default)]
pub struct Output {
    /// To be saved before anything else.
    pub record: Option<Record>,
    /// To be sent to the voters of these numbers.
    pub messages: Vec<(u64, Message)>,
    /// The newest committed map.
    pub committed: Option<ClusterMap>,
}

/// What a voter must not forget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    cluster: ClusterId,
    term: u64,
    vote: u64,
    commit: u64,
    snapshot: LogSnapshot,
    entries: Vec<LogEntry>,
}

/// A message between two engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub cluster: ClusterId,
    kind: i32,
    from: u64,
    to: u64,
    term: u64,
    log_term: u64,
    index: u64,
    commit: u64,
    commit_term: u64,
    reject: bool,
    reject_hint: u64,
    request_snapshot: u64,
    context: Vec<u8>,
    entries: Vec<LogEntry>,
    snapshot: Option<LogSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LogEntry {
    kind: i32,
    term: u64,
    index: u64,
    data: Vec<u8>,
}

/// The map at an index of the log, and the voters there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LogSnapshot {
    index: u64,
    term: u64,
    voters: Vec<u64>,
    voters_outgoing: Vec<u64>,
    auto_leave: bool,
    map: Vec<u8>,
}

/// The log in memory: one snapshot, the newest committed map, and the entries behind it.
struct Log {
    hard_state: HardState,
    snapshot: Snapshot,
    entries: Vec<eraftpb::Entry>,
}

/// Milliseconds between two calls of [`Engine::tick`].
pub const TICK_MS: u64 = 50;
/// A follower waits one to two times this for its leader: 0.5 to 1 s.
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;
/// Entries in one message, and uncommitted ones: a map follows only a committed one.
const ENTRIES_MAX: usize = 64;

/// The number by which the engine knows a voter. Never 0.
pub fn number(identity: &Identity) -> u64 {
    let mut sip = SipHasher13::new_with_key(b"tidegate v voter");
    sip.write(identity.node.as_str().as_bytes());
    sip.write_u64(identity.birth);
    sip.finish().max(1)
}

impl Engine {
    /// The engine of a founder: `map` is the first one, and names the voters. All founders of a
    /// cluster must begin with equal maps.
    pub fn found(me: &Identity, map: &ClusterMap, seed: u64) -> Self {
        let snapshot = LogSnapshot {
            index: 1,
            term: 1,
            voters: map.voters.current.iter().map(number).collect(),
            map: encoding::to_record(map),
            ..LogSnapshot::default()
        };
        let record = Record {
            cluster: map.lineage(),
            term: 1,
            vote: 0,
            commit: 1,
            snapshot,
            entries: Vec::new(),
        };
        let mut engine = Self::restart(me, &record, seed);
        engine.output.record = Some(record);
        engine
    }

    /// The engine of a member that does not vote yet and has no log.
    pub fn join(me: &Identity, cluster: ClusterId, seed: u64) -> Self {
        let record = Record {
            cluster,
            term: 0,
            vote: 0,
            commit: 0,
            snapshot: LogSnapshot::default(),
            entries: Vec::new(),
        };
        Self::restart(me, &record, seed)
    }

    /// The engine as it was when it returned `record` last.
    pub fn restart(me: &Identity, record: &Record, seed: u64) -> Self {
        let id = number(me);
        let mut hard_state = HardState::default();
        (hard_state.term, hard_state.vote, hard_state.commit) =
            (record.term, record.vote, record.commit);
        let log = Log {
            hard_state,
            snapshot: record.snapshot.clone().into(),
            entries: record.entries.iter().cloned().map(Into::into).collect(),
        };
        let config = Config {
            id,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: record.snapshot.index,
            check_quorum: true,
            pre_vote: true,
            max_inflight_msgs: ENTRIES_MAX,
            max_size_per_msg: encoding::BYTES_MAX as u64 / 2,
            ..Config::default()
        };
        let discard = slog::Logger::root(slog::Discard, slog::o!());
        let node = match RawNode::new(&config, log, &discard) {
            Ok(node) => node,
            // A record that this code did not write; `Record::is_plausible` comes first.
            Err(error) => unreachable!("the configuration is constant: {error}"),
        };
        let (random, cluster) = (seed | 1, record.cluster);
        let output = Output::default();
        let mut engine =
            Self { node, id, cluster, random, timeout: 0, elapsed: usize::MAX, output };
        engine.replace_timeout();
        engine
    }

    // === inputs ===

    /// [`TICK_MS`] have passed.
    pub fn tick(&mut self) {
        self.node.tick();
        self.replace_timeout();
    }

    /// A message of another engine arrived. One that contradicts the log is dropped.
    pub fn step(&mut self, me: &Identity, message: Message) {
        if message.cluster != self.cluster || message.to != self.id || !message.is_plausible() {
            return;
        }
        let commit_is_known = message.kind != MessageType::MsgHeartbeat as i32
            || message.commit <= self.node.raft.raft_log.last_index();
        if !commit_is_known {
            return;
        }
        // A message that is refused is as good as lost.
        let stepped = catch_unwind(AssertUnwindSafe(|| drop(self.node.step(message.into()))));
        if stepped.is_err() {
            tracing::error!("a message contradicts the log of the cluster map; dropped it");
            let record = self.record();
            *self = Self::restart(me, &record, self.random);
        }
    }

    /// Proposes the map after the newest committed one. Returns false when this engine does not
    /// lead or another proposal is in progress.
    pub fn propose(&mut self, map: &ClusterMap) -> bool {
        self.is_ready_to_propose()
            && self.node.propose(Vec::new(), encoding::to_record(map)).is_ok()
    }

    /// Makes these the voters of the engine, through a joint configuration. Does nothing while
    /// another change is in progress, so repeat it.
    pub fn set_voters(&mut self, voters: impl IntoIterator<Item = u64>) {
        let wanted: BTreeSet<u64> = voters.into_iter().collect();
        let now: BTreeSet<u64> = self.conf_state().voters.iter().copied().collect();
        let is_joint = !self.conf_state().voters_outgoing.is_empty();
        if wanted == now || is_joint || !self.is_leader() || self.node.raft.has_pending_conf() {
            return;
        }
        let single = |(number, kind): (u64, ConfChangeType)| {
            let mut change = ConfChangeSingle::default();
            change.set_change_type(kind);
            change.node_id = number;
            change
        };
        let added = wanted.difference(&now).map(|number| (*number, ConfChangeType::AddNode));
        let removed = now.difference(&wanted).map(|number| (*number, ConfChangeType::RemoveNode));
        let mut change = ConfChangeV2::default();
        change.set_transition(ConfChangeTransition::Implicit);
        change.set_changes(added.chain(removed).map(single).collect::<Vec<_>>().into());
        // Refused while another change is in progress; repeated.
        let _ = self.node.propose_conf_change(Vec::new(), change);
    }

    // === output ===

    /// What has to be done since the last call.
    pub fn take_output(&mut self) -> Output {
        let mut is_changed = false;
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            is_changed |=
                ready.hs().is_some() || !ready.entries().is_empty() || !ready.snapshot().is_empty();
            let mut messages = ready.take_messages();
            let committed = ready.take_committed_entries();
            let log = self.node.mut_store();
            if !ready.snapshot().is_empty() {
                log.snapshot = ready.snapshot().clone();
                log.entries.clear();
                self.output.committed = encoding::from_record(&log.snapshot.data).ok();
            }
            log.append(ready.entries());
            if let Some(hard_state) = ready.hs() {
                log.hard_state = hard_state.clone();
            }
            messages.extend(ready.take_persisted_messages());
            self.apply(committed);
            let mut light = self.node.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().hard_state.commit = commit;
                is_changed = true;
            }
            messages.extend(light.take_messages());
            self.apply(light.take_committed_entries());
            self.node.advance_apply();
            self.send(messages);
            self.step_down_if_removed();
        }
        if is_changed {
            self.output.record = Some(self.record());
        }
        self.replace_timeout();
        std::mem::take(&mut self.output)
    }

    // === state ===

    /// [`ClusterMap::lineage`] of its maps.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// The term in which it leads.
    pub fn leads_in(&self) -> Option<u64> {
        self.is_leader().then_some(self.node.raft.term)
    }

    /// Whether what this engine proposes is committed without another one.
    pub fn is_alone(&self) -> bool {
        let conf_state = self.conf_state();
        conf_state.voters == [self.id] && conf_state.voters_outgoing.is_empty()
    }

    /// The number of the leader, if one is known.
    pub fn leader(&self) -> Option<u64> {
        Some(self.node.raft.leader_id).filter(|id| *id != 0)
    }

    /// Whether this engine leads, and all that it proposed is committed.
    pub fn is_ready_to_propose(&self) -> bool {
        let log = &self.node.raft.raft_log;
        self.is_leader() && log.committed == log.last_index() && log.applied == log.committed
    }

    /// The map at which the log was cut: the newest committed one, or the first.
    pub fn snapshot_map(&self) -> Option<ClusterMap> {
        encoding::from_record(&self.node.store().snapshot.data).ok()
    }

    /// Whether it has taken no part in any election or change yet.
    pub fn is_untouched(&self) -> bool {
        let raft = &self.node.raft;
        raft.term <= 1 && raft.vote == 0 && raft.raft_log.last_index() <= 1
    }

    fn conf_state(&self) -> &ConfState {
        self.node.store().snapshot.get_metadata().get_conf_state()
    }

    pub fn record(&self) -> Record {
        let log = self.node.store();
        Record {
            cluster: self.cluster,
            term: log.hard_state.term,
            vote: log.hard_state.vote,
            commit: log.hard_state.commit,
            snapshot: log.snapshot.clone().into(),
            entries: log.entries.iter().cloned().map(Into::into).collect(),
        }
    }

    // === transitions ===

    /// Applies committed entries, and cuts the log behind each.
    fn apply(&mut self, entries: Vec<eraftpb::Entry>) {
        for entry in entries {
            let mut conf_state = self.conf_state().clone();
            let mut map = None;
            match entry.get_entry_type() {
                EntryType::EntryConfChangeV2 => {
                    let change = conf_change(&entry.data);
                    if let Ok(next) = self.node.apply_conf_change(&change) {
                        conf_state = next;
                    }
                }
                EntryType::EntryConfChange => {}
                EntryType::EntryNormal if entry.data.is_empty() => {}
                EntryType::EntryNormal => {
                    self.output.committed = encoding::from_record(&entry.data).ok();
                    map = Some(entry.data);
                }
            }
            self.node.mut_store().cut(entry.index, entry.term, conf_state, map);
        }
    }

    fn send(&mut self, messages: Vec<eraftpb::Message>) {
        for message in messages {
            let to = message.to;
            if message.get_msg_type() == MessageType::MsgSnapshot {
                // Otherwise one that is lost ends replication to this voter.
                self.node.report_snapshot(to, raft::SnapshotStatus::Finish);
            }
            self.output.messages.push((to, Message::of(self.cluster, message)));
        }
    }

    /// The library lets a leader that no longer votes go on.
    fn step_down_if_removed(&mut self) {
        let conf_state = self.conf_state();
        let votes =
            conf_state.voters.contains(&self.id) || conf_state.voters_outgoing.contains(&self.id);
        if self.is_leader() && !votes {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, 0);
        }
    }

    /// Replaces the election timeout if the library has drawn another.
    fn replace_timeout(&mut self) {
        let raft = &mut self.node.raft;
        if raft.election_elapsed < self.elapsed {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.timeout = ELECTION_TICKS + (self.random >> 33) as usize % ELECTION_TICKS;
        }
        self.elapsed = raft.election_elapsed;
        raft.set_randomized_election_timeout(self.timeout);
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Record {
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }
}

// === the log ===

impl Log {
    fn append(&mut self, entries: &[eraftpb::Entry]) {
        if let Some(first) = entries.first() {
            let kept = first.index.saturating_sub(self.snapshot.get_metadata().index + 1);
            self.entries.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            self.entries.extend_from_slice(entries);
        }
    }

    /// Makes the committed entry at `index` the snapshot; `map` if it contains one.
    fn cut(&mut self, index: u64, term: u64, conf_state: ConfState, map: Option<bytes::Bytes>) {
        self.entries.retain(|entry| entry.index > index);
        let metadata = self.snapshot.mut_metadata();
        (metadata.index, metadata.term) = (index, term);
        metadata.set_conf_state(conf_state);
        if let Some(map) = map {
            self.snapshot.data = map;
        }
    }

    fn at(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.snapshot.get_metadata().index + 1)?).ok()
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let conf_state = self.snapshot.get_metadata().get_conf_state().clone();
        Ok(RaftState::new(self.hard_state.clone(), conf_state))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        let compacted = raft::Error::Store(StorageError::Compacted);
        let (Some(from), Some(to)) = (self.at(low), self.at(high)) else { return Err(compacted) };
        let unavailable = raft::Error::Store(StorageError::Unavailable);
        let mut entries = self.entries.get(from..to).ok_or(unavailable)?.to_vec();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let metadata = self.snapshot.get_metadata();
        if index == metadata.index {
            return Ok(metadata.term);
        }
        let compacted = raft::Error::Store(StorageError::Compacted);
        let at = self.at(index).ok_or(compacted)?;
        let unavailable = raft::Error::Store(StorageError::Unavailable);
        self.entries.get(at).map(|entry| entry.term).ok_or(unavailable)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.snapshot.get_metadata().index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.snapshot.get_metadata().index + self.entries.len() as u64)
    }

    fn snapshot(&self, _: u64, _: u64) -> raft::Result<Snapshot> {
        Ok(self.snapshot.clone())
    }
}

// === messages ===

impl Message {
    fn of(cluster: ClusterId, mut message: eraftpb::Message) -> Self {
        let snapshot = message.take_snapshot();
        Self {
            cluster,
            kind: message.get_msg_type() as i32,
            from: message.from,
            to: message.to,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            commit: message.commit,
            commit_term: message.commit_term,
            reject: message.reject,
            reject_hint: message.reject_hint,
            request_snapshot: message.request_snapshot,
            context: message.context.to_vec(),
            entries: message.take_entries().into_iter().map(Into::into).collect(),
            snapshot: (!snapshot.is_empty()).then(|| snapshot.into()),
        }
    }

    /// Whether a correct engine could have sent it.
    fn is_plausible(&self) -> bool {
        let entries = || self.entries.iter().zip(1_u64..);
        let is_next = |(entry, nth): (&LogEntry, u64)| {
            self.index.checked_add(nth) == Some(entry.index) && (0..=2).contains(&entry.kind)
        };
        let of_others = MESSAGE_KINDS.iter().any(|kind| *kind as i32 == self.kind);
        let has_map = self.snapshot.as_ref().is_none_or(|snapshot| !snapshot.voters.is_empty());
        of_others && has_map && self.entries.len() <= ENTRIES_MAX && entries().all(is_next)
    }
}

/// The messages that engines send each other; all others are of a node to itself.
const MESSAGE_KINDS: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

impl From<Message> for eraftpb::Message {
    fn from(message: Message) -> Self {
        let mut raft = Self::default();
        raft.set_msg_type(
            MESSAGE_KINDS
                .into_iter()
                .find(|kind| *kind as i32 == message.kind)
                .unwrap_or(MessageType::MsgHeartbeatResponse),
        );
        (raft.from, raft.to, raft.term) = (message.from, message.to, message.term);
        (raft.log_term, raft.index) = (message.log_term, message.index);
        (raft.commit, raft.commit_term) = (message.commit, message.commit_term);
        (raft.reject, raft.reject_hint) = (message.reject, message.reject_hint);
        raft.request_snapshot = message.request_snapshot;
        raft.context = message.context.into();
        raft.set_entries(message.entries.into_iter().map(Into::into).collect::<Vec<_>>().into());
        if let Some(snapshot) = message.snapshot {
            raft.set_snapshot(snapshot.into());
        }
        raft
    }
}

impl From<eraftpb::Entry> for LogEntry {
    fn from(entry: eraftpb::Entry) -> Self {
        let kind = entry.get_entry_type();
        let data = match kind {
            EntryType::EntryConfChangeV2 => encoding::to_bytes(&VoterChange::of(&entry.data)),
            _ => entry.data.to_vec(),
        };
        Self { kind: kind as i32, term: entry.term, index: entry.index, data }
    }
}

impl From<LogEntry> for eraftpb::Entry {
    fn from(entry: LogEntry) -> Self {
        let mut raft = Self::default();
        (raft.term, raft.index) = (entry.term, entry.index);
        if entry.kind == EntryType::EntryConfChangeV2 as i32 {
            raft.set_entry_type(EntryType::EntryConfChangeV2);
            let change: VoterChange = encoding::from_bytes(&entry.data).unwrap_or_default();
            raft.data = change.to_protobuf().into();
        } else {
            raft.data = entry.data.into();
        }
        raft
    }
}

impl From<Snapshot> for LogSnapshot {
    fn from(snapshot: Snapshot) -> Self {
        let metadata = snapshot.get_metadata();
        let conf_state = metadata.get_conf_state();
        Self {
            index: metadata.index,
            term: metadata.term,
            voters: conf_state.voters.clone(),
            voters_outgoing: conf_state.voters_outgoing.clone(),
            auto_leave: conf_state.auto_leave,
            map: snapshot.data.to_vec(),
        }
    }
}

impl From<LogSnapshot> for Snapshot {
    fn from(snapshot: LogSnapshot) -> Self {
        let mut raft = Self::default();
        let metadata = raft.mut_metadata();
        (metadata.index, metadata.term) = (snapshot.index, snapshot.term);
        let conf_state = metadata.mut_conf_state();
        conf_state.voters = snapshot.voters;
        conf_state.voters_outgoing = snapshot.voters_outgoing;
        conf_state.auto_leave = snapshot.auto_leave;
        raft.data = snapshot.map.into();
        raft
    }
}

// === changes of the voters ===

/// What an entry that changes the voters contains: each voter, and whether it is added.
#[derive(Debug, Default, Serialize, Deserialize)]
struct VoterChange(Vec<(u64, bool)>);

impl VoterChange {
    fn of(protobuf: &[u8]) -> Self {
        let changes = conf_change(protobuf);
        let changes = changes
            .get_changes()
            .iter()
            .map(|change| (change.node_id, change.get_change_type() != ConfChangeType::RemoveNode));
        Self(changes.collect())
    }

    fn to_protobuf(&self) -> Vec<u8> {
        let change = self.0.iter().map(|(number, is_added)| {
            let mut change = ConfChangeSingle::default();
            let kind = if *is_added { ConfChangeType::AddNode } else { ConfChangeType::RemoveNode };
            change.set_change_type(kind);
            change.node_id = *number;
            change
        });
        let mut all = ConfChangeV2::default();
        all.set_changes(change.collect::<Vec<_>>().into());
        if !self.0.is_empty() {
            all.set_transition(ConfChangeTransition::Implicit);
        }
        all.write_to_bytes().unwrap_or_default()
    }
}

/// Only for bytes that this process has written: a leader's own proposal, or
/// [`VoterChange::to_protobuf`].
fn conf_change(protobuf: &[u8]) -> ConfChangeV2 {
    ConfChangeV2::parse_from_bytes(protobuf).unwrap_or_default()
}
