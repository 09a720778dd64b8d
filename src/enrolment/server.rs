//! The listener of `[join]`: new nodes, which have no certificate yet, show their token here.
//!
//! Strangers reach it, so it answers one kind of request alone, of bounded size and within a
//! bounded time, and tells nothing without a token. Its TLS is that of the mesh: the node's own
//! certificate, and with it the authorities, by the pin of which a new node recognises the cluster.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::Serialize;
use tidegate_cluster::mesh::Mesh;
use tokio::time::timeout;

use super::issuer::{Issuer, Refused};
use super::{JOIN_PATH, JoinRequest};
use crate::admin::key::AUDIT;
use crate::config::UserError;
use crate::front::tls::Tls;
use crate::observe::log::one_line;

/// A request has some 600 bytes.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// The routes of the listener. A body may take `body_timeout`.
pub fn router(issuer: Arc<Issuer>, body_timeout: Duration) -> Router {
    let join = async move |State(issuer): State<Arc<Issuer>>, request: Request| {
        let body = timeout(body_timeout, Bytes::from_request(request, &()));
        match body.await {
            Ok(Ok(body)) => join(issuer, &body).await,
            Ok(Err(rejection)) => rejection.into_response(),
            Err(_) => refuse(StatusCode::REQUEST_TIMEOUT, "send the whole request at once"),
        }
    };
    Router::new()
        .route(JOIN_PATH, post(join))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(issuer)
}

/// The TLS of the listener: the certificate of the mesh, also when it is replaced.
///
/// # Errors
///
/// TLS cannot be set up.
pub fn listener_tls(mesh: &Arc<Mesh>) -> Result<Tls, UserError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(UserError::context("failed to set up TLS of join.listen", "report it"))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(OfMesh(mesh.clone())));
    Ok(Tls::of_config(config))
}

#[derive(Debug)]
struct OfMesh(Arc<Mesh>);

impl ResolvesServerCert for OfMesh {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let identity = self.0.identity();
        let chain = identity.chain.iter().chain(&identity.authorities).cloned().collect();
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, identity.key.clone_key(), &provider).ok().map(Arc::new)
    }
}

async fn join(issuer: Arc<Issuer>, body: &[u8]) -> Response {
    let Ok(request) = serde_json::from_slice::<JoinRequest>(body) else {
        return refuse(StatusCode::BAD_REQUEST, "send what `tidegate join` sends");
    };
    let credential = request.credential.clone();
    // It reads two files, or three.
    let enrolled = tokio::task::spawn_blocking(move || issuer.enrol(&request)).await;
    let enrolled = enrolled.unwrap_or_else(|error| Err(Refused::Here(error.to_string())));
    match enrolled {
        Ok(enrolled) => {
            tracing::info!(
                target: AUDIT, node = %enrolled.node, region = %enrolled.region,
                role = %enrolled.role, ?credential, "a node joined with a token"
            );
            answer(StatusCode::OK, &enrolled)
        }
        Err(refused) => {
            let text = refused.to_string();
            let reason = one_line(&text);
            tracing::warn!(target: AUDIT, %reason, "refused a node that tried to join");
            let status = match refused {
                Refused::Asker(_) => StatusCode::FORBIDDEN,
                Refused::Here(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            refuse(status, &refused.to_string())
        }
    }
}

fn refuse(status: StatusCode, text: &str) -> Response {
    answer(status, &serde_json::json!({ "error": text }))
}

fn answer(status: StatusCode, body: &impl Serialize) -> Response {
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    match serde_json::to_string(body) {
        Ok(body) => (status, headers, body).into_response(),
        // Both are plain structs; only a map whose keys are not strings can fail.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
