//! `tidegate serve` as child processes. Every start takes the path of the binary, which cargo passes only
//! to the tests of the root package (`env!("CARGO_BIN_EXE_tidegate")`).

mod cluster;
mod load;
mod node;
mod process;

pub use cluster::{Cluster, ClusterOptions, THREE};
pub use load::{Load, Results};
pub use node::Node;
pub use process::Process;
