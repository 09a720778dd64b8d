//! The HTTP and gRPC listeners over real sockets, with a table of answers in place of the node.

mod auth;
mod check;
mod connections;
mod given_back;
mod properties;
mod proxy;
mod ratelimit;
mod rendering;
mod rls;
mod support;
mod tls;
