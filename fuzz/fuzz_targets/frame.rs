//! Arbitrary bytes on a mesh stream. Invariants: no panic; a decoded message encodes and decodes to
//! an equal one.

#![no_main]

use std::fmt::Debug;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_cluster::mesh::codec;
use tidegate_cluster::mesh::wire::{Call, Hello, HelloReply, Numbered, Reply};
use tidegate_fuzz::frames;

fuzz_target!(|bytes: &[u8]| {
    let mut stream = BytesMut::from(bytes);
    while let Ok(Some(frame)) = codec::split(&mut stream) {
        decode_all(&frame);
    }
    // Random length fields rarely match, so the payload is also decoded without it.
    if let Some(frame) = bytes.get(4..) {
        decode_all(frame);
    }
});

fn decode_all(frame: &[u8]) {
    decode::<Numbered<Call>>(frame);
    decode::<Numbered<Reply>>(frame);
    decode::<Hello>(frame);
    decode::<HelloReply>(frame);
}

fn decode<T: Serialize + DeserializeOwned + PartialEq + Debug>(frame: &[u8]) {
    if let Ok(message) = codec::decode::<T>(frame, codec::VERSION) {
        frames::assert_round_trip(&message);
    }
}
