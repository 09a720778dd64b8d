//! How the server is reached: address, TLS, and how a connection that died unseen is found out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::config::Xds;

/// For a connection and its handshakes.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A silent connection is probed after half a minute and given up within a minute. By TCP and not
/// by HTTP/2: servers written in Go take pings more often than every five minutes for an attack.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Why the server cannot even be dialed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is none.
    #[error("xds.server: {server:?} is no server; write HOST:PORT or https://HOST:PORT")]
    Server {
        /// What was given.
        server: String,
    },
    /// A file is not there, or not to be read.
    #[error("{key}: {}: {source}; check the path and who may read it", .path.display())]
    Unreadable {
        /// The key that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The files are read and make no TLS.
    #[error("xds.tls_*: {0}; give PEM files, and a key that belongs to its certificate")]
    Tls(String),
}

/// The server of `xds`. Files are read anew each time, so that a certificate that was renewed is
/// used with the next connection.
pub(super) fn endpoint(xds: &Xds) -> Result<Endpoint, Error> {
    let url = xds.url().unwrap_or_default();
    let endpoint = Endpoint::from_shared(url.clone())
        .map_err(|_| Error::Server { server: url.clone() })?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Some(KEEPALIVE_IDLE))
        .tcp_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .tcp_keepalive_retries(Some(KEEPALIVE_PROBES));
    if !url.starts_with("https://") {
        return Ok(endpoint);
    }
    endpoint.tls_config(tls(xds)?).map_err(|error| Error::Tls(causes(&error)))
}

fn tls(xds: &Xds) -> Result<ClientTlsConfig, Error> {
    let mut tls = ClientTlsConfig::new();
    tls = match &xds.tls_ca {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read("xds.tls_ca", path)?)),
        None => tls.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&xds.tls_cert, &xds.tls_key) {
        let cert = read("xds.tls_cert", cert)?;
        tls = tls.identity(Identity::from_pem(cert, read("xds.tls_key", key)?));
    }
    if let Some(name) = &xds.server_name {
        tls = tls.domain_name(name.clone());
    }
    Ok(tls)
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Unreadable { key, path: path.to_owned(), source })
}

/// An error with what caused it: tonic's own texts say no more than "transport error".
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.to_string();
        if !text.ends_with(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = error.source();
    }
    text
}
