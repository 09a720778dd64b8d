//! Rules from a management server: xDS, state of the world, as envoyproxy/ratelimit takes it with
//! `CONFIG_TYPE=GRPC_XDS_SOTW` and as Envoy Gateway serves it.
//!
//! One stream, `AggregatedDiscoveryService/StreamAggregatedResources`. The node asks for all
//! resources of one type; the server sends all of them whenever any changed; the node answers each
//! time whether it took them:
//!
//! ```text
//! node                                       server
//! version "",  nonce ""                ──►
//!                                      ◄──   version "1", nonce "a", [basic, another]
//! version "1", nonce "a"               ──►                                       ACK: in force
//!                                      ◄──   version "2", nonce "b", [basic with a mistake]
//! version "1", nonce "b", error_detail ──►                         NACK: "1" stays in force
//! ```
//!
//! A resource is the rules of one domain. It becomes the tree that a rule file would be ([`tree`])
//! and goes through the same compiler, so that a rule means the same wherever it stands. The
//! domains are exactly those of the last response that was taken; none at all when it was empty.
//!
//! Every stream begins without a version. xDS lets a client name the last one, so that the server
//! may leave out what did not change; but servers that number from 1 at each start would then leave
//! out what did change. Asking anew costs one message a connection.
//!
//! Sources: envoyproxy/ratelimit, `src/provider/xds_grpc_sotw_provider.go` and
//! `src/config/config_xds.go`; envoyproxy/go-control-plane, `pkg/client/sotw/v3/client.go`; the xDS
//! protocol, <https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol>.
//!
//! Pure: [`message`], [`structure`], [`rls_conf`], [`tree`], [`resources`], [`session`],
//! [`backoff`]. The I/O
//! edge: [`client`] and its `channel`.

pub mod backoff;
mod channel;
pub mod client;
pub mod message;
pub mod resources;
pub mod rls_conf;
pub mod session;
pub mod structure;
pub mod tree;

pub use channel::Error;
pub use client::Client;
