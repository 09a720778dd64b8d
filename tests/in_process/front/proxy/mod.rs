//! The proxy over real sockets, with a table of answers in place of the node, and applications of
//! the tests behind it.

mod failures;
mod passing;
mod refusals;
mod support;
