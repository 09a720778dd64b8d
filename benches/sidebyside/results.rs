//! The results of a run, as printed and stored.
//!
//! `docs/benchmarks.json` holds the latest results of every part; `docs/benchmarks.md` is rendered
//! from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One or more parts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Results {
    /// The machine and the versions of the tools, in the order of output.
    pub machine: Vec<(String, String)>,
    /// Duration of each part in seconds, without builds.
    #[serde(default, rename = "parts")]
    pub seconds: BTreeMap<String, u64>,
    pub tables: Vec<Table>,
    pub holds: Vec<Hold>,
    pub duel: Vec<Duelist>,
}

/// Targets by columns.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Table {
    pub id: String,
    pub title: String,
    /// What was done, for readers.
    pub about: String,
    /// The commands that did it.
    pub commands: Vec<String>,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

/// One target.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Row {
    pub name: String,
    /// Why there is nothing to print.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// One a column.
    pub cells: Vec<Option<Spread>>,
}

/// The median of some rounds, and the rounds it lies between.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Something that has to hold.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Hold {
    pub what: String,
    pub bound: String,
    pub measured: String,
    /// None: not measured.
    pub holds: Option<bool>,
}

/// One target of the duel.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Duelist {
    pub name: String,
    /// What it claims to do.
    pub claim: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    pub bouts: Vec<Bout>,
}

/// One row of the duel for one target.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Bout {
    pub what: String,
    pub is_right: bool,
    /// The numbers.
    pub seen: String,
}

impl Spread {
    /// Of the rounds that gave a number.
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
    /// A target that was measured: one list of numbers a round, one number a column.
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
    /// Adds the results of other parts; of a part in both, those of `newer` remain.
    pub fn merge(&mut self, newer: Self) {
        self.machine = newer.machine;
        self.seconds.extend(newer.seconds);
        for table in newer.tables {
            match self.tables.iter_mut().find(|known| known.id == table.id) {
                Some(known) => *known = table,
                None => self.tables.push(table),
            }
        }
        if !newer.duel.is_empty() {
            self.duel = newer.duel;
        }
    }

    /// The median of a cell.
    pub fn median(&self, table: &str, row: &str, column: &str) -> Option<f64> {
        let table = self.tables.iter().find(|one| one.id == table)?;
        let index = table.columns.iter().position(|name| name == column)?;
        let row = table.rows.iter().find(|one| one.name == row)?;
        Some((*row.cells.get(index)?)?.median)
    }
}

/// Four significant digits are more than a measurement has.
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
