//! The numbers in the documents are those that `scripts/bench` measured last.
#![allow(unreachable_pub, reason = "two files of a benchmark, which is a crate of its own")]
#![allow(dead_code, reason = "this reads what the benchmark writes")]
#![allow(clippy::cast_possible_truncation, reason = "digits of a number are few")]

#[path = "../../benches/sidebyside/render.rs"]
mod render;
#[path = "../../benches/sidebyside/results.rs"]
mod results;

use std::fs;
use std::path::Path;

use results::{Results, Row, Spread};

#[test]
fn documents_say_what_was_measured() {
    let results: Results = serde_json::from_str(&read("docs/benchmarks.json")).unwrap();
    for (name, measured) in [
        ("docs/benchmarks.md", render::document(&results)),
        ("README.md", render::summary(&results)),
    ] {
        let text = read(name);
        let told = render::measured(&text).unwrap();
        assert!(told == measured.trim(), "{name} is not what scripts/bench wrote: --render helps");
    }
}

#[test]
fn what_is_missed_is_called_missed() {
    let results: Results = serde_json::from_str(&read("docs/benchmarks.json")).unwrap();
    let missed = results.holds.iter().filter(|hold| hold.holds == Some(false)).count();
    let told = read("docs/benchmarks.md");
    assert_eq!(told.matches("| **missed** |").count(), missed);
    assert!(results.seconds <= 15 * 60, "a whole run took {} s", results.seconds);
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
fn numbers_have_as_many_digits_as_say_something() {
    let told = [1_234_567.8, 999.6, 99.96, 12.345, 0.5, 0.0123, 0.0].map(render::number);
    assert_eq!(told, ["1,234,568", "1000", "100.0", "12.3", "0.50", "0.012", "0"]);
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}
