//! One exchange of hellos, before which a connection is not a peer.
//!
//! In TLS 1.3 a dialer is connected before the acceptor has verified its certificate, so a
//! connection alone proves nothing. The dialer sends a [`Hello`], the acceptor checks it and
//! answers with its own or with the reason for its refusal, and the dialer checks the answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use quinn::{Connection, RecvStream};
use tidegate_ownership::Versions;
use tidegate_ownership::identity::{Generation, NodeId};

use super::codec::{self, HELLO_VERSION};
use super::credentials;
use super::wire::{Hello, HelloReply, Refusal};
use crate::pki::{self, Revocations, Role, region_name};

/// The longest that the exchange may take, and thus that a stranger occupies a connection.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// A hello has about a hundred bytes.
const HELLO_BYTES_MAX: usize = 2_048;
/// Longest cluster or region name in a hello.
const NAME_BYTES_MAX: usize = 255;

/// Why a connection did not become a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection broke or timed out.
    #[error("{0}")]
    Connection(String),
    /// One of both sides does not accept the certificate of the other.
    #[error("{0}")]
    Certificate(String),
    /// This node refuses the other side.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The other side refuses this node.
    #[error("refused by the peer: {0}")]
    RefusedByPeer(Refusal),
}

impl Error {
    /// Whether it lasts until an operator changes something. An absent peer is retried.
    pub(super) fn needs_operator(&self) -> bool {
        !matches!(self, Self::Connection(_))
    }
}

/// What a hello is checked against.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// Our own hello.
    pub(super) own: Hello,
    /// Fingerprints of key secrets that are accepted besides our own.
    pub(super) secrets: Vec<u64>,
    /// This run is a member of the map in force: another one of its name is to give way.
    pub(super) is_member: bool,
    /// The highest generation seen of the node that is to be checked.
    pub(super) highest_seen: Option<Generation>,
    /// The lowest version of the wire format that a node of this region may speak.
    pub(super) required_version: u8,
    /// Other nodes have all the room that there is for a node of its role.
    pub(super) full: Option<Refusal>,
    /// Certificates that are refused.
    pub(super) revocations: Arc<Revocations>,
}

/// Sends the hello on a connection that we dialed. `expect` is called with the peer's id. It has to
/// be a core: edges are not dialed.
pub(super) async fn dial(
    connection: &Connection,
    own: Hello,
    expect: impl FnOnce(&NodeId) -> Expected,
) -> Result<Hello, Error> {
    let exchange = async {
        let (mut send, mut recv) = connection.open_bi().await.map_err(broken)?;
        send.write_all(&frame(&own)?).await.map_err(broken)?;
        send.finish().map_err(broken)?;
        let hello = match read(&mut recv).await? {
            HelloReply::Welcome(hello) => hello,
            HelloReply::Refused(refusal) => return Err(Error::RefusedByPeer(refusal)),
        };
        let role = role(connection).filter(|role| *role == Role::Core);
        check(&hello, &expect(&hello.node), role, connection)?;
        Ok(hello)
    };
    timed(exchange).await
}

/// Receives the hello on a connection that we accepted, and answers it. `expect` is called with the
/// peer's id and its role; `roles` are those that are accepted.
pub(super) async fn accept(
    connection: &Connection,
    roles: &[Role],
    expect: impl FnOnce(&NodeId, Role) -> Expected,
) -> Result<(Hello, Role), Error> {
    let exchange = async {
        let (mut send, mut recv) = connection.accept_bi().await.map_err(broken)?;
        let hello: Hello = read(&mut recv).await?;
        let role = role(connection).filter(|role| roles.contains(role));
        let expected = expect(&hello.node, role.unwrap_or_default());
        let outcome = check(&hello, &expected, role, connection);
        let reply = match &outcome {
            Ok(_) => {
                let highest_seen = expected.highest_seen;
                HelloReply::Welcome(Hello { highest_seen, ..expected.own })
            }
            Err(refusal) => HelloReply::Refused(refusal.clone()),
        };
        send.write_all(&frame(&reply)?).await.map_err(broken)?;
        send.finish().map_err(broken)?;
        if outcome.is_err() {
            // The refusal must arrive before the connection is closed.
            let _ = send.stopped().await;
        }
        let role = outcome?;
        Ok((hello, role))
    };
    timed(exchange).await
}

