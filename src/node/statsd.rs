//! Sends the statistics to a statsd server, every `stats.flush_interval` and once at the end.
//!
//! A server that is away, slow or full costs a second of this task and nothing else: nobody waits
//! for it, and nothing is queued. What was not handed over stays owed; `Sent` knows it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::core::Failed;
use super::statistics::VerdictSource;
use crate::config::{Stats, StatsdProtocol};
use crate::observe::statistics::statsd::{Dialect, Sent};

/// How long looking up, connecting and writing may take together. It is also what a server that
/// does not answer adds to the end of the node.
const PATIENCE: Duration = Duration::from_secs(1);

/// The way to one statsd server.
pub(super) struct Statsd {
    server: Option<String>,
    protocol: StatsdProtocol,
    dialect: Dialect,
    interval: Duration,
    source: VerdictSource,
    sent: Sent,
    connection: Option<Connection>,
    /// Whether the last flush went through, so that the log says when that changes.
    is_well: bool,
}

enum Connection {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

impl Statsd {
    pub(super) fn new(stats: &Stats, source: VerdictSource) -> Self {
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
            interval: Duration::from_nanos(stats.flush_interval.as_nanos()),
            source,
            sent: Sent::default(),
            connection: None,
            is_well: true,
        }
    }

    /// Sends until `stop`, and then what is left; without a server it only waits for that.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Failed> {
        let Some(server) = self.server.take() else {
            stop.cancelled().await;
            return Ok(());
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
                return Ok(());
            }
        }
    }

    async fn flush(&mut self, server: &str) {
        let outcome = match tokio::time::timeout(PATIENCE, self.send(server)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match outcome {
            Ok(()) if !self.is_well => {
                tracing::info!(server, "the statsd server takes statistics again");
                self.is_well = true;
            }
            Ok(()) => {}
            Err(error) => {
                // Half a line may be on its way: what follows it must not be taken for its end.
                self.connection = None;
                if self.is_well {
                    tracing::warn!(
                        server,
                        %error,
                        "send statistics to the statsd server; they are kept until it takes them"
                    );
                    self.is_well = false;
                }
            }
        }
    }

    /// Hands over what is owed. Not cancel-safe: the connection is to be dropped then.
    async fn send(&mut self, server: &str) -> io::Result<()> {
        let owed = self.sent.owed(&self.source.read(), &self.dialect);
        if owed.is_empty() {
            return Ok(());
        }
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(server, self.protocol).await?,
        };
        for chunk in owed {
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

    /// Whether the server has not closed it: the first write after that would go nowhere, without
    /// an error. A statsd server says nothing; if it does, that is no reason to part.
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
