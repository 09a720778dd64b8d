//! Sends the statistics to a statsd server, every `stats.flush_interval` and once at the end.
//!
//! A server that is unavailable, slow or full costs one second of this task and nothing else: no
//! other task waits for it, and nothing is queued. Unsent values stay pending in [`Sent`].

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::reading::Source;
use super::statsd::{Dialect, Sent};
use crate::config::{Stats, StatsdProtocol};

/// Timeout of name resolution, connect and write together. An unresponsive server delays the
/// shutdown of the node by it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Exports to one statsd server.
#[derive(Debug)]
pub struct StatsdExporter {
    server: Option<String>,
    protocol: StatsdProtocol,
    dialect: Dialect,
    interval: Duration,
    source: Source,
    sent: Sent,
    connection: Option<Connection>,
    /// Whether the last flush succeeded; changes are logged.
    is_healthy: bool,
}

#[derive(Debug)]
enum Connection {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

impl StatsdExporter {
    pub fn new(stats: &Stats, source: Source) -> Self {
        let tags = stats.tags();
        let dialect = match stats.statsd_protocol {
            StatsdProtocol::Tcp => Dialect::stream(&tags),
            StatsdProtocol::Udp => Dialect::datagrams(&tags),
            StatsdProtocol::Dogstatsd => Dialect::dog(&tags),
        };
        Self {
            server: stats.statsd.clone(),
            protocol: stats.statsd_protocol,
            dialect,
            interval: stats.flush_interval.to_std(),
            source,
            sent: Sent::default(),
            connection: None,
            is_healthy: true,
        }
    }

    /// Sends until `stop`, then flushes once more. Without a server it returns at `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let Some(server) = self.server.take() else {
            stop.cancelled().await;
            return;
        };
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_last = tokio::select! {
                () = stop.cancelled() => true,
                _ = ticks.tick() => false,
            };
            self.flush(&server).await;
            if is_last {
                return;
            }
        }
    }

    async fn flush(&mut self, server: &str) {
        let outcome = match tokio::time::timeout(FLUSH_TIMEOUT, self.send(server)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match outcome {
            Ok(()) if !self.is_healthy => {
                tracing::info!(server, "sending statistics to the statsd server again");
                self.is_healthy = true;
            }
            Ok(()) => {}
            Err(error) => {
                // Half a line may have been sent; the next line must not be appended to it.
                self.connection = None;
                if self.is_healthy {
                    tracing::warn!(
                        server,
                        %error,
                        "failed to send statistics to the statsd server; retrying, nothing is lost"
                    );
                    self.is_healthy = false;
                }
            }
        }
    }

    /// Sends pending values. Not cancel-safe: drop the connection after a cancellation.
    async fn send(&mut self, server: &str) -> io::Result<()> {
        let pending = self.sent.pending(&self.source.read(), &self.dialect);
        if pending.is_empty() {
            return Ok(());
        }
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(server, self.protocol).await?,
        };
        for chunk in pending {
            connection.write(&chunk.bytes).await?;
            self.sent.note(chunk);
        }
        self.connection = Some(connection);
        Ok(())
    }
}

impl Connection {
    async fn open(server: &str, protocol: StatsdProtocol) -> io::Result<Self> {
        if protocol == StatsdProtocol::Tcp {
            return TcpStream::connect(server).await.map(Self::Stream);
        }
        let addr = lookup_host(server).await?.next().ok_or(io::ErrorKind::NotFound)?;
        let any: SocketAddr = match addr {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(addr).await?;
        Ok(Self::Datagrams(socket))
    }

    /// Whether the server has not closed the connection: the first write afterwards would be lost
    /// without an error. Data from the server, which statsd does not define, is ignored.
    fn is_open(&self) -> bool {
        match self {
            Self::Stream(stream) => match stream.try_read(&mut [0; 1_024]) {
                Ok(read) => read > 0,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            },
            Self::Datagrams(_) => true,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.write_all(bytes).await,
            Self::Datagrams(socket) => socket.send(bytes).await.map(drop),
        }
    }
}
