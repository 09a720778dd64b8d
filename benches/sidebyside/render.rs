//! Results as Markdown, between the markers of the document.

use std::fmt::Write;

use super::results::{Duelist, Hold, Results, Spread, Table};

/// The text between these is written by `scripts/bench`.
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
    out.push_str("\n### What must hold\n\n");
    out.push_str(&holds(&results.holds));
    for table in &results.tables {
        let _ = write!(out, "\n### {}\n\n{}\n\n", table.title, table.about);
        if !table.commands.is_empty() {
            let _ = write!(out, "```text\n{}\n```\n\n", table.commands.join("\n"));
        }
        out.push_str(&self::table(table));
    }
    if !results.duel.is_empty() {
        out.push_str("\n### The duel\n\n");
        out.push_str(&duel(&results.duel));
    }
    out
}

/// What must hold, as a table.
pub fn holds(holds: &[Hold]) -> String {
    let mut out = String::from("| what must hold | bound | measured | |\n|---|---|---|---|\n");
    for hold in holds {
        let verdict = match hold.holds {
            Some(true) => "holds",
            Some(false) => "**missed**",
            None => "not measured",
        };
        line(&mut out, &[&hold.what, &hold.bound, &hold.measured, verdict]);
    }
    out
}

/// One table: medians, with minimum and maximum of the rounds in parentheses.
pub fn table(table: &Table) -> String {
    let mut out = String::from("| ");
    for column in &table.columns {
        let _ = write!(out, "| {column} ");
    }
    let _ = write!(out, "|\n|---{}|\n", "|---".repeat(table.columns.len()));
    for row in &table.rows {
        let mut cells = vec![row.name.clone()];
        if let Some(why) = &row.absent {
            cells.push(format!("not had: {why}"));
        } else {
            cells.extend(row.cells.iter().map(|cell| cell.map_or(String::new(), spread)));
        }
        cells.resize(table.columns.len() + 1, String::new());
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        line(&mut out, &cells);
    }
    out
}

/// The duel: a row a target, and below it what each that was wrong did.
pub fn duel(duelists: &[Duelist]) -> String {
    let bouts: Vec<&str> = duelists
        .iter()
        .find(|duelist| duelist.absent.is_none())
        .map(|duelist| duelist.bouts.iter().map(|bout| bout.what.as_str()).collect())
        .unwrap_or_default();
    let mut out = String::from("| target | claims ");
    for bout in &bouts {
        let _ = write!(out, "| {bout} ");
    }
    let _ = write!(out, "|\n|---|---{}|\n", "|---".repeat(bouts.len()));
    for duelist in duelists {
        let mut cells = vec![duelist.name.clone(), duelist.claim.clone()];
        if let Some(why) = &duelist.absent {
            cells.push(format!("not had: {why}"));
        }
        for bout in &duelist.bouts {
            let verdict = if bout.is_right { "right" } else { "**wrong**" };
            cells.push(format!("{verdict}: {}", bout.seen));
        }
        cells.resize(bouts.len() + 2, String::new());
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        line(&mut out, &cells);
    }
    out
}

/// A document with its measured part replaced; none where it has no markers.
pub fn replace(text: &str, measured: &str) -> Option<String> {
    let (head, rest) = text.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n{}\n{END}{tail}", measured.trim_end()))
}

/// The measured part of a document.
pub fn measured(text: &str) -> Option<&str> {
    Some(text.split_once(BEGIN)?.1.split_once(END)?.0.trim())
}

fn line(out: &mut String, cells: &[&str]) {
    for cell in cells {
        let _ = write!(out, "| {} ", cell.replace('|', "\\|"));
    }
    out.push_str("|\n");
}

fn spread(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    if min.total_cmp(&max).is_eq() {
        return number(median);
    }
    format!("{} ({}–{})", number(median), number(min), number(max))
}

/// As many digits as say something.
pub fn number(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 1_000.0 => return thousands(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    match text.strip_suffix(".000") {
        Some(whole) => whole.to_owned(),
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
