//! One request at a server, from before it is sent until its response, and what the client sends
//! for it, have ended.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::adaptive_limit::Slot;
use super::at_server::{AtServer, Load};
use super::request_body::Upload;
use crate::decide::Place;

/// Counts as a request until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    at_server: Arc<AtServer>,
    /// Its place among the requests that a rule limits.
    place: Option<Place>,
    /// The body of the request, which may take longer than its response.
    upload: Option<Upload>,
}

impl InFlight {
    pub(super) fn new(load: &Load, slot: Option<Slot>, permit: &Arc<OwnedSemaphorePermit>) -> Self {
        let at_server = Arc::new(AtServer::new(load, slot, permit));
        Self { at_server, place: None, upload: None }
    }

    /// To be held for as long as the client sends.
    pub(super) fn at_server(&self) -> &Arc<AtServer> {
        &self.at_server
    }

    pub(super) fn slot(&self) -> Option<&Slot> {
        self.at_server.slot()
    }

    /// The server has switched to another protocol: what passes now is not a request.
    pub(super) fn is_tunnel(&mut self) {
        // A request with a body does not switch, so nothing else holds it.
        if let Some(at_server) = Arc::get_mut(&mut self.at_server) {
            at_server.is_tunnel();
        }
    }

    /// The request has a place, until this is dropped.
    pub(super) fn has(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// What is sent for the response ends with it.
    pub(super) fn uploads(&mut self, upload: Upload) {
        self.upload = Some(upload);
    }

    /// Whether the client has broken off what it sends.
    pub(super) fn has_failed_upload(&self) -> bool {
        self.upload.as_ref().is_some_and(Upload::has_failed)
    }

    /// The last byte of the response has come.
    pub(super) fn is_done(&mut self) {
        if let Some(place) = &mut self.place {
            place.is_done();
        }
    }
}
