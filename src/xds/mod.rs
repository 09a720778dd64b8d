//! Rules from a management server: xDS, state of the world, as envoyproxy/ratelimit takes it with
//! `CONFIG_TYPE=GRPC_XDS_SOTW` and as Envoy Gateway serves it.
//!
//! One stream, `AggregatedDiscoveryService/StreamAggregatedResources`. The node subscribes to all
//! resources of one type; the server sends all of them whenever one changes; the node acknowledges
//! or rejects each response:
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
//! and goes through the same compiler, so that a rule means the same in both. The domains are
//! exactly those of the last accepted response; none if it was empty.
//!
//! Every stream starts without a version. xDS allows a client to send the last one, so that the
//! server may leave out what has not changed; but servers that number from 1 at each start would
//! then leave out what has. The cost is one response per connection.
//!
//! Sources: envoyproxy/ratelimit, `src/provider/xds_grpc_sotw_provider.go` and
//! `src/config/config_xds.go`; envoyproxy/go-control-plane, `pkg/client/sotw/v3/client.go`; the xDS
//! protocol, <https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol>.
//!
//! Pure: [`tree`], [`resources`], [`session`]. I/O: `client`. The messages are
//! those of [`tidegate_proto::xds`].

mod client;
pub mod resources;
pub mod session;
pub mod tree;

pub use client::{Client, Error};
