//! The rules in force, and the folder they are reloaded from.

pub mod current;
pub mod watch;
