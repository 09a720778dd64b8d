//! quinn's socket and runtime, and the network environment that supplies them.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use async_trait::async_trait;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, UdpPoller};
use tidegate_cluster::environment::Net;
use tokio::sync::mpsc;

use super::nic::{Datagram, Nic};

/// The network environment of a node.
#[derive(Debug)]
pub(crate) struct SimNet(pub(crate) Nic);

struct Socket {
    nic: Nic,
    received: Mutex<mpsc::Receiver<Datagram>>,
}

/// quinn's timers and tasks, on the node's runtime with simulated time.
#[derive(Debug)]
struct SimRuntime;

/// Sending never blocks: the interface drops datagrams when its queue is full.
#[derive(Debug)]
struct AlwaysWritable;

#[async_trait]
impl Net for SimNet {
    async fn bind_udp(&self, _: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let received = Mutex::new(self.0.bind());
        Ok(Arc::new(Socket { nic: self.0.clone(), received }))
    }

    fn quinn_runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(SimRuntime)
    }

    async fn resolve(&self, host_port: &str) -> io::Result<Vec<SocketAddr>> {
        let addr = host_port.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(vec![addr])
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.nic.send(transmit.destination, transmit.contents.to_vec());
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            match received.poll_recv(cx) {
                Poll::Ready(Some((addr, bytes))) => {
                    let len = bytes.len().min(buf.len());
                    buf[..len].copy_from_slice(&bytes[..len]);
                    *meta = RecvMeta { addr, len, stride: len, ecn: None, dst_ip: None };
                    count += 1;
                }
                // Another process has bound the port; this one is shutting down.
                Poll::Ready(None) if count == 0 => {
                    return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
                }
                Poll::Pending if count == 0 => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.nic.addr)
    }

    fn may_fragment(&self) -> bool {
        !self.nic.discovers_mtu
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.nic.addr)
    }
}

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Runtime for SimRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(future);
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}
