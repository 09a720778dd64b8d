//! The debug port of envoyproxy/ratelimit. It is read-only.
//!
//! | path | content |
//! |---|---|
//! | `/` | the paths, one a line |
//! | `/rlconfig` | every limit in force |
//! | `/stats` | every counter, `name: value` |
//! | `/debug/pprof/…` | 404: there is no Go runtime to profile |

use std::fmt::Write;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tidegate_limiter::quota::Quota;
use tidegate_rules::book::Book;

use super::statistics::{Source, Statistics};
use crate::front::pages::Page;
use crate::front::rls;
use crate::front::rls::message::Unit;

/// What the debug port shows.
#[derive(Clone, Debug)]
pub struct DebugPort {
    /// The rules in force.
    pub book: Arc<ArcSwap<Book>>,
    pub statistics: Source,
}

/// [`DebugPort`] and the renderings of its pages.
#[derive(Clone)]
struct Routed {
    port: DebugPort,
    rules: Page,
    stats: Page,
}

/// The router of the listener of `[debug]`.
pub fn router(port: DebugPort) -> Router {
    let routed = Routed { port, rules: Page::default(), stats: Page::default() };
    Router::new()
        .route("/rlconfig", get(rules))
        .route("/stats", get(stats))
        .route("/debug/pprof", get(no_profiles))
        .route("/debug/pprof/", get(no_profiles))
        .route("/debug/pprof/{*rest}", get(no_profiles))
        // As in envoyproxy/ratelimit, an unknown path answers with the list.
        .fallback(async || INDEX)
        .with_state(routed)
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

async fn rules(State(Routed { port, rules, .. }): State<Routed>) -> Response {
    text(rules.get(|| rlconfig(&port.book.load())))
}

async fn stats(State(Routed { port, stats, .. }): State<Routed>) -> Response {
    text(stats.get(|| dump(&port.statistics.read())))
}

fn text(page: Bytes) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response()
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

/// The limits in force, one a line, in the format of envoyproxy/ratelimit:
///
/// ```text
/// shop.user_ann: unit=MINUTE requests_per_unit=10, shadow_mode: false, quota_mode: false
/// ```
///
/// The lines are sorted, unlike there. A window that is not one of Envoy's units is shown as a
/// duration (`unit=90s`); a rule with several limits has a line for each; an unlimited one is
/// `unit=UNKNOWN`, with the number that it names, as there.
///
/// Source: `src/config/config_impl.go`, `dump`.
fn rlconfig(book: &Book) -> String {
    let mut rules: Vec<_> = book.rules().collect();
    rules.sort_by(|a, b| a.id.cmp(&b.id));
    let mut text = String::new();
    for rule in rules {
        let (id, shadow, quota_mode) = (&rule.id, rule.shadow, rule.quota_mode);
        let mut line = |unit: &str, limit: u32| {
            // Writing to a `String` cannot fail.
            let _ = writeln!(
                text,
                "{id}: unit={unit} requests_per_unit={limit}, shadow_mode: {shadow}, \
                 quota_mode: {quota_mode}"
            );
        };
        if rule.limits.is_empty() {
            line(Unit::Unknown.as_str_name(), rule.unlimited_per_unit);
        }
        for quota in &rule.limits {
            line(&unit(quota), quota.limit());
        }
    }
    text
}

fn unit(quota: &Quota) -> String {
    match rls::unit(quota.window()) {
        Unit::Unknown => quota.window().to_string(),
        unit => unit.as_str_name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_rules::load::{self, Source};

    use super::*;

    #[test]
    fn every_limit_is_a_line_in_order() {
        let yaml = "domain: d\ndescriptors:\n\
                    - key: z\n  shadow_mode: true\n  quota_mode: true\n  \
                    rate_limit: {unit: Minute, requests_per_unit: 10}\n\
                    - key: a\n  value: b\n  rate_limit: {unlimited: true, requests_per_unit: 9}\n  \
                    descriptors:\n  \
                    - key: c\n    rate_limit:\n    \
                    - {window: 90s, requests_per_unit: 5}\n    \
                    - {unit: day, requests_per_unit: 7}\n";
        let source = Source { name: "d.yaml".into(), bytes: yaml.as_bytes().to_vec() };
        let book = load::parse(&[source], &load::Options::default()).unwrap();
        assert_eq!(
            rlconfig(&book),
            "d.a_b: unit=UNKNOWN requests_per_unit=9, shadow_mode: false, quota_mode: false\n\
             d.a_b.c: unit=90s requests_per_unit=5, shadow_mode: false, quota_mode: false\n\
             d.a_b.c: unit=DAY requests_per_unit=7, shadow_mode: false, quota_mode: false\n\
             d.z: unit=MINUTE requests_per_unit=10, shadow_mode: true, quota_mode: true\n"
        );
    }
}
