//! A steady load on every node that is meant to answer, and the history that it leaves.

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
    began: Instant,
}

struct Listener {
    token: usize,
    http: std::net::SocketAddr,
    client: Arc<Mutex<Http>>,
    is_open: AtomicBool,
    is_in_majority: AtomicBool,
}

const CLIENTS: usize = 16;
/// A client's pause between two requests: 400 requests a second in all.
const PACE: Duration = Duration::from_millis(40);
/// A client waits no longer; Envoy waits for a fiftieth of this.
const TIMEOUT: Duration = Duration::from_secs(1);

impl Load {
    pub(crate) fn new(nodes: &[Node]) -> Self {
        let listener = |node: &Node| Listener {
            token: node.token,
            http: node.http,
            client: node.client(),
            is_open: AtomicBool::new(node.is_running()),
            is_in_majority: AtomicBool::new(true),
        };
        Self {
            listeners: Arc::new(nodes.iter().map(listener).collect()),
            history: Arc::default(),
            began: Instant::now(),
        }
    }

    /// Time since the load began; the time of the history.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the node at `token` gets requests, as behind a load balancer.
    pub(crate) fn open(&self, token: usize, is_open: bool) {
        self.listeners[token].is_open.store(is_open, Ordering::SeqCst);
    }

    /// Whether owners are within its reach.
    pub(crate) fn set_majority(&self, token: usize, is_in_majority: bool) {
        self.listeners[token].is_in_majority.store(is_in_majority, Ordering::SeqCst);
    }

    /// Owners are within the reach of all again.
    pub(crate) fn all_in_majority(&self) {
        for listener in self.listeners.iter() {
            self.set_majority(listener.token, true);
        }
    }

    /// Clients that check keys of `groups` until `stop`.
    pub(crate) fn spawn(
        &self,
        groups: &'static [Group],
        random: &mut Random,
        stop: &CancellationToken,
    ) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (load, mut random, stop) = (self.clone(), random.apart(), stop.clone());
            let first = Instant::now() + PACE * u32::try_from(number).unwrap() / 16;
            clients.spawn(async move {
                let mut turn = tokio::time::interval_at(first, PACE);
                turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !stop.is_cancelled() {
                    turn.tick().await;
                    let group = groups[random.below(groups.len())];
                    let key = Key { group, index: random.below(group.keys()) };
                    if let Some(token) = load.draw(&mut random) {
                        load.hit(token, key).await;
                    }
                }
            });
        }
        clients
    }

    /// One hit on `key` through the node at `token`, remembered.
    pub(crate) async fn hit(&self, token: usize, key: Key) -> ServiceReply {
        let listener = &self.listeners[token];
        let (was_open, was_majority) = (listener.is_open(), listener.is_in_majority());
        let sent = self.now();
        let answer = match listener.check(key, 1).await {
            Ok(fields) if key.group.is_by_policy(fields) => {
                Answer::Policy { is_allowed: fields.is_allowed }
            }
            Ok(fields) => Answer::Owner { is_allowed: fields.is_allowed },
            Err(error) => Answer::Error(error),
        };
        let event = Event {
            sent,
            answered: self.now(),
            token,
            is_meant_to_answer: was_open && listener.is_open(),
            is_in_majority: was_majority && listener.is_in_majority(),
            key,
            answer: answer.clone(),
        };
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        answer
    }

    /// The count of the owner for `key`, read through the node at `token` without a hit; an error
    /// also when it is not the owner who answers.
    pub(crate) async fn counted(&self, token: usize, key: Key) -> Result<u64, String> {
        let fields = self.listeners[token].check(key, 0).await?;
        if key.group.is_by_policy(fields) {
            return Err("answered by policy".to_owned());
        }
        Ok(fields.limit.saturating_sub(fields.remaining))
    }

    pub(crate) fn history(&self) -> Vec<Event> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One of the nodes that are meant to answer.
    pub(crate) fn draw(&self, random: &mut Random) -> Option<usize> {
        let open: Vec<usize> = self
            .listeners
            .iter()
            .filter(|listener| listener.is_open())
            .map(|listener| listener.token)
            .collect();
        if open.is_empty() { None } else { Some(open[random.below(open.len())]) }
    }
}

// === impl Listener ===

impl Listener {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn is_in_majority(&self) -> bool {
        self.is_in_majority.load(Ordering::SeqCst)
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
