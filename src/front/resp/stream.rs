//! The bytes of a connection: those of its socket, or of TLS on it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    /// Boxed: it is large, and most listeners have none.
    Tls(Box<Secured>),
}

#[derive(Debug)]
pub(super) struct Secured {
    stream: TlsStream<TcpStream>,
    /// Whether bytes may have been decrypted that are not read yet: then the socket does not tell
    /// that there is something to read.
    may_have_more: bool,
}

impl Stream {
    /// After the handshake, with which the first command may have come.
    pub(super) fn tls(stream: TlsStream<TcpStream>) -> Self {
        Self::Tls(Box::new(Secured { stream, may_have_more: true }))
    }

    /// Ready when it is worth reading.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_read_ready(cx),
            Self::Tls(tls) if tls.may_have_more => Poll::Ready(Ok(())),
            Self::Tls(tls) => tls.stream.get_ref().0.poll_read_ready(cx),
        }
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Reads what has arrived; `None` when there is nothing. Never waits.
    ///
    /// Not `try_read`, which takes one more system call per request: it does not clear the
    /// readiness after a read that did not fill the buffer.
    pub(super) async fn read(&mut self, space: &mut [u8]) -> Option<io::Result<usize>> {
        let mut space = ReadBuf::new(space);
        poll_fn(|cx| {
            let polled = match self {
                Self::Plain(socket) => Pin::new(socket).poll_read(cx, &mut space),
                Self::Tls(tls) => {
                    let polled = Pin::new(&mut tls.stream).poll_read(cx, &mut space);
                    tls.may_have_more = polled.is_ready();
                    polled
                }
            };
            Poll::Ready(match polled {
                Poll::Ready(result) => Some(result.map(|()| space.filled().len())),
                Poll::Pending => None,
            })
        })
        .await
    }

    /// Sends all of `bytes`, however long the client takes.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes).await,
            Self::Tls(tls) => {
                tls.stream.write_all(bytes).await?;
                tls.stream.flush().await
            }
        }
    }

    /// Sends what the system takes at once, and returns how much that is. Of TLS it is nothing:
    /// what was encrypted has to be sent whole.
    pub(super) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        let Self::Plain(socket) = self else { return Ok(0) };
        match socket.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            sent => sent,
        }
    }
}
