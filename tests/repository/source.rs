//! Reading Rust source as text: files, and the same with comments and literals blanked.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// One file.
pub(crate) struct Source {
    /// Relative to the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and the contents of literals turned into spaces, lines kept.
    pub(crate) code: String,
}

impl Source {
    /// Whether it is one of `paths` or in one of them that ends with `/`.
    pub(crate) fn is_in(&self, paths: &[&str]) -> bool {
        paths
            .iter()
            .any(|path| self.path == *path || path.ends_with('/') && self.path.starts_with(path))
    }

    /// The lines of code with their numbers.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }
}

/// Everything a test found, reported in one message.
#[derive(Default)]
pub(crate) struct Problems(String);

impl Problems {
    pub(crate) fn add_if(&mut self, is_one: bool, file: &Source, line: usize, what: &str) {
        if is_one {
            writeln!(self.0, "{}:{line} {what}", file.path).expect("a string takes everything");
        }
    }

    pub(crate) fn report(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The product and its crates, without generated code and without the scaffolding of tests.
pub(crate) fn product() -> Vec<Source> {
    let mut sources = below("src");
    for name in crates() {
        if name != "testkit" {
            sources.extend(below(&format!("crates/{name}/src")));
        }
    }
    sources.retain(|file| !file.path.contains("/generated/"));
    assert!(sources.len() > 100, "the scan found {} files only", sources.len());
    sources
}

/// Names of the folders in `crates`, sorted.
pub(crate) fn crates() -> Vec<String> {
    let folders = fs::read_dir(root().join("crates")).expect("the folder of crates");
    let names = folders.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("UTF-8")).collect();
    names.sort();
    names
}

/// All Rust files below a folder of the repository, sorted.
pub(crate) fn below(folder: &str) -> Vec<Source> {
    let (mut folders, mut found) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(read(&path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn read(path: &Path) -> Source {
    let text = fs::read_to_string(path).expect("a text file");
    let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
    Source { path, code: blank(&text), text }
}

pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The text with comments and the contents of literals turned into spaces, lines kept.
pub(crate) fn blank(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| literal(rest));
        let length = skipped.unwrap_or_else(|| first.len_utf8());
        let (taken, after) = rest.split_at(length);
        if skipped.is_some() {
            code.extend(taken.chars().map(|c| if c == '\n' { c } else { ' ' }));
        } else {
            code.push(first);
        }
        rest = after;
    }
    code
}

/// The length of the comment that `rest` begins with.
fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    let inside = rest.strip_prefix("/*")?;
    Some(inside.find("*/").map_or(rest.len(), |end| end + 4))
}

/// The length of the literal that `rest` begins with, without its prefix letter.
fn literal(rest: &str) -> Option<usize> {
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    if hashes > 0 && rest[hashes..].starts_with('"') {
        let close = format!("\"{}", "#".repeat(hashes));
        let inside = &rest[hashes + 1..];
        return Some(hashes + 1 + inside.find(&close)? + close.len());
    }
    let quote = rest.chars().next().filter(|c| ['"', '\''].contains(c))?;
    if quote == '\'' {
        let mut chars = rest.chars().skip(1);
        let is_char = matches!((chars.next(), chars.next()), (Some('\\'), _) | (_, Some('\'')));
        // A lifetime has no closing quote.
        is_char.then_some(())?;
    }
    let mut is_escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == quote && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    end.map(|(at, _)| at + 1)
}

#[test]
fn comments_and_literals_are_not_code() {
    let text =
        "let a = \"x // y\"; // z\n/* b\nc */ let d = 'e'; let f: &'static str = r#\"g \"h\"#;";
    let code = blank(text);
    let found: Vec<_> = code.lines().flat_map(words).collect();
    assert_eq!(found, ["let", "a", "let", "d", "let", "f", "static", "str", "r"]);
    assert_eq!(code.lines().count(), 3);
}
