//! The network card of a node: a turmoil host that outlives the node's processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use turmoil::net::UdpSocket;

use super::Weather;

/// The port of every mesh.
pub(crate) const PORT: u16 = 7_400;
/// Datagrams that wait on either side of a card. At the bound: dropped, as a kernel's buffer does.
const QUEUE_MAX: usize = 4_096;
/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// A datagram and its other end.
pub(crate) type Datagram = (SocketAddr, Vec<u8>);

/// The node's end of its card; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) addr: SocketAddr,
    outbound: mpsc::Sender<Datagram>,
    /// Where datagrams for the running process go; replaced when another one binds.
    inbound: Arc<Mutex<Option<mpsc::Sender<Datagram>>>>,
}

/// The network's end of a card.
pub(crate) struct Plugged {
    pub(crate) index: usize,
    pub(crate) card: Card,
    pub(crate) addrs: Vec<SocketAddr>,
    pub(crate) weather: Arc<Mutex<Weather>>,
    /// Taken by the host when it starts; a card's host never stops.
    pub(crate) outbound: Mutex<Option<mpsc::Receiver<Datagram>>>,
}

impl Card {
    /// A card and what it sends.
    pub(crate) fn new(addr: SocketAddr) -> (Self, mpsc::Receiver<Datagram>) {
        let (outbound, sent) = mpsc::channel(QUEUE_MAX);
        (Self { addr, outbound, inbound: Arc::default() }, sent)
    }

    /// Sends a datagram, unless too many wait.
    pub(super) fn send(&self, to: SocketAddr, bytes: Vec<u8>) {
        let _ = self.outbound.try_send((to, bytes));
    }

    /// Binds the port for a new process; the one before hears nothing any more.
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

/// The turmoil host: carries datagrams between the node and the network, until the run ends.
pub(crate) async fn serve(plugged: Arc<Plugged>) -> turmoil::Result {
    let outbound = plugged.outbound.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut outbound) = outbound else { return Err("a card was started twice".into()) };
    let socket = UdpSocket::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), PORT)).await?;
    let socket = Arc::new(socket);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        tokio::select! {
            biased;
            Some((to, bytes)) = outbound.recv() => plugged.forward(&socket, to, &bytes),
            received = socket.recv_from(&mut buffer) => {
                let (length, from) = received?;
                plugged.card.receive(from, buffer[..length].to_vec());
            }
        }
    }
}

impl Plugged {
    fn forward(&self, socket: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8]) {
        let Some(receiver) = self.addrs.iter().position(|addr| *addr == to) else { return };
        let fate = {
            let mut weather = self.weather.lock().unwrap_or_else(PoisonError::into_inner);
            weather.fate(self.index, receiver)
        };
        for delay in fate {
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
