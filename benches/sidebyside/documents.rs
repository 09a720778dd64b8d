//! The documents that hold the numbers of the last whole run.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::render;
use crate::results::Results;

const NUMBERS: &str = "docs/benchmarks.json";

/// Keeps the numbers and writes them into the documents.
pub fn keep(results: &Results) -> io::Result<()> {
    fs::write(path(NUMBERS), serde_json::to_string_pretty(results)? + "\n")?;
    write(results)
}

/// The numbers of the last whole run.
pub fn read() -> io::Result<Results> {
    Ok(serde_json::from_str(&fs::read_to_string(path(NUMBERS))?)?)
}

/// Writes the numbers into the documents, between their markers.
pub fn write(results: &Results) -> io::Result<()> {
    for (name, measured) in
        [("docs/benchmarks.md", render::document(results)), ("README.md", render::summary(results))]
    {
        let text = fs::read_to_string(path(name))?;
        let text = render::replace(&text, &measured)
            .ok_or_else(|| io::Error::other(format!("{name} has no markers")))?;
        fs::write(path(name), text)?;
    }
    Ok(())
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}
