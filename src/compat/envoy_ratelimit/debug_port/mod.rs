//! The debug port of envoyproxy/ratelimit. It is read-only.
//!
//! | path | content |
//! |---|---|
//! | `/` | the paths, one a line |
//! | `/rlconfig` | every limit in force |
//! | `/stats` | every counter, `name: value` |
//! | `/debug/pprof/…` | 404: there is no Go runtime to profile |

mod rlconfig;

use std::fmt::Write;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use tidegate_rules::book::Book;

use super::statistics::{Source, Statistics};

/// What the debug port shows.
#[derive(Clone, Debug)]
pub struct DebugPort {
    /// The rules in force.
    pub book: Arc<ArcSwap<Book>>,
    pub statistics: Source,
}

/// The router of the listener of `[debug]`.
pub fn router(port: DebugPort) -> Router {
    Router::new()
        .route("/rlconfig", get(rules))
        .route("/stats", get(stats))
        .route("/debug/pprof", get(no_profiles))
        .route("/debug/pprof/", get(no_profiles))
        .route("/debug/pprof/{*rest}", get(no_profiles))
        // As in envoyproxy/ratelimit, an unknown path answers with the list.
        .fallback(async || INDEX)
        .with_state(port)
}

const INDEX: &str = "\
/debug/pprof/: not available, this is not a Go program; see /metrics on the HTTP port
/rlconfig: print out the currently loaded configuration for debugging
/stats: print out stats
";

const NO_PROFILES: &str = "\
no profiles: this is not a Go program. Run perf on the process; /metrics is on the HTTP port.
";

async fn no_profiles() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, NO_PROFILES)
}

async fn rules(State(port): State<DebugPort>) -> String {
    rlconfig::dump(&port.book.load())
}

async fn stats(State(port): State<DebugPort>) -> String {
    dump(&port.statistics.read())
}

/// `name: value`, one a line: `ratelimit.service.rate_limit.shop.user_ann.total_hits: 5`.
fn dump(statistics: &Statistics) -> String {
    let mut text = String::new();
    statistics.counters(|name, value| {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{name}: {value}");
    });
    text
}
