//! The network: datagrams over turmoil, under weather.
//!
//! ```text
//!   node's runtime          turmoil host          turmoil host          node's runtime
//!   quinn ─▶ Socket ─queue─▶ Card ─▶ weather ─▶ turmoil ─▶ Card ─queue─▶ Socket ─▶ quinn
//! ```
//!
//! A turmoil host cannot be paused, and a process that is stopped for a second and goes on is what
//! a lease has to survive. So the host is only the network card of a node; the node itself runs in
//! a runtime of its own that the simulation steps, or does not. A card takes in datagrams for a
//! paused node up to its bound, as a kernel does.

mod card;
mod socket;
mod weather;

pub(crate) use card::{Card, PORT, Plugged, serve};
pub(crate) use socket::SimNet;
pub(crate) use weather::{Link, Weather};
