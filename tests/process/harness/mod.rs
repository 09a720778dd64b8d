//! What the tests stand on: processes, nodes, nginx, an upstream, clients and their load.

mod client;
mod cluster;
mod load;
mod nginx;
mod node;
pub(crate) mod ports;
mod process;
mod upstream;
mod wait;

pub(crate) use client::{Http, Reply, check_body, hits_body};
pub(crate) use cluster::{Cluster, Shape, THREE};
pub(crate) use load::Load;
pub(crate) use nginx::{Nginx, Request};
pub(crate) use node::Node;
pub(crate) use process::Process;
pub(crate) use upstream::Upstream;
pub(crate) use wait::until;
