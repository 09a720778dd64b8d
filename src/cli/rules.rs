//! `tidegate rules validate`, `test` and `schema`: errors in rule files, which rule applies to a
//! request, and the schema for editors. None needs a running node.
//!
//! They write to `out`, the first two as text or as one JSON value, and return whether the result
//! is positive, which the caller turns into the exit code.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;
use serde_json::{Value, json};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::grant;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::Quota;
use tidegate_limiter::soft_limit::SoftLimit;
use tidegate_ownership::membership::MEMBERS_MAX;
use tidegate_rules::book::{Book, Rule};
use tidegate_rules::load::{self, Options, Source};
use tidegate_rules::rule::InFlightLimits;
use tidegate_rules::schema::schema;
use tidegate_rules::yaml::Mark;
use tidegate_rules::{Error, Match, Step, Via, Warning};

use super::Failure;
use super::entry::entry;
use crate::compat::envoy_ratelimit::rule_files;
use crate::decide::{SHARES_MAX, granting_nodes_max};

/// Validate and test rule files without a node.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Read rule files as a node does and report errors
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate {
        /// Folders or files
        #[arg(default_value = "rules", value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Reject keys that envoyproxy/ratelimit does not accept
        #[arg(long)]
        strict_compat: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which rule a descriptor matches
    #[command(after_help = TEST_EXAMPLES)]
    Test {
        /// The domain
        domain: String,
        /// Entries of the descriptor, outermost first
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = entry)]
        entries: Vec<(String, String)>,
        /// Folder of rule files, or one file
        #[arg(long, default_value = "rules", value_name = "PATH")]
        rules: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON schema of rule files, for editors
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
}

const VALIDATE_EXAMPLES: &str = "\
Exit code: 0 they make a rule book, 1 they do not.

Examples:
  tidegate rules validate
  tidegate rules validate /etc/tidegate/rules --json";

const TEST_EXAMPLES: &str = "\
Of a leased rule it says where the rule is decided as strict, if anywhere.

Exit code: 0 a rule matches, 1 none does, 2 the files make no rule book.

Examples:
  tidegate rules test demo user=alice
  tidegate rules test edge path=/login remote_address=10.0.0.7 --rules /etc/tidegate/rules";

const SCHEMA_EXAMPLES: &str = "\
Save it, and name it in the first line of a rule file:
  # yaml-language-server: $schema=rules.schema.json

Example:
  tidegate rules schema > rules.schema.json";

pub(super) fn run(command: &Command, out: &mut dyn Write) -> Result<bool, Failure> {
    let options = Options::default();
    let format = |json: bool| if json { Format::Json } else { Format::Text };
    match command {
        Command::Validate { paths, strict_compat, json } => {
            let dialect = if *strict_compat { Dialect::Compatible } else { Dialect::Ours };
            Ok(validate(paths, &options, dialect, format(*json), out)?)
        }
        Command::Test { domain, entries, rules: path, json } => {
            let entries: Vec<Entry<'_>> =
                entries.iter().map(|(key, value)| Entry { key, value }).collect();
            test(path, &options, (domain, &entries), format(*json), out)
        }
        Command::Schema => {
            writeln!(out, "{:#}", schema())?;
            Ok(true)
        }
    }
}

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
) -> Result<bool, Failure> {
    let book = load::load(path, options)?;
    let found = book.explain(domain, entries);
    match format {
        Format::Text => write!(out, "{}", test_text(&book, domain, entries, found.as_ref()))?,
        Format::Json => writeln!(out, "{:#}", test_json(domain, found.as_ref()))?,
    }
    Ok(found.is_some())
}

// === validate ===

struct Report {
    /// Each file by itself.
    files: Vec<(String, Result<Book, Error>)>,
    /// All files together.
    book: Result<Book, Error>,
}

