//! Any bytes on a stream of the mesh. None makes a node panic; what they are read as is written and
//! read as the same again.

#![no_main]

use std::fmt::Debug;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_cluster::mesh::codec;
use tidegate_cluster::mesh::wire::{Call, Hello, HelloReply, Numbered, Reply};
use tidegate_fuzz::wire;

fuzz_target!(|bytes: &[u8]| {
    let mut stream = BytesMut::from(bytes);
    while let Ok(Some(frame)) = codec::split(&mut stream) {
        read_as_anything(&frame);
    }
    // Few lengths fit what follows; the rest is worth reading all the same.
    if let Some(frame) = bytes.get(4..) {
        read_as_anything(frame);
    }
});

fn read_as_anything(frame: &[u8]) {
    read_as::<Numbered<Call>>(frame);
    read_as::<Numbered<Reply>>(frame);
    read_as::<Hello>(frame);
    read_as::<HelloReply>(frame);
}

fn read_as<T: Serialize + DeserializeOwned + PartialEq + Debug>(frame: &[u8]) {
    if let Ok(message) = codec::decode::<T>(frame) {
        wire::can_be_told(&message);
    }
}
