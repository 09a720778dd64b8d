//! One long-lived stream of calls to a peer, many in flight.
//!
//! Calls wait in a bounded queue. Whenever the writer is free it takes all that wait, up to
//! [`BATCH_MAX`], and writes them at once. The first one wakes it, and it lets every other task
//! that is ready go first: the calls of all requests that came together leave in one packet. Under
//! load batches grow by themselves, and an idle lane adds no delay, because no timer is involved.
//!
//! A peer has two lanes, so that a large synchronisation never stands in front of a check.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use quinn::{RecvStream, SendStream};
use tokio::sync::{mpsc, oneshot};

use super::codec;
use super::peer::LastSeen;
use super::wire::{Call, Numbered, Reply};

/// Calls of one lane that wait to be written or answered. At the bound: refused as
/// [`CallError::Busy`].
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Calls that one write takes.
const BATCH_MAX: usize = 256;
/// What one read takes off the stream.
pub(super) const READ_BYTES_MAX: usize = 64 * 1024;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no connection to the peer.
    #[error("peer is not connected")]
    NotConnected,
    /// Nothing was heard from the peer for so long that a call would only wait.
    #[error("peer is silent")]
    Silent,
    /// Too many calls wait already.
    #[error("too many calls to the peer wait")]
    Busy,
    /// The deadline passed.
    #[error("peer did not answer in time")]
    Timeout,
    /// The peer answered that it cannot do it now.
    #[error("peer cannot do it now")]
    Declined,
    /// The connection closed while the call was in flight.
    #[error("connection to the peer closed")]
    Closed,
}

/// The sending end of a lane; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RpcStream {
    queue: mpsc::Sender<Numbered<Call>>,
    pending: Arc<PendingCalls>,
    next: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct PendingCalls {
    calls: Mutex<HashMap<u64, oneshot::Sender<Reply>>>,
}

/// The receiving end of a lane's queue, to be written to a stream.
pub(super) type Outbox = mpsc::Receiver<Numbered<Call>>;

impl RpcStream {
    pub(super) fn new() -> (Self, Outbox) {
        let (queue, outbox) = mpsc::channel(IN_FLIGHT_MAX);
        // Number 0 is for messages that want no reply.
        (Self { queue, pending: Arc::default(), next: Arc::new(AtomicU64::new(1)) }, outbox)
    }

