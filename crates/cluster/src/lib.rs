//! The cluster: who is a member, who owns a key, and how nodes talk.

pub mod backoff;
pub mod environment;
pub mod gossip;
pub mod incarnation;
pub mod mesh;
pub mod ownership;
pub mod pki;
pub mod replicate;
pub mod sync;
