//! A peer on the mesh port that is not a node: quinn, driven by hand.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use rustls::RootCertStore;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_cluster::mesh::wire::{Hello, HelloReply, SharedSettings};
use tidegate_cluster::mesh::{codec, tls};
use tidegate_cluster::pki::{Identity, MESH_NAME};
use tidegate_limiter::units::{Span, Timestamp};
use tidegate_ownership::identity::{Generation, NodeId};

/// An endpoint with its own socket.
pub struct RawPeer {
    pub endpoint: Endpoint,
}

impl RawPeer {
    /// An endpoint with the certificate of `identity`, which also accepts connections.
    pub fn with(identity: &Identity) -> Self {
        Self::at([127, 0, 0, 1], identity)
    }

    /// Like [`RawPeer::with`], at another address of this machine.
    pub fn at(ip: [u8; 4], identity: &Identity) -> Self {
        let (server, client) = tls::configure(identity).expect("a valid certificate");
        let endpoint = Endpoint::server(server, (ip, 0).into());
        let mut endpoint = endpoint.expect("bind");
        endpoint.set_default_client_config(client);
        Self { endpoint }
    }

    /// An endpoint that trusts `roots` and presents no certificate.
    pub fn without_certificate(roots: &Arc<RootCertStore>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"tidegate/1".to_vec()];
        let config = QuicClientConfig::try_from(config).expect("a QUIC suite");
        let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("bind");
        endpoint.set_default_client_config(ClientConfig::new(Arc::new(config)));
        Self { endpoint }
    }

    pub fn addr(&self) -> SocketAddr {
        self.endpoint.local_addr().expect("bound")
    }

    /// In TLS 1.3 this may succeed before the acceptor has verified the certificate.
    pub async fn dial(&self, addr: SocketAddr) -> Result<Connection, ConnectionError> {
        self.endpoint.connect(addr, MESH_NAME).expect("a valid address").await
    }

    /// A valid hello of the node `node`.
    pub fn hello(&self, cluster: &str, node: &str, secret: u64) -> Hello {
        Hello {
            cluster: cluster.into(),
            node: NodeId::new(node).expect("a valid id"),
            birth: 1,
            generation: Generation(5),
            region: "eu".into(),
            versions: codec::VERSIONS,
            shared: SharedSettings {
                vnodes: 128,
                lease: Span::from_millis(600),
                global_lease: Span::from_secs(5),
            },
            advertise: self.addr(),
            secret,
            clock: Timestamp::EPOCH,
            highest_seen: None,
        }
    }
}

/// Sends `bytes` on a stream of their own and returns the reply, if there is one.
pub async fn exchange(connection: &Connection, bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut send, mut recv) = connection.open_bi().await.ok()?;
    send.write_all(bytes).await.ok()?;
    send.finish().ok()?;
    recv.read_to_end(codec::FRAME_BYTES_MAX).await.ok().filter(|reply| !reply.is_empty())
}

/// Sends `hello` and returns the reply, if there is one.
pub async fn send_hello(connection: &Connection, hello: &Hello) -> Option<HelloReply> {
    let reply = exchange(connection, &frame_of(codec::HELLO_VERSION, hello)).await?;
    Some(unframe_of(codec::HELLO_VERSION, &reply))
}

/// `message` as a frame of the newest version.
pub fn frame<T: Serialize>(message: &T) -> Vec<u8> {
    frame_of(codec::VERSION, message)
}

/// `message` as a frame of this version.
pub fn frame_of<T: Serialize>(version: u8, message: &T) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    codec::encode(message, version, &mut bytes).expect("fits a frame");
    bytes.to_vec()
}

/// The message in a frame of the newest version.
pub fn unframe<T: DeserializeOwned>(bytes: &[u8]) -> T {
    unframe_of(codec::VERSION, bytes)
}

fn unframe_of<T: DeserializeOwned>(version: u8, bytes: &[u8]) -> T {
    let mut buffer = BytesMut::from(bytes);
    let frame = codec::split(&mut buffer).expect("a frame").expect("a whole frame");
    codec::decode(&frame, version).expect("a message")
}
