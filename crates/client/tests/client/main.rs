//! The pacer: the vectors that all clients share, input from servers, tasks, and real HTTP.

mod pacer;
mod pacing;
mod server;
mod untrusted;
mod vectors;
mod workers;
