//! Frames.

use std::fmt::Debug;

use bytes::BytesMut;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_cluster::mesh::codec;
use tidegate_cluster::mesh::wire::{Call, Numbered};

const LENGTH_BYTES: usize = 4;

/// The call in a frame, whatever the length in front says: that is for the target `frame`.
pub fn call(bytes: &[u8]) -> Option<Call> {
    let message: Numbered<Call> = codec::decode(bytes.get(LENGTH_BYTES..)?).ok()?;
    Some(message.body)
}

/// What is held here can be told on: whoever reads it reads the same. A state that no receiver can
/// read would close every stream that it is sent on.
pub fn can_be_told<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T) {
    let mut buffer = BytesMut::new();
    codec::encode(message, &mut buffer).expect("what was read can be written");
    let frame = codec::split(&mut buffer).expect("a length within bounds").expect("a whole frame");
    assert!(buffer.is_empty(), "{message:?} leaves {} bytes behind", buffer.len());
    let read: T = codec::decode(&frame).expect("what was written can be read");
    assert_eq!(read, *message);
}
