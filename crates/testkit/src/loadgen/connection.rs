//! A connection with its buffers and the start times of the requests in flight.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{Protocol, ReplyStatus};

/// Larger than the replies of a pipeline.
const READ_BYTES: usize = 64 * 1024;

pub(super) struct Connection {
    socket: TcpStream,
    protocol: Box<dyn Protocol>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Start times of the requests from number `first` on; `None` after the reply.
    started: VecDeque<Option<Instant>>,
    first: u64,
    in_flight: usize,
    buffer: Box<[u8]>,
}

impl Connection {
    pub(super) fn open(addr: SocketAddr, mut protocol: Box<dyn Protocol>) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&addr, Duration::from_secs(5))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut output = Vec::new();
        protocol.preface(&mut output);
        let mut connection = Self {
            socket,
            protocol,
            input: Vec::new(),
            output,
            started: VecDeque::new(),
            first: 0,
            in_flight: 0,
            buffer: vec![0; READ_BYTES].into(),
        };
        connection.flush()?;
        Ok(connection)
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Number of requests without a reply.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues a request. Its latency counts from `started`.
    pub(super) fn request(&mut self, key: u64, started: Instant) {
        self.protocol.request(key, &mut self.output);
        self.started.push_back(Some(started));
        self.in_flight += 1;
    }

    /// Sends queued requests until the socket would block. The rest is sent after the next reply:
    /// a server that does not read has replies pending.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once. Calls `on_reply` with start time, end time and status of each complete reply,
    /// and returns their number.
    pub(super) fn read(
        &mut self,
        mut on_reply: impl FnMut(Instant, Instant, ReplyStatus),
    ) -> io::Result<usize> {
        let length = match self.socket.read(&mut self.buffer) {
            Ok(0) => {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "connection closed by the server",
                ));
            }
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let Self { protocol, output, started, first, .. } = self;
        let mut replies = 0;
        let mut complete = |number: u64, status: ReplyStatus| {
            let index = usize::try_from(number - *first).unwrap_or(usize::MAX);
            if let Some(start) = started.get_mut(index).and_then(Option::take) {
                on_reply(start, now, status);
                replies += 1;
            }
            while started.front().is_some_and(Option::is_none) {
                started.pop_front();
                *first += 1;
            }
        };
        // Replies are nearly always complete and are then parsed without a copy.
        let received = &self.buffer[..length];
        if self.input.is_empty() {
            let used = protocol.replies(received, output, &mut complete)?;
            self.input.extend_from_slice(&received[used..]);
        } else {
            self.input.extend_from_slice(received);
            let used = protocol.replies(&self.input, output, &mut complete)?;
            self.input.drain(..used);
        }
        self.in_flight -= replies;
        Ok(replies)
    }
}
