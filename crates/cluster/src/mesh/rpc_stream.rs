//! Calls and replies on one long-lived stream to a peer, many in flight.
//!
//! Calls wait in a bounded queue. The writer takes all waiting calls at once, up to [`BATCH_MAX`],
//! and writes them together. The first call wakes it, and it lets the tasks that are ready run
//! before it writes, so the calls of all requests that arrived together leave in one packet.
//! Batches grow under load, and an idle stream adds no delay, because no timer is involved.
//!
//! A peer has one stream per [`StreamClass`], so that a large synchronisation never delays a check,
//! and no number of checks the pings that a lease depends on.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use quinn::{RecvStream, SendStream};
use tokio::sync::{mpsc, oneshot};

use super::codec;
use super::silence::LastSeen;
use super::traffic::{Kind, Traffic};
use super::wire::{Call, Numbered, Reply};

/// Calls of one stream that wait to be written or answered. At the bound a call is rejected with
/// [`CallError::Busy`].
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Calls per write.
const BATCH_MAX: usize = 256;
/// Bytes per read.
pub(super) const READ_BYTES_MAX: usize = 64 * 1024;

/// The stream of a peer that a call uses. The streams are an array in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamClass {
    /// What ownership depends on: pings, the cluster map, range transfers.
    Control,
    /// Small and urgent: checks.
    Checks,
    /// Large and not urgent: counters, states, gossip.
    Bulk,
}

impl StreamClass {
    pub(super) const COUNT: usize = 3;
}

/// Why a call has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("peer is not connected")]
    NotConnected,
    /// The peer has been silent for [`UNREACHABLE_AFTER`](super::UNREACHABLE_AFTER), so the call
    /// was not sent.
    #[error("peer is unreachable")]
    Unreachable,
    /// [`IN_FLIGHT_MAX`] calls are waiting already; the call was not sent.
    #[error("too many calls to the peer are waiting")]
    Busy,
    /// The call may have been applied.
    #[error("peer did not answer in time")]
    Timeout,
    /// The peer answered that it cannot handle the call now.
    #[error("peer declined the call")]
    Declined,
    /// The connection closed while the call was in flight; it may have been applied.
    #[error("connection to the peer closed")]
    Closed,
}

/// The sending end of a stream; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct RpcStream {
    queue: mpsc::Sender<Numbered<Call>>,
    pending: Arc<Mutex<HashMap<u64, oneshot::Sender<Reply>>>>,
    next: Arc<AtomicU64>,
}

/// The calls that wait to be written to a stream.
pub(super) type CallQueue = mpsc::Receiver<Numbered<Call>>;

impl RpcStream {
    pub(super) fn new() -> (Self, CallQueue) {
        let (sender, queue) = mpsc::channel(IN_FLIGHT_MAX);
        // Number 0 is for calls without a reply.
        let next = Arc::new(AtomicU64::new(1));
        (Self { queue: sender, pending: Arc::default(), next }, queue)
    }

