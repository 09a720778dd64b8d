//! The gRPC listener under TLS: which clients it accepts, its certificate, and changed files.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SupportedProtocolVersion};
use tidegate::config::Grpc;
use tidegate::front::bounds::Bounds;
use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate::front::tls::Tls;
use tidegate_testkit::site::{Authority, Issued};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tower::service_fn;

use super::support::{Listener, Table, grpc_listener_with, in_time};

#[tokio::test]
async fn a_client_is_answered_under_tls_of_either_version() {
    let site = Site::new();
    let (listener, _reload) = site.listener(Bounds::default()).await;
    for version in [&TLS12, &TLS13] {
        let client = site.client(None, version);
        assert_eq!(check(listener.addr, &client).await.expect("an answer"), Code::Ok);
    }
    assert_eq!(listener.stats.handshake_failed.get(), 0);
}

#[tokio::test]
async fn plain_text_and_silence_are_cut_off() {
    let site = Site::new();
    let bounds = Bounds { header_timeout: Duration::from_millis(100), ..Bounds::default() };
    let (listener, _reload) = site.listener(bounds).await;

    let plain = Endpoint::from_shared(format!("http://{}", listener.addr)).expect("an address");
    RlsClient::new(&plain).should_rate_limit(request()).await.expect_err("no plain text");
    assert!(listener.stats.handshake_failed.get() >= 1);

    let mut silent = TcpStream::connect(listener.addr).await.expect("a connection");
    let read = in_time("be cut off", silent.read(&mut [0; 1])).await;
    assert_eq!(read.ok(), Some(0));
    assert_eq!(listener.stats.slow.get(), 1);
}

#[tokio::test]
async fn a_client_without_the_right_certificate_is_refused() {
    let mut site = Site::new();
    let clients = Authority::new();
    site.write("clients.pem", &clients.pem);
    site.grpc.client_ca = Some(site.path("clients.pem"));
    site.grpc.client_san = Some("envoy.internal".to_owned());
    let (listener, _reload) = site.listener(Bounds::default()).await;

    let named = clients.issue("envoy.internal");
    for version in [&TLS12, &TLS13] {
        let client = site.client(Some(&named), version);
        assert_eq!(check(listener.addr, &client).await.expect("an answer"), Code::Ok);
    }
    let peer = Authority::new().issue("envoy.internal");
    let misnamed = clients.issue("other.internal");
    for (refused, shown) in [None, Some(&peer), Some(&misnamed)].into_iter().zip(1..) {
        let client = site.client(refused, &TLS13);
        check(listener.addr, &client).await.expect_err("it is refused");
        assert_eq!(listener.stats.handshake_failed.get(), shown);
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_and_a_broken_one_changes_nothing() {
    let site = Site::new();
    let (listener, _reload) = site.listener(Bounds::default()).await;
    let client = site.client(None, &TLS13);
    let first = shown(listener.addr, &client).await;

    // Half of a renewal: a certificate without its key.
    let second = site.authority.issue("rl.internal");
    site.write("cert.pem", &second.pem);
    site.looked_at().await;
    assert_eq!(shown(listener.addr, &client).await, first);

    site.write("key.pem", &second.key);
    site.looked_at().await;
    assert_eq!(shown(listener.addr, &client).await, second.der());
    assert_eq!(check(listener.addr, &client).await.expect("an answer"), Code::Ok);

    fs::remove_file(site.path("cert.pem")).expect("it was there");
    site.looked_at().await;
    assert_eq!(shown(listener.addr, &client).await, second.der());
}

#[tokio::test]
async fn invalid_tls_files_are_reported_with_their_path() {
    let mut site = Site::new();
    let error_of = |grpc: &Grpc| match Tls::of(grpc.tls()) {
        Err(error) => tidegate::config::UserError::from(error).to_string(),
        Ok(_) => panic!("it loads"),
    };
    site.write("key.pem", &site.authority.issue("rl.internal").key);
    let error = error_of(&site.grpc);
    assert!(error.contains("cert.pem: ") && error.contains("the key it was made with"), "{error}");
    site.write("key.pem", "no key");
    assert!(error_of(&site.grpc).contains("key.pem: holds no private key in PEM; "));
    site.grpc.tls_cert = Some(site.path("nowhere.pem"));
    assert!(error_of(&site.grpc).contains("nowhere.pem: No such file"), "{}", error_of(&site.grpc));
}

// === certificates, a listener, clients ===

struct Site {
    dir: tempfile::TempDir,
    authority: Authority,
    grpc: Grpc,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let (tls_cert, tls_key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        let grpc = Grpc { tls_cert: Some(tls_cert), tls_key: Some(tls_key), ..Grpc::default() };
        let site = Self { dir, authority: Authority::new(), grpc };
        let own = site.authority.issue("rl.internal");
        site.write("cert.pem", &own.pem);
        site.write("key.pem", &own.key);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a writable folder");
        let mode = Permissions::from_mode(0o600);
        fs::set_permissions(self.path(name), mode).expect("its own file");
    }

    async fn listener(&self, bounds: Bounds) -> (Listener, Reload) {
        let (tls, reloader) = Tls::of(self.grpc.tls()).expect("files that work").expect("TLS");
        let stop = CancellationToken::new();
        tokio::spawn(reloader.run(stop.clone()));
        let (listener, _) = grpc_listener_with(&Table::usual(), bounds, Some(tls)).await;
        (listener, Reload(stop))
    }

    /// Waits until the files were looked at once more.
    async fn looked_at(&self) {
        tokio::time::sleep(tidegate::reload::files::RELOAD_INTERVAL * 3 / 2).await;
    }

    fn client(
        &self,
        shows: Option<&Issued>,
        version: &'static SupportedProtocolVersion,
    ) -> Arc<ClientConfig> {
        let mut config = self.authority.client(shows, &[version]);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

/// Ends the task that watches the files.
struct Reload(CancellationToken);

impl Drop for Reload {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn connect(
    addr: SocketAddr,
    client: &Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(addr).await?;
    let name = ServerName::try_from("rl.internal").expect("a name");
    TlsConnector::from(Arc::clone(client)).connect(name, stream).await
}

/// The certificate that a new connection is shown.
async fn shown(addr: SocketAddr, client: &Arc<ClientConfig>) -> Vec<u8> {
    let stream = connect(addr, client).await.expect("a handshake");
    let chain = stream.get_ref().1.peer_certificates().expect("a certificate");
    chain[0].to_vec()
}

fn request() -> RateLimitRequest {
    let entries = vec![Entry { key: "k".into(), value: "v".into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
    RateLimitRequest { domain: "open".into(), descriptors, hits_addend: 0 }
}

async fn check(addr: SocketAddr, client: &Arc<ClientConfig>) -> Result<Code, tonic::Status> {
    let client = Arc::clone(client);
    let connector = service_fn(move |_| {
        let client = Arc::clone(&client);
        async move { connect(addr, &client).await.map(TokioIo::new) }
    });
    // The scheme is for the request line alone: the connector uses TLS.
    let endpoint = Endpoint::from_static("http://rl.internal");
    let channel = endpoint.connect_with_connector_lazy(connector);
    let mut client = RlsClient::over(channel);
    Ok(client.should_rate_limit(request()).await?.overall_code())
}
