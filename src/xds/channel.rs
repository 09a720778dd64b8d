//! The endpoint of the server: address, TLS, and keepalive to detect a dead connection.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::config::Xds;

/// For a connection and its handshakes.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is probed after half a minute and closed within a minute. With TCP and not
/// HTTP/2 probes: gRPC servers in Go close connections that ping more often than every five
/// minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Why the endpoint cannot be built from the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("xds.server: {server:?} is not an address; write HOST:PORT or https://HOST:PORT")]
    Server { server: String },
    #[error("{key}: {}: {source}; check the path and who may read it", .path.display())]
    Unreadable {
        /// The configuration key of the file.
        key: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The files are readable and not valid for TLS.
    #[error("xds.tls_*: {0}; give PEM files, and a key that belongs to its certificate")]
    Tls(String),
}

/// The endpoint of the server. Files are read each time, so that the next connection uses a renewed
/// certificate.
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

/// An error with its causes: the text of a tonic error is "transport error" and no more.
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
