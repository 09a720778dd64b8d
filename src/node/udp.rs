//! The UDP socket of the mesh, with as few wake-ups as its traffic needs.
//!
//! At a moderate load a packet carries one message, so most of its price is paid around it. An
//! ordinary socket of tokio pays twice more than it has to:
//!
//! - It waits for room to send whether or not it needs any. On a socket that sends and never fills
//!   up, each packet that the kernel has delivered makes room, which wakes the runtime for nothing.
//!   Here the kernel is asked about room only after a packet did not fit.
//! - It reads until there is nothing left, so each packet costs a second, empty read. Here a read
//!   of fewer packets than fit into it is the last one: what arrives after it is announced again,
//!   since the socket is watched by its edges (`epoll(7)`, *edge-triggered*).
//!
//! **Worked example.** A check that is forwarded and answered is two packets. They cost 4 wake-ups
//! and 4 reads before, and 2 of each now.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quinn::udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

/// A bound UDP socket for quinn.
#[derive(Debug)]
pub(super) struct MeshSocket {
    state: UdpSocketState,
    /// Watched for packets only.
    socket: AsyncFd<UdpSocket>,
    /// Another descriptor of the socket, since one is watched for one set of events. Opened at the
    /// start: there may be no free one when it is needed.
    sender: Mutex<Arc<UdpSocket>>,
    /// The last packet did not fit into the socket's buffer.
    is_full: AtomicBool,
}

/// Until the next attempt to send, when the system does not say when there is room.
const RETRY: Duration = Duration::from_millis(1);

impl MeshSocket {
    /// # Errors
    ///
    /// Fails outside a runtime of tokio, and when the system refuses an option of the socket.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        // Also sets the socket to return instead of blocking.
        let state = UdpSocketState::new((&socket).into())?;
        let sender = Mutex::new(Arc::new(socket.try_clone()?));
        let socket = watch(socket, Interest::READABLE)?;
        Ok(Self { state, socket, sender, is_full: AtomicBool::new(false) })
    }

    /// Completes when there is room to send, or when that cannot be known: an error here would end
    /// the connection that asks.
    async fn has_room(&self) {
        let sender = self.sender.lock().await;
        // The connections wait one after the other. Those behind the first find room at once.
        let is_known = match watch(Arc::clone(&sender), Interest::WRITABLE) {
            Ok(watched) => watched.writable().await.is_ok(),
            Err(_) => false,
        };
        if !is_known {
            tokio::time::sleep(RETRY).await;
        }
        self.is_full.store(false, Ordering::Relaxed);
    }
}

#[expect(
    deprecated,
    reason = "unsound for a type that changes its descriptor, which a socket of the standard \
              library does not; what is to replace it is an unsafe function"
)]
fn watch<S: AsRawFd>(socket: S, interest: Interest) -> io::Result<AsyncFd<S>> {
    AsyncFd::with_interest(socket, interest)
}

