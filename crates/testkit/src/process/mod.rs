//! What the tests stand on: processes, nodes, nginx, an upstream, clients and their load.

mod cluster;
mod load;
mod node;
mod process;

pub use cluster::{Cluster, Shape, THREE};
pub use load::Load;
pub use node::Node;
pub use process::Process;
