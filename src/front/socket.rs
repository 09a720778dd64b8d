//! The socket of a listener: TCP, or a Unix socket for clients of this machine.
//!
//! A Unix socket is a file. One that a process left behind when it was killed is removed; one that
//! is listened on is not. The process that made it removes it when it stops listening. Who may
//! connect is who may write the file, which is decided by the folder and the umask.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio_util::either::Either;

/// An accepted connection.
pub type Stream = Either<TcpStream, UnixStream>;

/// The address that a client of a Unix socket has here: that of a client on loopback.
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A bound socket; connections are refused before [`Socket::listen`].
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpSocket),
    Unix(UnixSocket, SocketFile),
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket, removed when this is dropped, unless another process has put its own
/// in its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Its device and number.
    made: Option<(u64, u64)>,
}

impl Socket {
    /// Binds `addr`, also while connections of a process before are still closing.
    ///
    /// # Errors
    ///
    /// Those of the system; `AddrInUse` while another process has the port.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restarted node must not wait for the connections of its predecessor.
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        Ok(Self::Tcp(socket))
    }

    /// Binds the file `path`, after removing a socket that no process listens on.
    ///
    /// # Errors
    ///
    /// Those of the system; `AddrInUse` while a process listens on it, or if the file is no socket.
    pub fn bind_file(path: &Path) -> io::Result<Self> {
        if is_abandoned(path) {
            fs::remove_file(path)?;
        }
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let made = inode(path);
        Ok(Self::Unix(socket, SocketFile { path: path.to_owned(), made }))
    }

    /// The address with its port; `None` of a Unix socket.
    pub fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// Accepts connections from now on, of which up to `backlog` may wait.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn listen(self, backlog: u32) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(socket) => Listener::Tcp(socket.listen(backlog)?),
            Self::Unix(socket, file) => Listener::Unix(socket.listen(backlog)?, file),
        })
    }
}

/// The address with its port, for a person to read.
pub fn place_of(listener: &TcpListener) -> String {
    listener.local_addr().map_or_else(|_| "unknown".to_owned(), |addr| addr.to_string())
}

impl Listener {
    /// Where it listens: an address with its port, or a file.
    pub fn place(&self) -> String {
        match self {
            Self::Tcp(listener) => place_of(listener),
            Self::Unix(_, file) => file.path.display().to_string(),
        }
    }

    /// The next connection, and the address of its client.
    ///
    /// # Errors
    ///
    /// Those of the system, for lack of file descriptors or memory.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                (Either::Left(stream), peer)
            }
            Self::Unix(listener, _) => (Either::Right(listener.accept().await?.0), LOCAL),
        })
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been removed already.
        if inode(&self.path) == self.made {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn is_abandoned(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket
        && StdUnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_file_is_taken_over_when_its_process_has_gone_and_not_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tidegate.sock");
        let listener = Socket::bind_file(&path).and_then(|socket| socket.listen(1)).expect("free");
        let taken = Socket::bind_file(&path).expect_err("it is listened on");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        // As after a kill: the file stays.
        let Listener::Unix(killed, file) = listener else { unreachable!("a file") };
        std::mem::forget(file);
        drop(killed);
        let listener = Socket::bind_file(&path).and_then(|socket| socket.listen(1)).expect("free");
        let (connected, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        connected.expect("it listens");
        assert!(accepted.expect("a connection").1.ip().is_loopback());
        drop(listener);
        assert!(!path.exists(), "it is removed in the end");
    }

    #[tokio::test]
    async fn the_file_of_another_process_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tidegate.sock");
        // Bound, and not listened on yet.
        let first = Socket::bind_file(&path).expect("free");
        let second = Socket::bind_file(&path).and_then(|socket| socket.listen(1)).expect("free");
        drop(first);
        assert!(path.exists(), "it is the second's");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes");
        fs::write(&path, "text").expect("written");
        assert_eq!(Socket::bind_file(&path).expect_err("a file").kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).expect("still there"), "text");
    }
}
