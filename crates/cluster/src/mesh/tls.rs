//! Who may speak on the mesh: mutual TLS 1.3 under the cluster's own certificate authority.
//!
//! Every node certificate carries two names: the node's id, and the mesh's
//! ([`MESH_NAME`](crate::pki::MESH_NAME)). A dialer often knows
//! only an address (a seed), so it verifies the common name with the stock verifier; which node
//! answered is told by the hello and held against the certificate there.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, TransportConfig, VarInt};
use rustls::server::WebPkiClientVerifier;

use crate::pki::Identity;

/// Tells our protocol from any other on the same port.
const ALPN: &[u8] = b"tidegate/1";

/// The credentials do not work together.
#[derive(Debug, thiserror::Error)]
#[error("set up TLS for the mesh: {0}")]
pub struct Error(String);

/// Makes quinn's configurations for both directions.
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
    // A resumed session would outlive the certificate that it was opened with.
    server.send_tls13_tickets = 0;

    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(error)?
        .with_root_certificates(roots)
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(error)?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = rustls::client::Resumption::disabled();

    let transport = Arc::new(transport());
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(
        QuicServerConfig::try_from(server).map_err(error)?,
    ));
    server.transport_config(transport.clone());
    // Peers have fixed addresses; a changed one is a new connection, which the hello identifies.
    server.migration(false);
    server.max_incoming(INCOMING_MAX);
    let mut client =
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).map_err(error)?));
    client.transport_config(transport);
    Ok((server, client))
}

/// Handshakes that may wait to be accepted; more are dropped by quinn.
const INCOMING_MAX: usize = 64;
/// Streams a peer may open: hello, checks, bulk, and room for later lanes.
const STREAMS_MAX: u32 = 8;
/// Bytes one stream may have in flight towards us: one largest frame and some.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Bytes one peer may have in flight towards us.
const PEER_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// A connection that is silent for this long is gone. Membership does not wait for it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Below the idle timeout by enough to lose two in a row.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The first guess of the round trip. QUIC's 333 ms would delay the first retransmission beyond
/// every deadline that a forwarded check has.
const INITIAL_RTT: Duration = Duration::from_millis(10);
/// Packets that are acknowledged together. QUIC's own two make a packet of acknowledgements for
/// nearly every packet of checks, though the answers that follow would carry them.
const ACK_EVERY: u32 = 8;
/// The longest that an acknowledgement is held back. A lost last packet is sent again after the
/// round trip and this; QUIC's own 25 ms are beyond the deadline of a forwarded check.
const ACK_DELAY: Duration = Duration::from_millis(4);

fn transport() -> TransportConfig {
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
        .max_idle_timeout(IDLE_TIMEOUT.try_into().ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_rtt(INITIAL_RTT)
        .ack_frequency_config(Some(acks));
    transport
}

fn error(cause: impl std::fmt::Display) -> Error {
    Error(cause.to_string())
}
