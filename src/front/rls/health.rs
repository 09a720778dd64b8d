//! `grpc.health.v1`: whether the gRPC door wants traffic.

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::server::{HealthReporter, HealthService};

use super::SERVICE_NAME;

/// Names that are asked for: the whole server, the service, and what envoyproxy/ratelimit calls it.
const NAMES: [&str; 3] = ["", SERVICE_NAME, "ratelimit"];

/// A health request is a service name.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Says whether this door serves. Starts with "no".
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
}

impl Health {
    /// Health of a door that does not serve yet.
    pub async fn new() -> Self {
        let health = Self { reporter: HealthReporter::new() };
        health.set_serving(false).await;
        health
    }

    /// Says for every name whether it serves. Readiness and drain both end up here; watchers are
    /// told at once.
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
