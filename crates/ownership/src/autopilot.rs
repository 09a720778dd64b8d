//! The next cluster map: which members join, leave or are evicted, and who votes.
//!
//! Runs on the leader of the consensus engine, which proposes the map that [`Autopilot::next`]
//! returns, one at a time, each derived from the newest committed one. The name and two of the
//! rules are Consul's: a dead voter is replaced at once when its successor under the same name is
//! there, and voters are never removed below what they need to agree.
//!
//! | event | change |
//! |---|---|
//! | a node asks to join | it becomes a member; a member of the same name is evicted by this |
//! | a majority of the voters has not heard a member for `down_after` | it is evicted |
//! | a member drains | it owns nothing any more |
//! | a drained member has handed everything over | its entry is removed |
//! | others wait `settle_after` for a member that copies nothing | evicted, and kept out as long |
//! | a voter has been gone for `replace_after` and another member can vote | it is replaced |
//! | a voter returns with another birth, or drains | it is replaced at once, if one can vote |
//! | more members can vote than do | voters are added: 1, 3, 5 or 7 |
//! | an evicted member was gone for `forget_after` | its entry is removed |
//! | in the global map: the last member of a region was evicted | the region is no home any more |
//! | a region that is no home has a member and all counts of keys that move | it is one again |
//! | all members have pushed counters of earlier starts | they are collected ([`Collection`]) |
//!
//! **Voters change in two steps.** The map of the joint phase names both sets
//! ([`Voters::replaced`]). The phase ends only after majorities of both have reported its epoch and
//! a hold (1.25 leases) has passed since. Otherwise a node that still counts the old voters could
//! go on: of voters `a b c`, replaced by `a b d`, `p` has grants of `b` and `c`, and `a d` evict
//! `p` without asking either. With the wait, a majority of the old voters knows the new map for
//! longer than any grant of before lasts, and each further grant names that map, which `p` then
//! needs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tidegate_limiter::units::{Monotonic, Span};

use crate::cluster_map::{
    ClusterMap, Collection, Epoch, Identity, MAP_MEMBERS_MAX, MapMember, MapState, MemberId,
    REGIONS_MAX, VOTERS_MAX, Voters,
};
use crate::grants::hold;
use crate::identity::{Generation, NodeId};
use crate::versions::Versions;

#[derive(Clone, Debug)]
pub struct Settings {
    /// The voters wanted: odd, at most [`VOTERS_MAX`].
    pub voters: usize,
    /// If not empty, the nodes of these names vote, whether they are there or not.
    pub pinned_voters: BTreeSet<NodeId>,
    /// The validity of a vote grant.
    pub lease: Span,
    /// How long others wait for a member's release before it is evicted.
    pub settle_after: Span,
    /// How long a voter may be gone before another member votes in its place.
    pub replace_after: Span,
    /// How long an evicted member is remembered.
    pub forget_after: Span,
    /// Complaints older than this do not count: three pings.
    pub complaint_age: Span,
    /// In the global map, in which a member stands for its region, which is its zone: at most one
    /// of a region votes, and homes are agreed on.
    pub homes: Option<HomeRules>,
}

/// Which regions are homes of global keys.
#[derive(Clone, Debug)]
pub struct HomeRules {
    /// All that may be, sorted; the same at every node.
    pub regions: Vec<String>,
    /// Whether a region without a member is struck off, or only by an operator.
    pub fails_over: bool,
    /// How long a region may be without a member when none of its members was evicted.
    pub absent_max: Span,
}

/// A node that asks to become a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub identity: Identity,
    /// [`MapMember::start`].
    pub start: u64,
    pub generation: Generation,
    pub addr: SocketAddr,
    pub zone: String,
    pub versions: Versions,
}

/// What a member reports to the leader about others; part of its pings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Complaints {
    /// Members that the sender, a voter, has not heard for `cluster.down_after`.
    pub silent: Vec<MemberId>,
    /// Members that have not released ranges to the sender at its epoch, or that do not take what
    /// the sender releases.
    pub waits_for: Vec<MemberId>,
    /// The sender is copying counts to their next owners: no reason to evict it.
    pub is_copying: bool,
    /// The members of this epoch are those to which the sender has pushed its copies of counters
    /// of earlier starts ([`Collection`]).
    pub pushed: Epoch,
}

/// What the leader has learned since it leads. A new leader begins without any of it, because
/// requests and reports are repeated.
#[derive(Debug)]
pub struct Autopilot {
    settings: Settings,
    joins: BTreeMap<NodeId, JoinRequest>,
    /// Since when members want to drain that do not drain yet.
    drains: BTreeMap<MemberId, Monotonic>,
    /// Drained members that hold nothing any more.
    left: BTreeSet<MemberId>,
    /// Evicted members to be forgotten now.
    forgets: BTreeSet<MemberId>,
    complaints: BTreeMap<MemberId, (Monotonic, Complaints)>,
    /// Since when others wait for a member.
    waited_for: BTreeMap<MemberId, Monotonic>,
    /// Runs of nodes that were evicted because others waited for them, and when.
    unsettled: BTreeMap<NodeId, (u64, Monotonic)>,
    /// Since when each member has been in its state.
    since: BTreeMap<MemberId, (MapState, Monotonic)>,
    /// Since when each voter has had no member.
    gone: BTreeMap<Identity, Monotonic>,
    /// Since when majorities have reported the joint phase.
    joint: Option<(Epoch, Monotonic)>,
    /// Since when each home has had no member.
    absent: BTreeMap<String, Monotonic>,
    /// Regions without a member of which the last one was evicted.
    evicted: BTreeSet<String>,
    /// Homes to be struck off once they have no member, with the time of the order.
    lost: BTreeMap<String, Monotonic>,
    /// Regions that have copied to another one all counts of the keys that would move there.
    copied: BTreeSet<(String, String)>,
}

/// How much longer than [`HomeRules::absent_max`] the order to strike off a region is valid while
/// the region has members. An order that never expires would move keys at a later fault.
const ORDER_AGE_MAX: Span = Span::from_secs(60);
/// The longest time for which a member that wants to drain waits until others have drained. What
/// stops a node has a bound, and handing over may take long: those that still wait go together.
pub const DRAIN_TURN_MAX: Span = Span::from_secs(20);
/// How long a new member has to stay before it may vote.
const STABLE_AFTER: Span = Span::from_secs(5);
/// Members named in one report; the others follow with later ones.
pub const COMPLAINTS_MAX: usize = 64;

