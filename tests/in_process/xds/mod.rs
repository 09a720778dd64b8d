//! Rules from a management server: the client against a server in this process. `tests/process` has
//! a whole node against one, `tests/external` has a server in another language.

mod follow;
mod tls;
