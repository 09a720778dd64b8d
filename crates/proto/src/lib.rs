//! The protobuf messages of tidegate: Envoy's rate limit service, version 3, with its JSON form,
//! and what the xDS client exchanges with a management server.
//!
//! The messages are generated from `proto/` and checked in, so that a build needs neither a
//! protobuf compiler nor the generator; `scripts/proto` writes them again. The `.proto` files are
//! the published ones, reduced to the fields in use: protobuf skips fields that it does not know.
//! This crate has no gRPC in it.
//!
//! The JSON form is that of Google's protojson with `EmitUnpopulated` off:
//!
//! ```
//! use tidegate_proto::rls::RateLimitRequest;
//!
//! let request: RateLimitRequest = serde_json::from_str(
//!     r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}],
//!         "hits_addend": "3"}"#,
//! )?;
//! assert_eq!(request.descriptors[0].entries[0].value, "ann");
//! assert_eq!(request.hits_addend, 3);
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! - [`rls`]: the messages of the rate limit service
//! - [`kuadrant_rls`]: those of Kuadrant's, which adds reservations
//! - [`gubernator`]: those of Gubernator, whose requests carry their limits
//! - [`xds`]: the messages of discovery, and the resources that carry rules
//! - [`google::protobuf`]: `Struct`, `Duration`, `Any`

mod json;
mod structure;

/// Envoy's rate limit service: `ShouldRateLimit` takes a
/// [`RateLimitRequest`](rls::RateLimitRequest) and returns a
/// [`RateLimitResponse`](rls::RateLimitResponse).
pub mod rls {
    pub use crate::envoy::config::core::v3::HeaderValue;
    pub use crate::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    pub use crate::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    pub use crate::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
    pub use crate::envoy::service::ratelimit::v3::rate_limit_response::{
        Code, DescriptorStatus, RateLimit,
    };
    pub use crate::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
    pub use crate::google::protobuf::Duration;

    /// The full name of the service.
    pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
    /// The path of its method.
    pub const SHOULD_RATE_LIMIT: &str =
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
}

/// Kuadrant's rate limit service: [`rls`] with a report and with reservations.
pub mod kuadrant_rls {
    pub use crate::kuadrant::service::ratelimit::v1::{
        CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
    };

    /// The full name of the service.
    pub const SERVICE_NAME: &str = "kuadrant.service.ratelimit.v1.RateLimitService";
}

/// Gubernator's service, version 1: requests carry the limits that they are checked against.
pub mod gubernator {
    pub use crate::pb::gubernator::{
        Algorithm, Behavior, GetRateLimitsReq, GetRateLimitsResp, HealthCheckReq, HealthCheckResp,
        LiveCheckReq, LiveCheckResp, PeerHealthResp, RateLimitReq, RateLimitResp, Status,
    };

    /// The full name of the service.
    pub const SERVICE_NAME: &str = "pb.gubernator.V1";
}

/// Aggregated discovery, state of the world.
pub mod xds {
    pub use crate::envoy::config::core::v3::Node;
    pub use crate::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
    pub use crate::google::protobuf::Any;
    pub use crate::google::rpc::Status;
    /// The rules of one domain, as a resource.
    pub use crate::ratelimit::config::ratelimit::v3 as rls_conf;

    /// The path of the method of the aggregated discovery service.
    pub const STREAM_AGGREGATED_RESOURCES: &str =
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    /// The type of the resources, as [`Any`] names it.
    pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
}

pub use generated::{envoy, google, kuadrant, pb, ratelimit};

// Modules are nested as the protobuf packages are: generated paths are relative to them.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::pedantic,
    clippy::enum_variant_names,
    reason = "generated"
)]
mod generated {
    /// `envoy.*`, from envoyproxy/envoy.
    pub mod envoy {
        pub mod config {
            pub mod core {
                pub mod v3 {
                    include!("generated/envoy.config.core.v3.rs");
                }
            }
        }
        pub mod extensions {
            pub mod common {
                pub mod ratelimit {
                    pub mod v3 {
                        include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                    }
                }
            }
        }
        pub mod service {
            pub mod discovery {
                pub mod v3 {
                    include!("generated/envoy.service.discovery.v3.rs");
                }
            }
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/envoy.service.ratelimit.v3.rs");
                }
            }
        }
        pub mod r#type {
            pub mod v3 {
                include!("generated/envoy.type.v3.rs");
            }
        }
    }

    /// `google.*`, the well-known types.
    pub mod google {
        pub mod protobuf {
            include!("generated/google.protobuf.rs");
        }
        pub mod rpc {
            include!("generated/google.rpc.rs");
        }
    }

    /// `kuadrant.*`, from Kuadrant/limitador.
    pub mod kuadrant {
        pub mod service {
            pub mod ratelimit {
                pub mod v1 {
                    include!("generated/kuadrant.service.ratelimit.v1.rs");
                }
            }
        }
    }

    /// `pb.gubernator`, written for tidegate from what Gubernator sends.
    pub mod pb {
        pub mod gubernator {
            include!("generated/pb.gubernator.rs");
        }
    }

    /// `ratelimit.*`, from envoyproxy/ratelimit.
    pub mod ratelimit {
        pub mod config {
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/ratelimit.config.ratelimit.v3.rs");
                }
            }
        }
    }
}
