//! Clients: send check requests to a node, in place of its listeners.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::decide::{CheckRequest, CommitRequest, Decide, Reserve, ReserveRequest};
use tidegate::node::Core;
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::policy::Scope;
use tidegate_limiter::units::{Hits, Span};
use tokio_util::sync::CancellationToken;

use crate::dice::Dice;
use crate::history::{Asked, History};
use crate::keys::{self, DOMAIN, FEW_KEYS_PER_KIND, KEYS_PER_KIND, Key, Kind, RESERVED, SIMPLE};
use crate::reservations::{Due, Reservations};

/// The current load, shared by all clients.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Whether clients send requests.
    pub(crate) on: AtomicBool,
    /// Half of the requests are for one key.
    pub(crate) hot: AtomicBool,
    /// Half of the requests are for new keys.
    pub(crate) flood: AtomicBool,
    /// No client requests the global keys of number 0 any more: what others hold of them is not
    /// brought up to date by a change.
    pub(crate) rests: AtomicBool,
}

/// Entry point to one process of a node; cheap to clone.
#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) core: Arc<Core>,
    pub(crate) node: usize,
    /// The index of the node's region, below the number of regions.
    pub(crate) region: usize,
    pub(crate) regions: usize,
    /// The run takes a minute and more.
    pub(crate) is_long: bool,
    pub(crate) history: History,
    pub(crate) reservations: Reservations,
    pub(crate) traffic: Arc<Traffic>,
    /// Whether the rules of the node have other modes than at the start.
    pub(crate) has_other_modes: Arc<AtomicBool>,
    /// Stops the clients.
    pub(crate) closed: CancellationToken,
}

/// Number of clients per node.
pub(crate) const CLIENTS: usize = 3;
/// The same that reserve.
pub(crate) const RESERVING_CLIENTS: usize = 2;
/// The key that is hot during [`Traffic::hot`].
const HOT: Key = Key { kind: Kind::Strict, number: 0, region: 0 };
/// Longest pause of a client between two requests.
const PAUSE_MAX_MS: u64 = 40;
/// The same where there are several regions.
const FAR_PAUSE_MAX_MS: u64 = 150;
/// The same in a flood.
const FLOOD_PAUSE_MAX_MS: u64 = 4;
/// Longest pause of a client of leased rules between two bursts, in one region and in several.
const LEASED_PAUSE_MAX_MS: (u64, u64) = (120, 1_200);
/// The checks of such a burst, for one key; most from the same client, so that grants follow.
const LEASED_BURSTS: [u64; 4] = [1, 4, 16, 40];
/// Longest pause of a client that reserves, in runs of some seconds and in long ones.
const RESERVING_PAUSE_MAX_MS: (u64, u64) = (60, 400);
/// Amounts and times to live of reservations.
const AMOUNTS: [u32; 5] = [3, 10, 25, 40, 70];
const TTLS_MS: [u64; 4] = [150, 500, 1_200, 2_500];
/// Share of the reservations of two keys at once.
const BOTH_PPM: u32 = 200_000;
/// Requests of a burst: more than one RPC stream carries at a time.
const BURST: usize = tidegate_cluster::mesh::IN_FLIGHT_MAX + 200;
const HALF_PPM: u32 = 500_000;
/// Share of the requests with several hits, refunds, or for several limits.
const HEAVY_PPM: u32 = 200_000;

impl Listener {
    /// A client: sends requests until the listener is closed.
    pub(crate) async fn run_client(self, mut dice: Dice, mut heavy: Dice) {
        loop {
            let is_flood = self.traffic.flood.load(Ordering::Relaxed);
            let pause_max_ms = match self.regions {
                _ if is_flood => FLOOD_PAUSE_MAX_MS,
                1 => PAUSE_MAX_MS,
                _ => FAR_PAUSE_MAX_MS,
            };
            let pause = Duration::from_millis(dice.between(1, pause_max_ms));
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            if self.traffic.on.load(Ordering::Relaxed) {
                let key = self.draw(&mut dice);
                let (_, heavy_kinds) = self.kinds();
                if !heavy_kinds.is_empty() && heavy.chance(HEAVY_PPM) {
                    let (key, hits) = draw_heavy(heavy_kinds, &mut heavy);
                    self.check(key, hits).await;
                } else {
                    self.check(key, 1).await;
                }
            }
        }
    }

