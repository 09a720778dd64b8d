//! Renders results as Markdown between the markers of the document.

use std::fmt::Write;

use super::results::{AccuracyRow, Bound, FailureRow, Observation, Results, Spread, Table};

/// `scripts/bench` replaces the text between these markers.
pub const BEGIN: &str = "<!-- measured -->";
pub const END: &str = "<!-- /measured -->";

/// The measured part of `docs/benchmarks.md`.
pub fn document(results: &Results) -> String {
    let mut out = String::new();
    out.push_str("| | |\n|---|---|\n");
    for (name, value) in &results.machine {
        line(&mut out, &[name, value]);
    }
    for (part, seconds) in &results.seconds {
        let _ = writeln!(out, "| part {part} | {seconds} s without builds |");
    }
    out.push_str("\n### Bounds\n\n");
    out.push_str(&bounds(&results.bounds));
    for table in &results.tables {
        let _ = write!(out, "\n### {}\n\n{}\n\n", table.title, table.about);
        if !table.commands.is_empty() {
            let _ = write!(out, "```text\n{}\n```\n\n", table.commands.join("\n"));
        }
        out.push_str(&self::table(table));
    }
    if !results.accuracy.is_empty() {
        out.push_str("\n### Accuracy\n\n");
        out.push_str(&accuracy(&results.accuracy));
    }
    if !results.failures.is_empty() {
        out.push_str("\n### Failures\n\n");
        out.push_str(&failures(&results.failures));
    }
    out
}

pub fn bounds(bounds: &[Bound]) -> String {
    let mut out = String::from("| bound | limit | measured | |\n|---|---|---|---|\n");
    for bound in bounds {
        let verdict = match bound.is_met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not measured",
        };
        line(&mut out, &[&bound.name, &bound.limit, &bound.measured, verdict]);
    }
    out
}

/// Medians, with minimum and maximum of the rounds in parentheses.
pub fn table(table: &Table) -> String {
    let mut out = String::from("| ");
    for column in &table.columns {
        let _ = write!(out, "| {column} ");
    }
    let _ = write!(out, "|\n|---{}|\n", "|---".repeat(table.columns.len()));
    for row in &table.rows {
        let mut cells = vec![row.name.clone()];
        if let Some(why) = &row.absent {
            cells.push(format!("not available: {why}"));
        } else {
            cells.extend(row.cells.iter().map(|cell| cell.map_or(String::new(), spread)));
        }
        cells.resize(table.columns.len() + 1, String::new());
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        line(&mut out, &cells);
    }
    out
}

/// One row per target, one column per scenario.
pub fn accuracy(targets: &[AccuracyRow]) -> String {
    let scenarios: Vec<&str> = targets
        .iter()
        .find(|target| target.absent.is_none())
        .map(|target| target.scenarios.iter().map(|scenario| scenario.name.as_str()).collect())
        .unwrap_or_default();
    let mut out = String::from("| target | claims ");
    for scenario in &scenarios {
        let _ = write!(out, "| {scenario} ");
    }
    let _ = write!(out, "|\n|---|---{}|\n", "|---".repeat(scenarios.len()));
    for target in targets {
        let mut cells = vec![target.name.clone(), target.claim.clone()];
        if let Some(why) = &target.absent {
            cells.push(format!("not available: {why}"));
        }
        for scenario in &target.scenarios {
            let verdict = if scenario.is_right { "correct" } else { "**wrong**" };
            cells.push(format!("{verdict}: {}", scenario.seen));
        }
        cells.resize(scenarios.len() + 2, String::new());
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        line(&mut out, &cells);
    }
    out
}

/// One row per scenario, one column per server.
pub fn failures(scenarios: &[FailureRow]) -> String {
    let mut out = String::from("| what happens | sent | exact would be ");
    for observation in scenarios.first().map_or(&[][..], |scenario| &scenario.observed) {
        let _ = write!(out, "| {} ", observation.server);
    }
    let _ = writeln!(out, "|\n|---|---|---{}|", "|---".repeat(scenarios[0].observed.len()));
    for scenario in scenarios {
        let mut cells = vec![scenario.name.as_str(), &scenario.sent, &scenario.exact];
        let seen = |observation: &Observation| match &observation.absent {
            Some(why) => format!("not available: {why}"),
            None => observation.seen.clone(),
        };
        let observed: Vec<String> = scenario.observed.iter().map(seen).collect();
        cells.extend(observed.iter().map(String::as_str));
        line(&mut out, &cells);
    }
    out
}

/// Replaces the measured part of a document. `None` if the document has no markers.
pub fn replace(text: &str, measured: &str) -> Option<String> {
    let (head, rest) = text.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n{}\n{END}{tail}", measured.trim_end()))
}

fn line(out: &mut String, cells: &[&str]) {
    for cell in cells {
        let _ = write!(out, "| {} ", cell.replace('|', "\\|"));
    }
    out.push_str("|\n");
}

pub fn spread(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    if min.total_cmp(&max).is_eq() {
        return number(median);
    }
    format!("{} ({}–{})", number(median), number(min), number(max))
}

/// Formats a number with its significant digits.
pub fn number(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 1_000.0 => return thousands(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    match text.strip_suffix(".000") {
        Some(integer) => integer.to_owned(),
        None => text,
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
