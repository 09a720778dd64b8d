//! Redis clients under TLS.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use tidegate::config::Resp;
use tidegate::front::tls::Tls;
use tidegate_testkit::site::{Authority, Issued};
use tidegate_testkit::wait::{HANGS_AFTER, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::listener::{Open, open_tls};

/// More than one read takes, and more than one TLS record holds.
const PIPELINED: usize = 20_000;

struct Site {
    authority: Authority,
    clients: Authority,
    listener: Open,
}

impl Site {
    /// A listener that wants certificates of clients.
    async fn open(header_timeout: Duration) -> Self {
        let (authority, clients) = (Authority::new(), Authority::new());
        let dir = tempfile::tempdir().unwrap();
        authority.issue("rl.internal").write(dir.path(), "own");
        std::fs::write(dir.path().join("clients.pem"), &clients.pem).unwrap();
        let resp = Resp {
            tls_cert: Some(dir.path().join("own.pem")),
            tls_key: Some(dir.path().join("own.key")),
            client_ca: Some(dir.path().join("clients.pem")),
            ..Resp::default()
        };
        let (tls, _) = Tls::of(resp.tls()).unwrap().expect("TLS");
        let bounds = |bounds: &mut tidegate::front::bounds::Bounds| {
            bounds.header_timeout = header_timeout;
        };
        let listener = open_tls(|_| {}, bounds, Some(tls)).await;
        Self { authority, clients, listener }
    }

    async fn connect(
        &self,
        shows: Option<&Issued>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.listener.addr).await.unwrap();
        let config = Arc::new(self.authority.client(shows, &[version]));
        let name = ServerName::try_from("rl.internal").unwrap();
        TlsConnector::from(config).connect(name, stream).await.unwrap()
    }
}

#[tokio::test]
async fn a_long_pipeline_is_answered_whole_under_tls_of_either_version() {
    let site = Site::open(Duration::from_secs(20)).await;
    let client = site.clients.issue("app");
    for version in [&TLS12, &TLS13] {
        let stream = site.connect(Some(&client), version).await;
        let (mut read, mut write) = tokio::io::split(stream);
        let sending = tokio::spawn(async move {
            let pings = "PING\r\n".repeat(PIPELINED);
            write.write_all(pings.as_bytes()).await.unwrap();
            write.flush().await.unwrap();
            write
        });
        let mut replies = vec![0; "+PONG\r\n".len() * PIPELINED];
        read.read_exact(&mut replies).await.unwrap();
        assert_eq!(replies, "+PONG\r\n".repeat(PIPELINED).as_bytes());
        // A command in two parts, each in a record of its own.
        let mut write = sending.await.unwrap();
        for part in ["*2\r\n$4\r\nECHO\r\n$5\r\nhe", "llo\r\n"] {
            write.write_all(part.as_bytes()).await.unwrap();
            write.flush().await.unwrap();
        }
        let mut reply = [0; 11];
        read.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"$5\r\nhello\r\n");
    }
    assert_eq!(site.listener.stats.handshake_failed.get(), 0);
}

#[tokio::test]
async fn plain_text_silence_and_clients_without_a_certificate_are_cut_off() {
    let site = Site::open(Duration::from_millis(200)).await;
    let stats = &site.listener.stats;
    let mut plain = site.listener.client().await;
    plain.send("PING\r\n").await;
    assert!(!plain.rest().await.contains("PONG"));
    eventually("it is counted", HANGS_AFTER, || stats.handshake_failed.get() == 1).await;
    let foreign = Authority::new().issue("app");
    for (shows, failed) in [(None, 2), (Some(&foreign), 3)] {
        // Of TLS 1.3 the client learns it after its own part.
        let mut refused = site.connect(shows, &TLS13).await;
        refused.read_u8().await.expect_err("it is refused");
        eventually("it is counted", HANGS_AFTER, || stats.handshake_failed.get() == failed).await;
    }
    let mut silent = site.listener.client().await;
    assert_eq!(silent.rest().await, "");
    eventually("it is counted", HANGS_AFTER, || stats.slow.get() == 1).await;
}

#[tokio::test]
async fn a_drain_closes_connections_under_tls() {
    let site = Site::open(Duration::from_secs(20)).await;
    let client = site.clients.issue("app");
    let mut stream = site.connect(Some(&client), &TLS13).await;
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).await.unwrap();
    site.listener.drain.cancel();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    site.listener.served.await.unwrap();
}
