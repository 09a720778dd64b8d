//! One RESP connection: reads, has commands decided, writes.
//!
//! A connection that waits holds no buffers except the beginning of an incomplete command: those
//! for reading are the [`Buffers`] of its worker.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::batch::{self, REPLIES_BYTES_MAX, Scratch};
use super::busy_poll;
use super::listener::Listener;
use super::reply::Replies;
use super::session::{Next, Session};
use super::stream::Stream;
use crate::decide::{Reserve, Throttle};

/// Bytes of one read: a pipeline of some hundred commands.
const READ_BYTES: usize = 16 * 1024;

pub(super) struct Connection<D> {
    pub(super) listener: Arc<Listener<D>>,
    pub(super) stream: Stream,
    pub(super) session: Session,
    pub(super) drain: Drain,
}

/// Ends the connections: a flag that is cheap to read, and a token that wakes.
#[derive(Clone, Debug, Default)]
pub(super) struct Drain {
    pub(super) is_on: Arc<AtomicBool>,
    pub(super) wake: CancellationToken,
}

/// What a connection waits for.
enum Event {
    Readable,
    /// The timer elapsed.
    Timer,
    Drain,
    /// The socket failed.
    Failed,
}

/// Where the bytes of a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// After a complete command.
    CommandEnd,
    /// Within the command that was incomplete before.
    SameCommand,
    /// Within a command that follows complete ones.
    NextCommand,
}

/// The connection has to be closed.
#[derive(Debug)]
struct Closed;

impl<D: Throttle + Reserve> Connection<D> {
    /// Serves until the client closes the connection, a timeout ends it, or a drain does.
    pub(super) async fn run(mut self) {
        let start = Instant::now();
        let command_timeout = self.listener.bounds.header_timeout;
        // The deadline of the authentication, or of the rest of a command.
        let mut deadline = (!self.session.is_authenticated()).then_some(start + command_timeout);
        let mut timer =
            pin!(tokio::time::sleep_until(deadline.unwrap_or(start + self.listener.idle_timeout)));
        let wake = self.drain.wake.clone();
        let mut drained = pin!(wake.cancelled());
        let mut has_wakers = false;
        let mut is_used = false;
        let mut partial = Vec::new();
        loop {
            let event = poll_fn(|cx| {
                self.poll_event(timer.as_mut(), drained.as_mut(), &mut has_wakers, cx)
            });
            match event.await {
                Event::Failed => return,
                Event::Readable => {
                    busy_poll::request_arrived();
                    let Ok(end) = self.serve_once(&mut partial).await else { return };
                    is_used = true;
                    deadline = match end {
                        _ if !self.session.is_authenticated() => deadline,
                        ReadEnd::CommandEnd => None,
                        ReadEnd::SameCommand if deadline.is_some() => deadline,
                        ReadEnd::SameCommand | ReadEnd::NextCommand => {
                            Some(Instant::now() + command_timeout)
                        }
                    };
                    if let Some(at) = deadline
                        && at < timer.deadline()
                    {
                        timer.as_mut().reset(at);
                        has_wakers = false;
                    }
                }
                Event::Timer => {
                    let now = Instant::now();
                    let next = match deadline {
                        Some(at) if at <= now => return self.listener.stats.slow.add(1),
                        Some(at) => at,
                        None if is_used => now + self.listener.idle_timeout,
                        None => return self.listener.stats.idle.add(1),
                    };
                    is_used = false;
                    timer.as_mut().reset(next);
                    has_wakers = false;
                }
                Event::Drain => return self.finish_command(&mut partial, timer.as_mut()).await,
            }
        }
    }

    /// The next event. Registers the wakers of timer and drain once; after that flags show whether
    /// they fired, which is two loads instead of two locks per wait.
    fn poll_event(
        &self,
        timer: Pin<&mut Sleep>,
        drained: Pin<&mut WaitForCancellationFuture<'_>>,
        has_wakers: &mut bool,
        cx: &mut Context<'_>,
    ) -> Poll<Event> {
        match self.stream.poll_readable(cx) {
            Poll::Ready(Ok(())) => return Poll::Ready(Event::Readable),
            Poll::Ready(Err(_)) => return Poll::Ready(Event::Failed),
            Poll::Pending => {}
        }
        if self.drain.is_on.load(Ordering::Relaxed) {
            return Poll::Ready(Event::Drain);
        }
        if timer.is_elapsed() {
            return Poll::Ready(Event::Timer);
        }
        if !*has_wakers {
            *has_wakers = true;
            if timer.poll(cx).is_ready() {
                return Poll::Ready(Event::Timer);
            }
            if drained.poll(cx).is_ready() {
                return Poll::Ready(Event::Drain);
            }
        }
        Poll::Pending
    }

