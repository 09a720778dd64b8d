//! The documents with the latest results.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::measure::holds;
use crate::render;
use crate::results::Results;

const NUMBERS: &str = "docs/benchmarks.json";
const DOCUMENT: &str = "docs/benchmarks.md";

/// Merges the results of some parts into the stored ones and renders the documents.
pub fn keep(results: Results) -> io::Result<()> {
    let mut all = read().unwrap_or_default();
    all.merge(results);
    all.holds = holds::all(&all);
    fs::write(path(NUMBERS), serde_json::to_string_pretty(&all)? + "\n")?;
    write(&all)
}

/// The latest results of all parts.
pub fn read() -> io::Result<Results> {
    Ok(serde_json::from_str(&fs::read_to_string(path(NUMBERS))?)?)
}

/// Renders the results between the markers of the document.
pub fn write(results: &Results) -> io::Result<()> {
    let text = fs::read_to_string(path(DOCUMENT))?;
    let text = render::replace(&text, &render::document(results))
        .ok_or_else(|| io::Error::other(format!("{DOCUMENT} has no markers")))?;
    fs::write(path(DOCUMENT), text)
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}
