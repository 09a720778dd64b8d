//! A steady load on the available nodes, and its history.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_testkit::http_client::{Http, Reply, hits_body};
use tidegate_testkit::random::Random;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::group::{DOMAIN, Fields, Group, Key};
use crate::history::{Answer, Event};
use crate::node::Node;

/// Sends checks to the open nodes and records the answers.
#[derive(Clone)]
pub(crate) struct Load {
    listeners: Arc<Vec<Listener>>,
    history: Arc<Mutex<Vec<Event>>>,
    started: Instant,
}

struct Listener {
    node_index: usize,
    http: std::net::SocketAddr,
    client: Arc<Mutex<Http>>,
    is_open: AtomicBool,
    in_majority: AtomicBool,
}

const CLIENTS: usize = 16;
/// Interval between two requests of a client: 400 requests a second in all.
const INTERVAL: Duration = Duration::from_millis(40);
/// Timeout of a client. Envoy's is a fiftieth of it.
const TIMEOUT: Duration = Duration::from_secs(1);

impl Load {
    pub(crate) fn new(nodes: &[Node]) -> Self {
        let listener = |node: &Node| Listener {
            node_index: node.index,
            http: node.http,
            client: node.client(),
            is_open: AtomicBool::new(node.is_running()),
            in_majority: AtomicBool::new(true),
        };
        Self {
            listeners: Arc::new(nodes.iter().map(listener).collect()),
            history: Arc::default(),
            started: Instant::now(),
        }
    }

    /// Time since the start of the load; the time base of the history.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sets whether the node receives requests, as from a load balancer.
    pub(crate) fn open(&self, node_index: usize, is_open: bool) {
        self.listeners[node_index].is_open.store(is_open, Ordering::SeqCst);
    }

    /// Sets whether the node can reach a majority.
    pub(crate) fn set_majority(&self, node_index: usize, in_majority: bool) {
        self.listeners[node_index].in_majority.store(in_majority, Ordering::SeqCst);
    }

    /// Marks all nodes as in the majority.
    pub(crate) fn reset_majority(&self) {
        for listener in self.listeners.iter() {
            self.set_majority(listener.node_index, true);
        }
    }

    /// Starts clients that check keys of `groups` until `stop`.
    pub(crate) fn spawn(
        &self,
        groups: &'static [Group],
        random: &mut Random,
        stop: &CancellationToken,
    ) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (load, mut random, stop) = (self.clone(), random.apart(), stop.clone());
            let first = Instant::now() + INTERVAL * u32::try_from(number).unwrap() / 16;
            clients.spawn(async move {
                let mut turn = tokio::time::interval_at(first, INTERVAL);
                turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !stop.is_cancelled() {
                    turn.tick().await;
                    let group = groups[random.below(groups.len())];
                    let key = Key { group, index: random.below(group.keys()) };
                    if let Some(node_index) = load.draw(&mut random) {
                        load.hit(node_index, key).await;
                    }
                }
            });
        }
        clients
    }

    /// Sends and records one hit on `key` through a node.
    pub(crate) async fn hit(&self, node_index: usize, key: Key) -> Answer {
        let listener = &self.listeners[node_index];
        let (was_open, was_in_majority) = (listener.is_open(), listener.in_majority());
        let sent = self.now();
        let answer = match listener.check(key, 1).await {
            Ok(fields) if key.group.is_fallback(fields) => {
                Answer::Fallback { is_allowed: fields.is_allowed }
            }
            Ok(fields) => Answer::Owner { is_allowed: fields.is_allowed },
            Err(error) => Answer::Error(error),
        };
        let event = Event {
            sent,
            answered: self.now(),
            node_index,
            is_available: was_open && listener.is_open(),
            in_majority: was_in_majority && listener.in_majority(),
            key,
            answer: answer.clone(),
        };
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        answer
    }

    /// Reads the owner's count for `key` through a node, without a hit. Fails if the answer is not
    /// the owner's.
    pub(crate) async fn counted(&self, node_index: usize, key: Key) -> Result<u64, String> {
        let fields = self.listeners[node_index].check(key, 0).await?;
        if key.group.is_fallback(fields) {
            return Err("answered by the fallback".to_owned());
        }
        Ok(fields.limit.saturating_sub(fields.remaining))
    }

    pub(crate) fn history(&self) -> Vec<Event> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Draws one of the available nodes.
    pub(crate) fn draw(&self, random: &mut Random) -> Option<usize> {
        let open: Vec<usize> = self
            .listeners
            .iter()
            .filter(|listener| listener.is_open())
            .map(|listener| listener.node_index)
            .collect();
        if open.is_empty() { None } else { Some(open[random.below(open.len())]) }
    }
}

// === impl Listener ===

impl Listener {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn in_majority(&self) -> bool {
        self.in_majority.load(Ordering::SeqCst)
    }

    async fn check(&self, key: Key, hits: u64) -> Result<Fields, String> {
        let http = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let body = hits_body(DOMAIN, key.group.name(), &key.value(), hits);
        match tokio::time::timeout(TIMEOUT, http.check(self.http, &body)).await {
            Ok(reply) => fields(&reply?),
            Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
        }
    }
}

fn fields(reply: &Reply) -> Result<Fields, String> {
    let number = |name: &str| {
        let value = reply.header(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("{} without {name}: {}", reply.status, reply.body))
    };
    match reply.status {
        200 | 429 => Ok(Fields {
            is_allowed: reply.status == 200,
            limit: number("x-ratelimit-limit")?,
            remaining: number("x-ratelimit-remaining")?,
            reset_s: number("x-ratelimit-reset")?,
        }),
        status => Err(format!("{status}: {}", reply.body)),
    }
}