impl Autopilot {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            joins: BTreeMap::new(),
            drains: BTreeMap::new(),
            left: BTreeSet::new(),
            forgets: BTreeSet::new(),
            complaints: BTreeMap::new(),
            waited_for: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            since: BTreeMap::new(),
            gone: BTreeMap::new(),
            joint: None,
            absent: BTreeMap::new(),
            evicted: BTreeSet::new(),
            lost: BTreeMap::new(),
            copied: BTreeSet::new(),
        }
    }

    // === inputs ===

    /// A node asks to join. At [`MAP_MEMBERS_MAX`] it waits until another one is forgotten.
    pub fn join_requested(&mut self, request: JoinRequest) {
        if self.joins.len() < MAP_MEMBERS_MAX {
            self.joins.insert(request.identity.node.clone(), request);
        }
    }

    /// Whether that node has asked to become a member, and waits for it.
    pub fn is_asked_by(&self, node: &NodeId) -> bool {
        self.joins.contains_key(node)
    }

    /// A member is going to leave. It drains when it is its turn, for which it waits no longer than
    /// [`DRAIN_TURN_MAX`].
    pub fn drain_requested(&mut self, now: Monotonic, member: MemberId) {
        if self.drains.len() < MAP_MEMBERS_MAX {
            self.drains.entry(member).or_insert(now);
        }
    }

    /// A draining member has handed over all that it held.
    pub fn has_left(&mut self, member: MemberId) {
        if self.left.len() < MAP_MEMBERS_MAX {
            self.left.insert(member);
        }
    }

    /// An operator wants an evicted member to be forgotten now.
    pub fn forget_requested(&mut self, member: MemberId) {
        if self.forgets.len() < MAP_MEMBERS_MAX {
            self.forgets.insert(member);
        }
    }

    /// An operator says that a region is lost. It is struck off once none of its members is left;
    /// the order expires [`ORDER_AGE_MAX`] after the time that it takes to notice that.
    pub fn region_lost(&mut self, now: Monotonic, region: String) {
        if self.lost.len() < REGIONS_MAX {
            self.lost.insert(region, now);
        }
    }

    /// The regions that have copied to another one all counts of the keys that would move there,
    /// under the present homes. Replaces what was said before.
    pub fn regions_copied(&mut self, pairs: BTreeSet<(String, String)>) {
        self.copied = pairs;
    }

    /// The complaints of `member`, which replace its earlier ones.
    pub fn complained(&mut self, now: Monotonic, member: MemberId, complaints: Complaints) {
        self.complaints.insert(member, (now, complaints));
    }

    // === output ===

    /// The map to propose after `map`, the newest committed one; `None` while nothing has to
    /// change. `reported` is the newest epoch that each voter has reported.
    pub fn next(
        &mut self,
        now: Monotonic,
        map: &ClusterMap,
        reported: impl Fn(&Identity) -> Epoch,
    ) -> Option<ClusterMap> {
        self.follow(now, map);
        let mut next = map.clone();
        self.admit(now, &mut next);
        self.evict_silent(&mut next);
        self.evict_unsettled(now, &mut next);
        self.drain_and_remove(now, &mut next);
        self.change_voters(now, map, &mut next, &reported);
        self.change_homes(now, map, &mut next, &reported);
        self.collect(map, &mut next);
        self.raise_version(&mut next);
        if next == *map {
            return None;
        }
        next.epoch = map.epoch.next();
        Some(next)
    }

    /// Keeps what is known about the members of `map` and drops the rest.
    fn follow(&mut self, now: Monotonic, map: &ClusterMap) {
        let states: BTreeMap<MemberId, MapState> =
            map.members.iter().map(|member| (member.id, member.state)).collect();
        let state = |id: &MemberId| states.get(id).copied();
        let is_present_id = |id: &MemberId| state(id).is_some_and(|state| state != MapState::Down);
        self.drains.retain(|id, _| state(id) == Some(MapState::Up));
        self.left.retain(is_present_id);
        self.forgets.retain(|id| state(id) == Some(MapState::Down));
        let age_max = self.settings.complaint_age;
        self.complaints.retain(|id, (at, _)| is_present_id(id) && now < at.plus(age_max));
        let has_member = |region: &String| map.present().any(|member| member.zone == *region);
        let is_evicted = |member: &&MapMember| {
            let was = self.since.get(&member.id).map(|(was, _)| *was);
            member.state == MapState::Down && was.is_some_and(|was| was != MapState::Down)
        };
        let evicted = map.members.iter().filter(is_evicted).map(|member| member.zone.clone());
        self.evicted.extend(evicted);
        self.evicted.retain(|region| !has_member(region));
        self.since.retain(|id, (was, _)| state(id) == Some(*was));
        for member in &map.members {
            self.since.entry(member.id).or_insert((member.state, now));
        }
        let complaints = self.complaints.values();
        let named: BTreeSet<MemberId> =
            complaints.flat_map(|(_, complaints)| &complaints.waits_for).copied().collect();
        let is_waited_for = |id: &MemberId| {
            let copies = || self.complaints.get(id).is_some_and(|(_, own)| own.is_copying);
            named.contains(id) && !copies()
        };
        self.waited_for.retain(|id, _| is_present_id(id) && is_waited_for(id));
        for member in map.present().filter(|member| is_waited_for(&member.id)) {
            self.waited_for.entry(member.id).or_insert(now);
        }
        self.gone.retain(|voter, _| map.voters.contains(voter) && !is_present(map, voter));
        for voter in map.voters.current.iter().filter(|voter| !is_present(map, voter)) {
            self.gone.entry(voter.clone()).or_insert(now);
        }
        let is_member = |request: &JoinRequest| {
            let member = map.get(&request.identity.node);
            member.is_some_and(|member| {
                member.identity == request.identity
                    && member.start == request.start
                    && member.state != MapState::Down
            })
        };
        self.joins.retain(|_, request| !is_member(request));
        let absent_max = self.settings.homes.as_ref().map_or(Span::ZERO, |rules| rules.absent_max);
        self.lost.retain(|region, ordered| {
            map.homes.contains(region) && now < ordered.plus(absent_max).plus(ORDER_AGE_MAX)
        });
        self.absent.retain(|region, _| !has_member(region));
        for region in map.homes.names.iter().filter(|region| !has_member(region)) {
            self.absent.entry(region.clone()).or_insert(now);
        }
    }

    /// Every node that asked becomes a member, unless it is too old; an earlier one of its name is
    /// not any more. A node for which others waited is not admitted again for as long as they
    /// waited, unless it restarts: they would wait again before they have taken over. A voter
    /// is admitted at once if no majority of the voters is heard without it, because then no other
    /// member could be evicted.
    fn admit(&mut self, now: Monotonic, next: &mut ClusterMap) {
        let is_heard = |voter: &Identity| {
            let member = next.present().find(|member| member.identity == *voter);
            member.is_some_and(|member| self.complaints.contains_key(&member.id))
        };
        let lacks_voters = !next.voters.is_majority(is_heard);
        let wait = self.settings.settle_after;
        self.unsettled.retain(|_, (_, evicted)| now < evicted.plus(wait));
        for (node, request) in std::mem::take(&mut self.joins) {
            let at = next.members.binary_search_by(|member| member.identity.node.cmp(&node));
            let is_full = at.is_err() && next.members.len() >= MAP_MEMBERS_MAX;
            let is_needed = lacks_voters && next.voters.contains(&request.identity);
            let is_unsettled = !is_needed
                && self.unsettled.get(&node).is_some_and(|(start, _)| *start == request.start);
            if is_full || is_unsettled || request.versions.highest < next.version {
                continue;
            }
            next.last_member.0 = next.last_member.0.saturating_add(1);
            let JoinRequest { identity, start, generation, addr, zone, versions } = request;
            let (id, state) = (next.last_member, MapState::Up);
            let member = MapMember { id, identity, start, generation, addr, zone, versions, state };
            match at {
                Ok(at) => next.members[at] = member,
                Err(at) => next.members.insert(at, member),
            }
        }
    }

    fn evict_silent(&self, next: &mut ClusterMap) {
        let has_not_heard = |voter: &Identity, id: MemberId, next: &ClusterMap| {
            let voter = next.get(&voter.node).filter(|member| member.identity == *voter);
            let complaints = voter.and_then(|voter| self.complaints.get(&voter.id));
            complaints.is_some_and(|(_, complaints)| complaints.silent.contains(&id))
        };
        let is_silent = |member: &MapMember| {
            next.voters.is_majority(|voter| has_not_heard(voter, member.id, next))
        };
        let silent: Vec<MemberId> =
            next.present().filter(|member| is_silent(member)).map(|member| member.id).collect();
        for member in next.members.iter_mut().filter(|member| silent.contains(&member.id)) {
            member.state = MapState::Down;
        }
    }

    /// Evicts the member that others have waited for the longest; of several the newest. The next
    /// one has `settle_after` again.
    fn evict_unsettled(&mut self, now: Monotonic, next: &mut ClusterMap) {
        let is_over = |since: &Monotonic| now >= since.plus(self.settings.settle_after);
        let late = self.waited_for.iter().filter(|(_, since)| is_over(since));
        let Some((id, _)) = late.min_by_key(|(id, since)| (**since, u64::MAX - id.0)) else {
            return;
        };
        let stays = |voter: &Identity| {
            next.present().any(|member| member.identity == *voter && member.id != *id)
        };
        if next.voters.is_majority(stays)
            && let Some(member) = next.members.iter_mut().find(|member| member.id == *id)
        {
            member.state = MapState::Down;
            self.unsettled.insert(member.identity.node.clone(), (member.start, now));
            // Others may have been waited for only because they waited for this one.
            self.waited_for.clear();
        }
    }

    fn drain_and_remove(&self, now: Monotonic, next: &mut ClusterMap) {
        let turns = self.drain_turns(now, next);
        for member in &mut next.members {
            if turns.contains(&member.id) {
                member.state = MapState::Draining;
            }
        }
        let is_over = |member: &MapMember| match member.state {
            MapState::Up => false,
            MapState::Draining => self.left.contains(&member.id),
            MapState::Down => {
                // A member that this change evicts is not known to be gone yet.
                let is_old = self.since.get(&member.id).is_some_and(|(was, since)| {
                    *was == MapState::Down && now >= since.plus(self.settings.forget_after)
                });
                is_old || self.forgets.contains(&member.id)
            }
        };
        next.members.retain(|member| !is_over(member));
    }

    /// The members that begin to drain: one after the other, the newest first, so that the owner of
    /// a key and the holder of its copy do not leave together. At once where none stays that could
    /// take something over.
    fn drain_turns(&self, now: Monotonic, map: &ClusterMap) -> BTreeSet<MemberId> {
        let up = || map.members.iter().filter(|member| member.state == MapState::Up);
        let since = |member: &MapMember| Some((member.id, *self.drains.get(&member.id)?));
        let waiting: BTreeMap<MemberId, Monotonic> = up().filter_map(since).collect();
        let none_stays = waiting.len() == up().count();
        let holds = |member: &MapMember| {
            member.state == MapState::Draining && !self.left.contains(&member.id)
        };
        let is_turn_taken = map.members.iter().any(holds);
        let newest = waiting.keys().next_back().copied().filter(|_| !is_turn_taken);
        let begins = |(id, since): &(MemberId, Monotonic)| {
            let is_over = now >= since.plus(DRAIN_TURN_MAX);
            none_stays || is_over || newest == Some(*id) || self.left.contains(id)
        };
        waiting.into_iter().filter(begins).map(|(id, _)| id).collect()
    }

    /// Ends a joint phase, or begins one when other members should vote.
    fn change_voters(
        &mut self,
        now: Monotonic,
        map: &ClusterMap,
        next: &mut ClusterMap,
        reported: impl Fn(&Identity) -> Epoch,
    ) {
        if !map.voters.are_joint() {
            self.joint = None;
            if let Some(current) = self.chosen_voters(now, next)
                && current != next.voters.current
            {
                let replaced = std::mem::take(&mut next.voters.current);
                next.voters = Voters { current, replaced, changed_at: map.epoch.next() };
            }
            return;
        }
        let began = map.voters.changed_at;
        if self.joint.is_some_and(|(epoch, _)| epoch != began) {
            self.joint = None;
        }
        if map.voters.is_majority(|voter| reported(voter) >= began) {
            let (_, since) = *self.joint.get_or_insert((began, now));
            if now >= since.plus(hold(self.settings.lease)) {
                next.voters.replaced.clear();
            }
        }
    }

    /// Strikes off the regions that are lost, and adds those that are there again. A change follows
    /// only on one that a majority has reported: a node keeps the keys that are at home in its
    /// region before and after, and has to know the change in between.
    fn change_homes(
        &self,
        now: Monotonic,
        map: &ClusterMap,
        next: &mut ClusterMap,
        reported: impl Fn(&Identity) -> Epoch,
    ) {
        let Some(rules) = &self.settings.homes else { return };
        if !map.voters.is_majority(|voter| reported(voter) >= map.homes.changed_at) {
            return;
        }
        let is_lost = |region: &String| {
            let is_over = |since: &Monotonic| now >= since.plus(rules.absent_max);
            // One that was evicted earlier says nothing of a member that left in order.
            let is_now_evicted = |member: &MapMember| {
                let is_down = |it: &MapMember| it.id == member.id && it.state == MapState::Down;
                member.zone == *region && next.members.iter().any(is_down)
            };
            let is_gone = self.evicted.contains(region)
                || map.present().any(is_now_evicted)
                || self.absent.get(region).is_some_and(is_over);
            rules.fails_over && is_gone || self.lost.contains_key(region)
        };
        let is_there = |region: &String| next.present().any(|member| member.zone == *region);
        let stays =
            |region: &String| map.homes.contains(region) && (is_there(region) || !is_lost(region));
        let staying: Vec<&String> = rules.regions.iter().filter(|it| stays(it)).collect();
        // No region is added by the change that strikes another one off: the homes that stay first
        // have to copy the keys that they gain by it. Without such a home there is nothing to copy.
        let is_complete = staying.len() == map.homes.names.len();
        let has_all = |region: &String| {
            let has_copied =
                |from: &&String| self.copied.contains(&((*from).clone(), region.clone()));
            staying.is_empty() || is_complete && staying.iter().all(has_copied)
        };
        // Without a member that the leader hears, the region may be dead: no node would decide the
        // keys that move there.
        let is_heard = |region: &String| {
            let mut members = next.present().filter(|member| member.zone == *region);
            members.any(|member| self.complaints.contains_key(&member.id))
        };
        let is_home = |region: &&String| stays(region) || is_heard(region) && has_all(region);
        let names: Vec<String> = rules.regions.iter().filter(is_home).cloned().collect();
        if !names.is_empty() && names != map.homes.names {
            next.homes = map.homes.followed_by(names, map.epoch.next());
        }
    }

    /// Notes that all members of `map` have pushed their copies of counters of earlier starts.
    fn collect(&self, map: &ClusterMap, next: &mut ClusterMap) {
        // The nodes of the global map do not share eventual keys.
        if self.settings.homes.is_some() {
            return;
        }
        if next.members != map.members {
            next.collection = Collection { members_at: map.epoch.next(), is_complete: false };
            return;
        }
        // While ranges move, another epoch would only begin their transfers anew.
        let has_pushed = |own: &Complaints| {
            let is_settled = own.waits_for.is_empty() && !own.is_copying;
            is_settled && own.pushed >= map.collection.members_at
        };
        let has_pushed = |member: &MapMember| {
            let reported = self.complaints.get(&member.id);
            member.state != MapState::Down && reported.is_some_and(|(_, own)| has_pushed(own))
        };
        if !map.members.is_empty() && map.members.iter().all(has_pushed) {
            next.collection.is_complete = true;
        }
    }

    /// Who should vote; `None` when nothing can be said, or a majority of them would not be there.
    /// Once every member of a region speaks a newer version. The global map has a few nodes of each
    /// region at a time, so it cannot tell what the next one speaks.
    fn raise_version(&self, next: &mut ClusterMap) {
        let highest = next.members.iter().map(|member| member.versions.highest).min();
        if self.settings.homes.is_none() {
            next.version = highest.unwrap_or_default().max(next.version);
        }
    }

    fn chosen_voters(&self, now: Monotonic, map: &ClusterMap) -> Option<Vec<Identity>> {
        let chosen = if self.settings.pinned_voters.is_empty() {
            self.automatic_voters(now, map)
        } else {
            self.pinned_voters(map)
        };
        let voters = Voters::of(chosen);
        voters.is_majority(|voter| is_present(map, voter)).then_some(voters.current)
    }

    /// The nodes of the configured names: as they are now, or as they were when they voted last.
    fn pinned_voters(&self, map: &ClusterMap) -> BTreeSet<Identity> {
        let identity = |name: &NodeId| {
            let present = map.present().find(|member| member.identity.node == *name);
            let voter = map.voters.current.iter().find(|voter| voter.node == *name);
            let unknown = || Identity { node: name.clone(), birth: Identity::UNKNOWN_BIRTH };
            present.map(|member| &member.identity).or(voter).cloned().unwrap_or_else(unknown)
        };
        self.settings.pinned_voters.iter().map(identity).collect()
    }

    fn automatic_voters(&self, now: Monotonic, map: &ClusterMap) -> BTreeSet<Identity> {
        let current = &map.voters.current;
        let is_up = |member: &MapMember| member.state == MapState::Up;
        let is_stable = |member: &MapMember| {
            let since = self.since.get(&member.id);
            since.is_some_and(|(_, since)| now >= since.plus(STABLE_AFTER))
        };
        let succeeds_a_voter = |member: &MapMember| {
            current
                .iter()
                .any(|voter| voter.node == member.identity.node && *voter != member.identity)
        };
        // Present voters first, then successors of voters under their names.
        let rank = |member: &MapMember| {
            (!current.contains(&member.identity), !succeeds_a_voter(member), member.id)
        };
        let may_vote = |member: &&MapMember| {
            is_up(member)
                && !self.drains.contains_key(&member.id)
                && (current.contains(&member.identity)
                    || succeeds_a_voter(member)
                    || is_stable(member))
        };
        let mut able: Vec<&MapMember> = map.present().filter(may_vote).collect();
        able.sort_by_key(|member| rank(member));
        if self.settings.homes.is_some() {
            let mut regions = BTreeSet::new();
            able.retain(|member| regions.insert(&member.zone));
        }
        // A voter that has gone, or is about to, counts until it is replaced.
        let stays = |voter: &&Identity| {
            let is_able = able.iter().any(|member| member.identity == **voter);
            let has_successor = able.iter().any(|member| member.identity.node == voter.node);
            !is_able && !has_successor && !self.may_be_replaced(now, map, voter)
        };
        let gone: Vec<&Identity> = current.iter().filter(stays).collect();
        let wanted = self.settings.voters.min(VOTERS_MAX);
        // Those that have gone keep the number of voters, and never raise it: the next failure
        // would find a majority of more, one of which cannot answer.
        let kept = odd(able.len() + gone.len()).min(current.len());
        let least = current.len().min(3);
        // A node whose setting is lower, and that leads for a while, removes none below that.
        let size = odd(able.len()).max(kept).max(least).min(wanted.max(least));
        let mut chosen: BTreeSet<Identity> = gone.into_iter().take(size).cloned().collect();
        while chosen.len() < size
            && let Some(at) = best(&able, &chosen, map)
        {
            chosen.insert(able.remove(at).identity.clone());
        }
        // Too few can vote: those that have gone remain, so that the majority does not shrink.
        for voter in current {
            if chosen.len() < size {
                chosen.insert(voter.clone());
            }
        }
        chosen
    }

    /// Whether a voter that is gone, or is about to leave, need not be waited for any more.
    fn may_be_replaced(&self, now: Monotonic, map: &ClusterMap, voter: &Identity) -> bool {
        // One without an entry has left, or is a founder that has not been admitted yet.
        let is_leaving = map.get(&voter.node).is_some_and(|member| {
            let leaves = member.state == MapState::Draining || self.drains.contains_key(&member.id);
            member.identity == *voter && leaves
        });
        let gone = self.gone.get(voter);
        is_leaving || gone.is_some_and(|since| now >= since.plus(self.settings.replace_after))
    }
}