    /// While the listener drains: waits for the rest of an incomplete command, if there is one.
    async fn finish_command(&mut self, partial: &mut Vec<u8>, mut timer: Pin<&mut Sleep>) {
        while !partial.is_empty() {
            tokio::select! {
                ready = self.stream.readable() => if ready.is_err() { return },
                () = timer.as_mut() => return,
            }
            if self.serve_once(partial).await.is_err() {
                return;
            }
        }
    }

    async fn serve_once(&mut self, partial: &mut Vec<u8>) -> Result<ReadEnd, Closed> {
        let mut buffers = Buffers::take();
        let result = self.serve(&mut buffers, partial).await;
        buffers.put_back();
        result
    }

    /// Reads once, answers the complete commands, and leaves the beginning of the next one in
    /// `partial`.
    async fn serve(
        &mut self,
        buffers: &mut Buffers,
        partial: &mut Vec<u8>,
    ) -> Result<ReadEnd, Closed> {
        let space = buffers.read_space(partial);
        let read = match self.stream.read(space).await {
            Some(Ok(0) | Err(_)) => return Err(Closed),
            Some(Ok(read)) => read,
            None => {
                let is_partial = !partial.is_empty();
                return Ok(if is_partial { ReadEnd::SameCommand } else { ReadEnd::CommandEnd });
            }
        };
        let end = partial.len() + read;
        let Buffers { input, replies, scratch } = buffers;
        let mut at = 0;
        loop {
            let bytes = input.get(at..end).unwrap_or_default();
            let progress =
                batch::run(&self.listener, &mut self.session, bytes, scratch, replies).await;
            at += progress.bytes;
            self.send(replies.bytes()).await?;
            replies.clear(REPLIES_BYTES_MAX);
            if progress.next == Next::Close {
                return Err(Closed);
            }
            if !progress.is_more {
                break;
            }
        }
        partial.clear();
        if at == end {
            partial.shrink_to(0);
            return Ok(ReadEnd::CommandEnd);
        }
        partial.extend_from_slice(input.get(at..end).unwrap_or_default());
        Ok(if at == 0 { ReadEnd::SameCommand } else { ReadEnd::NextCommand })
    }

    /// Sends all of `bytes`. Nothing more is read meanwhile; a client that does not read its
    /// replies in time is cut off.
    async fn send(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        let sent = self.stream.try_send(bytes).map_err(|_| Closed)?;
        let rest = bytes.get(sent..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        let timeout = self.listener.bounds.header_timeout;
        let Ok(sent) = tokio::time::timeout(timeout, self.stream.send(rest)).await else {
            self.listener.stats.slow.add(1);
            return Err(Closed);
        };
        sent.map_err(|_| Closed)
    }
}

/// The buffers of one read: taken from the worker when a connection is readable, and returned after
/// its commands are answered. While a connection waits for another node it keeps them, so a worker
/// has as many as connections wait at once.
#[derive(Debug, Default)]
struct Buffers {
    input: Vec<u8>,
    replies: Replies,
    scratch: Scratch,
}

/// Most unused buffers that a worker keeps.
const POOL_MAX: usize = 64;

thread_local! {
    static POOL: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

impl Buffers {
    fn take() -> Self {
        POOL.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    /// Copies `partial` to the beginning of the input; returns the space after it.
    fn read_space(&mut self, partial: &[u8]) -> &mut [u8] {
        let length = partial.len() + READ_BYTES;
        if self.input.len() < length {
            self.input.resize(length, 0);
        }
        let (front, space) = self.input.split_at_mut(partial.len());
        front.copy_from_slice(partial);
        space
    }

    fn put_back(mut self) {
        if self.input.len() > 2 * READ_BYTES {
            self.input.truncate(READ_BYTES);
            self.input.shrink_to_fit();
        }
        self.replies.clear(REPLIES_BYTES_MAX);
        POOL.with_borrow_mut(|pool| {
            if pool.len() < POOL_MAX {
                pool.push(self);
            }
        });
    }
}
