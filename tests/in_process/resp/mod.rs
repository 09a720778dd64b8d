//! The door for clients of Redis, byte by byte: a whole node that stands alone, under a clock that is
//! set, behind the door on a socket.

mod bounds;
mod drain;
mod listener;
mod properties;
mod semantics;
mod wire;
