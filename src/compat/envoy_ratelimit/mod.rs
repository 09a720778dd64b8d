//! Compatibility with [envoyproxy/ratelimit](https://github.com/envoyproxy/ratelimit): a node
//! replaces its image without a change to Envoy, rule files, settings, dashboards or scripts.
//!
//! | compatible | where | tests |
//! |---|---|---|
//! | environment variables | [`environment`] | `envoy_ratelimit_settings` |
//! | names, arguments of the binaries | [`command`], `cli/{serve,config_check}.rs` | `cli_binary` |
//! | debug port: `/rlconfig`, `/stats` | [`debug_port`] | `envoy_ratelimit_command` |
//! | statsd and Prometheus statistics | [`statistics`] | `stats_export`, `stats_bounds` |
//! | how hits are counted under a name | `tidegate_rules::tally` | `tally_laws`, `rls_golden` |
//! | rule files | `tidegate_rules` | `rules_golden` |
//! | rule files that both limiters accept (`--strict-compat`) | [`rule_files`] | `rules_cli` |
//! | rules over xDS | `crate::xds` | `xds` |
//! | gRPC service, headers, metadata, quota and shadow mode | `crate::front::rls` | `rls_*` |
//! | `/json`, `/healthcheck` | `crate::front::http` | `front` (`ratelimit`), `process` |
//!
//! The last rows are elsewhere because they serve tidegate's own users as well: the rules are one
//! pure crate, and the listeners share their bounds and their decision path. The sections
//! `[envoy]`, `[stats]`, `[debug]` and `[xds]` are part of [`crate::config`].
//!
//! Not compatible, on purpose: there is no Redis or Memcached behind it, no Unix socket and no
//! tracing; `settings` gives the reason for every ignored variable. `docs/adr/0043` describes the
//! Prometheus text. Operators read `docs/migrate-from-envoyproxy-ratelimit.md` and
//! `docs/envoyproxy-ratelimit-settings.md`.
//!
//! This folder uses `config`, `observe`, `front` and the rules; only `node` and `cli` use it.

pub mod command;
pub mod debug_port;
pub mod environment;
pub mod rule_files;
pub mod statistics;
