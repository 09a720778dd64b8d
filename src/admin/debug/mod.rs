//! The debug door: what envoyproxy/ratelimit shows on its debug port. It only tells.
//!
//! | path | what |
//! |---|---|
//! | `/` | the paths, one a line |
//! | `/rlconfig` | every limit in force |
//! | `/stats` | every counter, `name: value` |
//! | `/debug/pprof/…` | 404: there is no Go runtime to look into |

mod rlconfig;

use std::fmt::Write;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use tidegate_rules::book::Book;

use super::router::answer;
use crate::observe::statistics::Statistics;

/// What stands behind the debug door.
#[derive(Clone, Debug)]
pub struct Debug<S> {
    /// The rules in force.
    pub book: Arc<ArcSwap<Book>>,
    /// Reads what was counted.
    pub statistics: S,
}

/// The router for the listener of `[debug]`.
pub fn router<S>(debug: Debug<S>) -> Router
where
    S: Fn() -> Statistics + Clone + Send + Sync + 'static,
{
    Router::new()
        .route("/rlconfig", get(rlconfig::<S>))
        .route("/stats", get(stats::<S>))
        .route("/debug/pprof", get(no_profiles))
        .route("/debug/pprof/", get(no_profiles))
        .route("/debug/pprof/{*rest}", get(no_profiles))
        // As there: whatever is not known is answered with what is.
        .fallback(index)
        .with_state(debug)
}

const INDEX: &str = "\
/debug/pprof/: not here, this is no Go program; see /metrics on the HTTP port
/rlconfig: print out the currently loaded configuration for debugging
/stats: print out stats
";

const NO_PROFILES: &str = "\
there are no profiles: this is no Go program. Use perf on the process; /metrics is on the HTTP port.
";

async fn index() -> Response {
    text(StatusCode::OK, INDEX.to_owned())
}

async fn no_profiles() -> Response {
    text(StatusCode::NOT_FOUND, NO_PROFILES.to_owned())
}

async fn rlconfig<S>(State(debug): State<Debug<S>>) -> Response {
    text(StatusCode::OK, rlconfig::dump(&debug.book.load()))
}

async fn stats<S: Fn() -> Statistics>(State(debug): State<Debug<S>>) -> Response {
    text(StatusCode::OK, dump(&(debug.statistics)()))
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

fn text(status: StatusCode, body: String) -> Response {
    answer(status, "text/plain; charset=utf-8", body)
}
