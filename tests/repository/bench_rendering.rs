//! The tables that `scripts/bench` writes: medians with their spread, and missed bounds.
#![allow(unreachable_pub, reason = "two files of a benchmark, which is a crate of its own")]
#![allow(dead_code, reason = "the benchmark uses all of them")]
#![allow(clippy::cast_possible_truncation, reason = "a number has few digits")]

#[path = "../../benches/sidebyside/render.rs"]
mod render;
#[path = "../../benches/sidebyside/results.rs"]
mod results;

use results::{Bound, Row, Spread, Table};

#[test]
fn a_missed_bound_is_marked() {
    let bound = |name: &str, is_met| Bound {
        name: name.to_owned(),
        limit: "at most 2".to_owned(),
        measured: "3".to_owned(),
        is_met,
    };
    let text = render::bounds(&[
        bound("first", Some(false)),
        bound("second", Some(true)),
        bound("third", None),
    ]);
    let missed: Vec<&str> = text.lines().filter(|line| line.contains("**missed**")).collect();
    assert_eq!(missed.len(), 1, "{text}");
    assert!(missed[0].contains("first"), "{text}");
}

#[test]
fn a_row_that_could_not_be_measured_says_why() {
    let table = Table {
        id: "a".to_owned(),
        title: "A".to_owned(),
        about: "About.".to_owned(),
        commands: Vec::new(),
        columns: vec!["per second".to_owned()],
        rows: vec![Row::of("one", 1, &[vec![1_234_567.0]]), Row::absent("two", "not installed")],
    };
    let text = render::table(&table);
    assert!(text.contains("1,235,000"), "{text}");
    assert!(text.lines().any(|line| line.contains("two") && line.contains("not installed")));
}

#[test]
fn a_row_is_the_median_and_its_spread() {
    let row = Row::of("a", 2, &[vec![3.0, 1.0], vec![1.0, f64::NAN], vec![2.0, f64::NAN]]);
    assert_eq!(row.cells[0], Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
    assert_eq!(row.cells[1], Some(Spread { median: 1.0, min: 1.0, max: 1.0 }));
    let even = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
    assert_eq!(even, Spread { median: 2.5, min: 1.0, max: 4.0 });
    assert_eq!(Spread::of([f64::NAN]), None);
}

#[test]
fn numbers_have_their_significant_digits() {
    let shown = [1_234_567.8, 999.6, 99.96, 12.345, 0.5, 0.0123, 0.0].map(render::number);
    assert_eq!(shown, ["1,234,568", "1000", "100.0", "12.3", "0.50", "0.012", "0"]);
}
