//! Server and node authenticate each other by certificate.

use std::fs;
use std::path::Path;

use tidegate::config::Xds;
use tidegate::reload::current::Status;
use tidegate_cluster::pki::{self, Bearer, Overwrite, Validity};
use tidegate_limiter::units::Span;
use tidegate_testkit::xds::{Server, rules, state};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::follow::{Follower, xds};

#[tokio::test]
async fn server_and_node_prove_themselves_to_each_other() {
    let ours = authority();
    let mut server = gateway(ours.path()).await;
    let follower = Follower::start(client(&server, ours.path(), ours.path()));
    let mut stream = server.accept().await;
    stream.request().await;
    stream.exchange(state("1", &[rules("a", 5)])).await;
    assert_eq!(follower.limit("a"), Some(5));
    follower.stop().await;
}

#[tokio::test]
async fn a_server_of_another_authority_or_name_gives_no_rules() {
    let (ours, theirs) = (authority(), authority());
    let server = gateway(theirs.path()).await;
    let follower = Follower::start(client(&server, ours.path(), theirs.path()));
    let error = follower.changed_since(&Status::default()).await.error.unwrap();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    follower.stop().await;

    let other = "elsewhere.internal".to_owned();
    let other = Xds { server_name: Some(other), ..client(&server, theirs.path(), theirs.path()) };
    let follower = Follower::start(other);
    let error = follower.changed_since(&Status::default()).await.error.unwrap();
    assert!(error.contains("elsewhere.internal"), "{error}");
    follower.stop().await;
}

#[tokio::test]
async fn a_renewed_certificate_is_used_with_the_next_connection() {
    let (ours, theirs) = (authority(), authority());
    let files = tempfile::tempdir().unwrap();
    let own = files.path();
    let give = |from: &Path| {
        for name in ["ca.pem", "node.pem", "node.key"] {
            fs::copy(from.join(name), own.join(name)).unwrap();
        }
    };
    give(theirs.path());
    let mut server = gateway(ours.path()).await;
    let follower = Follower::start(client(&server, own, own));
    follower.changed_since(&Status::default()).await;
    give(ours.path());
    server.accept().await;
    follower.stop().await;
}

/// A management server that takes none but nodes of its authority.
async fn gateway(dir: &Path) -> Server {
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(read("gateway.pem"), read("gateway.key")))
        .client_ca_root(Certificate::from_pem(read("ca.pem")));
    Server::start_on("127.0.0.1:0".parse().unwrap(), Some(tls)).await
}

/// A client that trusts one authority and proves itself by a certificate of another.
fn client(server: &Server, trusts: &Path, is_of: &Path) -> Xds {
    Xds {
        tls: true,
        tls_ca: Some(trusts.join("ca.pem")),
        tls_cert: Some(is_of.join("node.pem")),
        tls_key: Some(is_of.join("node.key")),
        server_name: Some("gateway".to_owned()),
        ..xds(server.addr)
    }
}

/// An authority with certificates for a gateway and a node.
fn authority() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let now = tidegate::node::system_environment().0.clock.system();
    let day = Span::from_secs(86_400);
    let validity = Validity { not_before: now.minus(day), not_after: now.plus(day) };
    pki::init(dir.path(), validity, [7; 16]).unwrap();
    for name in ["gateway", "node"] {
        pki::issue(dir.path(), Bearer::core(name, "local"), validity, Overwrite::Never).unwrap();
    }
    dir
}
