//! One connection: reads, has it decided, writes.
//!
//! A connection that waits holds no buffers but the beginning of a command, if there is one: what a
//! read needs lies on the [`Desk`] of its thread.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::batch::{self, REPLIES_BYTES_MAX, Scratch, Shared};
use super::reply::Replies;
use super::session::{Next, Session};
use super::watch;
use crate::decide::Throttle;

/// Bytes of one read. A pipeline of some hundred commands fits.
const READ_BYTES: usize = 16 * 1024;

/// One connection.
pub(super) struct Connection<D> {
    pub(super) shared: Arc<Shared<D>>,
    pub(super) stream: TcpStream,
    pub(super) session: Session,
    pub(super) idle_timeout: Duration,
    pub(super) drain: Drain,
}

/// Tells connections to end: a flag that is cheap to look at, and a token that wakes.
#[derive(Clone, Debug, Default)]
pub(super) struct Drain {
    pub(super) is_on: Arc<AtomicBool>,
    pub(super) wake: CancellationToken,
}

/// What a connection waited for.
enum Event {
    Readable,
    /// The timer.
    Due,
    Drain,
    /// The socket failed.
    Gone,
}

/// Where what was read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// With a whole command.
    End,
    /// Inside of a command that had begun before.
    SameCommand,
    /// Inside of a command, behind others.
    NextCommand,
}

/// What ends a connection.
#[derive(Debug)]
struct Ended;

