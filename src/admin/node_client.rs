//! How a command reaches a listener of a node that has TLS, or wants a certificate or a token.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;
use hyper::body::Body;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::config::UserError;
use crate::front::tls;

/// Whom a command trusts, and what it shows.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Reach {
    /// Authorities of the node's certificate (PEM), for https; else those of the system
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA", hide_env = true)]
    pub ca: Option<PathBuf>,
    /// Certificate to show (PEM), where the listener wants one
    #[arg(
        long,
        value_name = "FILE",
        env = "TIDEGATE_CLIENT_CERT",
        hide_env = true,
        requires = "client_key"
    )]
    pub client_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(
        long,
        value_name = "FILE",
        env = "TIDEGATE_CLIENT_KEY",
        hide_env = true,
        requires = "client_cert"
    )]
    pub client_key: Option<PathBuf>,
}

/// A client of listeners with and without TLS.
pub type NodeClient<B> = Client<HttpsConnector<HttpConnector>, B>;

impl Reach {
    /// A client for `url` that opens connections with `http`.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is no certificate or key.
    pub fn client<B>(&self, url: &Uri, mut http: HttpConnector) -> Result<NodeClient<B>, UserError>
    where
        B: Body<Data: Send> + Send,
    {
        http.enforce_http(false);
        // Without TLS no authority is looked for.
        let is_plain = url.scheme() != Some(&Scheme::HTTPS);
        let roots = if is_plain { RootCertStore::empty() } else { self.roots()? };
        let https = HttpsConnector::from((http, self.config(roots)?));
        Ok(Client::builder(TokioExecutor::new()).build(https))
    }

    fn config(&self, roots: RootCertStore) -> Result<ClientConfig, UserError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| UserError::new(error.to_string(), "report it"))?
            .with_root_certificates(roots);
        let (Some(cert), Some(key)) = (&self.client_cert, &self.client_key) else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
        let chain: Vec<_> = chain.map_err(|error| unusable(cert, &error))?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
        builder.with_client_auth_cert(chain, key).map_err(|error| unusable(cert, &error))
    }

    fn roots(&self) -> Result<RootCertStore, UserError> {
        if let Some(file) = &self.ca {
            return tls::roots(file)
                .map_err(|error| UserError::new(error.to_string(), "check --ca"));
        }
        tls::system_roots().ok_or_else(|| {
            UserError::new("the system has no authorities", "name those of the node with --ca")
        })
    }
}

fn unusable(file: &Path, error: &dyn std::error::Error) -> UserError {
    let fix = "give a certificate and the key it was made with, both PEM";
    UserError::new(format!("{}: {error}", file.display()), fix)
}

/// The innermost message of a failed request, without the number that the system gave it.
pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
