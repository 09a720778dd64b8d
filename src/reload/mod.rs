//! The rules in force, which `Decider::decide` loads once per request, and the folder they are
//! reloaded from.

pub mod current;
pub mod watch;