/// Whether `voter` is a member, under the birth by which it votes.
fn is_present(map: &ClusterMap, voter: &Identity) -> bool {
    map.present().any(|member| member.identity == *voter)
}

/// The largest odd number that is not larger; 1 for 0.
fn odd(number: usize) -> usize {
    number.saturating_sub(1) / 2 * 2 + 1
}

/// The next to vote: the first in a zone with the fewest voters, so that no zone has half of them
/// where there are three zones.
fn best(able: &[&MapMember], chosen: &BTreeSet<Identity>, map: &ClusterMap) -> Option<usize> {
    let in_zone = |zone: &str| {
        let of = |voter: &&Identity| map.get(&voter.node).is_some_and(|one| one.zone == zone);
        chosen.iter().filter(of).count()
    };
    let is_voter = |member: &MapMember| map.voters.current.contains(&member.identity);
    let order = |at: &usize| (!is_voter(able[*at]), in_zone(&able[*at].zone), *at);
    (0..able.len()).min_by_key(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_map::{ClusterId, HomeRegions};

    const SECOND: u64 = 1_000;

    fn settings(voters: usize, pinned: &[&str]) -> Settings {
        Settings {
            voters,
            pinned_voters: pinned.iter().map(|name| node(name)).collect(),
            lease: Span::from_millis(600),
            settle_after: Span::from_secs(10),
            replace_after: Span::from_secs(10),
            forget_after: Span::from_secs(3_600),
            complaint_age: Span::from_millis(350),
            homes: None,
        }
    }

    /// The global map of two regions and a witness, failing over or not.
    fn global(fails_over: bool) -> Fixture {
        let regions = vec!["eu".to_owned(), "us".to_owned()];
        let absent_max = Span::from_secs(10);
        let homes = Some(HomeRules { regions: regions.clone(), fails_over, absent_max });
        let mut global = Fixture::founded(Settings { homes, ..settings(3, &[]) }, &[]);
        let founders = ["eu-1", "us-1", "w-1"];
        global.map.voters =
            Voters::of(founders.map(|name| Identity { node: node(name), birth: 1 }));
        global.map.homes = HomeRegions::of(regions);
        for name in founders {
            global.join(name, 1);
        }
        global.run(SECOND);
        global
    }

    fn node(name: &str) -> NodeId {
        NodeId::new(name).expect("a valid name")
    }

    fn ms(ms: u64) -> Monotonic {
        Monotonic::from_nanos(ms * 1_000_000)
    }

    /// A cluster whose proposals are committed at once and reported by every present voter.
    struct Fixture {
        autopilot: Autopilot,
        map: ClusterMap,
        /// Nodes that no voter hears.
        dead: BTreeSet<NodeId>,
        /// Nodes that the leader does not hear, and that no voter reports as silent.
        quiet: BTreeSet<NodeId>,
        /// Of nodes that join.
        versions: Versions,
        /// The members push their copies at once.
        push: bool,
        now: u64,
    }

    impl Fixture {
        fn copied(&mut self, pairs: &[(&str, &str)]) {
            let owned = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
            self.autopilot.regions_copied(pairs.iter().map(owned).collect());
        }

        /// Founded by these, each with birth 1.
        fn founded(settings: Settings, founders: &[&str]) -> Self {
            let voters = founders.iter().map(|name| Identity { node: node(name), birth: 1 });
            let map = ClusterMap {
                cluster: ClusterId(1),
                epoch: Epoch(1),
                voters: Voters::of(voters),
                ..ClusterMap::default()
            };
            let versions = Versions { lowest: 4, highest: 4 };
            let mut fixture = Self {
                autopilot: Autopilot::new(settings),
                map,
                dead: BTreeSet::new(),
                quiet: BTreeSet::new(),
                now: 1_000,
                versions,
                push: false,
            };
            for name in founders {
                fixture.join(name, 1);
            }
            fixture.run(SECOND);
            fixture
        }

        fn join(&mut self, name: &str, birth: u64) {
            self.dead.remove(&node(name));
            self.autopilot.join_requested(JoinRequest {
                identity: Identity { node: node(name), birth },
                start: birth,
                generation: Generation(birth),
                addr: ([127, 0, 0, 1], 7000).into(),
                zone: name.split_once('-').map_or("", |(zone, _)| zone).to_owned(),
                versions: self.versions,
            });
        }

        fn drain(&mut self, id: MemberId) {
            self.autopilot.drain_requested(ms(self.now), id);
        }

        fn draining(&self) -> String {
            let drains = |member: &&MapMember| member.state == MapState::Draining;
            let names = self.map.present().filter(drains).map(|it| it.identity.node.as_str());
            names.collect::<Vec<_>>().join(" ")
        }

        fn die(&mut self, name: &str) {
            self.dead.insert(node(name));
        }

        fn id(&self, name: &str) -> MemberId {
            self.map.get(&node(name)).expect("a member").id
        }

        fn run(&mut self, for_ms: u64) {
            for _ in 0..for_ms / 50 {
                self.now += 50;
                self.complain();
                let epoch = self.map.epoch;
                let next = self.autopilot.next(ms(self.now), &self.map, |_| epoch);
                if let Some(next) = next {
                    assert_eq!(next.epoch, epoch.next());
                    self.map = next;
                }
            }
        }

        /// The first of each pair waits for the second.
        fn run_waiting(&mut self, for_ms: u64, waits: &[(MemberId, MemberId)]) {
            for _ in 0..for_ms / 50 {
                self.complain();
                for (member, waits_for) in waits {
                    let waits_for = vec![*waits_for];
                    let complaints = Complaints { waits_for, ..Complaints::default() };
                    self.autopilot.complained(ms(self.now), *member, complaints);
                }
                let next = self.autopilot.next(ms(self.now), &self.map, |_| Epoch(1));
                if let Some(next) = next {
                    self.map = next;
                }
                self.now += 50;
            }
        }

        fn complain(&mut self) {
            let is_dead = |member: &&MapMember| self.dead.contains(&member.identity.node);
            let silent: Vec<_> = self.map.present().filter(is_dead).map(|one| one.id).collect();
            let is_quiet = |member: &&MapMember| self.quiet.contains(&member.identity.node);
            let alive = self.map.present().filter(|member| !is_dead(member) && !is_quiet(member));
            for member in alive.map(|member| member.id).collect::<Vec<_>>() {
                let pushed = if self.push { self.map.collection.members_at } else { Epoch(0) };
                let silent = silent.clone();
                let complaints = Complaints { silent, pushed, ..Complaints::default() };
                self.autopilot.complained(ms(self.now), member, complaints);
            }
        }

        fn present(&self) -> String {
            let names = self.map.present().map(|member| member.identity.node.as_str());
            names.collect::<Vec<_>>().join(" ")
        }

        fn homes(&self) -> String {
            self.map.homes.names.join(" ")
        }

        /// Each voter with its birth; `!` while the voters change.
        fn voters(&self) -> String {
            let name = |voter: &Identity| format!("{}{}", voter.node, voter.birth);
            let names: Vec<_> = self.map.voters.current.iter().map(name).collect();
            names.join(" ") + if self.map.voters.are_joint() { "!" } else { "" }
        }
    }

    #[test]
    fn a_node_that_no_majority_hears_is_evicted_and_may_return() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        assert_eq!((three.present(), three.voters()), ("a b c".into(), "a1 b1 c1".into()));
        let before = three.id("c");
        three.die("c");
        three.run(50);
        assert_eq!(three.present(), "a b");
        assert_eq!(three.map.get(&node("c")).map(|one| one.state), Some(MapState::Down));
        three.join("c", 1);
        three.run(50);
        assert_eq!(three.present(), "a b c");
        assert_ne!(three.id("c"), before, "another admission");
        assert_eq!(three.voters(), "a1 b1 c1");
    }

    #[test]
    fn counters_are_collected_once_all_members_have_pushed_to_the_present_ones() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        assert!(!three.map.collection.is_complete);
        three.push = true;
        three.run(SECOND);
        assert!(three.map.collection.is_complete);
        let epoch = three.map.epoch;
        three.run(SECOND);
        assert_eq!(three.map.epoch, epoch, "nothing else changes");
        // A restart: nobody has pushed to the members of this epoch.
        three.push = false;
        three.join("c", 2);
        three.run(SECOND);
        assert_eq!(
            (three.map.collection.is_complete, three.map.voters.are_joint()),
            (false, false)
        );
        assert!(three.map.collection.members_at > epoch);
        // One that is gone may have copies that nobody else has, until it is forgotten.
        three.push = true;
        three.die("b");
        three.run(SECOND);
        assert_eq!(three.present(), "a c");
        assert!(!three.map.collection.is_complete);
        three.run(3_601 * SECOND);
        assert!(three.map.get(&node("b")).is_none() && three.map.collection.is_complete);
    }

    #[test]
    fn one_voter_alone_evicts_nobody() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        let (a, c) = (three.id("a"), three.id("c"));
        let complaints = Complaints { silent: vec![c], ..Complaints::default() };
        three.autopilot.complained(ms(three.now), a, complaints);
        assert_eq!(three.autopilot.next(ms(three.now), &three.map, |_| Epoch(9)), None);
    }

    #[test]
    fn a_dead_voter_is_replaced_by_a_member_that_has_proved_stable() {
        let mut four = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        four.join("d", 1);
        four.run(8 * SECOND);
        assert_eq!(four.voters(), "a1 b1 c1", "three suffice");
        four.die("c");
        four.run(9 * SECOND);
        assert_eq!(four.voters(), "a1 b1 c1", "it may come back");
        four.run(3 * SECOND);
        assert_eq!(four.voters(), "a1 b1 d1");
    }

    /// Found by the simulator: three voters, one of them gone, became five.
    #[test]
    fn a_voter_that_is_gone_adds_no_voters() {
        let mut five = Fixture::founded(settings(5, &[]), &["a", "b", "c"]);
        five.join("d", 1);
        five.join("e", 1);
        five.run(SECOND);
        five.die("c");
        five.run(9 * SECOND);
        assert_eq!(five.voters(), "a1 b1 c1", "four can vote, which is three");
        five.run(3 * SECOND);
        assert_eq!(five.voters(), "a1 b1 d1");
        five.join("c", 2);
        five.run(8 * SECOND);
        assert_eq!(five.voters(), "a1 b1 c2 d1 e1");
    }

    #[test]
    fn ten_replacements_in_a_row_keep_three_voters() {
        let mut three = Fixture::founded(settings(3, &[]), &["n1", "n2", "n3"]);
        for number in 4..14 {
            three.die(&format!("n{}", number - 3));
            three.run(2 * SECOND);
            three.join(&format!("n{number}"), 1);
            three.run(13 * SECOND);
            let names: Vec<_> = (number - 2..=number).map(|n| format!("n{n}")).collect();
            let present: BTreeSet<_> = three.present().split(' ').map(str::to_owned).collect();
            assert_eq!(present, names.iter().cloned().collect());
            let voters: BTreeSet<_> = names.iter().map(|name| format!("{name}1")).collect();
            assert_eq!(
                three.voters().split(' ').map(str::to_owned).collect::<BTreeSet<_>>(),
                voters
            );
        }
    }

    #[test]
    fn a_voter_that_was_born_again_is_replaced_at_once() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        three.die("c");
        three.run(2 * SECOND);
        three.join("c", 2);
        three.run(50);
        assert_eq!(three.voters(), "a1 b1 c2!");
        three.run(SECOND);
        assert_eq!(three.voters(), "a1 b1 c2");
    }

    #[test]
    fn a_joint_phase_ends_a_hold_after_majorities_have_reported_it() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        three.die("c");
        three.run(2 * SECOND);
        three.join("c", 2);
        three.run(50);
        let began = three.map.epoch;
        assert_eq!(three.map.voters.changed_at, began);
        let mut next = |after: u64, reported: Epoch| {
            three.complain();
            three.autopilot.next(ms(three.now + after), &three.map, |_| reported)
        };
        assert_eq!(next(60_000, Epoch(began.0 - 1)), None, "not reported");
        assert_eq!(next(60_000, began), None, "not long enough");
        assert_eq!(next(60_749, began), None);
        let ended = next(60_750, began).expect("the phase ends");
        assert!(!ended.voters.are_joint());
    }

    #[test]
    fn voters_are_added_in_pairs_and_removed_when_they_are_gone() {
        let mut five = Fixture::founded(settings(5, &[]), &["a", "b", "c"]);
        five.join("d", 1);
        five.run(8 * SECOND);
        assert_eq!(five.voters(), "a1 b1 c1", "never an even number");
        five.join("e", 1);
        five.run(8 * SECOND);
        assert_eq!(five.voters(), "a1 b1 c1 d1 e1");
        five.die("d");
        five.die("e");
        five.run(20 * SECOND);
        assert_eq!(five.voters(), "a1 b1 c1", "two of five more would have stopped the rest");
        five.die("c");
        five.run(20 * SECOND);
        assert_eq!(five.voters(), "a1 b1 c1", "never below three");
    }

    /// Until the last one is admitted, five voters would become three, for the five seconds that
    /// others need to become voters again.
    #[test]
    fn founders_that_are_admitted_late_keep_their_votes() {
        let mut five = Fixture::founded(settings(5, &[]), &[]);
        let founders = ["a", "b", "c", "d", "e"];
        five.map.voters = Voters::of(founders.map(|name| Identity { node: node(name), birth: 1 }));
        for name in founders {
            five.join(name, 1);
            five.run(2 * SECOND);
            assert_eq!(five.voters(), "a1 b1 c1 d1 e1", "{name} is admitted");
        }
        let mut four = Fixture::founded(settings(5, &[]), &["a", "b", "c", "d"]);
        four.map.voters = five.map.voters;
        four.run(9 * SECOND);
        assert_eq!(four.voters(), "a1 b1 c1 d1 e1");
        four.run(3 * SECOND);
        assert_eq!(four.voters(), "a1 b1 c1", "the fifth never came");
    }

    #[test]
    fn a_pair_has_one_voter() {
        let pair = Fixture::founded(settings(5, &[]), &["a"]);
        let mut pair = pair;
        pair.join("b", 1);
        pair.run(60 * SECOND);
        assert_eq!((pair.present(), pair.voters()), ("a b".into(), "a1".into()));
    }

    /// A node was started with another number, and leads.
    #[test]
    fn a_leader_that_wants_fewer_leaves_three_voters() {
        let mut cluster = Fixture::founded(settings(5, &[]), &["a", "b", "c"]);
        for name in ["a", "b", "c", "d", "e"] {
            cluster.join(name, 1);
        }
        cluster.run(60 * SECOND);
        assert_eq!(cluster.voters(), "a1 b1 c1 d1 e1");
        cluster.autopilot = Autopilot::new(settings(1, &[]));
        cluster.run(60 * SECOND);
        assert_eq!(cluster.voters(), "a1 b1 c1");
    }

    #[test]
    fn pinned_voters_follow_their_names_only() {
        let pinned = settings(5, &["a", "b", "c"]);
        let mut four = Fixture::founded(pinned, &["a", "b", "c"]);
        four.join("d", 1);
        four.die("c");
        four.run(60 * SECOND);
        assert_eq!(four.voters(), "a1 b1 c1");
        four.join("c", 2);
        four.run(2 * SECOND);
        assert_eq!(four.voters(), "a1 b1 c2");
    }

    #[test]
    fn a_drained_member_is_removed_and_hands_its_vote_on() {
        let mut four = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        four.join("d", 1);
        four.run(8 * SECOND);
        let c = four.id("c");
        four.drain(c);
        four.run(2 * SECOND);
        assert_eq!((four.present(), four.voters()), ("a b c d".into(), "a1 b1 d1".into()));
        four.autopilot.has_left(c);
        four.run(50);
        assert_eq!((four.present(), four.map.get(&node("c"))), ("a b d".into(), None));
        let b = four.id("b");
        four.drain(b);
        four.autopilot.has_left(b);
        four.run(60 * SECOND);
        assert_eq!((four.present(), four.voters()), ("a d".into(), "a1 b1 d1".into()));
    }

    #[test]
    fn members_drain_one_after_the_other() {
        let mut six = Fixture::founded(settings(5, &[]), &["a", "b", "c"]);
        for name in ["d", "e", "f"] {
            six.join(name, 1);
            six.run(SECOND);
        }
        six.run(8 * SECOND);
        let [d, e, f] = ["d", "e", "f"].map(|name| six.id(name));
        for id in [e, d, f] {
            six.drain(id);
        }
        six.run(4 * SECOND);
        assert_eq!(six.draining(), "f", "the newest");
        assert_eq!(six.voters(), "a1 b1 c1", "those that stay vote, also for d and e");
        six.autopilot.has_left(f);
        six.run(50);
        assert_eq!((six.present(), six.draining()), ("a b c d e".into(), "e".into()));
        // One that does not hand over is evicted, as ever, and the next one drains.
        six.die("e");
        six.run(SECOND);
        assert_eq!((six.present(), six.draining()), ("a b c d".into(), "d".into()));
    }

    #[test]
    fn a_member_waits_for_its_turn_to_drain_within_a_bound() {
        let mut four = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        four.join("d", 1);
        four.run(8 * SECOND);
        let [c, d] = ["c", "d"].map(|name| four.id(name));
        four.drain(d);
        four.run(50);
        for _ in 0..DRAIN_TURN_MAX.as_millis_ceil() / SECOND {
            // It asks again and again.
            four.drain(c);
            assert_eq!(four.draining(), "d");
            four.run(SECOND);
        }
        assert_eq!(four.draining(), "c d");
    }

    #[test]
    fn members_of_whom_none_stays_drain_at_once() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        let [a, b, c] = ["a", "b", "c"].map(|name| three.id(name));
        three.drain(b);
        three.drain(c);
        three.run(50);
        assert_eq!(three.draining(), "c");
        three.drain(a);
        three.run(50);
        assert_eq!(three.draining(), "a b c");
    }

    #[test]
    fn a_member_that_does_not_release_is_evicted() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        three.join("d", 1);
        three.run(SECOND);
        let d = three.id("d");
        for at in 0..=205_u64 {
            three.complain();
            let waits_for = if at == 100 { Vec::new() } else { vec![d] };
            let complaints = Complaints { waits_for, ..Complaints::default() };
            three.autopilot.complained(ms(three.now), three.id("a"), complaints);
            let next = three.autopilot.next(ms(three.now), &three.map, |_| Epoch(1));
            assert_eq!(next.is_some(), at >= 302, "{at}");
            three.now += 50;
        }
        let complaints = Complaints { waits_for: vec![d], ..Complaints::default() };
        three.autopilot.complained(ms(three.now + 10_000), three.id("a"), complaints);
        let at = ms(three.now + 10_000);
        let next = three.autopilot.next(at, &three.map, |_| Epoch(1)).expect("an eviction");
        assert!(!next.has(d) && next.present().count() == 3);
        three.map = next;
        three.now += 10_000;
        three.join("d", 1);
        three.run(9 * SECOND);
        assert_eq!(three.present(), "a b c", "the others need time to take over");
        three.join("d", 1);
        three.run(2 * SECOND);
        three.join("d", 1);
        three.run(50);
        assert_eq!(three.present(), "a b c d");
    }

    /// Two members wait for each other. One is evicted; the other one has time to take over.
    #[test]
    fn of_two_members_that_wait_for_each_other_one_is_evicted() {
        let mut five = Fixture::founded(settings(5, &[]), &["a", "b", "c", "d", "e"]);
        let (a, b, c) = (five.id("a"), five.id("b"), five.id("c"));
        let mut run = |millis, waits: &[(MemberId, MemberId)]| {
            five.run_waiting(millis, waits);
            five.present()
        };
        assert_eq!(run(9_500, &[(a, b), (b, a)]), "a b c d e");
        assert_eq!(run(1_000, &[(a, b), (b, a), (c, a)]), "a c d e", "c waits for a since then");
        assert_eq!(run(9_000, &[(c, a)]), "a c d e", "a has its time");
        assert_eq!(run(1_000, &[(c, a)]), "c d e", "which is over");
    }

    /// The member for which others waited has been evicted, and asks to return. While it is kept
    /// out, a second voter dies.
    #[test]
    fn a_voter_that_did_not_release_returns_when_no_majority_is_left() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        let (a, b) = (three.id("a"), three.id("b"));
        three.run_waiting(10_100, &[(a, b)]);
        let asks = |three: &mut Fixture| {
            for _ in 0..10 {
                three.join("b", 1);
                three.run(SECOND / 10);
            }
            three.present()
        };
        assert_eq!(asks(&mut three), "a c", "the others need time to take over");
        three.die("c");
        assert_eq!(asks(&mut three), "a b", "they cannot evict c without b");
    }

    /// While the members are upgraded one by one the old version stays in force, also when one of
    /// them comes back with it; after the last none can go back.
    #[test]
    fn a_newer_version_is_in_force_once_every_member_speaks_it() {
        let mut cluster = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        assert_eq!(cluster.map.version, 4);
        let (old, new) = (Versions { lowest: 4, highest: 4 }, Versions { lowest: 4, highest: 5 });
        for (name, versions, start, in_force) in [
            ("a", new, 2, 4),
            ("b", new, 2, 4),
            ("a", old, 3, 4),
            ("c", new, 2, 4),
            ("a", new, 4, 5),
        ] {
            cluster.versions = versions;
            cluster.join(name, start);
            cluster.run(SECOND);
            assert_eq!(cluster.map.version, in_force, "{name} runs {versions}");
        }
        cluster.versions = old;
        cluster.join("b", 3);
        cluster.join("d", 1);
        cluster.run(SECOND);
        assert_eq!(cluster.map.version, 5);
        assert_eq!(cluster.map.get(&node("b")).map(|member| member.start), Some(2));
        assert_eq!(cluster.map.get(&node("d")), None);
    }

    /// All that stand for their regions may be upgraded while others of one are not.
    #[test]
    fn an_older_node_may_stand_for_its_region() {
        let mut global = global(true);
        global.versions = Versions { lowest: 4, highest: 5 };
        for name in ["eu-1", "us-1", "w-1"] {
            global.join(name, 2);
        }
        global.run(SECOND);
        global.versions = Versions { lowest: 4, highest: 4 };
        global.join("eu-2", 1);
        global.run(SECOND);
        assert_eq!(global.present(), "eu-1 eu-2 us-1 w-1");
    }

    #[test]
    fn a_region_without_members_is_no_home_until_one_returns() {
        let mut global = global(true);
        assert_eq!((global.voters(), global.homes()), ("eu-11 us-11 w-11".into(), "eu us".into()));
        global.join("eu-2", 1);
        global.run(SECOND);
        global.die("eu-1");
        global.run(SECOND);
        assert_eq!(global.homes(), "eu us", "another node stands for it");
        global.run(12 * SECOND);
        assert_eq!(global.voters(), "eu-21 us-11 w-11");
        let since = global.map.homes.changed_at;
        global.die("eu-2");
        global.run(SECOND);
        assert_eq!((global.homes(), global.map.homes.replaced_at), ("us".into(), since));
        assert_eq!(global.map.homes.changed_at, global.map.epoch);
        global.join("eu-3", 1);
        global.copied(&[("us", "eu")]);
        global.run(SECOND);
        assert_eq!(global.homes(), "eu us");
        global.die("eu-3");
        global.die("us-1");
        global.run(60 * SECOND);
        assert_eq!(global.homes(), "eu us", "the last one, and no majority, changes nothing");
    }

    /// Its next node is admitted after the one that leaves is removed.
    #[test]
    fn a_region_whose_member_leaves_in_order_stays_a_home_beside_one_that_was_evicted() {
        let mut global = global(true);
        global.join("eu-2", 1);
        global.die("eu-1");
        global.run(12 * SECOND);
        let leave = |global: &mut Fixture, name: &str| {
            let id = global.id(name);
            global.drain(id);
            global.autopilot.has_left(id);
            global.run(SECOND);
        };
        leave(&mut global, "eu-2");
        assert_eq!((global.present(), global.homes()), ("us-1 w-1".into(), "eu us".into()));
        global.join("eu-3", 1);
        global.run(SECOND);
        assert_eq!((global.present(), global.homes()), ("eu-3 us-1 w-1".into(), "eu us".into()));
        leave(&mut global, "eu-3");
        global.run(12 * SECOND);
        assert_eq!(global.homes(), "us", "none followed");
    }

    #[test]
    fn a_region_is_struck_off_by_hand_only_without_failover() {
        let mut global = global(false);
        global.die("eu-1");
        global.run(60 * SECOND);
        assert_eq!((global.present(), global.homes()), ("us-1 w-1".into(), "eu us".into()));
        global.autopilot.region_lost(ms(global.now), "eu".into());
        global.autopilot.region_lost(ms(global.now), "us".into());
        global.run(SECOND);
        assert_eq!(global.homes(), "us", "the other one has a member");
        global.join("eu-1", 1);
        global.copied(&[("us", "eu")]);
        global.run(SECOND);
        assert_eq!(global.homes(), "eu us");
    }

    /// An order that was given while the region was there is not kept for the next fault, but for
    /// as long as it takes to notice that the region is silent.
    #[test]
    fn an_order_to_strike_off_a_region_expires() {
        for (after_s, homes) in [(69, "us"), (71, "eu us")] {
            let mut global = global(false);
            global.autopilot.region_lost(ms(global.now), "eu".into());
            global.run(after_s * SECOND);
            global.die("eu-1");
            global.run(60 * SECOND);
            assert_eq!(global.homes(), homes, "dead {after_s} s after the order");
        }
    }

    #[test]
    fn a_region_returns_when_each_home_has_copied_its_counts() {
        let mut global = global(true);
        global.die("eu-1");
        global.run(SECOND);
        global.join("eu-2", 1);
        global.run(SECOND);
        assert_eq!(global.homes(), "us", "nothing is copied yet");
        global.copied(&[("us", "ap"), ("eu", "us")]);
        global.run(SECOND);
        assert_eq!(global.homes(), "us", "of other regions");
        global.copied(&[("us", "eu")]);
        global.run(SECOND);
        assert_eq!(global.homes(), "eu us");
    }

    /// It crashed and is not evicted yet: no node would decide the keys that move there (found by
    /// the simulator, seed 5117).
    #[test]
    fn a_region_of_which_no_member_is_heard_does_not_return() {
        let mut global = global(true);
        global.die("eu-1");
        global.run(SECOND);
        global.join("eu-2", 1);
        global.run(SECOND);
        global.quiet.insert(node("eu-2"));
        global.run(SECOND);
        global.copied(&[("us", "eu")]);
        global.run(SECOND);
        assert_eq!(global.homes(), "us");
        global.quiet.clear();
        global.run(SECOND);
        assert_eq!(global.homes(), "eu us");
    }

    /// The keys of the one that is struck off may move to the other one, from copies that their
    /// new home has not sent there.
    #[test]
    fn no_region_returns_in_the_change_that_strikes_another_one_off() {
        let mut global = global(true);
        global.die("eu-1");
        global.run(SECOND);
        global.copied(&[("us", "eu")]);
        global.join("ap-1", 1);
        global.autopilot.settings.homes.as_mut().expect("rules").regions.insert(0, "ap".into());
        global.copied(&[("us", "ap"), ("us", "eu")]);
        global.run(SECOND);
        assert_eq!(global.homes(), "ap us");
        let first = global.map.homes.changed_at;
        global.join("eu-2", 1);
        global.die("ap-1");
        global.copied(&[("us", "eu")]);
        global.run(SECOND);
        assert_eq!(global.homes(), "eu us");
        assert!(global.map.homes.replaced_at > first, "us alone in between");
    }

    #[test]
    fn a_region_is_a_home_at_once_when_no_other_one_is_left() {
        let mut global = global(true);
        global.die("eu-1");
        global.run(SECOND);
        global.join("eu-2", 1);
        global.run(12 * SECOND);
        global.die("us-1");
        global.run(SECOND);
        assert_eq!(global.homes(), "eu");
    }

    #[test]
    fn homes_change_once_the_change_before_is_reported() {
        let mut global = global(true);
        global.die("eu-1");
        global.complain();
        let before = global.map.homes.changed_at;
        let (now, map) = (ms(global.now), global.map.clone());
        let next = global.autopilot.next(now, &map, |_| Epoch(before.0 - 1)).expect("an eviction");
        assert_eq!((next.present().count(), &next.homes), (2, &map.homes));
        assert_ne!(
            global.autopilot.next(now, &next, |_| before).expect("a change").homes,
            map.homes
        );
    }

    #[test]
    fn an_evicted_member_is_forgotten_late_or_by_hand() {
        let mut three = Fixture::founded(settings(3, &[]), &["a", "b", "c"]);
        three.join("d", 1);
        three.join("e", 1);
        three.run(SECOND);
        // They have been members for longer than an evicted one is remembered.
        three.now += 3_600_000;
        three.run(SECOND);
        three.die("d");
        three.die("e");
        three.run(SECOND);
        assert_eq!(three.map.members.len(), 5);
        let (a, d) = (three.id("a"), three.id("d"));
        three.autopilot.forget_requested(a);
        three.autopilot.forget_requested(d);
        three.run(SECOND);
        assert_eq!((three.present(), three.map.members.len()), ("a b c".into(), 4));
        three.now += 3_600_000;
        three.run(SECOND);
        assert_eq!(three.map.members.len(), 3);
    }
}