impl AsyncUdpSocket for MeshSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send(self.socket.get_ref().into(), transmit);
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::WouldBlock
        {
            self.is_full.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(context))?;
            let fits = buffers.len().min(BATCH_SIZE);
            let receive = |socket: &AsyncFd<UdpSocket>| {
                self.state.recv(socket.get_ref().into(), buffers, meta)
            };
            if let Ok(received) = ready.try_io(receive) {
                if received.as_ref().is_ok_and(|&packets| packets < fits) {
                    ready.clear_ready();
                }
                return Poll::Ready(received);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

type WaitForRoom = dyn Future<Output = ()> + Send + Sync;

/// Wakes one connection when there is room to send.
struct Room {
    socket: Arc<MeshSocket>,
    waiting: Option<Pin<Box<WaitForRoom>>>,
}

impl Debug for Room {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Room")
            .field("is_waiting", &self.waiting.is_some())
            .finish_non_exhaustive()
    }
}

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting.is_none() {
            if !self.socket.is_full.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            let socket = self.socket.clone();
            self.waiting = Some(Box::pin(async move { socket.has_room().await }));
        }
        let Some(waiting) = &mut self.waiting else { return Poll::Ready(Ok(())) };
        ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::runtime::{Builder, Handle, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
    }

    fn socket() -> Arc<MeshSocket> {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        Arc::new(MeshSocket::new(socket).expect("a socket"))
    }

    fn send(from: &MeshSocket, to: &MeshSocket, byte: u8) {
        send_to(from, to.local_addr().expect("it is bound"), byte);
    }

    fn send_to(from: &MeshSocket, destination: SocketAddr, byte: u8) {
        let contents = &[byte];
        let (ecn, segment_size, src_ip) = (None, None, None);
        from.try_send(&Transmit { destination, ecn, contents, segment_size, src_ip })
            .expect("there is room");
    }

    /// The first byte of each packet of one read.
    async fn receive(socket: &MeshSocket) -> Vec<u8> {
        let mut buffers = [[0; 64]; BATCH_SIZE];
        let mut meta = [RecvMeta::default(); BATCH_SIZE];
        let received = poll_fn(|context| {
            let mut slices = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
            socket.poll_recv(context, &mut slices, &mut meta)
        });
        let received = received.await.expect("it receives");
        buffers.iter().take(received).map(|buffer| buffer[0]).collect()
    }

    #[test]
    fn a_packet_is_one_wake_up() {
        const ROUNDS: u64 = 1_000;
        let runtime = runtime();
        let parked = runtime.block_on(async {
            // On the worker, whose wake-ups are counted.
            let echoed = tokio::spawn(async {
                let (here, there) = (socket(), socket());
                let parked = || Handle::current().metrics().worker_park_count(0);
                let before = parked();
                for round in 0..ROUNDS {
                    let byte = u8::try_from(round % 256).expect("small");
                    send(&here, &there, byte);
                    assert_eq!(receive(&there).await, [byte]);
                    send(&there, &here, byte);
                    assert_eq!(receive(&here).await, [byte]);
                }
                parked() - before
            });
            echoed.await.expect("no packet was lost")
        });
        let packets = 2 * ROUNDS;
        assert!(parked <= packets + packets / 10, "{parked} wake-ups for {packets} packets");
    }

    /// The kernel delivers it at once, which makes room again.
    #[test]
    fn a_packet_that_is_sent_wakes_nothing() {
        const PACKETS: u64 = 100;
        let runtime = runtime();
        let here = runtime.block_on(async { socket() });
        // Of the other end nothing is watched, so that its packets wake nothing either.
        let there = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let to = there.local_addr().expect("it is bound");
        let parked = || runtime.metrics().worker_park_count(0);
        let before = parked();
        // Beside the worker, which waits for events all the time.
        for _ in 0..PACKETS {
            send_to(&here, to, 0);
            std::thread::sleep(Duration::from_millis(2));
        }
        let parked = parked() - before;
        assert!(parked < PACKETS / 4, "{parked} wake-ups for {PACKETS} packets");
    }

    #[test]
    fn more_packets_than_fit_into_a_read_are_all_received() {
        runtime().block_on(async {
            let (here, there) = (socket(), socket());
            for size in [1, 31, 32, 33, 64, 100] {
                let sent: Vec<u8> = (0..size).collect();
                for &byte in &sent {
                    send(&here, &there, byte);
                }
                let mut received = Vec::new();
                while received.len() < sent.len() {
                    received.extend(receive(&there).await);
                }
                assert_eq!(received, sent);
            }
        });
    }

    #[test]
    fn a_connection_waits_for_room_after_a_packet_that_did_not_fit() {
        // Of a single thread, which learns of room only once it waits.
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let socket = socket();
            let mut room = socket.clone().create_io_poller();
            poll_fn(|context| room.as_mut().poll_writable(context)).await.expect("there is room");
            socket.is_full.store(true, Ordering::Relaxed);
            let first = poll_fn(|context| Poll::Ready(room.as_mut().poll_writable(context))).await;
            assert!(first.is_pending(), "{first:?}");
            poll_fn(|context| room.as_mut().poll_writable(context)).await.expect("there is room");
            assert!(!socket.is_full.load(Ordering::Relaxed));
        });
    }

    /// A full buffer is full for all of them, and files may have run out.
    #[test]
    fn all_connections_go_on_when_there_is_room_and_need_no_file_for_it() {
        runtime().block_on(async {
            let socket = socket();
            socket.is_full.store(true, Ordering::Relaxed);
            let held = socket.sender.lock().await;
            let descriptors = || std::fs::read_dir("/proc/self/fd").expect("Linux").count();
            let before = descriptors();
            let mut rooms: Vec<_> = (0..500).map(|_| socket.clone().create_io_poller()).collect();
            for room in &mut rooms {
                let first =
                    poll_fn(|context| Poll::Ready(room.as_mut().poll_writable(context))).await;
                assert!(first.is_pending(), "{first:?}");
            }
            // Other tests open some.
            assert!(descriptors() < before + 250);
            drop(held);
            for room in &mut rooms {
                poll_fn(|context| room.as_mut().poll_writable(context)).await.expect("room");
            }
        });
    }
}
