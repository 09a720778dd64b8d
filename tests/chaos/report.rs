//! The results of a run: as a table or as JSON.

use std::fmt::Write as _;

use crate::group::Group;
use crate::trial::Trial;

const HEADER: [&str; 9] = [
    "fault",
    "s without an exact answer",
    "fallback answers",
    "admitted/limit",
    "hits lost",
    "hits double",
    "errors",
    "s until views agree",
    "guarantees",
];

/// All trials, one line each, and the violations.
pub(crate) fn table(trials: &[Trial]) -> String {
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    rows.extend(trials.iter().map(row));
    let widths: Vec<usize> = (0..HEADER.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    let mut table = String::new();
    for row in rows {
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a `String` cannot fail.
            let _ = write!(table, "{cell:width$}  ");
        }
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    for trial in trials {
        for violation in &trial.violations {
            let _ = writeln!(table, "{}: {violation}", trial.fault.name());
        }
    }
    table
}

pub(crate) fn json(trial: &Trial, seed: u64) -> String {
    let found = &trial.findings;
    let most = found.admitted_max.iter();
    let most: serde_json::Map<_, _> =
        most.map(|(group, most)| (group.name().to_owned(), (*most).into())).collect();
    serde_json::json!({
        "fault": trial.fault.name(),
        "seed": seed,
        "requests": found.requests,
        "seconds_without_exact_answer": found.without_exact_answer.as_secs_f64(),
        "fallback_answers": found.fallbacks,
        "admitted_max": most,
        "limit": Group::Strict.limit(),
        "hits_lost": found.lost,
        "hits_double": found.double,
        "admitted_by_minority": found.admitted_by_minority,
        "refused_early": found.refused_early.values().sum::<u64>(),
        "errors": found.errors.len(),
        "seconds_to_convergence": trial.convergence.as_secs_f64(),
        "violations": trial.violations,
    })
    .to_string()
}

fn row(trial: &Trial) -> Vec<String> {
    let found = &trial.findings;
    let admitted =
        |(group, most): (&Group, &u64)| format!("{} {most}/{}", group.name(), group.limit());
    let guarantees = match trial.violations.len() {
        0 => "held".to_owned(),
        count => format!("{count} VIOLATED"),
    };
    vec![
        trial.fault.name(),
        format!("{:.2}", found.without_exact_answer.as_secs_f64()),
        format!("{} of {}", found.fallbacks, found.requests),
        found.admitted_max.iter().map(admitted).collect::<Vec<_>>().join(" "),
        found.lost.to_string(),
        found.double.to_string(),
        found.errors.len().to_string(),
        format!("{:.2}", trial.convergence.as_secs_f64()),
        guarantees,
    ]
}
