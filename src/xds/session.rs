//! What a client says on one stream: which version it holds, and what it thinks of each response.
//!
//! A request names two things of the server's: `version_info`, the last version that was taken, and
//! `response_nonce`, the last response that was seen. A response that is taken moves both; one that
//! is refused moves the nonce alone and gives the reason:
//!
//! | seen | version | nonce | `error_detail` |
//! |---|---|---|---|
//! | nothing yet | | | |
//! | "1", nonce "a", taken | 1 | a | |
//! | "2", nonce "b", refused | 1 | b | the reason |
//! | "3", nonce "c", taken | 3 | c | |
//!
//! Source: the xDS protocol, "ACK/NACK and versioning"; go-control-plane's client does the same.

use super::message::{DiscoveryRequest, DiscoveryResponse, Node, Status};
use super::rls_conf::TYPE_URL;

/// Longest reason that the server is told, in characters; the rest of a longer one is cut off.
pub const REASON_CHARS_MAX: usize = 4_096;

/// gRPC's code for what the other side should not have sent.
const INVALID_ARGUMENT: i32 = 3;

/// One stream, from its first request on.
#[derive(Clone, Debug)]
pub struct Session {
    node: Node,
    version: String,
    nonce: String,
}

impl Session {
    /// A stream on which nothing was said yet.
    pub fn new(node: Node) -> Self {
        Self { node, version: String::new(), nonce: String::new() }
    }

    /// What is said first: that all resources are wanted.
    pub fn subscription(&self) -> DiscoveryRequest {
        self.request(None)
    }

    /// Whether a response is about what was asked for. A server of many types may send others,
    /// which are not ours to answer.
    pub fn concerns(response: &DiscoveryResponse) -> bool {
        response.type_url.is_empty() || response.type_url == TYPE_URL
    }

    /// The answer to a response: taken (ACK), or not and why (NACK).
    pub fn answer(
        &mut self,
        response: &DiscoveryResponse,
        verdict: Result<(), &str>,
    ) -> DiscoveryRequest {
        self.nonce.clone_from(&response.nonce);
        match verdict {
            Ok(()) => {
                self.version.clone_from(&response.version_info);
                self.request(None)
            }
            Err(reason) => self.request(Some(reason)),
        }
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
    fn a_taken_response_moves_version_and_nonce_a_refused_one_the_nonce() {
        let mut session = Session::new(Node::default());
        assert_eq!(said(&session.subscription()), ("", "", None));
        let request = session.answer(&response("1", "a"), Ok(()));
        assert_eq!(said(&request), ("1", "a", None));
        let request = session.answer(&response("2", "b"), Err("no"));
        assert_eq!(said(&request), ("1", "b", Some("no")));
        let request = session.answer(&response("3", "c"), Ok(()));
        assert_eq!(said(&request), ("3", "c", None));
    }

    #[test]
    fn a_first_response_that_is_refused_leaves_no_version() {
        let mut session = Session::new(Node::default());
        let request = session.answer(&response("1", "a"), Err("no"));
        assert_eq!(said(&request), ("", "a", Some("no")));
    }

    #[test]
    fn every_request_names_node_and_type_and_asks_for_all() {
        let node = Node { id: "n".into(), ..Node::default() };
        let mut session = Session::new(node.clone());
        for request in [session.subscription(), session.answer(&response("1", "a"), Ok(()))] {
            assert_eq!((request.node, &*request.type_url), (Some(node.clone()), TYPE_URL));
            assert!(request.resource_names.is_empty());
        }
    }

    #[test]
    fn a_long_reason_is_cut() {
        let mut session = Session::new(Node::default());
        let request = session.answer(&response("1", "a"), Err(&"é".repeat(1 << 20)));
        let told = request.error_detail.unwrap().message;
        assert_eq!(told, "é".repeat(REASON_CHARS_MAX));
    }

    #[test]
    fn responses_about_other_types_do_not_concern_us() {
        assert!(Session::concerns(&response("1", "a")));
        let other = DiscoveryResponse { type_url: "x".into(), ..response("1", "a") };
        assert!(!Session::concerns(&other));
    }

    fn response(version: &str, nonce: &str) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: version.into(),
            nonce: nonce.into(),
            type_url: TYPE_URL.into(),
            resources: Vec::new(),
        }
    }

    fn said(request: &DiscoveryRequest) -> (&str, &str, Option<&str>) {
        let reason = request.error_detail.as_ref().map(|status| &*status.message);
        (&request.version_info, &request.response_nonce, reason)
    }
}
