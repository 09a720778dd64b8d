//! The network interface of a node: a turmoil host that outlives the node's processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use turmoil::net::UdpSocket;

use super::Links;

pub(crate) const PORT: u16 = 7_400;
/// Capacity of the queue in each direction. Datagrams beyond it are dropped, as by a kernel's
/// socket buffer.
const QUEUE_MAX: usize = 4_096;
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A datagram and the address of its peer.
pub(crate) type Datagram = (SocketAddr, Vec<u8>);

/// The node's side of its interface; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub(crate) addr: SocketAddr,
    /// Whether QUIC looks for the largest datagram that arrives. Otherwise it sends at most 1,200
    /// bytes.
    pub(super) discovers_mtu: bool,
    outbound: mpsc::Sender<Datagram>,
    /// Queue of the running process; replaced when another process binds.
    inbound: Arc<Mutex<Option<mpsc::Sender<Datagram>>>>,
}

/// The network's side of an interface.
pub(crate) struct NicHost {
    pub(crate) index: usize,
    pub(crate) nic: Nic,
    pub(crate) addrs: Vec<SocketAddr>,
    pub(crate) links: Arc<Mutex<Links>>,
    /// Taken by the host when it starts; the host never stops.
    pub(crate) outbound: Mutex<Option<mpsc::Receiver<Datagram>>>,
}

impl Nic {
    /// Returns an interface and the queue of datagrams that it sends.
    pub(crate) fn new(addr: SocketAddr, discovers_mtu: bool) -> (Self, mpsc::Receiver<Datagram>) {
        let (outbound, sent) = mpsc::channel(QUEUE_MAX);
        (Self { addr, discovers_mtu, outbound, inbound: Arc::default() }, sent)
    }

    /// Sends a datagram, or drops it when the queue is full.
    pub(super) fn send(&self, to: SocketAddr, bytes: Vec<u8>) {
        let _ = self.outbound.try_send((to, bytes));
    }

    /// Binds the port for a new process; the previous one receives nothing from now on.
    pub(super) fn bind(&self) -> mpsc::Receiver<Datagram> {
        let (inbound, received) = mpsc::channel(QUEUE_MAX);
        *self.inbound.lock().unwrap_or_else(PoisonError::into_inner) = Some(inbound);
        received
    }

    fn receive(&self, from: SocketAddr, bytes: Vec<u8>) {
        if let Some(inbound) = &*self.inbound.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = inbound.try_send((from, bytes));
        }
    }
}

/// The turmoil host: forwards datagrams between node and network until the run ends.
pub(crate) async fn serve(host: Arc<NicHost>) -> turmoil::Result {
    let outbound = host.outbound.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut outbound) = outbound else { return Err("the NIC was started twice".into()) };
    let socket = UdpSocket::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), PORT)).await?;
    let socket = Arc::new(socket);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            biased;
            Some((to, bytes)) = outbound.recv() => host.forward(&socket, to, &bytes),
            received = socket.recv_from(&mut buffer) => {
                let (length, from) = received?;
                host.nic.receive(from, buffer[..length].to_vec());
            }
        }
    }
}

impl NicHost {
    fn forward(&self, socket: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8]) {
        let Some(receiver) = self.addrs.iter().position(|addr| *addr == to) else { return };
        let deliveries = {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.deliveries(self.index, receiver, bytes.len())
        };
        for delay in deliveries {
            if delay.is_zero() {
                let _ = socket.try_send_to(bytes, to);
            } else {
                let (socket, bytes) = (socket.clone(), bytes.to_vec());
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let _ = socket.try_send_to(&bytes, to);
                });
            }
        }
    }
}
