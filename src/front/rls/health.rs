//! `grpc.health.v1` of the gRPC listener.

use tidegate_proto::rls::SERVICE_NAME;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::server::{HealthReporter, HealthService};

/// The whole server, the service, and the name that envoyproxy/ratelimit has for it.
const NAMES: [&str; 3] = ["", SERVICE_NAME, "ratelimit"];

/// A health request is a service name.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The serving status; `NOT_SERVING` at first.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
}

impl Health {
    /// A status of `NOT_SERVING`.
    pub async fn new() -> Self {
        let health = Self { reporter: HealthReporter::new() };
        health.set_serving(false).await;
        health
    }

    /// Sets the status of every name; watchers receive it at once. Readiness and drain both end up
    /// here.
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// The service to mount.
    pub(super) fn service(&self) -> HealthServer<impl health_server::Health> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}
