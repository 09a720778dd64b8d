//! The cluster: who is a member, who owns a key, and how nodes talk.

pub mod gossip;
pub mod identity;
pub mod incarnation;
pub mod membership;
pub mod mesh;
pub mod ranges;
pub mod replicate;
pub mod ring;
pub mod route;
pub mod sync;
pub mod tenure;
