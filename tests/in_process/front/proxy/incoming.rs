//! How connections come in: TLS, and load balancers that announce their clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::generate_simple_self_signed;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::super::support::{Table, in_time, parse};
use super::support::{OK, RawApp, app, ok, proxy};

#[tokio::test]
async fn tls_is_offered_with_either_version_of_http() {
    let dir = tempfile::tempdir().expect("a folder");
    let made = generate_simple_self_signed(["shop.internal".to_owned()]).expect("a certificate");
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    fs::write(&cert, made.cert.pem()).expect("written");
    fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its own file");
    let app = app(|request| async move {
        let proto = request.headers()["x-forwarded-proto"].to_str().unwrap().to_owned();
        ok(proto)
    })
    .await;
    let more = format!("tls_cert = \"{}\"\ntls_key = \"{}\"\n", cert.display(), key.display());
    let proxy = proxy(&Table::usual(), &[app.addr], &more).await;

    let mut roots = RootCertStore::empty();
    let der = CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).expect("PEM");
    roots.add(der).expect("a certificate");
    let connect = async |alpn: &[u8]| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
        let name = ServerName::try_from("shop.internal").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake")
    };
    let mut stream = connect(b"http/1.1").await;
    let get = b"GET / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    stream.write_all(get).await.expect("sent");
    let mut reply = Vec::new();
    let _ = in_time("a response", stream.read_to_end(&mut reply)).await;
    assert_eq!(parse(&reply).body, "https");

    let stream = TokioIo::new(connect(b"h2").await);
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    tokio::spawn(async move { drop(connection.await) });
    let request = Request::get("https://shop.internal/").body(Full::<Bytes>::default()).unwrap();
    let response = client.send_request(request).await.expect("a response");
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "https");
}

#[tokio::test]
async fn a_load_balancer_announces_its_client() {
    let get = "GET / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    let header = "PROXY TCP4 203.0.113.7 10.0.0.1 51234 443\r\n";
    for (from, sent, client) in [
        ("127.0.0.0/8", format!("{header}{get}"), Some("203.0.113.7")),
        ("127.0.0.0/8", format!("PROXY UNKNOWN\r\n{get}"), Some("127.0.0.1")),
        // It has to announce one.
        ("127.0.0.0/8", get.to_owned(), None),
        // Nobody else may.
        ("10.0.0.0/8", get.to_owned(), Some("127.0.0.1")),
        ("10.0.0.0/8", format!("{header}{get}"), None),
    ] {
        let app = RawApp::start(&[OK]).await;
        let table = Table::usual();
        let more = format!("proxy_protocol_from = [\"{from}\"]\n");
        let proxy = proxy(&table, &[app.addr], &more).await;
        let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
        stream.write_all(sent.as_bytes()).await.expect("sent");
        let mut reply = Vec::new();
        let _ = in_time("it is closed", stream.read_to_end(&mut reply)).await;
        let checks = table.checks();
        let seen = checks.first().map(|check| check.descriptors[0][0].1.as_str());
        assert_eq!(seen, client, "{from} {sent:?}");
        if let Some(client) = client {
            assert_eq!(parse(&reply).status, 200);
            assert!(app.text().contains(&format!("x-forwarded-for: {client}\r\n")));
        } else {
            assert_eq!(app.text(), "");
        }
    }
}