/// Whether the peer has a certificate of `node`.
pub(super) fn is_of(connection: &Connection, node: &NodeId) -> bool {
    let chain = credentials::chain(connection);
    chain.first().is_some_and(|first| pki::names_node(first, node.as_str()))
}

/// The role that the peer's certificate names. One that names several is that of a core.
fn role(connection: &Connection) -> Option<Role> {
    let chain = credentials::chain(connection);
    let first = chain.first()?;
    [Role::Core, Role::Edge].into_iter().find(|role| pki::names(first, role.in_certificate()))
}

/// Returns the role of the peer, if it is accepted.
fn check(
    hello: &Hello,
    expected: &Expected,
    role: Option<Role>,
    connection: &Connection,
) -> Result<Role, Refusal> {
    check_fields(hello, expected)?;
    let chain = credentials::chain(connection);
    let first = chain.first();
    if let Some(node) = first.and_then(|first| expected.revocations.refuse(first)) {
        return Err(Refusal::Revoked(node));
    }
    if !first.is_some_and(|first| pki::names_node(first, hello.node.as_str())) {
        return Err(Refusal::Name(hello.node.clone()));
    }
    if !first.is_some_and(|first| pki::names(first, &region_name(&hello.region))) {
        let (node, region) = (hello.node.clone(), hello.region.clone());
        return Err(Refusal::Region { node, region });
    }
    let role = role.ok_or(Refusal::Role)?;
    // Last, because the answer discloses the generation of the named node.
    check_generation(hello, expected).map(|()| role)
}

fn check_fields(hello: &Hello, expected: &Expected) -> Result<(), Refusal> {
    let own = &expected.own;
    if hello.cluster.len() > NAME_BYTES_MAX || hello.region.len() > NAME_BYTES_MAX {
        return Err(Refusal::Malformed);
    }
    if hello.cluster != own.cluster {
        return Err(Refusal::Cluster(own.cluster.clone()));
    }
    let required = if hello.region == own.region { expected.required_version } else { 0 };
    let versions = Versions { lowest: own.versions.lowest.max(required), ..own.versions };
    if versions.agreed(hello.versions).is_none() {
        return Err(Refusal::Version(versions));
    }
    if hello.secret != own.secret && !expected.secrets.contains(&hello.secret) {
        return Err(Refusal::Secret);
    }
    if hello.shared != own.shared {
        return Err(Refusal::Settings(own.shared));
    }
    if hello.node == own.node && (hello.birth == own.birth || !expected.is_member) {
        return Err(Refusal::Own);
    }
    expected.full.clone().map_or(Ok(()), Err)
}

fn check_generation(hello: &Hello, expected: &Expected) -> Result<(), Refusal> {
    let own = &expected.own;
    if hello.node == own.node {
        // As a third node says that hears of both: the other process raises its generation each
        // time, so it founds nothing, and ends.
        let Generation(higher) = own.generation.max(hello.generation);
        return Err(Refusal::Generation(Generation(higher.saturating_add(1))));
    }
    match expected.highest_seen {
        Some(highest) if highest > hello.generation => Err(Refusal::Generation(highest)),
        _ => Ok(()),
    }
}

async fn timed<T>(exchange: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(HELLO_TIMEOUT, exchange)
        .await
        .unwrap_or_else(|_| Err(Error::Connection("no hello in time".into())))
}

async fn read<T: serde::de::DeserializeOwned>(recv: &mut RecvStream) -> Result<T, Error> {
    let bytes = recv.read_to_end(HELLO_BYTES_MAX).await.map_err(broken)?;
    let mut buffer = BytesMut::from(&bytes[..]);
    let frame = codec::split(&mut buffer).ok().flatten().filter(|_| buffer.is_empty());
    let frame = frame.ok_or(Refusal::Malformed)?;
    codec::decode(&frame, HELLO_VERSION).map_err(|error| {
        Error::Refused(match error {
            codec::Error::Version(..) => Refusal::Version(codec::VERSIONS),
            _ => Refusal::Malformed,
        })
    })
}

