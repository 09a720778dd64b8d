//! The network: datagrams over turmoil, with faults per link.
//!
//! ```text
//!   node's runtime          turmoil host          turmoil host          node's runtime
//!   quinn ─▶ Socket ─queue─▶ Nic ─▶ links ─▶ turmoil ─▶ Nic ─queue─▶ Socket ─▶ quinn
//! ```
//!
//! A turmoil host cannot be paused, and leases must be tested with processes that are paused and
//! resumed. So the host is only the network interface of a node. The node runs in its own runtime,
//! which the simulation steps or does not step. The interface buffers datagrams for a paused node
//! up to a bound, as a kernel does.

mod links;
mod nic;
mod socket;

pub(crate) use links::{Link, Links};
pub(crate) use nic::{Nic, NicHost, PORT, serve};
pub(crate) use socket::SimNet;
