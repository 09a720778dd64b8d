//! The files of TLS of a listener, which each section of a listener names with the same keys.

use std::path::Path;

use super::proxy::Proxy;
use super::sections::{Admin, Grpc, Gubernator, Http, Resp};

/// What the TLS of a listener is made of. Without `cert` and `key` it has none.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'c> {
    /// The section that names the files.
    pub section: &'static str,
    pub keys: TlsKeys,
    /// Names of protocols (ALPN), the preferred first.
    pub protocols: &'static [&'static [u8]],
    /// The chain, the listener's own certificate first.
    pub cert: Option<&'c Path>,
    pub key: Option<&'c Path>,
    /// Authorities of client certificates; without it, clients need none.
    pub client_ca: Option<&'c Path>,
    /// The name that a client's certificate must carry.
    pub client_san: Option<&'c str>,
}

/// The keys that name the files.
#[derive(Clone, Copy, Debug)]
pub struct TlsKeys {
    pub cert: &'static str,
    pub key: &'static str,
    pub client_ca: &'static str,
    pub client_san: &'static str,
}

macro_rules! tls_keys {
    ($section:literal) => {
        TlsKeys {
            cert: concat!($section, ".tls_cert"),
            key: concat!($section, ".tls_key"),
            client_ca: concat!($section, ".client_ca"),
            client_san: concat!($section, ".client_san"),
        }
    };
}

const HTTP: &[&[u8]] = &[b"h2", b"http/1.1"];

/// The method `tls` of a section that has all four keys. They are not a struct of their own,
/// because `serde(flatten)` does not go with `deny_unknown_fields`.
macro_rules! tls_files {
    ($section:ty, $name:literal, $protocols:expr) => {
        impl $section {
            /// The files of TLS of this listener.
            pub fn tls(&self) -> TlsFiles<'_> {
                TlsFiles {
                    section: $name,
                    keys: tls_keys!($name),
                    protocols: $protocols,
                    cert: self.tls_cert.as_deref(),
                    key: self.tls_key.as_deref(),
                    client_ca: self.client_ca.as_deref(),
                    client_san: self.client_san.as_deref(),
                }
            }
        }
    };
}

tls_files!(Http, "http", HTTP);
tls_files!(Grpc, "grpc", &[b"h2"]);
// Redis clients name no protocol.
tls_files!(Resp, "resp", &[]);
tls_files!(Admin, "admin", HTTP);
tls_files!(Gubernator, "gubernator", HTTP);

impl Proxy {
    /// The files of TLS of this listener, which asks clients for no certificate.
    pub fn tls(&self) -> TlsFiles<'_> {
        TlsFiles {
            section: "proxy",
            keys: tls_keys!("proxy"),
            protocols: HTTP,
            cert: self.tls_cert.as_deref(),
            key: self.tls_key.as_deref(),
            client_ca: None,
            client_san: None,
        }
    }
}
