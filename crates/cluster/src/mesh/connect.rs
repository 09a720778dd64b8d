//! From a knock to an established peer, in both directions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quinn::{Connection, Incoming, VarInt};
use tidegate_ownership::identity::{Generation, NodeId};
use tokio::sync::OwnedSemaphorePermit;

use super::hello::{self, Expected, HELLO_TIMEOUT};
use super::peer::Peer;
use super::registry::{Admission, Dialed, Registry};
use super::wire::{self, Hello};
use super::{CODE_RENEWED, HelloError, Mesh, Service};
use crate::pki::MESH_NAME;

/// The longest a dial may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
const CODE_REFUSED: VarInt = VarInt::from_u32(2);
const CODE_REPLACED: VarInt = VarInt::from_u32(3);

impl Mesh {
    /// Serves whoever knocks, if it is one of us.
    pub(super) async fn accept(
        self,
        incoming: Incoming,
        service: Arc<dyn Service>,
        permit: OwnedSemaphorePermit,
    ) {
        let from = incoming.remote_address();
        let said = self.shared.options.incarnation.generation();
        let greeted = async {
            let connection = tokio::time::timeout(HELLO_TIMEOUT, incoming)
                .await
                .map_err(|_| HelloError::Connection("no handshake in time".into()))?
                .map_err(|error| HelloError::Connection(error.to_string()))?;
            let hello = hello::accept(&connection, |node| self.expected(node)).await;
            let hello = hello.inspect_err(|error| {
                connection.close(CODE_REFUSED, error.to_string().as_bytes());
            })?;
            Ok::<_, HelloError>((connection, hello))
        }
        .await;
        drop(permit);
        match greeted {
            Ok((connection, hello)) => {
                let dialer = hello.node.clone();
                self.establish(connection, hello, dialer, said, service).await;
            }
            Err(error) => {
                self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%from, %error, "refuse a connection");
            }
        }
    }

    /// Knocks at `addr` and serves whoever answers, if it is one of us.
    pub(super) async fn dial(self, addr: SocketAddr, service: Arc<dyn Service>) {
        let said = self.shared.options.incarnation.generation();
        let greeted = async {
            let connecting = self
                .shared
                .endpoint
                .connect(addr, MESH_NAME)
                .map_err(|error| HelloError::Connection(error.to_string()))?;
            let connection = tokio::time::timeout(DIAL_TIMEOUT, connecting)
                .await
                .map_err(|_| HelloError::Connection("no answer".into()))?
                .map_err(|error| HelloError::Connection(error.to_string()))?;
            let met = self.shared.registry.met_at(addr);
            let hello = hello::dial(&connection, self.own_hello(met), |node| self.expected(node));
            let hello = hello.await.inspect_err(|error| {
                connection.close(CODE_REFUSED, error.to_string().as_bytes());
            })?;
            Ok::<_, HelloError>((connection, hello))
        }
        .await;
        self.shared.registry.dial_ended(
            addr,
            match &greeted {
                Ok((_, hello)) => Dialed::Answered(&hello.node),
                Err(HelloError::RefusedByPeer(wire::Refusal::Own)) => Dialed::Own,
                Err(_) => Dialed::Failed,
            },
        );
        match greeted {
            Ok((connection, hello)) => {
                let dialer = self.shared.options.incarnation.node().clone();
                self.establish(connection, hello, dialer, said, service).await;
            }
            Err(error) => {
                self.shared.counters.dials_failed.fetch_add(1, Ordering::Relaxed);
                self.learn_generation(&error);
                // Nobody there is what a retry is for; somebody who refuses is for a person.
                if matches!(error, HelloError::Connection(_)) {
                    tracing::debug!(%addr, %error, "dial a peer");
                } else {
                    tracing::warn!(%addr, %error, "dial a peer");
                }
            }
        }
    }

    /// Puts an accepted peer into the table and serves it until its connection closes. `said` is
    /// the generation that it knows us by.
    async fn establish(
        &self,
        connection: Connection,
        hello: Hello,
        dialer: NodeId,
        said: Generation,
        service: Arc<dyn Service>,
    ) {
        if let Some(met) = hello.met {
            self.shared.options.incarnation.bump(met);
        }
        let (peer, outboxes) = Peer::new(connection, &hello, dialer);
        let now = self.shared.clock.system();
        peer.note_clock(now, hello.clock, now);
        let peer = Arc::new(peer);
        match self.shared.registry.admit(peer.clone()) {
            Admission::Surplus => peer.connection.close(CODE_REPLACED, b"one connection is enough"),
            Admission::Admitted { replaced } => {
                if let Some(old) = replaced {
                    old.connection.close(CODE_REPLACED, b"replaced");
                }
                // Asked only now: a generation that grows later finds this connection in the table.
                if self.shared.options.incarnation.generation() != said {
                    peer.connection.close(CODE_RENEWED, b"a newer start of this node");
                    self.shared.registry.remove(&peer);
                    return;
                }
                self.shared.counters.admitted.fetch_add(1, Ordering::Relaxed);
                tracing::info!(peer = %peer.id, generation = peer.generation.0, "peer is up");
                let _listed = Listed { registry: &self.shared.registry, peer: &peer };
                peer.clone().run(outboxes, service, self.shared.clock.clone()).await;
                tracing::info!(peer = %peer.id, generation = peer.generation.0, "peer is gone");
            }
        }
    }

    /// A peer that remembers a newer start of us tells that our clock was set back.
    fn learn_generation(&self, error: &HelloError) {
        if let HelloError::RefusedByPeer(wire::Refusal::Generation(met)) = error {
            self.shared.options.incarnation.bump(*met);
        }
    }

    fn expected(&self, node: &NodeId) -> Expected {
        let met = self.shared.registry.met(node);
        Expected { own: self.own_hello(met), met }
    }

    fn own_hello(&self, met: Option<Generation>) -> Hello {
        let options = &self.shared.options;
        Hello {
            cluster: options.cluster.clone(),
            node: options.incarnation.node().clone(),
            generation: options.incarnation.generation(),
            region: options.region.clone(),
            advertise: self.shared.advertise,
            secret: options.secret,
            clock: self.shared.clock.system(),
            met,
        }
    }
}

/// Takes a peer out of the table when its connection is done with, however that came.
struct Listed<'a> {
    registry: &'a Registry,
    peer: &'a Arc<Peer>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.registry.remove(self.peer);
    }
}
