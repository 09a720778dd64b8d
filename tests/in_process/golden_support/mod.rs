//! The golden sequence cases, and a node that stands alone to run them with.

#![allow(unreachable_pub, reason = "each test is a crate of its own")]
#![allow(dead_code, reason = "each test uses its part of the support")]

pub mod case;
pub mod node;
pub mod render;
