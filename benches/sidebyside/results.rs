//! The results of a run, as they are printed and stored.
//!
//! `docs/benchmarks.json` holds the latest results of every part; `docs/benchmarks.md` is rendered
//! from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The results of one or more parts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Results {
    /// The machine and the versions of the tools, in the order of output.
    pub machine: Vec<(String, String)>,
    /// Duration of each part in seconds, without builds.
    #[serde(default, rename = "parts")]
    pub seconds: BTreeMap<String, u64>,
    pub tables: Vec<Table>,
    #[serde(rename = "holds")]
    pub bounds: Vec<Bound>,
    #[serde(rename = "duel")]
    pub accuracy: Vec<AccuracyRow>,
    #[serde(default)]
    pub failures: Vec<FailureRow>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Table {
    pub id: String,
    pub title: String,
    /// How it was measured.
    pub about: String,
    /// The commands of the load tools.
    pub commands: Vec<String>,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

/// The measurements of one target.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Row {
    pub name: String,
    /// Why the target was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// One per column.
    pub cells: Vec<Option<Spread>>,
}

/// Median, minimum and maximum of the rounds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// A bound on a measured value.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Bound {
    #[serde(rename = "what")]
    pub name: String,
    #[serde(rename = "bound")]
    pub limit: String,
    pub measured: String,
    /// `None` if it was not measured.
    #[serde(rename = "holds")]
    pub is_met: Option<bool>,
}

/// The accuracy of one target.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AccuracyRow {
    pub name: String,
    /// The guarantee it is judged by.
    pub claim: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    #[serde(rename = "bouts")]
    pub scenarios: Vec<ScenarioResult>,
}

/// The result of one scenario for one target.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ScenarioResult {
    #[serde(rename = "what")]
    pub name: String,
    pub is_right: bool,
    /// The observed and expected numbers.
    pub seen: String,
}

/// A scenario in which something goes wrong, and what each server did.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FailureRow {
    pub name: String,
    pub sent: String,
    /// What a limiter that forgets nothing would do.
    pub exact: String,
    pub observed: Vec<Observation>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Observation {
    pub server: String,
    pub seen: String,
    /// Why the server was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

impl Spread {
    /// Summarizes the rounds that have a number. `None` if none has.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut rounds: Vec<f64> =
            rounds.into_iter().filter(|number| number.is_finite()).map(round).collect();
        rounds.sort_by(f64::total_cmp);
        let (min, max) = (*rounds.first()?, *rounds.last()?);
        let middle = rounds.len() / 2;
        let median = match rounds.len() % 2 {
            0 => round(f64::midpoint(rounds[middle - 1], rounds[middle])),
            _ => rounds[middle],
        };
        Some(Self { median, min, max })
    }
}

impl Row {
    /// A measured target. `rounds` has one list per round with one number per column.
    pub fn of(name: &str, columns: usize, rounds: &[Vec<f64>]) -> Self {
        let column =
            |index: usize| rounds.iter().filter_map(move |round| round.get(index).copied());
        let cells = (0..columns).map(|index| Spread::of(column(index))).collect();
        Self { name: name.into(), absent: None, cells }
    }

    pub fn absent(name: &str, why: &str) -> Self {
        Self { name: name.into(), absent: Some(why.into()), cells: Vec::new() }
    }
}

impl Results {
    /// Adds the results of other parts. Where both have a table, that of `newer` replaces it.
    pub fn merge(&mut self, newer: Self) {
        self.machine = newer.machine;
        self.seconds.extend(newer.seconds);
        for table in newer.tables {
            match self.tables.iter_mut().find(|known| known.id == table.id) {
                Some(known) => *known = table,
                None => self.tables.push(table),
            }
        }
        if !newer.accuracy.is_empty() {
            self.accuracy = newer.accuracy;
        }
        if !newer.failures.is_empty() {
            self.failures = newer.failures;
        }
    }

    /// The median of a cell.
    pub fn median(&self, table: &str, row: &str, column: &str) -> Option<f64> {
        let table = self.tables.iter().find(|known| known.id == table)?;
        let index = table.columns.iter().position(|name| name == column)?;
        let row = table.rows.iter().find(|known| known.name == row)?;
        Some((*row.cells.get(index)?)?.median)
    }
}

/// Rounds to four significant digits.
fn round(number: f64) -> f64 {
    if number == 0.0 {
        return 0.0;
    }
    let digits = 4 - 1 - number.abs().log10().floor() as i32;
    let factor = 10_f64.powi(digits.abs());
    if digits >= 0 {
        (number * factor).round() / factor
    } else {
        (number / factor).round() * factor
    }
}
