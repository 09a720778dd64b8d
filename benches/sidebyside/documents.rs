//! The documents with the latest results, `docs/benchmarks.json` and `docs/benchmarks.md`.

use std::path::PathBuf;
use std::{fs, io};

use crate::measure::bounds;
use crate::render;
use crate::results::Results;

const JSON: &str = "docs/benchmarks.json";
const MARKDOWN: &str = "docs/benchmarks.md";

/// Merges the results of some parts into the stored ones and writes the documents.
pub fn update(results: Results) -> io::Result<()> {
    let mut all = read().unwrap_or_default();
    all.merge(results);
    all.bounds = bounds::all(&all);
    fs::write(path(JSON), serde_json::to_string_pretty(&all)? + "\n")?;
    render(&all)
}

/// Reads the latest results of all parts.
pub fn read() -> io::Result<Results> {
    Ok(serde_json::from_str(&fs::read_to_string(path(JSON))?)?)
}

/// Renders the results between the markers of `docs/benchmarks.md`.
pub fn render(results: &Results) -> io::Result<()> {
    let text = fs::read_to_string(path(MARKDOWN))?;
    let text = render::replace(&text, &render::document(results))
        .ok_or_else(|| io::Error::other(format!("{MARKDOWN} has no markers")))?;
    fs::write(path(MARKDOWN), text)
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}
