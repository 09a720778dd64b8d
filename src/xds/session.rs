//! The requests of a client on one stream: its version, and whether each response is accepted.
//!
//! A request has `version_info`, the last accepted version, and `response_nonce`, the last received
//! response. A response that is accepted moves both; one that is rejected moves only the nonce and
//! sets the reason:
//!
//! | response | version | nonce | `error_detail` |
//! |---|---|---|---|
//! | none yet | | | |
//! | "1", nonce "a", accepted | 1 | a | |
//! | "2", nonce "b", rejected | 1 | b | the reason |
//! | "3", nonce "c", accepted | 3 | c | |
//!
//! Source: the xDS protocol, "ACK/NACK and versioning"; go-control-plane's client does the same.

use tidegate_proto::xds::{DiscoveryRequest, DiscoveryResponse, Node, Status, TYPE_URL};

/// Longest reason that is sent to the server, in characters; a longer one is cut.
pub const REASON_CHARS_MAX: usize = 4_096;

/// The gRPC status code of a rejected response.
const INVALID_ARGUMENT: i32 = 3;

/// One stream, from its first request on.
#[derive(Clone, Debug)]
pub struct Session {
    node: Node,
    version: String,
    nonce: String,
}

impl Session {
    /// A stream on which nothing was sent yet.
    pub fn new(node: Node) -> Self {
        Self { node, version: String::new(), nonce: String::new() }
    }

    /// The first request: a subscription to all resources.
    pub fn subscription(&self) -> DiscoveryRequest {
        self.request(None)
    }

    /// Whether a response is of the type that is subscribed to. A server may send others, which are
    /// not acknowledged.
    pub fn is_subscribed(response: &DiscoveryResponse) -> bool {
        response.type_url.is_empty() || response.type_url == TYPE_URL
    }

    /// ACK.
    pub fn acknowledge(&mut self, response: &DiscoveryResponse) -> DiscoveryRequest {
        self.nonce.clone_from(&response.nonce);
        self.version.clone_from(&response.version_info);
        self.request(None)
    }

    /// NACK.
    pub fn reject(&mut self, response: &DiscoveryResponse, reason: &str) -> DiscoveryRequest {
        self.nonce.clone_from(&response.nonce);
        self.request(Some(reason))
    }

    fn request(&self, reason: Option<&str>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(self.node.clone()),
            resource_names: Vec::new(),
            type_url: TYPE_URL.to_owned(),
            response_nonce: self.nonce.clone(),
            error_detail: reason.map(|reason| Status {
                code: INVALID_ARGUMENT,
                message: reason.chars().take(REASON_CHARS_MAX).collect(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_response_moves_version_and_nonce_a_rejected_one_the_nonce() {
        let mut session = Session::new(Node::default());
        assert_eq!(fields(&session.subscription()), ("", "", None));
        let request = session.acknowledge(&response("1", "a"));
        assert_eq!(fields(&request), ("1", "a", None));
        let request = session.reject(&response("2", "b"), "no");
        assert_eq!(fields(&request), ("1", "b", Some("no")));
        let request = session.acknowledge(&response("3", "c"));
        assert_eq!(fields(&request), ("3", "c", None));
    }

    #[test]
    fn a_first_response_that_is_rejected_leaves_no_version() {
        let mut session = Session::new(Node::default());
        let request = session.reject(&response("1", "a"), "no");
        assert_eq!(fields(&request), ("", "a", Some("no")));
    }

    #[test]
    fn every_request_has_node_and_type_and_subscribes_to_all() {
        let node = Node { id: "n".into(), ..Node::default() };
        let mut session = Session::new(node.clone());
        for request in [session.subscription(), session.acknowledge(&response("1", "a"))] {
            assert_eq!((request.node, &*request.type_url), (Some(node.clone()), TYPE_URL));
            assert!(request.resource_names.is_empty());
        }
    }

    #[test]
    fn a_long_reason_is_cut() {
        let mut session = Session::new(Node::default());
        let request = session.reject(&response("1", "a"), &"é".repeat(1 << 20));
        let reason = request.error_detail.unwrap().message;
        assert_eq!(reason, "é".repeat(REASON_CHARS_MAX));
    }

    #[test]
    fn responses_of_other_types_are_ignored() {
        assert!(Session::is_subscribed(&response("1", "a")));
        let other = DiscoveryResponse { type_url: "x".into(), ..response("1", "a") };
        assert!(!Session::is_subscribed(&other));
    }

    fn response(version: &str, nonce: &str) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: version.into(),
            nonce: nonce.into(),
            type_url: TYPE_URL.into(),
            resources: Vec::new(),
        }
    }

    fn fields(request: &DiscoveryRequest) -> (&str, &str, Option<&str>) {
        let reason = request.error_detail.as_ref().map(|status| &*status.message);
        (&request.version_info, &request.response_nonce, reason)
    }
}
