//! Keeps the decision clock at the members' median ([`Skew`]).
//!
//! Until a node has its first lease, a clock beyond the bound is stepped at once, also backwards:
//! no decision has used it. Then it is compared once more, is *in use*, and never goes back. What a
//! node without a lease answers by `on_unavailable` may use it before, so the store forgets the
//! later time when the clock goes back ([`Store::clock_went_back`]), and until then keeps what it
//! loaded.
//!
//! A node that joins follows the decision clocks of the members of its region, where there are any,
//! and not their system clocks: those may have been set while the members ran, which a running node
//! follows slowly or not at all ([`Discipline`](super::clock::Discipline)). What it is sent would
//! otherwise be of the past or the future. Where none of its region decides it follows those of
//! other regions. But not a single one against two machines or more: that may be one wrong clock,
//! which started first.
//!
//! If its machine's clock was set back since the counts on its disk were written, it goes on from
//! the time of those, which would be of the future.
//!
//! Example: the clocks of all machines are set two hours ahead, by mistake. The members go on as
//! before; one that restarts measures decision clocks at −2 h, and steps there before it joins.
//!
//! Members that decide by different times refuse each other's counts. They get there when a node
//! starts where it reaches no other, or with counts that are later than those of the others. As no
//! clock in use may go back, those that are behind step forward:
//!
//! - up to an hour, to the latest clock that decides in the region, or to what most machines show;
//! - further, to the time of their own machine if another one decides by that, or to the median of
//!   all that decide.
//!
//! In the example, a region that was cut off when it restarted takes the others two hours ahead
//! when it is back, which is what their machines show. A region whose clocks are ahead of the
//! others' for no such reason is no home of global keys until they agree
//! ([`Replicator::ahead_max`](tidegate_cluster::replication::Replicator::ahead_max)).
//!
//! A clock in use follows those of members only. Nodes that it does not hear, of the map, or that
//! left or were lost less than `cluster.forget_after` ago, count as if they showed the time that it
//! has: nodes that are cut off from most others go on as if no machine's clock had been touched,
//! and so do those that are left. Theirs may be the wrong ones, and would take the others along
//! when they are back. Of two clocks in use neither follows one that is set, for the same reason.
//! Back, which ends no window, a clock follows two others that it hears. For a clock that is not in
//! use yet they count as if they showed the earliest time that is shown: by a later one the windows
//! on the disks may be over.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::membership::Membership;
use tidegate_cluster::mesh::{Mesh, Peer};
use tidegate_cluster::ownership::Driver;
use tidegate_limiter::store::Store;
use tidegate_limiter::units::{Monotonic, Span, Timestamp};
use tidegate_ownership::cluster_map::{ClusterMap, MAP_MEMBERS_MAX, MapState};
use tidegate_ownership::identity::NodeId;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::clock::{STEP_MAX, signed_difference};
use super::skew::{self, Skew};

/// Interval of comparisons with the peers' clocks: the ping interval, so that joining does not wait
/// for it.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most nodes that are remembered; further ones count only while they are heard.
const KNOWN_MAX: usize = 2 * MAP_MEMBERS_MAX;

/// The clocks of the peers that were heard lately, theirs minus our system clock, nanoseconds.
#[derive(Debug, Default)]
struct Offsets {
    system: Vec<i64>,
    /// Decision clocks of those that may have decided.
    in_use: Vec<i64>,
    /// Those of this node's region.
    in_region: Vec<i64>,
    /// What these show at least: half a round trip less.
    in_region_least: Vec<i64>,
    /// No clock of a peer that is heard is missing.
    is_all: bool,
    /// Nodes that are members, or were until a while ago, whose clocks are not known.
    unheard: usize,
}

impl Offsets {
    /// The time by which the members decide that a node which joins has to agree with.
    fn decided_by(&self) -> Option<i64> {
        let Self { system, in_use, in_region, .. } = self;
        // Those that decide nothing yet, this one among them.
        let machines = 1 + system.len().saturating_sub(in_use.len());
        match (&in_region[..], &in_use[..]) {
            ([], [_]) if machines > 1 => None,
            ([], elsewhere) => skew::lower_median(elsewhere),
            (here, _) => skew::lower_median(here),
        }
    }
}

