//! Compatibility with [Gubernator](https://github.com/gubernator-io/gubernator): a node replaces
//! its daemon without a change to clients.
//!
//! | compatible | where | tests |
//! |---|---|---|
//! | environment variables | [`environment`] | here |
//! | metrics | [`metrics`] | here |
//! | gRPC service and JSON gateway | `crate::front::gubernator` | `gubernator` |
//!
//! The listeners are elsewhere because they serve nodes of any configuration. How nodes find each
//! other is not compatible: [`settings`] has the reason for every variable that has no effect.
//! Operators read `docs/gubernator.md`.
//!
//! This folder uses `config`, `observe` and `front`; only `node` and `cli` use it.

pub mod environment;
pub mod metrics;
pub mod settings;
