//! Binding addresses, and listening on them later.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use crate::config::UserError;

/// Connections waiting to be accepted; `net.core.somaxconn` applies too.
const BACKLOG: u32 = 1_024;

pub(super) fn bind(key: &str, addr: Option<SocketAddr>) -> Result<Option<TcpSocket>, UserError> {
    let Some(addr) = addr else { return Ok(None) };
    let bound = || {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restarted node must not wait for the connections of its predecessor.
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        Ok(socket)
    };
    bound().map(Some).map_err(|error| UserError::cannot_listen(key, addr, &error))
}

/// Listens once `joined` is cancelled; `None` when there is no such listener, or the node drains
/// first.
pub(super) async fn open_after(
    key: &str,
    socket: Option<TcpSocket>,
    joined: &CancellationToken,
    drain: &CancellationToken,
) -> Result<Option<TcpListener>, UserError> {
    let Some(socket) = socket else { return Ok(None) };
    tokio::select! {
        biased;
        () = joined.cancelled() => {}
        () = drain.cancelled() => return Ok(None),
    }
    let addr = socket.local_addr();
    socket.listen(BACKLOG).map(Some).map_err(|error| {
        let addr = addr.unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        UserError::cannot_listen(key, addr, &error)
    })
}

pub(super) fn addr(socket: Option<&TcpSocket>) -> Option<SocketAddr> {
    socket.and_then(|socket| socket.local_addr().ok())
}
