//! The serving end of a stream: what a peer asks is answered.
//!
//! Whole frames are answered in order, all that one read brought in one write. An answer that has
//! to wait for another node ([`Answer::Later`]) does not hold up what comes behind it: replies
//! carry the number of their call, so their order does not matter.
//!
//! **Bound:** [`LATER_MAX`] answers of a stream wait at once. Beyond it a call is answered
//! [`Reply::Unconfirmed`]: what it counted is counted, and nobody waits for more.

use std::sync::Arc;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quinn::{RecvStream, SendStream};

use super::peer::Peer;
use super::rpc_stream::READ_BYTES_MAX;
use super::wire::{Call, Numbered, Reply};
use super::{Answer, Service, codec};

/// Most answers of one stream that wait at once.
const LATER_MAX: usize = 1_024;

/// Answers that wait.
type Later = FuturesUnordered<BoxFuture<'static, Numbered<Reply>>>;

/// Answers what `peer` asks on one stream, until it ends.
pub(super) async fn serve(
    peer: Arc<Peer>,
    service: Arc<dyn Service>,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let mut asked = BytesMut::new();
    let mut replies = BytesMut::new();
    let mut later = Later::new();
    loop {
        // Both are cancel-safe: a chunk or an answer that is not taken now is there the next time.
        let served = tokio::select! {
            chunk = recv.read_chunk(READ_BYTES_MAX, true) => match chunk {
                Ok(Some(chunk)) => {
                    peer.last_seen.now();
                    asked.extend_from_slice(&chunk.bytes);
                    answer_whole_frames(&peer, &*service, &mut asked, &mut replies, &mut later)
                }
                Ok(None) if !asked.is_empty() => Err(codec::Error::Truncated(asked.len())),
                Ok(None) | Err(_) => return,
            },
            Some(reply) = later.next() => codec::encode(&reply, &mut replies),
        };
        if let Err(error) = served {
            tracing::warn!(peer = %peer.id, %error, "close a stream with a malformed frame");
            service.malformed(&peer.id);
            let _ = send.reset(MALFORMED);
            let _ = recv.stop(MALFORMED);
            return;
        }
        if !replies.is_empty() && send.write_all(&replies).await.is_err() {
            return;
        }
        replies.clear();
    }
}

/// The code that a stream with a malformed frame is closed with.
const MALFORMED: quinn::VarInt = quinn::VarInt::from_u32(1);

fn answer_whole_frames(
    peer: &Peer,
    service: &dyn Service,
    asked: &mut BytesMut,
    replies: &mut BytesMut,
    later: &mut Later,
) -> Result<(), codec::Error> {
    while let Some(frame) = codec::split(asked)? {
        let Numbered { id, body } = codec::decode::<Numbered<Call>>(&frame)?;
        let reply = match service.answer(peer, body) {
            Answer::Now(reply) => reply,
            Answer::Later(_) if later.len() >= LATER_MAX => Reply::Unconfirmed,
            Answer::Later(reply) => {
                if id != 0 {
                    later.push(Box::pin(async move { Numbered { id, body: reply.await } }));
                }
                continue;
            }
        };
        if id != 0 {
            codec::encode(&Numbered { id, body: reply }, replies)?;
        }
    }
    Ok(())
}
