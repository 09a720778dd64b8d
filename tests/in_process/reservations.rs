//! Reservations and places of requests in flight, as a node decides them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::config::Config;
use tidegate::decide::{
    CheckRequest, CommitRequest, Entered, LimitInFlight, Place, Reserve, ReserveRequest, Status,
    VerdictSource,
};
use tidegate::front::render;
use tidegate::node::{self, Core};
use tidegate_limiter::descriptor::{Descriptor, Entry};
use tidegate_limiter::store::{ReservationId, Settled};
use tidegate_limiter::units::{Hits, Span, Timestamp};
use tidegate_testkit::clock::ManualClock;
use tidegate_testkit::in_process::{cluster, standalone};
use tidegate_testkit::rules::book;
use tidegate_testkit::wait::{HANGS_AFTER, until};

const RULES: &str = "
domain: test
descriptors:
  - {key: tenant, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: model, rate_limit: {window: 2s, requests_per_unit: 200}}
  - {key: both, concurrency: 12, node_concurrency: 8, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: path, value: /a/*, share_threshold: true, concurrency: 3}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: vip, rate_limit: {replaces: [{name: usual}], unlimited: true}}
  - {key: usual, concurrency: 1, rate_limit: {name: usual, unit: day, requests_per_unit: 1000}}
";

struct Alone {
    core: Arc<Core>,
    clock: Arc<ManualClock>,
}

impl Alone {
    async fn start() -> Self {
        let (mut environment, _) = node::system_environment();
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        environment.clock = clock.clone();
        Self { core: standalone(Config::default(), book(RULES), environment).await, clock }
    }

    async fn reserve(
        &self,
        of: &[(&str, &str)],
        amount: u64,
        id: Option<ReservationId>,
    ) -> Option<ReservationId> {
        let descriptors = &descriptors(of);
        let request = ReserveRequest { domain: "test", descriptors, amount, ttl: None, id };
        self.core.decider.reserve(request).await.id
    }

    async fn commit(&self, of: &[(&str, &str)], id: Option<ReservationId>, cost: u64) -> Settled {
        let descriptors = &descriptors(of);
        let request = CommitRequest { domain: "test", descriptors, id, cost };
        let committed = self.core.decider.commit(request).await.expect("it owns everything");
        committed.settled.expect("a limit applies")
    }

    async fn left(&self, key: &str, value: &str) -> u32 {
        use tidegate::decide::Decide;
        let descriptors = &descriptors(&[(key, value)]);
        let peek = CheckRequest { domain: "test", descriptors, hits: Hits::PEEK, for_envoy: false };
        self.core.decider.decide(peek).await.statuses[0].verdicts[0].remaining
    }

    async fn enter(&self, of: &[(&str, &str)]) -> Option<Place> {
        enter(&self.core, of).await
    }
}

fn descriptors<'a>(of: &[(&'a str, &'a str)]) -> SmallVec<[Descriptor<'a>; 2]> {
    let of = of.iter().map(|&(key, value)| Descriptor {
        entries: vec![Entry { key, value }],
        hits: None,
        limit: None,
    });
    of.collect()
}

async fn enter(core: &Core, of: &[(&str, &str)]) -> Option<Place> {
    let descriptors = &descriptors(of);
    let request = CheckRequest { domain: "test", descriptors, hits: Hits::ONE, for_envoy: false };
    match core.decider.enter(request).await {
        Entered::Admitted(place) => Some(place.expect("it is limited")),
        Entered::Refused(_) => None,
    }
}

#[tokio::test]
async fn descriptors_with_one_counter_are_reserved_and_counted_each() {
    let node = Alone::start().await;
    let twice = [("tenant", "a"), ("tenant", "a")];
    let id = node.reserve(&twice, 100, None).await.expect("there is room");
    assert_eq!(node.left("tenant", "a").await, 800);
    assert_eq!(node.commit(&twice, Some(id), 70).await, Settled::Committed);
    assert_eq!(node.left("tenant", "a").await, 860);
    assert_eq!(node.commit(&twice, Some(id), 70).await, Settled::Again);
    assert_eq!(node.commit(&twice, None, 30).await, Settled::Reported);
    assert_eq!(node.left("tenant", "a").await, 800);
    assert!(node.reserve(&twice, 401, None).await.is_none());
    let is_released = async || match node.left("tenant", "a").await {
        800 => Ok(()),
        left => Err(format!("{left} are left")),
    };
    until("nothing is reserved of what was refused", Duration::from_secs(20), is_released).await;
}

/// An end only moves away.
#[tokio::test]
async fn the_answer_says_how_long_an_id_lasts() {
    let node = Alone::start().await;
    let descriptors = &descriptors(&[("tenant", "a")]);
    let reserve = async |amount, seconds, id| {
        let ttl = Some(Span::from_secs(seconds));
        let request = ReserveRequest { domain: "test", descriptors, amount, ttl, id };
        let reserved = node.core.decider.reserve(request).await;
        (reserved.id, reserved.ttl.as_nanos() / 1_000_000_000)
    };
    let (id, ttl) = reserve(100, 40, None).await;
    assert_eq!(ttl, 40);
    node.clock.advance(10_000_000_000);
    // The same again, more of it, and longer.
    for (amount, seconds, lasts) in [(100, 1, 30), (200, 1, 30), (200, 50, 50)] {
        assert_eq!(reserve(amount, seconds, id).await, (id, lasts));
    }
}

#[tokio::test]
async fn an_extension_that_is_refused_leaves_what_was_reserved() {
    let node = Alone::start().await;
    let of = [("tenant", "a"), ("model", "m")];
    let id = node.reserve(&of, 200, None).await.expect("there is room");
    // The part of the short limit ends with its window, and another takes the room.
    node.clock.advance(3_000_000_000);
    node.reserve(&[("model", "m")], 200, None).await.expect("there is room");
    assert!(node.reserve(&of, 200, Some(id)).await.is_none());
    assert_eq!(node.left("tenant", "a").await, 800, "it is reserved still");
    assert_eq!(node.commit(&of, Some(id), 200).await, Settled::Reported);
    assert_eq!(node.left("tenant", "a").await, 800, "and counted");
}

#[tokio::test]
async fn a_refused_request_with_an_id_reserves_no_more_than_was_reserved_before() {
    let node = Alone::start().await;
    let of = [("tenant", "a"), ("model", "m")];
    let comes = async |left: u32| {
        let is_left = async || match node.left("tenant", "a").await {
            it if it == left => Ok(()),
            it => Err(format!("{it} are left")),
        };
        until("it is as before", Duration::from_secs(20), is_left).await;
    };
    // One that is to grow.
    let id = node.reserve(&of, 40, None).await.expect("there is room");
    let other = node.reserve(&[("model", "m")], 160, None).await.expect("there is room");
    assert!(node.reserve(&of, 200, Some(id)).await.is_none());
    comes(960).await;
    node.commit(&[("model", "m")], Some(other), 0).await;
    assert_eq!(node.commit(&of, Some(id), 40).await, Settled::Committed);
    comes(960).await;
    // One that has ended, and one that was never seen.
    let ended = node.reserve(&of, 100, None).await.expect("there is room");
    node.clock.advance(61_000_000_000);
    node.reserve(&[("model", "m")], 200, None).await.expect("there is room");
    for id in [ended, ReservationId(7)] {
        assert!(node.reserve(&of, 200, Some(id)).await.is_none());
        comes(960).await;
    }
    // It may be reserved anew when there is room.
    node.clock.advance(3_000_000_000);
    assert_eq!(node.reserve(&of, 200, Some(ended)).await, Some(ended));
    comes(760).await;
}

/// As after a reload that has `unlimited: true` for a moment, or no rule.
#[tokio::test]
async fn a_commit_where_no_limit_applies_counts_nothing_says_so_and_ends_its_reservation() {
    let node = Alone::start().await;
    let commit = async |of: &[(&str, &str)], id, cost| {
        let descriptors = &descriptors(of);
        let request = CommitRequest { domain: "test", descriptors, id: Some(id), cost };
        let committed = node.core.decider.commit(request).await.expect("it owns everything");
        (committed.settled, committed.response.statuses[0].verdicts.len())
    };
    let rules = node.core.book.load_full();
    let put = |yaml: &str| node.core.book.store(book(yaml).load_full());
    let twice = [("tenant", "a"), ("tenant", "a")];
    let id = node.reserve(&twice, 100, None).await.expect("there is room");
    let other = node.reserve(&[("tenant", "b")], 100, None).await.expect("there is room");
    put("
domain: test
descriptors:
  - {key: tenant, rate_limit: {unlimited: true}}
  - {key: model, rate_limit: {window: 2s, requests_per_unit: 200}}
");
    assert_eq!(commit(&twice, id, 70).await, (None, 0));
    assert_eq!(commit(&[("tenant", "c")], ReservationId(7), 70).await, (None, 0));
    // Of two descriptors the other one says what became of it.
    let mixed = commit(&[("tenant", "c"), ("model", "m")], ReservationId(8), 70).await;
    assert_eq!(mixed, (Some(Settled::Reported), 0));
    put("
domain: test
descriptors:
  - {key: model, rate_limit: {window: 2s, requests_per_unit: 200}}
");
    assert_eq!(commit(&[("tenant", "b")], other, 70).await, (None, 0));
    node.core.book.store(rules);
    assert_eq!(node.left("tenant", "a").await, 1_000, "it is not reserved any more");
    assert_eq!(commit(&twice, id, 70).await, (Some(Settled::Again), 1));
    assert_eq!(node.left("tenant", "b").await, 900, "without a rule nothing is known of it");
    assert_eq!(commit(&[("tenant", "c")], ReservationId(7), 70).await.0, Some(Settled::Reported));
    let unlimited = &node.core.decider.counters().reservations.unlimited;
    assert_eq!(unlimited.load(Ordering::Relaxed), 3);
}

/// As a client does that closes its connection, or whose deadline passes, while owners are asked.
/// On one thread, where no owner has answered when the request is polled for the first time.
#[tokio::test]
async fn a_request_whose_caller_goes_gives_back_what_it_reserved() {
    // What an owner did not answer in time is not undone: its time is over later.
    let patient = |config: &mut Config| config.cluster.deadline = Span::from_secs(20);
    let nodes = cluster(&[("n1", "eu"), ("n2", "eu")], RULES, patient).await;
    let decider = &nodes[0].core.decider;
    let left = async |value: &str| {
        use tidegate::decide::Decide;
        let descriptors = &descriptors(&[("tenant", value)]);
        let peek = CheckRequest { domain: "test", descriptors, hits: Hits::PEEK, for_envoy: false };
        let answer = decider.decide(peek).await;
        answer.statuses[0].verdicts[0].remaining
    };
    // Of so many tenants some are owned by the other node.
    for tenant in 0..16 {
        let (one, other) = (format!("a{tenant}"), format!("b{tenant}"));
        let of = descriptors(&[("tenant", one.as_str()), ("tenant", other.as_str())]);
        let reserve = |amount, id| {
            let (domain, descriptors, ttl) = ("test", &of, None);
            decider.reserve(ReserveRequest { domain, descriptors, amount, ttl, id })
        };
        let goes = async |amount, id| {
            let mut reserving = pin!(reserve(amount, id));
            let first = reserving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(first.is_pending());
        };
        let are_left = async |free: u32| {
            // What a node that leaves waits for.
            decider.have_given_back().await;
            let is_left = async || match (left(&one).await, left(&other).await) {
                both if both == (free, free) => Ok(()),
                both => Err(format!("{both:?} are left of {tenant}")),
            };
            until("it is given back", HANGS_AFTER, is_left).await;
        };
        goes(400, None).await;
        are_left(1_000).await;
        // One that was there before keeps what it kept free.
        let reserved = reserve(100, None).await;
        let is_by_owner = |status: &Status| status.source != VerdictSource::Fallback;
        assert!(reserved.response.statuses.iter().all(is_by_owner), "both owners are there");
        let id = reserved.id.expect("there is room");
        goes(400, Some(id)).await;
        are_left(900).await;
        let request = CommitRequest { domain: "test", descriptors: &of, id: Some(id), cost: 60 };
        let committed = decider.commit(request).await.expect("both owners are there");
        assert_eq!(committed.settled, Some(Settled::Committed));
        are_left(940).await;
    }
}

#[tokio::test]
async fn a_commit_is_a_release_if_it_costs_nothing_of_any_limit() {
    let node = Alone::start().await;
    let mut of = descriptors(&[("tenant", "a"), ("shadow", "s")]);
    let counted = || {
        let counters = &node.core.decider.counters().reservations;
        [&counters.committed, &counters.released].map(|it| it.load(Ordering::Relaxed))
    };
    let settle = async |of: &[Descriptor<'_>], amount, cost| {
        let (domain, descriptors) = ("test", of);
        let request = ReserveRequest { domain, descriptors, amount, ttl: None, id: None };
        let id = node.core.decider.reserve(request).await.id;
        assert!(id.is_some());
        let request = CommitRequest { domain, descriptors, id, cost };
        let committed = node.core.decider.commit(request).await.expect("it owns everything");
        committed.settled.expect("a limit applies")
    };
    // One of the second, whatever the first costs.
    of[1].hits = Some(Hits::ONE);
    assert_eq!(settle(&of, 100, 0).await, Settled::Committed);
    assert_eq!(counted(), [1, 0]);
    // Nothing of the second, of which nothing is found then.
    of[1].hits = Some(Hits::PEEK);
    assert_eq!(settle(&of, 100, 30).await, Settled::Committed);
    assert_eq!(settle(&of, 100, 0).await, Settled::Committed);
    assert_eq!(counted(), [2, 1]);
    assert_eq!(node.left("tenant", "a").await, 970);
}

#[tokio::test]
async fn what_a_rule_in_shadow_mode_would_not_reserve_is_counted() {
    let node = Alone::start().await;
    let of = &descriptors(&[("shadow", "s")]);
    let (domain, ttl, id) = ("test", None, None);
    let request = ReserveRequest { domain, descriptors: of, amount: 500, ttl, id };
    let reserved = node.core.decider.reserve(request).await;
    let rule = reserved.response.statuses[0].rule.as_ref().expect("a rule");
    assert!(reserved.response.allowed);
    assert_eq!(rule.stats.shadowed.load(Ordering::Relaxed), 500);
    assert_eq!(node.left("shadow", "s").await, 100, "nothing is reserved");
}

#[tokio::test]
async fn limits_in_flight_of_all_nodes_and_of_one_count_each_request_once() {
    let node = Alone::start().await;
    let mut places = Vec::new();
    for _ in 0..8 {
        places.push(node.enter(&[("both", "x")]).await.expect("of eight"));
    }
    assert!(node.enter(&[("both", "x")]).await.is_none());
}

#[tokio::test]
async fn requests_in_flight_share_a_counter_and_are_replaced_as_hits_are() {
    let node = Alone::start().await;
    let mut places = Vec::new();
    for value in ["/a/1", "/a/2", "/a/3"] {
        places.push(node.enter(&[("path", value)]).await.expect("of three"));
    }
    assert!(node.enter(&[("path", "/a/4")]).await.is_none());

    let _first = node.enter(&[("usual", "x")]).await.expect("of one");
    assert!(node.enter(&[("usual", "x")]).await.is_none());
    let descriptors = &descriptors(&[("usual", "x"), ("vip", "y")]);
    let request = CheckRequest { domain: "test", descriptors, hits: Hits::ONE, for_envoy: false };
    assert!(matches!(node.core.decider.enter(request).await, Entered::Admitted(None)));
}

#[tokio::test]
async fn a_refusal_in_flight_names_no_window() {
    let node = Alone::start().await;
    let mut places = Vec::new();
    for _ in 0..8 {
        places.push(node.enter(&[("both", "x")]).await.expect("of eight"));
    }
    let descriptors = &descriptors(&[("both", "x")]);
    let request = CheckRequest { domain: "test", descriptors, hits: Hits::ONE, for_envoy: false };
    let Entered::Refused(response) = node.core.decider.enter(request).await else {
        panic!("it is admitted");
    };
    let mut headers = http::HeaderMap::new();
    render::headers(&response, &mut headers);
    let policy = headers["ratelimit-policy"].to_str().unwrap();
    assert!(policy.contains("q=8") && !policy.contains("w="), "{policy}");
}

/// As a proxy does when a client goes while the owner is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_goes_while_it_enters_gives_its_place_back() {
    let rules = "
domain: test
descriptors:
  - {key: route, concurrency: 3}
";
    let nodes = cluster(&[("n1", "eu"), ("n2", "eu")], rules, |_| {}).await;
    // Of so many routes some are owned by the other node.
    let routes: Vec<String> = (0..16).map(|route| format!("r{route}")).collect();
    for route in &routes {
        for _ in 0..3 {
            let of = [("route", route.as_str())];
            let mut entering = pin!(enter(&nodes[0].core, &of));
            let polled = entering.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            // Owned here, it is in at once, and leaves at once.
            assert!(matches!(polled, Poll::Pending | Poll::Ready(Some(_))));
        }
    }
    for route in &routes {
        let of = [("route", route.as_str())];
        let all_free = async || {
            let mut places = Vec::new();
            for _ in 0..3 {
                places.push(enter(&nodes[1].core, &of).await.ok_or("not free yet")?);
            }
            Ok::<_, &str>(places)
        };
        // Far less than the ten seconds after which a place that is not renewed is free.
        until("its places are free", Duration::from_secs(5), async || {
            all_free().await.map(drop).map_err(str::to_owned)
        })
        .await;
    }
}
