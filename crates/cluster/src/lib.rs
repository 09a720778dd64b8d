//! The cluster: who is a member, who owns a key, and how nodes talk.

pub mod environment;
pub mod gossip;
pub mod incarnation;
pub mod mesh;
pub mod ownership;
pub mod pki;
pub mod replication;
pub mod sync;
