//! Spans that have ended and are not sent yet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span as Record;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Counters;

/// The most spans that wait. At the bound further ones are dropped, and counted.
pub const QUEUE_MAX: usize = 2_048;
/// The most spans of one message to the receiver.
pub const BATCH_MAX: usize = 512;
/// How long spans wait for others to be sent with them.
const DELAY: Duration = Duration::from_secs(1);

/// Where spans go in.
#[derive(Debug)]
pub(super) struct Entrance {
    sender: mpsc::Sender<Record>,
    counters: Arc<Counters>,
}

/// Where they come out.
#[derive(Debug)]
pub struct Queue {
    receiver: mpsc::Receiver<Record>,
    pub counters: Arc<Counters>,
}

impl Entrance {
    /// Never waits.
    pub(super) fn put(&self, record: Record) {
        if self.sender.try_send(record).is_err() {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Queue {
    pub(super) fn new() -> (Entrance, Self) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let counters = Arc::<Counters>::default();
        (Entrance { sender, counters: counters.clone() }, Self { receiver, counters })
    }

    /// Appends what is to be sent next: at most [`BATCH_MAX`] spans, no later than a second after
    /// the first of them. Cancel-safe: what is in `batch` stays there, and is a part of the next.
    pub async fn next(&mut self, batch: &mut Vec<Record>) {
        if batch.is_empty() {
            self.receiver.recv_many(batch, BATCH_MAX).await;
        }
        let fill = async {
            while batch.len() < BATCH_MAX {
                let room = BATCH_MAX - batch.len();
                if self.receiver.recv_many(batch, room).await == 0 {
                    return;
                }
            }
        };
        let _ = timeout(DELAY, fill).await;
    }

    /// Appends what is there, at most [`BATCH_MAX`] spans, without waiting.
    pub fn rest(&mut self, batch: &mut Vec<Record>) {
        while batch.len() < BATCH_MAX
            && let Ok(record) = self.receiver.try_recv()
        {
            batch.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_drops_and_counts() {
        let (entrance, mut queue) = Queue::new();
        for _ in 0..QUEUE_MAX + 3 {
            entrance.put(Record::default());
        }
        assert_eq!(queue.counters.dropped.load(Ordering::Relaxed), 3);
        let mut batch = Vec::new();
        queue.next(&mut batch).await;
        assert_eq!(batch.len(), BATCH_MAX);
        entrance.put(Record::default());
        assert_eq!(queue.counters.dropped.load(Ordering::Relaxed), 3, "there is room again");
    }
}
