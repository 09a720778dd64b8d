//! The rules in force, which `Decider::decide` loads once per request, and the folder they are
//! reloaded from; the files of `[tls]`.

pub mod certificates;
pub mod current;
pub mod files;
pub mod watch;
