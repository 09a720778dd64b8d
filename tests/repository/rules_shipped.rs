//! The shipped rules load without a warning and have what the demo needs.

use std::path::Path;

use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::units::Span;
use tidegate_rules::book::Book;
use tidegate_rules::load::{Options, load};
use tidegate_rules::rule::Mode;

#[test]
fn the_shipped_rules_load_without_a_warning() {
    let book = shipped();
    assert_eq!(book.warnings(), []);
    let domains: Vec<_> = book.domains().collect();
    assert_eq!(domains, ["algorithms", "api", "bytes", "demo", "modes", "several"]);
}

#[test]
fn the_demo_finds_its_three_rules() {
    let minute = Span::from_secs(60);
    let book = shipped();
    for (key, mode, algorithm, limit) in [
        ("user", Mode::Strict, Algorithm::FixedWindow, 10),
        ("burst", Mode::Strict, Algorithm::TokenBucket, 20),
        ("edge", Mode::Eventual, Algorithm::SlidingWindowCounter, 60),
    ] {
        let rule = book.find("demo", &[Entry { key, value: "anyone" }]).expect(key).rule;
        let quota = Quota::simple(algorithm, limit, minute).unwrap();
        assert_eq!((rule.mode, rule.limits.as_slice()), (mode, [quota].as_slice()), "{key}");
    }
}

#[test]
fn the_shipped_rules_show_every_algorithm() {
    let book = shipped();
    for algorithm in Algorithm::ALL {
        let entry = Entry { key: algorithm.name(), value: "x" };
        let rule = book.find("algorithms", &[entry]);
        let shown = rule.map(|found| found.rule.limits[0].algorithm());
        assert_eq!(shown, Some(algorithm));
    }
}

fn shipped() -> Book {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
    load(&folder, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}
