//! Mutual TLS 1.3 under the cluster's own certificate authority, and the QUIC transport settings.
//!
//! Every node certificate carries the name [`MESH_NAME`](crate::pki::MESH_NAME) beside those of the
//! node. A dialer often has only an address (of a seed), so it verifies the mesh name with the
//! stock verifier. The hello says which node answered, and is checked against the certificate.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, TransportConfig, VarInt};
use rustls::server::WebPkiClientVerifier;

use crate::pki::{Identity, Role};

/// Identifies the protocol; a peer with another one fails the handshake.
const ALPN: &[u8] = b"tidegate/1";

/// The certificates and the key do not fit together.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up TLS for the mesh: {0}")]
pub struct Error(String);

/// The configurations of quinn for both directions.
///
/// # Errors
///
/// [`Error`] when the certificates and the key do not fit together.
pub fn configure(identity: &Identity) -> Result<(quinn::ServerConfig, quinn::ClientConfig), Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = identity.roots.clone();

    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(error)?;
    let mut server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(error)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(error)?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session could outlive its certificate.
    server.send_tls13_tickets = 0;

    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(error)?
        .with_root_certificates(roots)
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(error)?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = rustls::client::Resumption::disabled();

    let mut server = quinn::ServerConfig::with_crypto(Arc::new(
        QuicServerConfig::try_from(server).map_err(error)?,
    ));
    server.transport_config(Arc::new(transport(EDGE_IDLE_TIMEOUT, None)));
    // Peers have fixed addresses; a new address needs a new connection with its own hello.
    server.migration(false);
    server.max_incoming(INCOMING_MAX);
    let mut client =
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).map_err(error)?));
    // The shorter idle timeout of both ends holds, so that between cores is that of the dialer.
    let (idle_timeout, keep_alive) = match identity.role {
        Role::Core => (IDLE_TIMEOUT, KEEP_ALIVE),
        Role::Edge => (EDGE_IDLE_TIMEOUT, EDGE_KEEP_ALIVE),
    };
    client.transport_config(Arc::new(transport(idle_timeout, Some(keep_alive))));
    Ok((server, client))
}

/// Handshakes that wait to be accepted. Beyond it quinn drops them.
const INCOMING_MAX: usize = 64;
/// Streams that a peer may open: hello, checks, bulk, and room for future ones.
const STREAMS_MAX: u32 = 8;
/// Bytes in flight towards us on one stream: more than the largest frame.
pub const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Bytes in flight towards us from one peer.
const PEER_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// A connection without packets for this long is closed. Failure detection does not depend on it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// So far below the idle timeout that two in a row may be lost. The dialer keeps a connection
/// alive; the acceptor answers.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The same for an edge: a core has a thousand of them.
const EDGE_IDLE_TIMEOUT: Duration = Duration::from_secs(16);
const EDGE_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The initial estimate of the round trip. QUIC's default of 333 ms would delay the first
/// retransmission beyond the deadline of every forwarded check.
const INITIAL_RTT: Duration = Duration::from_millis(10);
/// Packets that are acknowledged together. With QUIC's default of two, nearly every packet of
/// checks causes a packet of acknowledgements, though the replies that follow would carry them.
const ACK_EVERY: u32 = 8;
/// The longest delay of an acknowledgement. A lost last packet is retransmitted after the round
/// trip plus this delay; QUIC's default of 25 ms is beyond the deadline of a forwarded check.
const ACK_DELAY: Duration = Duration::from_millis(4);

fn transport(idle_timeout: Duration, keep_alive: Option<Duration>) -> TransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY)).max_ack_delay(Some(ACK_DELAY));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(PEER_WINDOW_BYTES))
        .send_window(u64::from(PEER_WINDOW_BYTES))
        .max_idle_timeout(idle_timeout.try_into().ok())
        .keep_alive_interval(keep_alive)
        .initial_rtt(INITIAL_RTT)
        .ack_frequency_config(Some(acks));
    transport
}

fn error(cause: impl std::fmt::Display) -> Error {
    Error(cause.to_string())
}
