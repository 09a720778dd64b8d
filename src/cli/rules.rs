//! `tidegate rules validate` and `tidegate rules test`: errors in rule files, and which rule
//! applies to a request. Neither needs a running node.
//!
//! Both write to `out`, as text or as one JSON value, and return whether the result is positive,
//! which the caller turns into the exit code.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::quota::Quota;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::load::{self, Options, Source};
use tidegate_rules::{Error, Match, Step, Via, Warning};

use crate::compat::envoy_ratelimit::rule_files;

/// How the answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Which readers must accept the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// tidegate only.
    Ours,
    /// envoyproxy/ratelimit too: keys that it does not accept are errors.
    Compatible,
}

/// Checks rule files and the files below folders; true when they are valid.
pub fn validate(
    paths: &[PathBuf],
    options: &Options,
    dialect: Dialect,
    format: Format,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let report = Report::of(paths, options, dialect);
    match format {
        Format::Text => write!(out, "{}", report.text())?,
        Format::Json => writeln!(out, "{:#}", report.json())?,
    }
    Ok(report.is_ok())
}

/// Prints the rule that applies to a request; true when there is one.
///
/// # Errors
///
/// The files are not valid, or the output could not be written.
pub fn test(
    path: &Path,
    options: &Options,
    (domain, entries): (&str, &[Entry<'_>]),
    format: Format,
    out: &mut dyn Write,
) -> Result<bool, TestError> {
    let book = load::load(path, options)?;
    let found = book.explain(domain, entries);
    match format {
        Format::Text => write!(out, "{}", test_text(&book, domain, entries, found.as_ref()))?,
        Format::Json => writeln!(out, "{:#}", test_json(domain, found.as_ref()))?,
    }
    Ok(found.is_some())
}

#[derive(Debug, thiserror::Error)]
pub enum TestError {
    #[error(transparent)]
    Rules(#[from] Error),
    #[error("failed to write the output: {0}")]
    Write(#[from] io::Error),
}

// === validate ===

struct Report {
    files: Vec<FileReport>,
    /// All files together.
    book: Result<Book, Error>,
}

struct FileReport {
    file: String,
    /// The file by itself.
    book: Result<Book, Error>,
}

impl Report {
    fn of(paths: &[PathBuf], options: &Options, dialect: Dialect) -> Self {
        let mut sources = Vec::new();
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        for path in paths {
            match load::read(path) {
                Ok(read) => {
                    sources.extend(read.into_iter().filter(|s| seen.insert(s.name.clone())));
                }
                Err(error) => {
                    files.push(FileReport { file: path.display().to_string(), book: Err(error) });
                }
            }
        }
        let parse = |sources: &[Source]| {
            if dialect == Dialect::Compatible {
                rule_files::check(sources)?;
            }
            load::parse(sources, options)
        };
        let alone = |source: &Source| FileReport {
            file: source.name.clone(),
            book: parse(std::slice::from_ref(source)),
        };
        files.extend(sources.iter().map(alone));
        Self { files, book: parse(&sources) }
    }

    fn is_ok(&self) -> bool {
        self.book.is_ok() && self.files.iter().all(|file| file.book.is_ok())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for FileReport { file, book } in &self.files {
            let _ = match book {
                Ok(book) => writeln!(text, "{file}: ok, {}", count(book.rules().count(), "rule")),
                Err(error) => writeln!(text, "{error}"),
            };
            for warning in book.iter().flat_map(Book::warnings) {
                let _ = writeln!(text, "{warning} (warning)");
            }
        }
        let files = count(self.files.len(), "file");
        let failed = self.files.iter().filter(|file| file.book.is_err()).count();
        let _ = match &self.book {
            _ if failed > 0 => writeln!(text, "{files}, {failed} invalid"),
            Ok(book) => {
                let (rules, print) = (count(book.rules().count(), "rule"), book.fingerprint());
                writeln!(text, "{files}, {rules}, fingerprint {print:016x}")
            }
            Err(error) => writeln!(text, "{error}\n{files}, invalid together"),
        };
        text
    }

    fn json(&self) -> Value {
        let file = |FileReport { file, book }: &FileReport| {
            json!({
                "file": file,
                "ok": book.is_ok(),
                "rules": book.as_ref().map_or(0, |book| book.rules().count()),
                "error": book.as_ref().err().map(error_json),
                "warnings": book.iter().flat_map(Book::warnings).map(warning_json).collect::<Vec<_>>(),
            })
        };
        json!({
            "ok": self.is_ok(),
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "error": self.book.as_ref().err().map(error_json),
            "rules": self.book.as_ref().map_or(0, |book| book.rules().count()),
            "fingerprint": self.book.as_ref().ok().map(|book| format!("{:016x}", book.fingerprint())),
        })
    }
}

fn error_json(error: &Error) -> Value {
    json!({
        "file": error.file,
        "line": error.at.map(|at| at.line),
        "column": error.at.map(|at| at.column),
        "key": error.key,
        "message": error.to_string(),
    })
}

fn warning_json(warning: &Warning) -> Value {
    json!({
        "line": warning.at.map(|at| at.line),
        "column": warning.at.map(|at| at.column),
        "key": warning.key,
        "message": warning.to_string(),
    })
}

fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

// === test ===

fn test_text(
    book: &Book,
    domain: &str,
    entries: &[Entry<'_>],
    found: Option<&Match<'_>>,
) -> String {
    let mut text = String::new();
    let Some(Match { rule, steps, .. }) = found else {
        text.push_str("no rule matches: the request is not limited\n");
        if !book.has_domain(domain) {
            let known: Vec<_> = book.domains().collect();
            let _ = writeln!(
                text,
                "no rules for domain '{domain}'; domains with rules: {}",
                known.join(", ")
            );
        }
        return text;
    };
    for (step, entry) in steps.iter().zip(entries) {
        let _ = writeln!(text, "{}={} matches {}", entry.key, entry.value, step_text(step));
    }
    let _ = writeln!(text, "rule {}", rule.id);
    if let Some(name) = &rule.name {
        let _ = writeln!(text, "  name {name}");
    }
    for quota in &rule.limits {
        let _ = writeln!(text, "  limit {}", quota_text(quota));
    }
    if rule.limits.is_empty() {
        text.push_str("  unlimited\n");
    }
    let (mode, scope, fallback) = policy(rule);
    let _ = writeln!(text, "  mode {mode}, scope {scope}, on_unavailable {fallback}");
    if rule.shadow {
        text.push_str("  shadow_mode: everything is admitted\n");
    }
    text
}

fn test_json(domain: &str, found: Option<&Match<'_>>) -> Value {
    let Some(Match { rule, steps, .. }) = found else {
        return json!({ "domain": domain, "matched": false });
    };
    let limit = |quota: &Quota| {
        json!({
            "algorithm": quota.algorithm().name(),
            "limit": quota.limit(),
            "window": quota.window().to_string(),
            "burst": quota.burst(),
            "sub_windows": quota.sub_windows(),
            "queue": quota.queue(),
        })
    };
    let step =
        |step: &Step<'_>| json!({ "key": step.key, "value": step.value, "by": via(step.via) });
    let (mode, scope, fallback) = policy(rule);
    json!({
        "domain": domain,
        "matched": true,
        "rule": &*rule.id,
        "name": rule.name.as_deref(),
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
        "limits": rule.limits.iter().map(limit).collect::<Vec<_>>(),
        "mode": mode,
        "scope": scope,
        "on_unavailable": fallback,
        "shadow_mode": rule.shadow,
    })
}

fn step_text(step: &Step<'_>) -> String {
    match step.value {
        "" => format!("{} (by {})", step.key, via(step.via)),
        value => format!("{}={value} (by {})", step.key, via(step.via)),
    }
}

fn quota_text(quota: &Quota) -> String {
    let mut text =
        format!("{} per {}, {}", quota.limit(), quota.window(), quota.algorithm().name());
    if quota.burst() != quota.limit() {
        let _ = write!(text, ", burst {}", quota.burst());
    }
    if quota.sub_windows() > 1 {
        let _ = write!(text, ", {} sub-windows", quota.sub_windows());
    }
    if let Some(queue) = quota.queue() {
        let _ = write!(text, ", queue of {queue}");
    }
    text
}

fn via(via: Via) -> &'static str {
    match via {
        Via::Value => "value",
        Via::Pattern => "wildcard",
        Via::Key => "key",
    }
}

/// The values as in a rule file.
fn policy(rule: &Rule) -> (&'static str, &'static str, &'static str) {
    use tidegate_limiter::policy::{Mode, OnUnavailable, Scope};
    let mode = match rule.mode {
        Mode::Strict => "strict",
        Mode::Eventual => "eventual",
    };
    let scope = match rule.scope {
        Scope::Region => "region",
        Scope::Global => "global",
    };
    let fallback = match rule.on_unavailable {
        OnUnavailable::Allow => "allow",
        OnUnavailable::Deny => "deny",
        OnUnavailable::Local => "local",
    };
    (mode, scope, fallback)
}
