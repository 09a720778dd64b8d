//! The figures of a row, and their bounds.

use std::process::ExitCode;

use serde_json::{Value, json};

/// The results of one row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) bounds: Vec<Bound>,
}

/// A figure of each run.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) what: &'static str,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// What a figure must be.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) is: Is,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Is {
    AtMost(f64),
    AtLeast(f64),
}

/// Prints rows as they come.
#[derive(Debug)]
pub(crate) struct Report {
    is_json: bool,
    bounds: usize,
    /// Texts of the bounds that were missed.
    missed: Vec<String>,
}

impl Figure {
    /// `runs` is not empty.
    pub(crate) fn of(what: &'static str, runs: impl IntoIterator<Item = f64>) -> Self {
        let mut runs: Vec<f64> = runs.into_iter().collect();
        runs.sort_unstable_by(f64::total_cmp);
        let (low, high) = (runs[(runs.len() - 1) / 2], runs[runs.len() / 2]);
        let median = f64::midpoint(low, high);
        Self { what, median, min: runs[0], max: runs[runs.len() - 1] }
    }
}

impl Row {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), figures: Vec::new(), bounds: Vec::new() }
    }

    pub(crate) fn bound(&mut self, what: impl Into<String>, value: f64, is: Is) {
        self.bounds.push(Bound { what: what.into(), value, is });
    }

    fn text(&self) -> String {
        let figure = |Figure { what, median, min, max }: &Figure| {
            if min.total_cmp(max).is_eq() {
                format!("{what} {}", number(*median))
            } else {
                format!("{what} {} ({}–{})", number(*median), number(*min), number(*max))
            }
        };
        let figures: Vec<String> = self.figures.iter().map(figure).collect();
        let mut text = format!("{:32} {}", self.name, figures.join("; "));
        for bound in &self.bounds {
            text.push_str("\n    ");
            text.push_str(&bound.text());
        }
        text
    }

    fn json(&self) -> Value {
        let figure = |it: &Figure| {
            (it.what.to_owned(), json!({"median": it.median, "min": it.min, "max": it.max}))
        };
        let bound = |it: &Bound| {
            let (is, limit) = match it.is {
                Is::AtMost(limit) => ("at_most", limit),
                Is::AtLeast(limit) => ("at_least", limit),
            };
            json!({"what": it.what, "value": it.value, is: limit, "met": it.is_met()})
        };
        let figures: serde_json::Map<String, Value> = self.figures.iter().map(figure).collect();
        let bounds: Vec<Value> = self.bounds.iter().map(bound).collect();
        json!({"row": self.name, "figures": figures, "bounds": bounds})
    }
}

impl Bound {
    fn is_met(&self) -> bool {
        match self.is {
            Is::AtMost(limit) => self.value <= limit,
            Is::AtLeast(limit) => self.value >= limit,
        }
    }

    fn text(&self) -> String {
        let (is, limit) = match self.is {
            Is::AtMost(limit) => ("at most", limit),
            Is::AtLeast(limit) => ("at least", limit),
        };
        let met = if self.is_met() { "met" } else { "NOT MET" };
        format!("{} {is} {}: {}, {met}", self.what, number(limit), number(self.value))
    }
}

impl Report {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json, bounds: 0, missed: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: &Row) {
        if self.is_json {
            println!("{}", row.json());
        } else {
            println!("{}", row.text());
        }
        self.bounds += row.bounds.len();
        let missed = row.bounds.iter().filter(|bound| !bound.is_met());
        self.missed.extend(missed.map(|bound| format!("{}: {}", row.name, bound.text())));
    }

    /// Lists the bounds that were missed.
    pub(crate) fn end(self) -> ExitCode {
        eprintln!("{} bounds, {} not met", self.bounds, self.missed.len());
        for missed in &self.missed {
            eprintln!("  {missed}");
        }
        ExitCode::from(u8::from(!self.missed.is_empty()))
    }
}

/// With as many digits as matter.
fn number(number: f64) -> String {
    if number.fract() == 0.0 {
        format!("{number:.0}")
    } else if number.abs() < 20.0 {
        format!("{number:.3}")
    } else {
        format!("{number:.1}")
    }
}