    /// A client of leased rules: sends bursts of requests until the listener is closed.
    pub(crate) async fn run_leased_client(self, mut dice: Dice) {
        let kinds = keys::leased_kinds(self.regions);
        let (near, far) = LEASED_PAUSE_MAX_MS;
        let pause_max_ms = if self.is_long { far } else { near };
        loop {
            let pause = Duration::from_millis(dice.between(1, pause_max_ms));
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let (kind, number) = (dice.pick(kinds), dice.below(FEW_KEYS_PER_KIND));
            let region = if kind.scope() == Scope::Global { 0 } else { self.region };
            let key = Key { kind, number, region };
            for _ in 0..dice.pick(&LEASED_BURSTS) {
                let hits = if kind == Kind::LeasedLarge { dice.pick(&[1, 1, 2, 5, -2]) } else { 1 };
                if self.traffic.on.load(Ordering::Relaxed) && !self.closed.is_cancelled() {
                    self.check(key, hits).await;
                    tokio::time::sleep(Duration::from_millis(dice.between(1, 3))).await;
                }
            }
        }
    }

    /// A client that reserves, and commits what any node reserved, until the listener is closed.
    pub(crate) async fn run_reserving_client(self, mut dice: Dice) {
        let (short, long) = RESERVING_PAUSE_MAX_MS;
        let pause_max_ms = if self.is_long { long } else { short };
        loop {
            let pause = Duration::from_millis(dice.between(1, pause_max_ms));
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            if !self.traffic.on.load(Ordering::Relaxed) {
                continue;
            }
            let (kind, number) = (dice.pick(&RESERVED), dice.below(FEW_KEYS_PER_KIND));
            let key = Key { kind, number, region: self.region };
            match dice.below(10) {
                0..3 if kind.is_strict() => self.check(key, 1).await,
                0..6 => match self.reservations.due(&mut dice) {
                    Some(due) => self.commit(due).await,
                    None => self.reserve(key, &mut dice).await,
                },
                _ => self.reserve(key, &mut dice).await,
            }
        }
    }

    /// Reserves of `key`, or of all keys of its kind.
    async fn reserve(&self, key: Key, dice: &mut Dice) {
        let both = (0..FEW_KEYS_PER_KIND).map(|number| Key { number, ..key });
        let keys = if dice.chance(BOTH_PPM) { both.collect() } else { vec![key] };
        let (amount, ttl) = (dice.pick(&AMOUNTS), Span::from_millis(dice.pick(&TTLS_MS)));
        let requests = self.record(&keys, 0, Asked::Reserve);
        let reservation = self.reservations.begin(self.node, keys.clone(), amount, ttl, dice);
        let values: Vec<String> = keys.iter().map(|key| key.number.to_string()).collect();
        let descriptors = descriptors(&keys, &values);
        let request = ReserveRequest {
            domain: DOMAIN,
            descriptors: &descriptors,
            amount: u64::from(amount),
            ttl: Some(ttl),
            id: None,
        };
        let answer = self.core.decider.reserve(request).await;
        for (at, request) in requests.into_iter().enumerate() {
            self.history.record_response(request, &answer.response, at);
        }
        self.reservations.answered(reservation, &answer);
    }

