//! What a run found: a table for people, JSON for programs.

use std::fmt::Write as _;

use crate::group::Group;
use crate::trial::Trial;

const HEAD: [&str; 9] = [
    "fault",
    "s without a right answer",
    "answers by policy",
    "admitted/limit",
    "hits lost",
    "hits double",
    "errors",
    "s to one view",
    "promises",
];

/// All trials, a line each, columns aligned.
pub(crate) fn table(trials: &[Trial]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(trials.iter().map(row));
    let widths: Vec<usize> = (0..HEAD.len())
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
        for broken in &trial.broken {
            let _ = writeln!(table, "{}: {broken}", trial.fault.name());
        }
    }
    table
}

/// One trial as one line of JSON.
pub(crate) fn json(trial: &Trial, seed: u64) -> String {
    let found = &trial.findings;
    let most = found.admitted_max.iter();
    let most: serde_json::Map<_, _> =
        most.map(|(group, most)| (group.name().to_owned(), (*most).into())).collect();
    serde_json::json!({
        "fault": trial.fault.name(),
        "seed": seed,
        "requests": found.requests,
        "seconds_without_right_answer": found.without_right_answer.as_secs_f64(),
        "answers_by_policy": found.by_policy,
        "admitted_max": most,
        "limit": Group::Strict.limit(),
        "hits_lost": found.lost,
        "hits_double": found.double,
        "admitted_by_minority": found.admitted_by_minority,
        "refused_early": found.refused_early.values().sum::<u64>(),
        "errors": found.errors.len(),
        "seconds_to_one_view": trial.one_view.as_secs_f64(),
        "broken": trial.broken,
    })
    .to_string()
}

fn row(trial: &Trial) -> Vec<String> {
    let found = &trial.findings;
    let admitted =
        |(group, most): (&Group, &u64)| format!("{} {most}/{}", group.name(), group.limit());
    let promises = match trial.broken.len() {
        0 => "held".to_owned(),
        broken => format!("{broken} BROKEN"),
    };
    vec![
        trial.fault.name(),
        format!("{:.2}", found.without_right_answer.as_secs_f64()),
        format!("{} of {}", found.by_policy, found.requests),
        found.admitted_max.iter().map(admitted).collect::<Vec<_>>().join(" "),
        found.lost.to_string(),
        found.double.to_string(),
        found.errors.len().to_string(),
        format!("{:.2}", trial.one_view.as_secs_f64()),
        promises,
    ]
}
