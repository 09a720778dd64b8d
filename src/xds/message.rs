//! The messages of discovery, by hand.
//!
//! Sources: `envoy/service/discovery/v3/discovery.proto`, `envoy/config/core/v3/base.proto`,
//! `google/rpc/status.proto`, `google/protobuf/any.proto`. Fields that this
//! client neither reads nor sets are left out: protobuf skips what it does not know.

use super::structure::Struct;

/// What the client says: first which resources it wants, then what it thinks of each response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryRequest {
    /// Of the last response that was taken on this stream.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// Who asks.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// None at all means all resources of the type.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Of the response that this answers.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why that response was not taken.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// What the server says: all resources of the type.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DiscoveryResponse {
    /// The server's name for this state.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// All of them.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// Their type.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The server's name for this response.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// A client, to the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// By what the server knows it.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What else it says about itself.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
    /// The program.
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
    /// Its version.
    #[prost(string, tag = "7")]
    pub user_agent_version: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    /// A code of gRPC.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `google.protobuf.Any`: a message of a type that is named.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Any {
    /// What stands behind the last `/` is the type's full name.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The message.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::structure::{Kind, ListValue, Value};
    use super::*;

    // All bytes below are written down field by field from the .proto files.

    #[test]
    fn field_numbers_of_a_request_are_the_published_ones() {
        let request = DiscoveryRequest {
            version_info: "7".into(),
            node: Some(Node {
                id: "n".into(),
                metadata: Some(Struct::of_texts([("k", "v")])),
                user_agent_name: "t".into(),
                user_agent_version: "1".into(),
            }),
            resource_names: vec!["r".into()],
            type_url: "u".into(),
            response_nonce: "a".into(),
            error_detail: Some(Status { code: 3, message: "no".into() }),
        };
        let golden: &[u8] = &[
            0x0A, 1, b'7', // version_info = 1
            0x12, 21, // node = 2
            0x0A, 1, b'n', // id = 1
            0x1A, 10, // metadata = 3
            0x0A, 8, 0x0A, 1, b'k', 0x12, 3, 0x1A, 1, b'v', // fields = 1 { string_value = 3 }
            0x32, 1, b't', // user_agent_name = 6
            0x3A, 1, b'1', // user_agent_version = 7
            0x1A, 1, b'r', // resource_names = 3
            0x22, 1, b'u', // type_url = 4
            0x2A, 1, b'a', // response_nonce = 5
            0x32, 6, 0x08, 3, 0x12, 2, b'n',
            b'o', // error_detail = 6 { code = 1, message = 2 }
        ];
        assert_eq!(request.encode_to_vec(), golden);
        assert_eq!(DiscoveryRequest::decode(golden), Ok(request));
    }

    #[test]
    fn field_numbers_of_a_response_are_the_published_ones() {
        let golden: &[u8] = &[
            0x0A, 1, b'7', // version_info = 1
            0x12, 6, 0x0A, 1, b'u', 0x12, 1,
            0xFF, // resources = 2 { type_url = 1, value = 2 }
            0x18, 1, // canary = 3, which nobody reads
            0x22, 1, b'u', // type_url = 4
            0x2A, 1, b'a', // nonce = 5
            0x32, 3, 0x0A, 1, b'c', // control_plane = 6, which nobody reads
        ];
        let response = DiscoveryResponse {
            version_info: "7".into(),
            resources: vec![Any { type_url: "u".into(), value: vec![0xFF] }],
            type_url: "u".into(),
            nonce: "a".into(),
        };
        assert_eq!(DiscoveryResponse::decode(golden), Ok(response));
    }

    #[test]
    fn field_numbers_of_a_value_are_the_published_ones() {
        let list = |values| Value { kind: Some(Kind::List(ListValue { values })) };
        let value = |kind| Value { kind: Some(kind) };
        let all = list(vec![
            value(Kind::Null(0)),
            value(Kind::Number(1.0)),
            value(Kind::Bool(true)),
            value(Kind::Struct(Struct::default())),
        ]);
        let golden: &[u8] = &[
            0x32, 23, // list_value = 6
            0x0A, 2, 0x08, 0, // values = 1 { null_value = 1 }
            0x0A, 9, 0x11, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F, // number_value = 2
            0x0A, 2, 0x20, 1, // bool_value = 4
            0x0A, 2, 0x2A, 0, // struct_value = 5
        ];
        assert_eq!(all.encode_to_vec(), golden);
        assert_eq!(Value::decode(golden), Ok(all));
    }
}
