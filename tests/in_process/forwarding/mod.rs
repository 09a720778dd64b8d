//! Strict checks that leave the node they were sent to: counted once, whoever owns the key and
//! whatever happens to the messages.

mod all_or_nothing;
pub(crate) mod bench;
mod carried;
mod combined;
mod negative_cache;
mod retries;
mod searches;
mod throttle;
