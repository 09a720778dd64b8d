//! Decoding and encoding of frames.

use std::fmt::Debug;

use bytes::BytesMut;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_cluster::mesh::codec;
use tidegate_cluster::mesh::wire::{Call, Numbered};

const LENGTH_BYTES: usize = 4;

/// Decodes the call in a frame. Ignores the length field, which the target `frame` covers.
pub fn call(bytes: &[u8]) -> Option<Call> {
    let message: Numbered<Call> = codec::decode(bytes.get(LENGTH_BYTES..)?, codec::VERSION).ok()?;
    Some(message.body)
}

/// Asserts that an accepted message can be encoded and decodes to an equal one. A state that cannot
/// be decoded would make receivers close every stream it is sent on.
pub fn assert_round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T) {
    let mut buffer = BytesMut::new();
    codec::encode(message, codec::VERSION, &mut buffer).expect("the message can be encoded");
    let frame =
        codec::split(&mut buffer).expect("a length within bounds").expect("a complete frame");
    assert!(buffer.is_empty(), "{} trailing bytes after {message:?}", buffer.len());
    let decoded: T = codec::decode(&frame, codec::VERSION).expect("the frame can be decoded");
    assert_eq!(decoded, *message);
}
