//! A management server, and a node that follows one.

mod node;
mod resources;
mod server;

pub use node::{Node, soon};
pub use resources::{mistaken_rules, rules, state};
pub use server::Server;
