//! The golden sequence cases, and a standalone node to run them with.

pub(crate) mod case;
pub(crate) mod node;
pub(crate) mod render;
