//! The measurements, one file per table.

pub mod bounds;
pub mod cluster;
pub mod expiry;
pub mod grpc;
pub mod http;
pub mod memory;
pub mod open;
pub mod proxy;
pub mod resp;
pub mod services;
pub mod store;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use crate::results::{Row, Table};

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    /// Duration of a round.
    pub span: Duration,
    /// Keys of the store, memory and expiry tables.
    pub keys: u64,
    pub is_quick: bool,
}

impl Plan {
    pub const FULL: Self =
        Self { rounds: 7, span: Duration::from_millis(1_600), keys: 1_000_000, is_quick: false };
    /// A functional test: the numbers mean nothing.
    pub const QUICK: Self =
        Self { rounds: 1, span: Duration::from_millis(50), keys: 2_000, is_quick: true };

    /// The number of requests that take one round at this rate.
    pub fn requests(&self, per_second: f64) -> u64 {
        let requests = (per_second * self.span.as_secs_f64()) as u64;
        requests.max(if self.is_quick { 200 } else { 20_000 })
    }
}

/// Measures one round and returns one number per column.
type Measure<'a> = Box<dyn FnMut() -> io::Result<Vec<f64>> + 'a>;

/// A row of a table with its measurement.
pub struct Case<'a> {
    pub name: String,
    /// `Err` with the reason if the target is not available.
    pub measure: Result<Measure<'a>, String>,
}

impl<'a> Case<'a> {
    pub fn new(
        name: impl Into<String>,
        measure: impl FnMut() -> io::Result<Vec<f64>> + 'a,
    ) -> Self {
        Self { name: name.into(), measure: Ok(Box::new(measure)) }
    }

    pub fn absent(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), measure: Err(why.into()) }
    }
}

/// What the name of a row has to contain to be measured; `None` measures all.
pub fn only() -> Option<&'static str> {
    static ONLY: OnceLock<Option<String>> = OnceLock::new();
    ONLY.get_or_init(|| std::env::var("BENCH_ONLY").ok()).as_deref()
}

/// Measures all cases in interleaved rounds, A B C A B C, and fills the table. A case that fails is
/// listed with the error and not measured again.
pub fn interleave(table: &mut Table, rounds: usize, cases: Vec<Case<'_>>) {
    let columns = table.columns.len();
    let is_wanted = |case: &Case<'_>| only().is_none_or(|text| case.name.contains(text));
    let wanted = cases.into_iter().filter(is_wanted);
    let mut all: Vec<_> = wanted.map(|case| (case, Vec::new())).collect();
    for round in 1..=rounds {
        for (case, measured) in &mut all {
            let Ok(measure) = &mut case.measure else {
                continue;
            };
            match measure() {
                Ok(numbers) => {
                    let first = numbers.first().copied().unwrap_or_default();
                    let shown = crate::render::number(first);
                    let (title, name) = (&table.title, &case.name);
                    crate::progress(&format!("{title}: {round}/{rounds} {name}: {shown}"));
                    measured.push(numbers);
                }
                Err(error) => {
                    crate::progress(&format!("{}: {}: {error}", table.title, case.name));
                    case.measure = Err(error.to_string());
                }
            }
        }
    }
    table.rows.extend(all.into_iter().map(|(case, measured)| match &case.measure {
        Ok(_) => Row::of(&case.name, columns, &measured),
        Err(why) => Row::absent(&case.name, why),
    }));
}

pub fn table(id: &str, title: &str, about: &str, columns: &[&str]) -> Table {
    Table {
        id: id.into(),
        title: title.into(),
        about: about.into(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        ..Table::default()
    }
}
