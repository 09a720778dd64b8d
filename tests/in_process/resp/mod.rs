//! The RESP listener byte by byte, in front of a standalone node with a manual clock.

mod bounds;
mod drain;
mod listener;
mod properties;
mod semantics;
mod tls;
mod wire;