impl<D: Throttle> Connection<D> {
    /// Serves until the client ends the connection, patience does, or a drain.
    pub(super) async fn run(mut self) {
        let begun = Instant::now();
        let timeouts = self.shared.bounds.header_timeout;
        // What must be there by when: the password, or the rest of a command.
        let mut due = (!self.session.is_let_in()).then_some(begun + timeouts);
        let mut timer = pin!(tokio::time::sleep_until(due.unwrap_or(begun + self.idle_timeout)));
        let wake = self.drain.wake.clone();
        let mut woken = pin!(wake.cancelled());
        // Timer and drain are told once whom to wake. Then flags say whether they have: two reads
        // instead of two locks for each wait.
        let mut is_watched = false;
        let mut is_used = false;
        let mut begun_command = Vec::new();
        loop {
            let event = poll_fn(|cx| {
                match self.stream.poll_read_ready(cx) {
                    Poll::Ready(Ok(())) => return Poll::Ready(Event::Readable),
                    Poll::Ready(Err(_)) => return Poll::Ready(Event::Gone),
                    Poll::Pending => {}
                }
                if self.drain.is_on.load(Ordering::Relaxed) {
                    return Poll::Ready(Event::Drain);
                }
                if timer.is_elapsed() {
                    return Poll::Ready(Event::Due);
                }
                if !is_watched {
                    is_watched = true;
                    if timer.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Event::Due);
                    }
                    if woken.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Event::Drain);
                    }
                }
                Poll::Pending
            });
            match event.await {
                Event::Gone => return,
                Event::Readable => {
                    watch::came();
                    let mut desk = Desk::take();
                    let read = self.serve(&mut desk, &mut begun_command).await;
                    desk.put_back();
                    let Ok(reached) = read else { return };
                    is_used = true;
                    due = match reached {
                        _ if !self.session.is_let_in() => due,
                        Reached::End => None,
                        Reached::SameCommand if due.is_some() => due,
                        Reached::SameCommand | Reached::NextCommand => {
                            Some(Instant::now() + timeouts)
                        }
                    };
                    if let Some(at) = due
                        && at < timer.deadline()
                    {
                        timer.as_mut().reset(at);
                        is_watched = false;
                    }
                }
                Event::Due => {
                    let now = Instant::now();
                    let next = match due {
                        Some(at) if at <= now => {
                            self.shared.stats.slow.add(1);
                            return;
                        }
                        Some(at) => at,
                        None if is_used => now + self.idle_timeout,
                        None => {
                            self.shared.stats.idle.add(1);
                            return;
                        }
                    };
                    is_used = false;
                    timer.as_mut().reset(next);
                    is_watched = false;
                }
                Event::Drain if begun_command.is_empty() => return,
                // Its rest may still come, within the patience for it.
                Event::Drain => {
                    self.last_command(&mut begun_command, timer.as_mut()).await;
                    return;
                }
            }
        }
    }

    /// Waits for the rest of a command while the door drains.
    async fn last_command(&mut self, begun: &mut Vec<u8>, mut timer: Pin<&mut tokio::time::Sleep>) {
        while !begun.is_empty() {
            tokio::select! {
                ready = self.stream.readable() => if ready.is_err() { return },
                () = timer.as_mut() => return,
            }
            let mut desk = Desk::take();
            let read = self.serve(&mut desk, begun).await;
            desk.put_back();
            if read.is_err() {
                return;
            }
        }
    }

    /// Reads once, answers what is whole, and leaves the beginning of the next command in `begun`.
    async fn serve(&mut self, desk: &mut Desk, begun: &mut Vec<u8>) -> Result<Reached, Ended> {
        let room = desk.room(begun);
        let read = match self.read(room).await {
            Some(Ok(0) | Err(_)) => return Err(Ended),
            Some(Ok(read)) => read,
            None => {
                let is_begun = !begun.is_empty();
                return Ok(if is_begun { Reached::SameCommand } else { Reached::End });
            }
        };
        let end = begun.len() + read;
        let Desk { input, replies, scratch } = desk;
        let mut at = 0;
        loop {
            let bytes = input.get(at..end).unwrap_or_default();
            let done = batch::run(&self.shared, &mut self.session, bytes, scratch, replies).await;
            at += done.bytes;
            self.send(replies.bytes()).await?;
            replies.clear(REPLIES_BYTES_MAX);
            if done.next == Next::Close {
                return Err(Ended);
            }
            if !done.is_more {
                break;
            }
        }
        begun.clear();
        if at == end {
            begun.shrink_to(0);
            return Ok(Reached::End);
        }
        begun.extend_from_slice(input.get(at..end).unwrap_or_default());
        Ok(if at == 0 { Reached::SameCommand } else { Reached::NextCommand })
    }

    /// Reads what is there; `None` when there is nothing after all. Never waits.
    ///
    /// Not `try_read`: that would take a read that did not fill the room for one that others may
    /// follow, and ask the system once more for each request.
    async fn read(&mut self, room: &mut [u8]) -> Option<io::Result<usize>> {
        let mut room = ReadBuf::new(room);
        poll_fn(|cx| {
            let polled = Pin::new(&mut self.stream).poll_read(cx, &mut room);
            Poll::Ready(match polled {
                Poll::Ready(outcome) => Some(outcome.map(|()| room.filled().len())),
                Poll::Pending => None,
            })
        })
        .await
    }

    /// Sends all of `bytes`. A client that takes nothing of them for long is cut off; until then
    /// nothing more is read of it.
    async fn send(&mut self, mut bytes: &[u8]) -> Result<(), Ended> {
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let timeouts = self.shared.bounds.header_timeout;
                    match tokio::time::timeout(timeouts, self.stream.writable()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Err(Ended),
                        Err(_) => {
                            self.shared.stats.slow.add(1);
                            return Err(Ended);
                        }
                    }
                }
                Err(_) => return Err(Ended),
            }
        }
        Ok(())
    }
}

/// What one read needs: taken when there is something to read, put back when it is answered. While
/// a verdict is waited for (of another node) it is with the connection, so a thread has as many as
/// connections wait at once.
#[derive(Debug, Default)]
struct Desk {
    input: Vec<u8>,
    replies: Replies,
    scratch: Scratch,
}

/// Most desks that a thread keeps for later.
const DESKS_MAX: usize = 64;

thread_local! {
    static DESKS: RefCell<Vec<Desk>> = const { RefCell::new(Vec::new()) };
}

impl Desk {
    fn take() -> Self {
        DESKS.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    /// Lays `begun` at the beginning of the input; the room behind it.
    fn room(&mut self, begun: &[u8]) -> &mut [u8] {
        let length = begun.len() + READ_BYTES;
        if self.input.len() < length {
            self.input.resize(length, 0);
        }
        let (front, room) = self.input.split_at_mut(begun.len());
        front.copy_from_slice(begun);
        room
    }

    fn put_back(mut self) {
        if self.input.len() > 2 * READ_BYTES {
            self.input.truncate(READ_BYTES);
            self.input.shrink_to_fit();
        }
        self.replies.clear(REPLIES_BYTES_MAX);
        DESKS.with_borrow_mut(|desks| {
            if desks.len() < DESKS_MAX {
                desks.push(self);
            }
        });
    }
}