    async fn commit(&self, due: Due) {
        let Due { number, keys, id, cost, requests } = due;
        let requests = if requests.is_empty() {
            let requests = self.record(&keys, i64::from(cost), Asked::Commit);
            self.reservations.requested(number, requests.clone());
            requests
        } else {
            requests
        };
        let attempt = self.reservations.commit(number, self.node);
        let values: Vec<String> = keys.iter().map(|key| key.number.to_string()).collect();
        let descriptors = descriptors(&keys, &values);
        let request = CommitRequest {
            domain: DOMAIN,
            descriptors: &descriptors,
            id: Some(id),
            cost: u64::from(cost),
        };
        let committed = self.core.decider.commit(request).await.ok();
        let is_first = self.reservations.committed((number, attempt), committed.as_ref());
        if let Some(committed) = committed.filter(|_| is_first) {
            for (at, request) in requests.into_iter().enumerate() {
                self.history.record_response(request, &committed.response, at);
            }
        }
    }

    fn record(&self, keys: &[Key], hits: i64, asked: Asked) -> Vec<usize> {
        let record = |key: &Key| self.history.record_request(self.node, *key, hits, asked, false);
        keys.iter().map(record).collect()
    }

    /// Sends more concurrent requests than one RPC stream carries, for a key that another node is
    /// likely to own.
    pub(crate) async fn burst(self) {
        let key = Key { kind: Kind::Bucket, number: KEYS_PER_KIND - 1, region: 0 };
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..BURST {
            let listener = self.clone();
            requests.spawn(async move { listener.check(key, 1).await });
        }
        while requests.join_next().await.is_some() {}
    }

    /// Whether `key` is one that this node's region counts, or all regions.
    pub(crate) fn may_request(&self, key: Key) -> bool {
        key.kind.scope() == Scope::Global || key.region == self.region
    }

    /// Checks `key` with `hits`; with 0 it only reads.
    pub(crate) async fn check(&self, key: Key, hits: i64) {
        let is_loosened =
            key.kind == Kind::Loosened && self.has_other_modes.load(Ordering::Relaxed);
        let asked = Asked::Check;
        let number = self.history.record_request(self.node, key, hits, asked, is_loosened);
        let values = [key.number.to_string()];
        let descriptors = descriptors(&[key], &values);
        let request = CheckRequest {
            domain: DOMAIN,
            descriptors: &descriptors,
            hits: Hits::new(hits),
            for_envoy: true,
        };
        let response = self.core.decider.decide(request).await;
        self.history.record_response(number, &response, 0);
    }

    fn draw(&self, dice: &mut Dice) -> Key {
        if self.traffic.flood.load(Ordering::Relaxed) && dice.chance(HALF_PPM) {
            return Key { kind: Kind::Junk, number: dice.below(u64::MAX), region: 0 };
        }
        if self.traffic.hot.load(Ordering::Relaxed) && dice.chance(HALF_PPM) {
            return HOT;
        }
        let kind = dice.pick(self.kinds().0);
        let number = dice.below(KEYS_PER_KIND);
        match kind.scope() {
            Scope::Region => Key { kind, number, region: self.region },
            Scope::Global => {
                let rests = self.traffic.rests.load(Ordering::Relaxed);
                let number = if rests { number.max(1) } else { number };
                Key { kind, number, region: 0 }
            }
        }
    }

    /// The kinds of keys, those with requests of one hit for one limit apart.
    fn kinds(&self) -> (&'static [Kind], &'static [Kind]) {
        let kinds = keys::kinds(self.regions);
        kinds.split_at(SIMPLE.min(kinds.len()))
    }
}

/// Those of `keys`, of which `values` has the numbers.
fn descriptors<'a>(keys: &[Key], values: &'a [String]) -> Vec<Descriptor<'a>> {
    let descriptor = |(key, value): (&Key, &'a String)| {
        let entries = vec![Entry { key: key.kind.name(), value }];
        Descriptor { entries, hits: None, limit: None }
    };
    keys.iter().zip(values).map(descriptor).collect()
}

/// A key of one of the other kinds, and the hits to request; negative ones are a refund.
fn draw_heavy(kinds: &[Kind], dice: &mut Dice) -> (Key, i64) {
    let kind = dice.pick(kinds);
    let hits = match kind {
        Kind::Weighted => dice.pick(&[1, 1, 2, 3, 5, -2]),
        _ => 1,
    };
    (Key { kind, number: dice.below(KEYS_PER_KIND), region: 0 }, hits)
}
