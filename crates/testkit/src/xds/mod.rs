//! A management server, and a node that follows one.

mod node;
mod resources;
mod server;

pub use node::Node;
pub use resources::{mistaken_rules, rules, state};
pub use server::Server;
