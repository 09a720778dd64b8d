//! `tidegate serve` as child processes. Every start takes the path of the binary, which cargo
//! passes only to the tests of the root package (`env!("CARGO_BIN_EXE_tidegate")`).

mod child;
mod cluster;
mod load;
mod node;
pub mod open_loop;

pub use child::Process;
pub use cluster::{Cluster, ClusterOptions, Cutter, THREE};
pub use load::{Load, Results};
pub use node::Node;