    /// Sends `call` and waits for its reply until `deadline` from now.
    ///
    /// Cancel-safe: a caller that goes away leaves nothing behind, though the peer may still
    /// receive and apply the call.
    pub(super) async fn call(&self, call: Call, deadline: Duration) -> Result<Reply, CallError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut calls = self.pending.calls.lock();
            if calls.len() >= IN_FLIGHT_MAX {
                return Err(CallError::Busy);
            }
            calls.insert(id, answer);
        }
        let _forget = Forget { pending: &self.pending, id };
        self.queue.try_send(Numbered { id, body: call }).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => CallError::Busy,
            mpsc::error::TrySendError::Closed(_) => CallError::NotConnected,
        })?;
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(CallError::Closed),
            Err(_) => Err(CallError::Timeout),
        }
    }

    /// Sends `call` without waiting for anything; dropped when the queue is full, as a datagram
    /// would be. Returns whether it was queued.
    pub(super) fn tell(&self, call: Call) -> bool {
        self.queue.try_send(Numbered { id: 0, body: call }).is_ok()
    }

    /// Writes what waits in `outbox` and hands replies to their callers, until the stream ends or
    /// breaks in either direction. Callers still waiting then are told that it closed.
    pub(super) async fn run(
        self,
        outbox: Outbox,
        (send, recv): (SendStream, RecvStream),
        last_seen: LastSeen,
    ) {
        // Also when this task is ended from outside: whoever waits must not wait for the deadline.
        let _release = Release(&self.pending);
        tokio::select! {
            () = self.write_calls(outbox, send) => {}
            () = self.read_replies(recv, last_seen) => {}
        }
    }

    /// Writes what waits in `outbox` to `stream`, until the lane or the stream is gone.
    async fn write_calls(&self, mut outbox: Outbox, mut stream: SendStream) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut bytes = BytesMut::new();
        while outbox.recv_many(&mut batch, BATCH_MAX).await > 0 {
            // A woken task runs next, with one call and others about to come: a packet for each
            // would cost more than all of them together.
            tokio::task::yield_now().await;
            while batch.len() < BATCH_MAX
                && let Ok(call) = outbox.try_recv()
            {
                batch.push(call);
            }
            self.forget_unwanted(&mut batch);
            for call in batch.drain(..) {
                if let Err(error) = codec::encode(&call, &mut bytes) {
                    tracing::error!(%error, "encode a call to a peer");
                }
            }
            if stream.write_all(&bytes).await.is_err() {
                return;
            }
            bytes.clear();
        }
    }

    /// Drops the calls whose callers gave up while they waited. These have been answered by policy:
    /// the owner must not count them again.
    fn forget_unwanted(&self, batch: &mut Vec<Numbered<Call>>) {
        let calls = self.pending.calls.lock();
        batch.retain(|call| call.id == 0 || calls.contains_key(&call.id));
    }

    async fn read_replies(&self, mut stream: RecvStream, last_seen: LastSeen) {
        let mut buffer = BytesMut::new();
        while let Ok(Some(chunk)) = stream.read_chunk(READ_BYTES_MAX, true).await {
            last_seen.now();
            buffer.extend_from_slice(&chunk.bytes);
            if let Err(error) = self.complete_whole_frames(&mut buffer) {
                tracing::warn!(%error, "close a connection with a malformed reply");
                break;
            }
        }
    }

    fn complete_whole_frames(&self, buffer: &mut BytesMut) -> Result<(), codec::Error> {
        while let Some(frame) = codec::split(buffer)? {
            let Numbered { id, body } = codec::decode::<Numbered<Reply>>(&frame)?;
            // A caller that gave up is no longer there; its reply is dropped.
            if let Some(answer) = self.pending.calls.lock().remove(&id) {
                let _ = answer.send(body);
            }
        }
        Ok(())
    }
}

/// Tells all callers that the lane closed. The lane's outbox is dropped before or with it, so no
/// call comes behind.
struct Release<'a>(&'a PendingCalls);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.calls.lock().clear();
    }
}

/// Forgets a call when its caller is done with it, however that came.
struct Forget<'a> {
    pending: &'a PendingCalls,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.pending.calls.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Timestamp;
    use tidegate_ownership::OwnershipStatus;

    use super::*;

    fn ping() -> Call {
        Call::Ping { clock: Timestamp::EPOCH, ownership_status: OwnershipStatus::default() }
    }

    #[tokio::test]
    async fn a_full_lane_refuses_at_once() {
        let (stream, _outbox) = RpcStream::new();
        for _ in 0..IN_FLIGHT_MAX {
            assert!(stream.tell(ping()));
        }
        assert!(!stream.tell(ping()));
        assert_eq!(stream.call(ping(), Duration::from_secs(60)).await, Err(CallError::Busy));
    }

    #[tokio::test]
    async fn a_call_that_timed_out_is_forgotten() {
        let (stream, _outbox) = RpcStream::new();
        let answer = stream.call(ping(), Duration::from_millis(1)).await;
        assert_eq!(answer, Err(CallError::Timeout));
        assert!(stream.pending.calls.lock().is_empty());
    }

    #[tokio::test]
    async fn replies_find_their_callers_in_any_order() {
        let (stream, mut outbox) = RpcStream::new();
        let deadline = Duration::from_secs(60);
        let (first, second, ()) =
            tokio::join!(stream.call(ping(), deadline), stream.call(ping(), deadline), async {
                let mut replies = BytesMut::new();
                let ids = [outbox.recv().await, outbox.recv().await]
                    .map(|call| call.expect("a call was sent").id);
                for id in ids.into_iter().rev() {
                    let body = Reply::Differing(vec![u16::try_from(id).expect("small")]);
                    codec::encode(&Numbered { id, body }, &mut replies).expect("encodes");
                }
                stream.complete_whole_frames(&mut replies).expect("valid frames");
            });
        assert_eq!(first, Ok(Reply::Differing(vec![1])));
        assert_eq!(second, Ok(Reply::Differing(vec![2])));
    }
}