fn frame<T: serde::Serialize>(message: &T) -> Result<BytesMut, Error> {
    let mut bytes = BytesMut::new();
    codec::encode(message, HELLO_VERSION, &mut bytes).map_err(broken)?;
    Ok(bytes)
}

fn broken(cause: impl std::fmt::Display) -> Error {
    Error::Connection(cause.to_string())
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::units::{Span, Timestamp};
    use tidegate_ownership::Versions;

    use super::super::wire::SharedSettings;
    use super::*;

    const SHARED: SharedSettings = SharedSettings {
        vnodes: 128,
        lease: Span::from_millis(600),
        global_lease: Span::from_secs(5),
    };

    fn speaks(lowest: u8, highest: u8) -> Versions {
        Versions { lowest, highest }
    }

    fn hello(node: &str) -> Hello {
        Hello {
            cluster: "c".into(),
            node: NodeId::new(node).expect("valid id"),
            birth: 1,
            generation: Generation(5),
            region: "eu".into(),
            versions: speaks(4, 5),
            shared: SHARED,
            advertise: ([127, 0, 0, 1], 1).into(),
            secret: 9,
            clock: Timestamp::EPOCH,
            highest_seen: None,
        }
    }

    fn another_process(node: &str, generation: u64) -> Hello {
        Hello { birth: 2, generation: Generation(generation), ..hello(node) }
    }

    #[test]
    fn a_hello_is_checked_for_cluster_secret_and_generation() {
        let expected = Expected {
            own: hello("a"),
            secrets: vec![9, 10],
            is_member: true,
            highest_seen: Some(Generation(5)),
            required_version: 0,
            full: None,
            revocations: Arc::default(),
        };
        let cases = [
            (hello("b"), Ok(())),
            (Hello { cluster: "d".into(), ..hello("b") }, Err(Refusal::Cluster("c".into()))),
            (Hello { secret: 8, ..hello("b") }, Err(Refusal::Secret)),
            (Hello { secret: 10, ..hello("b") }, Ok(())),
            (Hello { versions: speaks(5, 9), ..hello("b") }, Ok(())),
            (Hello { versions: speaks(6, 9), ..hello("b") }, Err(Refusal::Version(speaks(4, 5)))),
            (Hello { versions: speaks(1, 3), ..hello("b") }, Err(Refusal::Version(speaks(4, 5)))),
            (
                Hello { shared: SharedSettings { vnodes: 7, ..SHARED }, ..hello("b") },
                Err(Refusal::Settings(SHARED)),
            ),
            (hello("a"), Err(Refusal::Own)),
            (another_process("a", 4), Err(Refusal::Generation(Generation(6)))),
            (another_process("a", 9), Err(Refusal::Generation(Generation(10)))),
            (
                Hello { generation: Generation(4), ..hello("b") },
                Err(Refusal::Generation(Generation(5))),
            ),
            (Hello { region: "x".repeat(256), ..hello("b") }, Err(Refusal::Malformed)),
        ];
        for (hello, outcome) in cases {
            let checked = check_fields(&hello, &expected);
            let checked = checked.and_then(|()| check_generation(&hello, &expected));
            assert_eq!(checked, outcome);
        }
        let joining = Expected { is_member: false, ..expected.clone() };
        assert_eq!(check_fields(&another_process("a", 9), &joining), Err(Refusal::Own));
        let required = Expected { required_version: 5, ..expected.clone() };
        let older = Hello { versions: speaks(4, 4), ..hello("b") };
        assert_eq!(check_fields(&older, &expected), Ok(()));
        assert_eq!(check_fields(&older, &required), Err(Refusal::Version(speaks(5, 5))));
        let of_another_region = Hello { region: "us".into(), ..older };
        assert_eq!(check_fields(&of_another_region, &required), Ok(()), "it has its own map");
        let full = Expected { full: Some(Refusal::Full), ..expected };
        assert_eq!(check_fields(&hello("b"), &full), Err(Refusal::Full));
    }
}
