//! One connection: bytes out, bytes in, and since when each ask waits.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{Said, Wire};

/// Larger than what a pipeline of answers takes.
const READ_BYTES: usize = 64 * 1024;

pub struct Connection {
    socket: TcpStream,
    wire: Box<dyn Wire>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Since when each ask from number `first` on waits; none where it was answered.
    since: VecDeque<Option<Instant>>,
    first: u64,
    waiting: usize,
    buffer: Box<[u8]>,
}

impl Connection {
    pub fn open(addr: SocketAddr, mut wire: Box<dyn Wire>) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&addr, Duration::from_secs(5))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut output = Vec::new();
        wire.hello(&mut output);
        let mut connection = Self {
            socket,
            wire,
            input: Vec::new(),
            output,
            since: VecDeque::new(),
            first: 0,
            waiting: 0,
            buffer: vec![0; READ_BYTES].into(),
        };
        connection.flush()?;
        Ok(connection)
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Asks without an answer.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn ask(&mut self, key: u64, since: Instant) {
        self.wire.ask(key, &mut self.output);
        self.since.push_back(Some(since));
        self.waiting += 1;
    }

    /// Sends what can be sent. What cannot is sent with the next answer: a server that does not
    /// read has some to give.
    pub fn flush(&mut self) -> io::Result<()> {
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

    /// Reads once, tells of each whole answer, and says how many there were.
    pub fn read(&mut self, mut each: impl FnMut(Instant, Instant, Said)) -> io::Result<usize> {
        let length = match self.socket.read(&mut self.buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server hung up")),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let Self { wire, output, since, first, .. } = self;
        let mut answered = 0;
        let mut tell = |number: u64, said: Said| {
            let index = usize::try_from(number - *first).unwrap_or(usize::MAX);
            if let Some(since) = since.get_mut(index).and_then(Option::take) {
                each(since, now, said);
                answered += 1;
            }
            while since.front().is_some_and(Option::is_none) {
                since.pop_front();
                *first += 1;
            }
        };
        // What came is nearly always whole, and is then read where it lies.
        let came = &self.buffer[..length];
        if self.input.is_empty() {
            let used = wire.answers(came, output, &mut tell)?;
            self.input.extend_from_slice(&came[used..]);
        } else {
            self.input.extend_from_slice(came);
            let used = wire.answers(&self.input, output, &mut tell)?;
            self.input.drain(..used);
        }
        self.waiting -= answered;
        Ok(answered)
    }
}
