//! The measurements, a file each.

pub mod cluster;
pub mod expiry;
pub mod grpc;
pub mod holds;
pub mod http;
pub mod memory;
pub mod open;
pub mod resp;
pub mod store;

use std::io;
use std::time::Duration;

use crate::results::{Row, Table};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often each is measured, in turns.
    pub rounds: usize,
    /// How long each time.
    pub span: Duration,
    /// Keys of the measurements that count them.
    pub keys: u64,
    pub is_quick: bool,
}

impl Plan {
    pub const FULL: Self =
        Self { rounds: 7, span: Duration::from_millis(1_600), keys: 1_000_000, is_quick: false };
    /// Whether it works, not how fast.
    pub const QUICK: Self =
        Self { rounds: 1, span: Duration::from_millis(50), keys: 2_000, is_quick: true };

    /// Requests that a target of this rate answers in the time of a round.
    pub fn requests(&self, per_second: f64) -> u64 {
        let requests = (per_second * self.span.as_secs_f64()) as u64;
        requests.max(if self.is_quick { 200 } else { 20_000 })
    }
}

/// Something that can be measured again and again; what a round gave, a number a column.
type Measure<'a> = Box<dyn FnMut() -> io::Result<Vec<f64>> + 'a>;

/// A row that is yet to be measured.
pub struct Entrant<'a> {
    pub name: String,
    /// None: why it cannot be.
    pub measure: Result<Measure<'a>, String>,
}

impl<'a> Entrant<'a> {
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

/// Measures all in turns, A B C A B C, and fills the table. One that fails is absent from then on.
pub fn interleave(table: &mut Table, rounds: usize, entrants: Vec<Entrant<'_>>) {
    let columns = table.columns.len();
    let mut all: Vec<_> = entrants.into_iter().map(|entrant| (entrant, Vec::new())).collect();
    for round in 1..=rounds {
        for (entrant, measured) in &mut all {
            let Ok(measure) = &mut entrant.measure else {
                continue;
            };
            match measure() {
                Ok(numbers) => {
                    let first = numbers.first().copied().unwrap_or_default();
                    let told = crate::render::number(first);
                    let (title, name) = (&table.title, &entrant.name);
                    crate::say(&format!("{title}: {round}/{rounds} {name}: {told}"));
                    measured.push(numbers);
                }
                Err(error) => {
                    crate::say(&format!("{}: {}: {error}", table.title, entrant.name));
                    entrant.measure = Err(error.to_string());
                }
            }
        }
    }
    table.rows.extend(all.into_iter().map(|(entrant, measured)| match &entrant.measure {
        Ok(_) => Row::of(&entrant.name, columns, &measured),
        Err(why) => Row::absent(&entrant.name, why),
    }));
}

/// An empty table.
pub fn table(id: &str, title: &str, about: &str, columns: &[&str]) -> Table {
    Table {
        id: id.into(),
        title: title.into(),
        about: about.into(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        ..Table::default()
    }
}