    /// Sends `call` and waits for its reply until `deadline` from now.
    ///
    /// Cancel-safe: a cancelled call leaves nothing behind, though the peer may still receive and
    /// apply it.
    pub(super) async fn call(&self, call: Call, deadline: Duration) -> Result<Reply, CallError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut calls = self.pending.lock();
            if calls.len() >= IN_FLIGHT_MAX {
                return Err(CallError::Busy);
            }
            calls.insert(id, answer);
        }
        // Whether it gets a reply or is cancelled.
        scopeguard::defer!(drop(self.pending.lock().remove(&id)));
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

    /// Queues `call`, which gets no reply. Drops it when the queue is full, as a datagram would be.
    /// Returns whether it was queued.
    pub(super) fn notify(&self, call: Call) -> bool {
        self.queue.try_send(Numbered { id: 0, body: call }).is_ok()
    }

    /// Writes the calls of `queue` and hands replies to their callers, until the stream ends in
    /// either direction. Calls that are still waiting then fail with [`CallError::Closed`].
    pub(super) async fn run(
        self,
        queue: CallQueue,
        (send, recv): (SendStream, RecvStream),
        last_seen: LastSeen,
        version: u8,
        traffic: &Traffic,
    ) {
        // On drop, so that it also happens when this task is aborted. The call queue is dropped
        // before or together with the guard, so no call is added afterwards.
        scopeguard::defer!(self.pending.lock().clear());
        tokio::select! {
            () = self.write_calls(queue, send, version, traffic) => {}
            () = self.read_replies(recv, last_seen, version) => {}
        }
    }

    async fn write_calls(
        &self,
        mut queue: CallQueue,
        mut stream: SendStream,
        version: u8,
        traffic: &Traffic,
    ) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut bytes = BytesMut::new();
        while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
            // A woken task runs next, when one call is queued and others are about to be. One
            // packet for each would cost more than one for all.
            after_ready_tasks().await;
            while batch.len() < BATCH_MAX
                && let Ok(call) = queue.try_recv()
            {
                batch.push(call);
            }
            self.drop_cancelled(&mut batch);
            for call in batch.drain(..) {
                let before = bytes.len();
                match codec::encode(&call, version, &mut bytes) {
                    Ok(()) => traffic.sent(Kind::of(&call.body), bytes.len() - before),
                    Err(error) => {
                        tracing::error!(%error, "failed to encode a call; it will time out");
                    }
                }
            }
            if stream.write_all(&bytes).await.is_err() {
                return;
            }
            bytes.clear();
        }
    }

    /// Drops calls whose callers gave up while they were queued. These requests got a fallback
    /// answer already, so the owner must not count them too.
    fn drop_cancelled(&self, batch: &mut Vec<Numbered<Call>>) {
        let calls = self.pending.lock();
        batch.retain(|call| call.id == 0 || calls.contains_key(&call.id));
    }

    async fn read_replies(&self, mut stream: RecvStream, last_seen: LastSeen, version: u8) {
        let mut buffer = BytesMut::new();
        while let Ok(Some(chunk)) = stream.read_chunk(READ_BYTES_MAX, true).await {
            last_seen.touch();
            buffer.extend_from_slice(&chunk.bytes);
            if let Err(error) = self.complete_whole_frames(&mut buffer, version) {
                tracing::warn!(%error, "malformed reply; closed the connection");
                break;
            }
        }
    }

    fn complete_whole_frames(
        &self,
        buffer: &mut BytesMut,
        version: u8,
    ) -> Result<(), codec::Error> {
        while let Some(frame) = codec::split(buffer)? {
            let Numbered { id, body } = codec::decode::<Numbered<Reply>>(&frame, version)?;
            // The reply to a call that was cancelled is dropped.
            if let Some(answer) = self.pending.lock().remove(&id) {
                let _ = answer.send(body);
            }
        }
        Ok(())
    }
}

/// Lets the tasks that are ready run first. [`tokio::task::yield_now`] also looks whether others
/// have become ready, which costs a system call for each call of a moderate load.
async fn after_ready_tasks() {
    let mut has_waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::Timestamp;

    use super::super::codec::VERSION;
    use super::super::wire::PingStatus;
    use super::*;

    fn ping() -> Call {
        Call::Ping { clock: Timestamp::EPOCH, status: PingStatus::default() }
    }

    #[tokio::test]
    async fn a_full_queue_rejects_at_once() {
        let (stream, _queue) = RpcStream::new();
        for _ in 0..IN_FLIGHT_MAX {
            assert!(stream.notify(ping()));
        }
        assert!(!stream.notify(ping()));
        assert_eq!(stream.call(ping(), Duration::from_secs(60)).await, Err(CallError::Busy));
    }

    #[tokio::test]
    async fn a_call_that_timed_out_is_forgotten() {
        let (stream, _queue) = RpcStream::new();
        let answer = stream.call(ping(), Duration::from_millis(1)).await;
        assert_eq!(answer, Err(CallError::Timeout));
        assert!(stream.pending.lock().is_empty());
    }

    #[tokio::test]
    async fn replies_find_their_callers_in_any_order() {
        let (stream, mut queue) = RpcStream::new();
        let deadline = Duration::from_secs(60);
        let (first, second, ()) =
            tokio::join!(stream.call(ping(), deadline), stream.call(ping(), deadline), async {
                let mut replies = BytesMut::new();
                let ids = [queue.recv().await, queue.recv().await]
                    .map(|call| call.expect("a call was sent").id);
                for id in ids.into_iter().rev() {
                    let body = Reply::Differing(vec![u16::try_from(id).expect("small")]);
                    codec::encode(&Numbered { id, body }, VERSION, &mut replies).expect("encodes");
                }
                stream.complete_whole_frames(&mut replies, VERSION).expect("valid frames");
            });
        assert_eq!(first, Ok(Reply::Differing(vec![1])));
        assert_eq!(second, Ok(Reply::Differing(vec![2])));
    }
}
