//! A bad link: a UDP relay in front of one node that drops, duplicates, delays or cuts datagrams.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

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
    cut: AtomicBool,
    /// A peer whose datagrams alone are cut.
    cut_one: Mutex<Option<SocketAddr>>,
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
            cut: AtomicBool::new(false),
            cut_one: Mutex::default(),
            state: AtomicU64::new(seed),
            lost: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        }
    }

    /// Cuts the datagrams of all peers, or none.
    pub fn cut(&self, is_cut: bool) {
        self.cut.store(is_cut, Ordering::Relaxed);
    }

    /// Cuts the datagrams from and to `peer`.
    pub fn cut_one(&self, peer: SocketAddr, is_cut: bool) {
        *self.cut_one.lock().expect("no holder panics") = is_cut.then_some(peer);
    }

    /// A random number below `bound`.
    fn draw(&self, bound: u64) -> u64 {
        let state = self.state.fetch_add(random::STEP, Ordering::Relaxed);
        random::mix(state.wrapping_add(random::STEP)) % bound.max(1)
    }

    /// The delays of the copies that arrive; empty when the datagram is lost.
    fn copies(&self, peer: SocketAddr) -> Vec<Duration> {
        let is_cut = self.cut.load(Ordering::Relaxed)
            || *self.cut_one.lock().expect("no holder panics") == Some(peer);
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
    let mut backs: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((length, from)) = front.recv_from(&mut buffer).await else { continue };
        let back = match backs.get(&from) {
            Some(back) => back.clone(),
            None if backs.len() == PEERS_MAX => continue,
            None => {
                let back = Arc::new(UdpSocket::bind("0.0.0.0:0").await.expect("bind"));
                backs.insert(from, back.clone());
                tasks.spawn(backward(front.clone(), back.clone(), from, link.clone()));
                back
            }
        };
        for delay in link.copies(from) {
            let (back, bytes) = (back.clone(), buffer[..length].to_vec());
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = back.send_to(&bytes, target).await;
            });
        }
    }
}

/// Relays the datagrams of the node to one peer.
async fn backward(front: Arc<UdpSocket>, back: Arc<UdpSocket>, to: SocketAddr, link: Arc<Link>) {
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; 65_536];
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((length, _)) = back.recv_from(&mut buffer).await else { continue };
        for delay in link.copies(to) {
            let (front, bytes) = (front.clone(), buffer[..length].to_vec());
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = front.send_to(&bytes, to).await;
            });
        }
    }
}