/// Keeps the decision clock at the members' median.
#[derive(Debug)]
pub(super) struct ClockSync {
    clock: Arc<dyn Clock>,
    max: Span,
    /// The time of the counts on the disk, and when the node started.
    counted_until: Option<(Timestamp, Monotonic)>,
    /// Those counts were dropped as of the future.
    counts_dropped: AtomicBool,
    store: Arc<Store>,
    skew: Mutex<Skew>,
    /// How long a node counts that is not heard any more.
    remember_for: Span,
    /// When each member was heard last, of all regions. **Bound:** [`KNOWN_MAX`].
    known: Mutex<BTreeMap<NodeId, Monotonic>>,
    /// It was compared with every peer.
    has_compared: AtomicBool,
    /// Cancelled once a decision may have used this clock.
    in_use: CancellationToken,
}

impl ClockSync {
    /// A node counts for `remember_for` after it was heard last; `counted_until` is the time of the
    /// counts on the disk.
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        max: Span,
        remember_for: Span,
        counted_until: Option<Timestamp>,
        store: Arc<Store>,
    ) -> Self {
        let (has_compared, in_use) = (AtomicBool::new(false), CancellationToken::new());
        let counted_until = counted_until.map(|time| (time, clock.monotonic()));
        Self {
            clock,
            max,
            counted_until,
            counts_dropped: AtomicBool::new(false),
            store,
            skew: Mutex::default(),
            remember_for,
            known: Mutex::default(),
            has_compared,
            in_use,
        }
    }

    /// The current offset from the other members.
    pub(super) fn skew(&self) -> Skew {
        *self.skew.lock()
    }

    /// Whether the clock was compared with the peers'.
    pub(super) fn has_compared(&self) -> bool {
        self.has_compared.load(Ordering::Acquire)
    }

    /// A decision may use the clock: from now on it never goes back.
    fn put_in_use(&self) {
        self.in_use.cancel();
        self.store.clock_is_settled();
    }

    /// Completes when a decision may use the clock. Cancel-safe.
    pub(super) async fn until_in_use(&self) {
        self.in_use.cancelled().await;
    }

    /// The decision clock; `None` until a decision may have used it.
    pub(super) fn decision_clock(&self) -> Option<Timestamp> {
        self.in_use.is_cancelled().then(|| self.clock.now())
    }

    /// Compares until `stop`, and allows decisions once the clock is right.
    pub(super) async fn run(
        self: Arc<Self>,
        mesh: Arc<Mesh>,
        membership: Arc<Membership>,
        driver: Arc<Driver>,
        region: String,
        stop: CancellationToken,
    ) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            // A node that joins compares its clock with those of all, the last time as a member.
            let map = membership.is_member() || self.in_use.is_cancelled();
            let map = map.then(|| membership.maps().borrow().clone());
            // Asked before the peers are measured, so that those that grant it are among them.
            let is_first_lease = self.decision_clock().is_none() && driver.holds_lease();
            let offsets =
                self.measure(&mesh.peers(), map.as_deref(), &membership.identity().node, &region);
            self.compare(&offsets);
            if is_first_lease && offsets.is_all {
                self.put_in_use();
                driver.clock_is_right();
            }
        }
    }

    /// Follows the decision clocks of the cores of this edge's region until `stop`, and allows
    /// decisions once it has. It is no voice in what the time is: with a clock in use it goes on
    /// from where it is while it hears none.
    pub(super) async fn run_at_edge(
        self: Arc<Self>,
        mesh: Arc<Mesh>,
        region: String,
        stop: CancellationToken,
    ) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let me = mesh.node().clone();
            let offsets = self.measure(&mesh.peers(), None, &me, &region);
            self.follow(&offsets);
        }
    }

    fn follow(&self, offsets: &Offsets) {
        let own = self.decision_clock().map(|own| signed_difference(own, self.clock.system()));
        let before = self.skew();
        let skew = Skew::of(&offsets.system, self.max, own);
        *self.skew.lock() = skew;
        if (before.is_beyond, before.is_split) != (skew.is_beyond, skew.is_split) {
            log_change(skew, self.max);
        }
        let Some(common) = skew::lower_median(&offsets.in_region) else { return };
        let common = skew::beyond(common, self.max);
        match own {
            None if offsets.is_all => {
                self.step(common, true);
                self.put_in_use();
            }
            // A clock in use never goes back.
            Some(own) if common > own && common.abs_diff(own) > self.max.as_nanos() => {
                self.step(common, true);
            }
            _ => self.clock.slew(common),
        }
    }

    /// The clocks of `peers`; with `map` only those of members.
    fn measure(
        &self,
        peers: &[Arc<Peer>],
        map: Option<&ClusterMap>,
        me: &NodeId,
        region: &str,
    ) -> Offsets {
        let now = self.clock.monotonic();
        let counts = |peer: &Peer| match map {
            Some(map) if peer.region == region => {
                let member = map.get(&peer.id);
                member.is_some_and(|it| it.identity == peer.identity && it.state != MapState::Down)
            }
            // Those of other regions that decide are members there.
            Some(_) => peer.decision_clock(now).is_some(),
            None => true,
        };
        let heard = peers.iter().filter(|peer| !peer.is_unreachable());
        let heard: Vec<_> = heard.filter(|peer| counts(peer)).collect();
        let measured: Vec<_> = heard.iter().copied().filter(|peer| peer.rtt_ns() > 0).collect();
        let unheard = map.map_or(0, |map| self.unheard(&measured, map, me, now));
        let mut offsets = Offsets {
            system: measured.iter().map(|peer| peer.offset_ns(&*self.clock)).collect(),
            is_all: measured.len() == heard.len(),
            unheard,
            ..Offsets::default()
        };
        let ours = self.clock.system();
        for peer in measured {
            let Some(theirs) = peer.decision_clock(now) else { continue };
            let theirs = signed_difference(theirs, ours);
            offsets.in_use.push(theirs);
            if peer.region == region {
                offsets.in_region.push(theirs);
                offsets.in_region_least.push(theirs.saturating_sub_unsigned(peer.rtt_ns() / 2));
            }
        }
        offsets
    }

    /// Notes who is `heard` now. How many others are in the map, or were heard a while ago.
    fn unheard(
        &self,
        heard: &[&Arc<Peer>],
        map: &ClusterMap,
        me: &NodeId,
        now: Monotonic,
    ) -> usize {
        let mut known = self.known.lock();
        for peer in heard {
            if let Some(at) = known.get_mut(&peer.id) {
                *at = now;
            } else if known.len() < KNOWN_MAX {
                known.insert(peer.id.clone(), now);
            }
        }
        known.retain(|_, at| now < at.plus(self.remember_for));
        let is_unheard = |node: &&NodeId| known.get(*node) != Some(&now) && *node != me;
        let members = map.members.iter().map(|member| &member.identity.node);
        let unknown = members.filter(|node| !known.contains_key(*node));
        known.keys().chain(unknown).filter(is_unheard).count()
    }

    fn compare(&self, offsets: &Offsets) {
        let Offsets { system, is_all, unheard, .. } = offsets;
        let own = self.decision_clock().map(|own| signed_difference(own, self.clock.system()));
        let before = self.skew();
        let earliest = system.iter().copied().min().unwrap_or(0).min(0);
        let shown = iter::repeat_n(own.unwrap_or(earliest), *unheard);
        let machines: Vec<i64> = system.iter().copied().chain(shown).collect();
        let (all, heard) = (Skew::of(&machines, self.max, own), Skew::of(system, self.max, own));
        // An earlier time ends no window, so for that those that are heard suffice.
        let is_earlier = heard.correction_ns() < all.correction_ns();
        let mut skew = if own.is_some() && system.len() > 1 && is_earlier { heard } else { all };
        let followed = skew.correction_ns();
        let of_members = skew::lower_median(&offsets.in_region);
        skew.is_apart = own
            .zip(of_members)
            .is_some_and(|(own, theirs)| theirs.abs_diff(own) > STEP_MAX.unsigned_abs());
        match own {
            None => {
                let members = offsets.decided_by();
                let common = members.map_or(followed, |offset| skew::beyond(offset, self.max));
                let disk = self.time_on_disk();
                // Later by more than the others would ever follow.
                let is_skipped = members.is_some()
                    && disk.is_some_and(|disk| disk.saturating_sub(common) > STEP_MAX);
                let correction = disk.filter(|_| !is_skipped).map_or(common, |it| it.max(common));
                if *is_all && !system.is_empty() {
                    self.step(correction, !is_skipped);
                } else {
                    self.clock.slew(correction);
                }
            }
            Some(own) => match self.common_time(own, followed, offsets) {
                Some(common) => self.step(common, true),
                None => self.clock.slew(followed),
            },
        }
        *self.skew.lock() = skew;
        let flags = |skew: Skew| (skew.is_beyond, skew.is_split, skew.is_apart);
        if flags(before) != flags(skew) {
            log_change(skew, self.max);
        }
        // The node may join after the first comparison, so it counts only now that the clock is
        // right.
        if *is_all && !system.is_empty() {
            self.has_compared.store(true, Ordering::Release);
        }
    }

    /// The time of the counts on the disk, as it went on since, minus the system clock. `None` once
    /// they were dropped as those of the future.
    fn time_on_disk(&self) -> Option<i64> {
        let (time, at) =
            self.counted_until.filter(|_| !self.counts_dropped.load(Ordering::Relaxed))?;
        let time = time.plus(self.clock.monotonic().since(at));
        Some(signed_difference(time, self.clock.system()))
    }

    fn step(&self, correction: i64, keeps_loaded: bool) {
        let ahead = signed_difference(self.clock.now(), self.clock.system());
        let by = correction.saturating_sub(ahead);
        if by.unsigned_abs() > self.max.as_nanos() {
            let by_ms = by / 1_000_000;
            tracing::warn!(by_ms, "the clock of windows is stepped to the members' time");
        }
        self.clock.step(correction);
        if by < 0 && by.unsigned_abs() > self.max.as_nanos() {
            let dropped = self.store.clock_went_back(self.clock.now(), keeps_loaded);
            self.counts_dropped.fetch_or(!keeps_loaded, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "counters of the future, by the members' time, are dropped"
                );
            }
        }
    }

    /// Where a clock in use that is `own` ahead of the system clock is stepped to, forward. To the
    /// time that it follows, if a peer decides by that already. Up to an hour: to the latest clock
    /// in use in the region, or to the time that it follows if most machines show it, for then
    /// nothing else comes of waiting. Or to the median of all clocks in use.
    fn common_time(&self, own: i64, followed: i64, offsets: &Offsets) -> Option<i64> {
        let Offsets { system, in_use, in_region_least, unheard, .. } = offsets;
        let is_ahead = |time: i64| time > own && time.abs_diff(own) > self.max.as_nanos();
        let is_near = |time: i64| time.saturating_sub(own) <= STEP_MAX;
        let is_followed = |clock: &&i64| clock.abs_diff(followed) <= self.max.as_nanos();
        let is_shown = || {
            let machines = 1 + system.len() + unheard;
            let showing = system.iter().chain([&0]).filter(is_followed).count();
            machines > 1 && 2 * showing > machines && is_near(followed)
        };
        if is_ahead(followed) && (in_use.iter().any(|clock| is_followed(&clock)) || is_shown()) {
            return Some(followed);
        }
        let latest = in_region_least.iter().copied().filter(|time| is_near(*time)).max();
        let all: Vec<i64> =
            in_use.iter().copied().chain(iter::repeat_n(own, 1 + unheard)).collect();
        latest.max(skew::lower_median(&all)).filter(|time| is_ahead(*time))
    }
}

