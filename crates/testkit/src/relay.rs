//! A bad link: a UDP relay in front of one node that drops, duplicates, delays or cuts datagrams.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::random;

/// Relays to a node until it is dropped.
pub struct Relay {
    /// Where peers reach the node.
    pub front: SocketAddr,
    pub link: Arc<Link>,
    running: tokio::task::JoinHandle<()>,
}

/// What happens to a datagram: percentages, drawn from a seed.
#[derive(Debug)]
pub struct Link {
    pub loss: u64,
    pub duplicated: u64,
    /// The longest delay of a datagram. Delays differ, so datagrams are reordered.
    pub delay: Duration,
    /// The delay that all datagrams have besides, in each direction. It does not reorder them.
    pub distance: Duration,
    cut: AtomicBool,
    /// Peers whose datagrams alone are cut.
    cut_ones: Mutex<BTreeSet<SocketAddr>>,
    /// Peers without any distance, which are not cut.
    near: BTreeSet<SocketAddr>,
    state: AtomicU64,
    pub lost: AtomicU64,
    pub passed: AtomicU64,
}

/// Most peers of a relay; a test has a handful.
const PEERS_MAX: usize = 64;

impl Relay {
    /// A relay to the node at `target`, both on loopback.
    pub async fn start(target: SocketAddr, link: Link) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), target, link).await
    }

    /// A relay that listens on `front`.
    pub async fn start_at(front: SocketAddr, target: SocketAddr, link: Link) -> Self {
        let front = Arc::new(UdpSocket::bind(front).await.expect("bind"));
        let addr = front.local_addr().expect("bound");
        let link = Arc::new(link);
        let running = tokio::spawn(forward(front, target, link.clone()));
        Self { front: addr, link, running }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Link {
    pub fn new(seed: u64, loss: u64, duplicated: u64, delay: Duration) -> Self {
        Self {
            loss,
            duplicated,
            delay,
            distance: Duration::ZERO,
            cut: AtomicBool::new(false),
            cut_ones: Mutex::default(),
            near: BTreeSet::new(),
            state: AtomicU64::new(seed),
            lost: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        }
    }

    /// A link that loses nothing, as long as `round_trip`.
    pub fn long(round_trip: Duration) -> Self {
        Self { distance: round_trip / 2, ..Self::new(0, 0, 0, Duration::ZERO) }
    }

    /// This link, which has no distance to these peers and is not cut between them and the node.
    #[must_use]
    pub fn near(self, peers: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self { near: peers.into_iter().collect(), ..self }
    }

    /// Cuts the datagrams of all peers, or none.
    pub fn cut(&self, is_cut: bool) {
        self.cut.store(is_cut, Ordering::Relaxed);
    }

    /// Cuts the datagrams from and to `peer`, or ends that.
    pub fn cut_one(&self, peer: SocketAddr, is_cut: bool) {
        let mut cut_ones = self.cut_ones.lock().expect("no holder panics");
        if is_cut {
            cut_ones.insert(peer);
        } else {
            cut_ones.remove(&peer);
        }
    }

    /// A random number below `bound`.
    fn draw(&self, bound: u64) -> u64 {
        let state = self.state.fetch_add(random::STEP, Ordering::Relaxed);
        random::mix(state.wrapping_add(random::STEP)) % bound.max(1)
    }

    /// The delays of the copies that arrive; empty when the datagram is lost.
    fn copies(&self, peer: SocketAddr) -> Vec<Duration> {
        let is_cut = self.cut.load(Ordering::Relaxed) && !self.near.contains(&peer)
            || self.cut_ones.lock().expect("no holder panics").contains(&peer);
        if is_cut || self.draw(100) < self.loss {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        self.passed.fetch_add(1, Ordering::Relaxed);
        let copies = if self.draw(100) < self.duplicated { 2 } else { 1 };
        let micros = u64::try_from(self.delay.as_micros()).expect("short");
        (0..copies).map(|_| Duration::from_micros(self.draw(micros + 1))).collect()
    }
}

async fn forward(front: Arc<UdpSocket>, target: SocketAddr, link: Arc<Link>) {
    let mut backs: BTreeMap<SocketAddr, Sender> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok((length, from)) = front.recv_from(&mut buffer).await else { continue };
        if !backs.contains_key(&from) && backs.len() < PEERS_MAX {
            let back = Arc::new(UdpSocket::bind("0.0.0.0:0").await.expect("bind"));
            tasks.spawn(backward(front.clone(), back.clone(), from, link.clone()));
            backs.insert(from, Sender::new(back, target, link.clone()));
        }
        if let Some(back) = backs.get_mut(&from) {
            back.send(from, &buffer[..length]);
        }
    }
}

/// Relays the datagrams of the node to one peer.
async fn backward(front: Arc<UdpSocket>, back: Arc<UdpSocket>, to: SocketAddr, link: Arc<Link>) {
    let mut sender = Sender::new(front, to, link);
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok((length, _)) = back.recv_from(&mut buffer).await else { continue };
        sender.send(to, &buffer[..length]);
    }
}

/// Sends datagrams to one address when their delays are over.
struct Sender {
    link: Arc<Link>,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    /// Datagrams on their way over the distance, in order. At the bound they are lost.
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
    tasks: JoinSet<()>,
}

/// Datagrams on their way: 20 MB at the usual size.
const QUEUE_MAX: usize = 16_384;

impl Sender {
    fn new(socket: Arc<UdpSocket>, to: SocketAddr, link: Arc<Link>) -> Self {
        let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(QUEUE_MAX);
        let mut tasks = JoinSet::new();
        let in_order = socket.clone();
        tasks.spawn(async move {
            while let Some((due, bytes)) = queued.recv().await {
                tokio::time::sleep_until(due).await;
                let _ = in_order.send_to(&bytes, to).await;
            }
        });
        Self { link, socket, to, queue, tasks }
    }

    /// Sends the copies of a datagram from or to `peer`.
    fn send(&mut self, peer: SocketAddr, datagram: &[u8]) {
        while self.tasks.try_join_next().is_some() {}
        let is_near = self.link.near.contains(&peer);
        let distance = if is_near { Duration::ZERO } else { self.link.distance };
        for delay in self.link.copies(peer) {
            let bytes = datagram.to_vec();
            if delay.is_zero() && is_near && self.socket.try_send_to(&bytes, self.to).is_ok() {
                continue;
            }
            if delay.is_zero() && !distance.is_zero() {
                let _ = self.queue.try_send((Instant::now() + distance, bytes));
                continue;
            }
            let (socket, to) = (self.socket.clone(), self.to);
            self.tasks.spawn(async move {
                tokio::time::sleep(distance + delay).await;
                let _ = socket.send_to(&bytes, to).await;
            });
        }
    }
}