impl Report {
    fn of(paths: &[PathBuf], options: &Options, dialect: Dialect) -> Self {
        let (mut sources, mut files, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for path in paths {
            match load::read(path) {
                Ok(read) => {
                    sources.extend(read.into_iter().filter(|s| seen.insert(s.name.clone())));
                }
                Err(error) => files.push((path.display().to_string(), Err(error))),
            }
        }
        let parse = |sources: &[Source]| {
            if dialect == Dialect::Compatible {
                rule_files::check(sources)?;
            }
            load::parse(sources, options)
        };
        let alone = |s: &Source| (s.name.clone(), parse(std::slice::from_ref(s)));
        files.extend(sources.iter().map(alone));
        Self { files, book: parse(&sources) }
    }

    fn is_ok(&self) -> bool {
        self.book.is_ok() && self.files.iter().all(|(_, book)| book.is_ok())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (file, book) in &self.files {
            let _ = match book {
                Ok(book) => writeln!(text, "{file}: ok, {}", count(book.rules().count(), "rule")),
                Err(error) => writeln!(text, "{error}"),
            };
            for warning in book.iter().flat_map(Book::warnings) {
                let _ = writeln!(text, "{warning} (warning)");
            }
        }
        let files = count(self.files.len(), "file");
        let failed = self.files.iter().filter(|(_, book)| book.is_err()).count();
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
        let rules = |book: &Result<Book, _>| book.as_ref().map_or(0, |book| book.rules().count());
        let warning = |warning: &Warning| complaint_json(warning.at, warning.key, warning);
        let file = |(file, book): &(String, Result<Book, Error>)| {
            json!({
                "file": file,
                "ok": book.is_ok(),
                "rules": rules(book),
                "error": book.as_ref().err().map(error_json),
                "warnings": book.iter().flat_map(Book::warnings).map(warning).collect::<Vec<_>>(),
            })
        };
        json!({
            "ok": self.is_ok(),
            "files": self.files.iter().map(file).collect::<Vec<_>>(),
            "error": self.book.as_ref().err().map(error_json),
            "rules": rules(&self.book),
            "fingerprint": self.book.as_ref().ok().map(|book| format!("{:016x}", book.fingerprint())),
        })
    }
}

fn error_json(error: &Error) -> Value {
    let mut json = complaint_json(error.at, error.key, error);
    json["file"] = json!(error.file);
    json
}

fn complaint_json(at: Option<Mark>, key: Option<&str>, message: &impl ToString) -> Value {
    json!({
        "line": at.map(|at| at.line),
        "column": at.map(|at| at.column),
        "key": key,
        "message": message.to_string(),
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
    for (index, quota) in rule.limits.iter().enumerate() {
        let soft =
            soft_limit(rule, index).map_or(String::new(), |hits| format!(", soft limit {hits}"));
        let _ = writeln!(text, "  limit {}{soft}", quota_text(quota));
    }
    let InFlightLimits { everywhere, at_node } = rule.in_flight;
    for (limit, at) in [(everywhere, "all nodes together"), (at_node, "each node")] {
        if let Some(limit) = limit {
            let _ = writeln!(text, "  at most {limit} in flight at {at}, behind a proxy listener");
        }
    }
    if rule.limits.is_empty() && !rule.in_flight.is_limited() {
        text.push_str("  unlimited\n");
    }
    let (mode, scope) = (word(rule.mode), word(rule.scope));
    let fallback = word(rule.on_unavailable);
    let _ = writeln!(text, "  mode {mode}, scope {scope}, on_unavailable {fallback}");
    if rule.mode == Mode::Leased && !rule.limits.is_empty() {
        text.push_str(&grants_text(rule));
        text.push_str(&shares_text(rule));
    }
    if rule.shadow {
        text.push_str("  shadow_mode: everything is admitted\n");
    }
    text
}

/// Where a leased rule is decided as strict; empty if nowhere.
fn grants_text(rule: &Rule) -> String {
    let group = if rule.scope == Scope::Global { "clusters" } else { "regions" };
    match granting_nodes_max(&rule.limits) {
        Err(reason) => format!("  decided as strict: {reason}\n"),
        Ok(nodes) if nodes as usize >= MEMBERS_MAX => String::new(),
        // A single node asks no other.
        Ok(nodes) => {
            let nodes = count(nodes.max(1) as usize, "node");
            format!("  decided as strict in {group} of more than {nodes}: the limit is too small\n")
        }
    }
}

/// What the regions share of a leased rule; empty if nothing.
fn shares_text(rule: &Rule) -> String {
    let least = rule.limits.iter().map(|quota| quota.limit().min(quota.burst())).min();
    let is_divided = rule.scope == Scope::Global && rule.limits.iter().all(grant::can_grant);
    match least.filter(|least| *least > 0 && is_divided) {
        Some(least) if (least as usize) < SHARES_MAX => {
            let regions = count(least as usize, "region");
            format!("  divided among at most {regions}, which the others ask at each check\n")
        }
        Some(_) => "  divided among the regions: a check for more hits than the share of one is \
                    refused\n"
            .to_owned(),
        None => String::new(),
    }
}

fn test_json(domain: &str, found: Option<&Match<'_>>) -> Value {
    let Some(Match { rule, steps, .. }) = found else {
        return json!({ "domain": domain, "matched": false });
    };
    let limit = |(index, quota): (usize, &Quota)| {
        json!({
            "algorithm": quota.algorithm().name(),
            "limit": quota.limit(),
            "window": quota.window().to_string(),
            "burst": quota.burst(),
            "sub_windows": quota.sub_windows(),
            "queue": quota.queue(),
            "soft_limit": soft_limit(rule, index),
        })
    };
    let leased = rule.mode == Mode::Leased && !rule.limits.is_empty();
    let step =
        |step: &Step<'_>| json!({ "key": step.key, "value": step.value, "by": via(step.via) });
    json!({
        "domain": domain,
        "matched": true,
        "rule": &*rule.id,
        "name": rule.name.as_deref(),
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
        "limits": rule.limits.iter().enumerate().map(limit).collect::<Vec<_>>(),
        "concurrency": rule.in_flight.everywhere,
        "node_concurrency": rule.in_flight.at_node,
        "mode": rule.mode,
        "granting_nodes_max": leased.then(|| granting_nodes_max(&rule.limits).unwrap_or(0)),
        "scope": rule.scope,
        "on_unavailable": rule.on_unavailable,
        "shadow_mode": rule.shadow,
    })
}

fn step_text(step: &Step<'_>) -> String {
    match step.value {
        "" => format!("{} (by {})", step.key, via(step.via)),
        value => format!("{}={value} (by {})", step.key, via(step.via)),
    }
}

/// Most hits in use that the limit at `index` does not signal.
fn soft_limit(rule: &Rule, index: usize) -> Option<u32> {
    rule.soft_limits.get(index).copied().flatten().map(SoftLimit::get)
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

/// A value as in a rule file.
fn word(value: impl Serialize) -> String {
    json!(value).as_str().unwrap_or_default().to_owned()
}
