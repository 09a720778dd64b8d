//! The proxy over real sockets, with a table of answers in place of the node, and applications of
//! the tests behind it.

mod access_log;
mod adaptive;
mod concurrency;
mod failures;
mod incoming;
mod passing;
mod refusals;
mod servers;
mod smuggling;
mod support;
mod upgrades;
mod uploads;