fn log_change(skew: Skew, max: Span) {
    if skew.is_apart {
        tracing::warn!(
            "the other members of this region decide by a time that is more than an hour from that \
             of this node, and neither follows: they refuse each other's counts. Restart this node"
        );
    }
    if skew.is_split {
        tracing::warn!(
            "half of the members' clocks differ from the others by more than cluster.max_skew \
             ({max}), and none is known to be right; correct the clocks of these machines"
        );
    }
    if skew.is_beyond {
        tracing::warn!(
            "this node's clock is {} ms from the members' median, more than cluster.max_skew \
             ({max}); windows follow the median. Correct the clock of this machine",
            -(skew.median_ns / 1_000_000)
        );
    } else if !skew.is_reported() {
        tracing::info!("this node's clock is within cluster.max_skew of the members' median again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use tidegate_limiter::store::{OnFull, Options};

    use super::*;

    const S: i64 = 1_000_000_000;
    const START: Timestamp = Timestamp::from_secs(100_000);

    fn store() -> Arc<Store> {
        let options = Options { keys_max: 100, on_full: OnFull::Refuse, shards: Some(1) };
        Arc::new(Store::new(options))
    }

    /// Records the last correction.
    #[derive(Debug, Default)]
    struct Recorder {
        steered: AtomicI64,
        set: AtomicI64,
        /// The machine's clock is so far ahead of the decision clock, which is at [`START`].
        ahead_s: AtomicI64,
    }

    impl Clock for Recorder {
        fn monotonic(&self) -> Monotonic {
            Monotonic::START
        }

        fn now(&self) -> Timestamp {
            START
        }

        fn system(&self) -> Timestamp {
            let ahead_ns = self.ahead_s.load(Ordering::Relaxed) * S;
            Timestamp::from_nanos(START.as_nanos().saturating_add_signed(ahead_ns))
        }

        fn slew(&self, correction_ns: i64) {
            self.steered.store(correction_ns, Ordering::Relaxed);
        }

        fn step(&self, correction_ns: i64) {
            self.steered.store(correction_ns, Ordering::Relaxed);
            self.set.store(correction_ns, Ordering::Relaxed);
        }
    }

    fn clock_sync() -> (Arc<Recorder>, ClockSync) {
        let told = Arc::new(Recorder::default());
        (
            told.clone(),
            ClockSync::new(told, Span::from_millis(500), Span::from_secs(60), None, store()),
        )
    }

    fn recorded(told: &Recorder) -> (i64, i64) {
        (told.set.load(Ordering::Relaxed), told.steered.load(Ordering::Relaxed))
    }

    fn offsets(system: &[i64], is_all: bool) -> Offsets {
        Offsets { system: system.to_vec(), is_all, ..Offsets::default() }
    }

    #[test]
    fn an_edge_follows_the_clocks_that_decide_in_its_region() {
        let (clock, clock_sync) = clock_sync();
        let decided = |in_region: &[i64], is_all| Offsets {
            in_region: in_region.to_vec(),
            ..offsets(&[0, 0], is_all)
        };
        clock_sync.follow(&decided(&[], true));
        assert!(clock_sync.decision_clock().is_none(), "no core decides yet");
        clock_sync.follow(&decided(&[-30 * S], false));
        assert!(clock_sync.decision_clock().is_none(), "not all are measured");
        clock_sync.follow(&decided(&[-30 * S, -31 * S], true));
        assert_eq!((recorded(&clock).0, clock_sync.decision_clock()), (-31 * S, Some(START)));
        clock_sync.follow(&decided(&[-90 * S], true));
        assert_eq!(recorded(&clock), (-31 * S, -90 * S), "it goes back slowly");
        clock_sync.follow(&decided(&[60 * S], true));
        assert_eq!(recorded(&clock).0, 60 * S, "and ahead at once");
        clock_sync.follow(&decided(&[], true));
        assert_eq!(recorded(&clock).1, 60 * S, "alone it goes on");
    }

    #[test]
    fn a_joining_node_sets_its_clock_as_it_meets_more_peers() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.compare(&offsets(&[], true));
        clock_sync.compare(&offsets(&[-30 * S], false));
        let outcome = (recorded(&clock), clock_sync.has_compared());
        assert_eq!(outcome, ((0, -30 * S), false), "a step waits for all peers");
        clock_sync.compare(&offsets(&[-30 * S], true));
        assert_eq!((recorded(&clock), clock_sync.has_compared()), ((-30 * S, -30 * S), true));
        clock_sync.compare(&offsets(&[-30 * S, -31 * S], true));
        assert_eq!(recorded(&clock).0, -30 * S);
        clock_sync.compare(&offsets(&[1, 1], true));
        assert_eq!((recorded(&clock).0, clock_sync.skew().is_beyond), (0, false));
    }

    /// All nodes were stopped, and the clocks of two of five machines are half an hour ahead.
    #[test]
    fn members_that_are_missing_at_the_start_count_as_showing_the_earliest_time() {
        let (clock, clock_sync) = clock_sync();
        let ahead = 1_800 * S;
        let started = |system: &[i64], unheard: usize| {
            clock_sync.compare(&Offsets { unheard, ..offsets(system, true) });
            recorded(&clock).0
        };
        assert_eq!(started(&[ahead, ahead], 2), 0, "by the right machine");
        assert_eq!(started(&[-ahead, 0], 2), -ahead, "by a wrong one");
        assert_eq!(started(&[0, ahead, ahead], 1), 0);
        assert_eq!(started(&[ahead, ahead, ahead], 1), ahead, "four of five");
        assert_eq!(started(&[0, 0, ahead, ahead], 0), 0, "all are there");
    }

    /// All machines were set ahead by two hours while the peers ran; one of those was not, and one
    /// has just started as well.
    #[test]
    fn a_joining_node_follows_the_clocks_that_decide() {
        let (clock, clock_sync) = clock_sync();
        let joining = |in_region: &[i64]| Offsets {
            in_use: in_region.to_vec(),
            in_region: in_region.to_vec(),
            ..offsets(&[0, 0, 0], true)
        };
        clock_sync.compare(&joining(&[-7_200 * S, -7_201 * S]));
        assert_eq!(recorded(&clock).0, -7_201 * S);
        clock_sync.compare(&joining(&[-7_200 * S, S / 4, -7_201 * S]));
        assert_eq!(recorded(&clock).0, -7_200 * S, "one wrong clock of three has no influence");
        clock_sync.compare(&joining(&[S / 4, S / 4]));
        assert_eq!(recorded(&clock).0, 0, "within the bound");
    }

    #[test]
    fn a_joining_node_follows_a_single_clock_elsewhere_only_in_a_pair() {
        let decided_by = |machines: &[i64], in_use: &[i64], in_region: &[i64]| {
            let (in_use, in_region) = (in_use.to_vec(), in_region.to_vec());
            Offsets { in_use, in_region, ..offsets(machines, true) }.decided_by()
        };
        let behind = -3_700 * S;
        assert_eq!(decided_by(&[behind, 0], &[behind], &[]), None, "a witness that started first");
        assert_eq!(decided_by(&[0], &[behind], &[]), Some(behind), "the other region");
        assert_eq!(decided_by(&[0, 0, 0], &[behind, behind], &[]), Some(behind));
        assert_eq!(decided_by(&[0, 0, 0], &[behind, 0, 0], &[behind]), Some(behind), "its own");
        assert_eq!(decided_by(&[0, 0], &[], &[]), None);
    }

    /// The decision clock is half a minute behind the machine's; then that is set, which changes
    /// the difference.
    #[test]
    fn a_clock_in_use_that_is_cut_off_follows_no_clock() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.put_in_use();
        clock_sync.compare(&offsets(&[-30 * S, -30 * S], true));
        // Alone, and together with another one, whose machine's clock is half an hour ahead.
        for (heard, unheard) in [(&[][..], 2), (&[1_800 * S][..], 3)] {
            for ahead in [30, 1_800, -90] {
                clock.ahead_s.store(ahead, Ordering::Relaxed);
                clock_sync.compare(&Offsets { unheard, ..offsets(heard, true) });
                assert_eq!(recorded(&clock).1, -ahead * S);
            }
        }
        clock_sync.compare(&offsets(&[0, 0], true));
        assert_eq!(recorded(&clock).1, 0, "the clock of the machine was corrected meanwhile");
    }

    /// Two of five have a clock that is wrong, and two of the others are cut off and evicted.
    #[test]
    fn members_that_are_not_heard_count_as_showing_the_time_in_use() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.put_in_use();
        let wrong = [1_800 * S, 1_800 * S];
        clock_sync.compare(&Offsets { unheard: 2, ..offsets(&wrong, true) });
        assert_eq!(recorded(&clock), (0, 0));
        clock_sync.compare(&offsets(&wrong, true));
        assert_eq!(recorded(&clock).0, 1_800 * S, "of three members most");
    }

    /// The clock of this machine runs fast, and two of five are lost: those would agree with it.
    #[test]
    fn a_clock_that_is_ahead_of_those_that_are_heard_follows_them_back() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.put_in_use();
        clock_sync.compare(&Offsets { unheard: 2, ..offsets(&[-S, -S], true) });
        assert_eq!(recorded(&clock), (0, -S));
        clock_sync.compare(&Offsets { unheard: 2, ..offsets(&[S, S], true) });
        assert_eq!(recorded(&clock), (0, 0), "ahead only with most of all");
    }

    /// The clock of one machine of two is set half an hour ahead.
    #[test]
    fn of_two_clocks_in_use_neither_follows_one_that_is_set() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.put_in_use();
        clock.ahead_s.store(1_800, Ordering::Relaxed);
        clock_sync.compare(&offsets(&[-1_800 * S], true));
        assert_eq!(recorded(&clock).1, -1_800 * S);
        clock.ahead_s.store(0, Ordering::Relaxed);
        clock_sync.compare(&offsets(&[1_800 * S], true));
        assert_eq!(recorded(&clock).1, 0, "the other one");
    }

    /// The recorder's clock is 30 s before the counts on the disk.
    #[test]
    fn a_clock_goes_on_from_the_disk_where_nobody_decides() {
        let (clock, max) = (Arc::<Recorder>::default(), Span::from_millis(500));
        let counted_until = Some(START.plus(Span::from_secs(30)));
        let clock_sync = ClockSync::new(clock.clone(), max, Span::ZERO, counted_until, store());
        clock_sync.compare(&offsets(&[0, 0], true));
        assert_eq!(recorded(&clock).0, 30 * S);
        clock_sync.compare(&offsets(&[40 * S, 40 * S], true));
        assert_eq!(recorded(&clock).0, 40 * S, "the other machines show a later time");
        let decided = |by: i64| Offsets { in_use: vec![by, by], ..offsets(&[0, 0], true) };
        clock_sync.compare(&decided(60 * S));
        assert_eq!(recorded(&clock).0, 60 * S);
        clock_sync.compare(&decided(10 * S));
        assert_eq!(recorded(&clock).0, 30 * S, "its counts are later");
        clock_sync.compare(&decided(-7_200 * S));
        assert_eq!(recorded(&clock).0, -7_200 * S, "others would never get there");
        clock_sync.compare(&offsets(&[-7_200 * S, -7_200 * S], true));
        assert_eq!(recorded(&clock).0, -7_200 * S, "its counts are dropped, and their time");
    }

    #[test]
    fn a_clock_that_is_too_far_from_those_of_the_region_is_reported() {
        let (_, clock_sync) = clock_sync();
        clock_sync.put_in_use();
        let of = |in_region: &[i64]| {
            clock_sync
                .compare(&Offsets { in_region: in_region.to_vec(), ..offsets(&[0, 0], true) });
            clock_sync.skew().is_reported()
        };
        assert!(!of(&[3_500 * S, -3_500 * S]), "they follow");
        assert!(!of(&[0, 6_000 * S]), "the other one");
        assert!(of(&[-6_000 * S, -6_000 * S]));
    }

    #[test]
    fn a_clock_in_use_is_not_set_back() {
        let (clock, clock_sync) = clock_sync();
        assert_eq!(clock_sync.decision_clock(), None);
        clock_sync.put_in_use();
        assert_eq!(clock_sync.decision_clock(), Some(START));
        let in_use = vec![-7_200 * S, -7_200 * S];
        clock_sync.compare(&Offsets { in_use, ..offsets(&[-30 * S, -30 * S], true) });
        assert_eq!(recorded(&clock), (0, -30 * S));
    }

    /// The decision clock of the recorder is at its system clock.
    #[test]
    fn a_clock_in_use_is_set_forward_to_the_median_of_those_that_decide() {
        let (clock, clock_sync) = clock_sync();
        clock_sync.put_in_use();
        let of = |in_use: &[i64]| Offsets { in_use: in_use.to_vec(), ..offsets(&[0, 0], true) };
        clock_sync.compare(&of(&[7_200 * S]));
        assert_eq!(recorded(&clock), (0, 0), "of two none is the median");
        clock_sync.compare(&of(&[7_200 * S, -9 * S]));
        assert_eq!(recorded(&clock), (0, 0));
        clock_sync.compare(&of(&[7_200 * S, 7_201 * S]));
        assert_eq!(recorded(&clock), (7_200 * S, 7_200 * S));
    }

    #[test]
    fn a_clock_in_use_is_set_forward_to_what_it_follows_once_a_peer_decides_by_that() {
        let (_, clock_sync) = clock_sync();
        let behind = -7_200 * S;
        let of = |in_use: &[i64]| Offsets { in_use: in_use.to_vec(), ..offsets(&[0, 0], true) };
        let common = |in_use: &[i64]| clock_sync.common_time(behind, 0, &of(in_use));
        assert_eq!(common(&[behind, behind]), None);
        assert_eq!(common(&[behind, S, behind]), None, "beyond the bound");
        assert_eq!(common(&[behind, S / 4, behind]), Some(0));
        assert_eq!(clock_sync.common_time(S, 0, &of(&[S / 4])), None, "never back");
    }

    #[test]
    fn a_clock_in_use_is_set_forward_by_up_to_an_hour_to_the_latest_of_the_region() {
        let (_, clock_sync) = clock_sync();
        let common = |own: i64, least: &[i64]| {
            let in_region_least = least.to_vec();
            let offsets = Offsets { in_region_least, ..Offsets::default() };
            clock_sync.common_time(own, -9_000 * S, &offsets)
        };
        assert_eq!(common(0, &[1_800 * S, 0, 3_500 * S]), Some(3_500 * S));
        assert_eq!(common(0, &[1_800 * S, 3_700 * S]), Some(1_800 * S), "no more than an hour");
        assert_eq!(common(0, &[S / 4, -S]), None, "within the bound, never back");
    }

    #[test]
    fn a_clock_in_use_is_set_forward_to_what_most_machines_show() {
        let (_, clock_sync) = clock_sync();
        let common = |own, system: &[i64]| clock_sync.common_time(own, 0, &offsets(system, true));
        assert_eq!(common(-30 * S, &[0, -30 * S]), Some(0), "two of three");
        assert_eq!(common(-30 * S, &[-30 * S]), None, "one of two");
        assert_eq!(common(-30 * S, &[]), None, "alone it waits whether its clock goes back");
        assert_eq!(common(-7_200 * S, &[0, 0]), None, "more than an hour");
        assert_eq!(common(30 * S, &[0, 0]), None, "never back");
    }
}
