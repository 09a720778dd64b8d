//! A socket that is closed only after its client has read what was sent.
//!
//! A system that closes a socket with unread bytes tells the client so by a reset, and the
//! client then drops what it has received: the 429 that was sent while it still uploaded. So after
//! the end of the own side is sent, what arrives is discarded until the client closes, for at most
//! [`LINGER_MAX`].
//!
//! Source: RFC 9112, 9.6.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Time for a client to read the last response and close.
pub(super) const LINGER_MAX: Duration = Duration::from_secs(2);

/// A stream whose shutdown waits for the other side.
#[derive(Debug)]
pub(super) struct Lingering<S> {
    stream: S,
    /// Off for a connection that has switched to another protocol, which ends each side by itself.
    is_on: Arc<AtomicBool>,
    /// Started when the own side is closed.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Lingering<S> {
    /// Lingers only while `is_on`.
    pub(super) fn new(stream: S, is_on: Arc<AtomicBool>) -> Self {
        Self { stream, is_on, until: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, is_on, until } = &mut *self;
        let until = if let Some(until) = until {
            until
        } else {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            if !is_on.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            until.insert(Box::pin(tokio::time::sleep(LINGER_MAX)))
        };
        let mut discarded = [0; 4096];
        loop {
            if until.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buf = ReadBuf::new(&mut discarded);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                // The client has closed, in one way or another.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn lingering<S>(stream: S, is_on: bool) -> Lingering<S> {
        Lingering::new(stream, Arc::new(AtomicBool::new(is_on)))
    }

    #[tokio::test(start_paused = true)]
    async fn what_arrives_after_the_end_is_discarded_until_the_client_closes() {
        let (server, mut client) = duplex(64);
        let closed = tokio::spawn(async move { lingering(server, true).shutdown().await });
        client.write_all(&[7; 10_000]).await.expect("taken");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("the end");
        assert!(rest.is_empty() && !closed.is_finished());
        drop(client);
        closed.await.expect("a task").expect("closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_close_is_not_waited_for_longer() {
        let start = tokio::time::Instant::now();
        let (server, _client) = duplex(64);
        lingering(server, true).shutdown().await.expect("closed");
        assert_eq!(start.elapsed().as_secs(), LINGER_MAX.as_secs());
        let (server, _client) = duplex(64);
        lingering(server, false).shutdown().await.expect("closed");
        assert_eq!(start.elapsed().as_secs(), LINGER_MAX.as_secs());
    }
}
