//! How the code is laid out, held by a scan over its text.
//!
//! The scan reads `src` with comments and the contents of literals blanked, line by line. It knows
//! words and paths, not types: enough for rules that are about who may name whom. Each exception is
//! listed beside its rule with the reason, and an exception that nothing needs any more fails too.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// A module may use `crate::X` only for an `X` in a row above its own.
const LAYERS: [&[&str]; 12] = [
    &["units"],
    &["seam", "config"],
    &["pki", "rules"],
    &["engine"],
    &["store"],
    &["storage", "xds"],
    &["cluster"],
    &["decide"],
    &["front"],
    &["admin", "compat"],
    &["node"],
    &["cli"],
];

/// Uses only `units`, and may be used by everything from here downwards.
const OBSERVE: (&str, &str) = ("observe", "rules");

/// No socket, no task, no clock, no randomness, nothing printed: what is decided depends on the
/// arguments alone.
const PURE: [&str; 13] = [
    "engine/",
    "rules/",
    "store/",
    "storage/record.rs",
    "storage/origin.rs",
    "cluster/membership.rs",
    "cluster/ring.rs",
    "cluster/route.rs",
    "front/resp/command.rs",
    "front/resp/limit.rs",
    "front/resp/read.rs",
    "front/resp/reply.rs",
    "front/resp/session.rs",
];

/// What a pure module must not name, and which pure files may all the same.
const IMPURE: [(&str, &[&str]); 13] = [
    // The watcher is the shell around the pure loader: it waits for the system to tell of changes.
    // What it feeds wakes those who wait for a change.
    ("tokio", &["rules/watch.rs", "rules/current.rs"]),
    ("spawn", &[]),
    ("TcpStream", &[]),
    ("TcpListener", &[]),
    ("UdpSocket", &[]),
    ("Instant", &[]),
    ("SystemTime", &[]),
    ("rand", &[]),
    ("getrandom", &[]),
    ("println", &[]),
    ("eprintln", &[]),
    // Reading the folder is one function; what it read is parsed purely.
    ("fs", &["rules/load.rs"]),
    ("env", &[]),
];

/// A package or a word that stands in the named files or folders alone, so that it can be replaced
/// there.
const CONFINED: [(&str, &[&str]); 11] = [
    ("bincode", &["cluster/mesh/codec.rs"]),
    ("chitchat", &["cluster/gossip.rs", "cluster/gossip/"]),
    ("hashring", &["cluster/ring.rs"]),
    ("quinn", &["cluster/mesh/", "node/outside.rs", "seam.rs"]),
    ("notify", &["rules/watch.rs"]),
    ("redb", &["storage/"]),
    ("postcard", &["storage/record.rs"]),
    ("rcgen", &["pki/authority.rs", "pki/error.rs"]),
    ("saphyr_parser", &["rules/yaml/"]),
    // `tidegate ca` runs without a node, so it has no seam to ask.
    ("getrandom", &["cli/ca.rs", "node/outside.rs"]),
    ("SystemTime", &["cli/ca.rs", "node/outside.rs"]),
];

/// Where a monotonic instant is known. All but the first are tokio's, which a paused runtime turns
/// into virtual time: they end waits at the edges and reach no decision.
const INSTANTS: [&str; 14] = [
    "node/outside.rs",
    // The show is a client of real nodes and tells how long their answers took.
    "cli/demo/",
    "node/inspect.rs",
    "node/join.rs",
    // When a ping was sent: what a lease counts from.
    "node/service.rs",
    "cluster/mesh/mod.rs",
    "cluster/tenure/",
    // How long the owner that was asked may still take; the verdict has its own `now`.
    "decide/forward.rs",
    "front/connection.rs",
    // How long a command that has begun may take, and how long silence.
    "front/resp/connection.rs",
    // How long a thread had nothing to do.
    "front/resp/watch.rs",
    "front/patience.rs",
    "cluster/mesh/peer.rs",
    "cluster/mesh/registry.rs",
];

const FILE_LINES_MAX: usize = 400;
const LINE_CHARS_MAX: usize = 100;

/// Words that name nothing. They are split so that this file may hold them.
const BANNED_WORDS: [&str; 6] = ["manager", "helper", "util", "utils", "leader", "master"];

/// Packages that have such a word in their own name.
const FOREIGN_NAMES: [&str; 4] = ["tokio_util", "hyper_util", "http_body_util", "futures_util"];

#[test]
fn a_module_uses_only_what_stands_above_it() {
    let mut problems = Problems::default();
    for file in sources() {
        let module = file.module();
        let Some(own) = row(module) else {
            problems.add_if(!["lib", "main"].contains(&module), &file, 0, "is in no layer");
            continue;
        };
        for (number, line) in file.code() {
            for used in uses(line).filter(|used| *used != module) {
                let is_above = row(used).is_some_and(|row| row < own);
                let is_observed = used == OBSERVE.0 && Some(own) >= row(OBSERVE.1);
                let is_allowed = match module {
                    module if module == OBSERVE.0 => used == "units",
                    _ => is_above || is_observed,
                };
                let what = format!("{module} uses {used}, which does not stand above it");
                problems.add_if(!is_allowed, &file, number, &what);
            }
        }
    }
    problems.report();
}

#[test]
fn a_module_reaches_others_only_by_their_full_name() {
    let mut problems = Problems::default();
    for file in sources() {
        for (number, line) in file.code() {
            // An inner module, such as one of tests, stands one deeper and is indented.
            let depth = file.depth() + usize::from(line.starts_with(' '));
            let climbs = line.split("super::").collect::<Vec<_>>();
            let longest = climbs.iter().fold((1, 1), |(longest, run): (usize, usize), part| {
                let run = if part.is_empty() { run + 1 } else { 1 };
                (longest.max(run), run)
            });
            let supers = if climbs.len() == 1 { 0 } else { longest.0 };
            problems.add_if(supers >= depth.max(1), &file, number, "climbs out of its module");
            problems.add_if(line.contains("use crate::{"), &file, number, "name one module a line");
        }
    }
    problems.report();
}

#[test]
fn pure_modules_take_nothing_from_outside() {
    let mut problems = Problems::default();
    let mut needed = BTreeSet::new();
    for file in sources().into_iter().filter(|file| file.is_in(&PURE)) {
        for (number, line) in file.code() {
            for (word, allowed) in IMPURE {
                if words(line).any(|found| found == word) {
                    let is_allowed = allowed.contains(&file.path.as_str());
                    needed.insert((word, file.path.clone()));
                    problems.add_if(!is_allowed, &file, number, &format!("is pure, names {word}"));
                }
            }
        }
    }
    for (word, allowed) in IMPURE {
        for path in allowed {
            assert!(needed.contains(&(word, (*path).into())), "{path} needs no {word} any more");
        }
    }
    problems.report();
}

#[test]
fn pure_modules_do_not_depend_on_the_order_of_a_hash_map() {
    let mut problems = Problems::default();
    for file in sources().into_iter().filter(|file| file.is_in(&PURE)) {
        let maps: BTreeSet<&str> =
            file.code().filter_map(|(_, line)| hash_map_name(line)).collect();
        for (number, line) in file.code() {
            for map in &maps {
                let walks = ["iter", "iter_mut", "into_iter", "keys", "values", "values_mut"];
                let is_walked = walks.iter().any(|walk| line.contains(&format!("{map}.{walk}(")))
                    || [".drain(", ".retain("]
                        .iter()
                        .any(|end| line.contains(&format!("{map}{end}")))
                    || line.trim_start().starts_with("for ") && line.contains(&format!("{map} {{"));
                let what = format!("walks over the hash map {map}");
                problems.add_if(is_walked, &file, number, &what);
            }
        }
    }
    problems.report();
}

#[test]
fn what_is_replaceable_stands_in_one_place() {
    let mut problems = Problems::default();
    let confined = CONFINED.into_iter().chain([("Instant", &INSTANTS[..])]);
    for (word, tokens) in confined {
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for file in sources() {
            for (number, line) in file.code() {
                // A path or an import; a field or a binding may well be called `notify`.
                let is_path =
                    line.contains(&format!("{word}::")) || line.contains(&format!("::{word}"));
                let is_used = is_path && words(line).any(|found| found == word);
                let is_used = is_used || line.trim() == format!("use {word};");
                if is_used {
                    let token = tokens.iter().find(|token| file.is_in(&[token]));
                    used.extend(token);
                    let what = format!("names {word}, which belongs in {tokens:?}");
                    problems.add_if(token.is_none(), &file, number, &what);
                }
            }
        }
        for token in tokens {
            assert!(used.contains(token), "{token} does not name {word} any more: strike it out");
        }
    }
    problems.report();
}

#[test]
fn the_system_clock_is_read_in_one_place() {
    let mut problems = Problems::default();
    for file in sources() {
        let is_tokio = file.text.contains("use tokio::time::Instant;");
        for (number, line) in file.code() {
            let reads = line.contains("Instant::now(") || line.contains("SystemTime::now(");
            let is_virtual = is_tokio && !line.contains("SystemTime");
            let is_virtual = is_virtual || line.contains("tokio::time::Instant::now(");
            let is_outside = file.is_in(&["node/outside.rs", "cli/ca.rs", "cli/demo/"]);
            let is_allowed = is_outside || is_virtual;
            problems.add_if(reads && !is_allowed, &file, number, "reads a clock around the seam");
        }
    }
    problems.report();
}

#[test]
fn files_are_short_and_say_what_they_hold() {
    let mut problems = Problems::default();
    for file in sources() {
        let is_told = file.text.starts_with("//! ");
        problems.add_if(!is_told, &file, 1, "begins without a `//!` sentence");
        let lines = file.text.lines().filter(|line| !line.trim().is_empty()).count();
        let what = format!("has {lines} lines, more than {FILE_LINES_MAX}: split it");
        problems.add_if(lines > FILE_LINES_MAX, &file, 0, &what);
    }
    problems.report();
}

#[test]
fn lines_fit_and_nothing_is_left_for_later() {
    let mut problems = Problems::default();
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|halves| halves.concat());
    let machines = [["/ho", "me/"], ["/wo", "rk/"], ["/ro", "ot/"], ["/Us", "ers/"]];
    let machines = machines.map(|halves| halves.concat());
    for file in files("src").into_iter().chain(files("benches")).chain(files("tests")) {
        for (line, number) in file.text.lines().zip(1..) {
            // A long message may be quoted as it is, and tests quote many.
            let is_quote = line.contains('"') && !line.trim_start().starts_with("//");
            let is_exempt = is_quote || file.root.ends_with("tests");
            let is_long = line.chars().count() > LINE_CHARS_MAX && !is_exempt;
            problems.add_if(is_long, &file, number, "is longer than 100 characters");
            let is_marked = marks.iter().any(|mark| words(line).any(|word| word == mark));
            problems.add_if(is_marked, &file, number, "leaves something for later");
            let is_local = machines.iter().any(|path| line.contains(path.as_str()));
            problems.add_if(is_local, &file, number, "names a path of one machine");
        }
    }
    problems.report();
}

#[test]
fn names_say_what_a_thing_is() {
    let mut problems = Problems::default();
    for file in sources() {
        let in_path = file.path.split(['/', '.', '_']).find(|part| BANNED_WORDS.contains(part));
        problems.add_if(in_path.is_some(), &file, 0, "has a name that says nothing");
        for (number, line) in file.code() {
            for name in words(line).filter(|name| !FOREIGN_NAMES.contains(name)) {
                let is_banned = parts(name).iter().any(|part| BANNED_WORDS.contains(&&**part));
                problems.add_if(is_banned, &file, number, &format!("{name}: find the real noun"));
            }
        }
    }
    problems.report();
}

/// The one file that may: it says why, and what was measured.
const UNSAFE_FILE: &str = "store/prefetch.rs";

#[test]
fn nothing_is_unsafe_but_one_file() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    assert!(manifest.contains("unsafe_code = \"deny\""));
    let mut problems = Problems::default();
    for file in sources() {
        for (number, line) in file.code() {
            let is_unsafe = words(line).any(|word| matches!(word, "unsafe" | "unsafe_code"));
            problems.add_if(is_unsafe && file.path != UNSAFE_FILE, &file, number, "is unsafe");
        }
    }
    problems.report();
}

#[test]
fn comments_and_literals_are_no_code() {
    let text =
        "let a = \"x // y\"; // z\n/* b\nc */ let d = 'e'; let f: &'static str = r#\"g \"h\"#;";
    let code = blank(text);
    let found: Vec<_> = code.lines().flat_map(words).collect();
    assert_eq!(found, ["let", "a", "let", "d", "let", "f", "static", "str", "r"]);
    assert_eq!(code.lines().count(), 3);
}

/// One file of text, and the same with comments and literals blanked.
struct VerdictSource {
    root: PathBuf,
    /// Relative to its root, with `/`.
    path: String,
    text: String,
    code: String,
}

impl VerdictSource {
    /// The module of the crate it belongs to.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// How many modules deep it stands.
    fn depth(&self) -> usize {
        let is_mod = self.path.ends_with("mod.rs");
        self.path.split('/').count() - usize::from(is_mod)
    }

    fn is_in(&self, tokens: &[&str]) -> bool {
        tokens.iter().any(|token| {
            self.path == *token || token.ends_with('/') && self.path.starts_with(token)
        })
    }

    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }
}

/// What was found, told all at once: whoever broke three rules need not run the test three times.
#[derive(Default)]
struct Problems(String);

impl Problems {
    fn add_if(&mut self, is_one: bool, file: &VerdictSource, line: usize, what: &str) {
        if is_one {
            writeln!(self.0, "{}/{}:{line} {what}", file.root.display(), file.path)
                .expect("a string takes everything");
        }
    }

    fn report(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<VerdictSource> {
    let sources = files("src");
    assert!(sources.len() > 100, "the scan lost its way: {} files", sources.len());
    sources
}

/// All Rust files below a folder of the repository, sorted.
fn files(folder: &str) -> Vec<VerdictSource> {
    let top = root().join(folder);
    let (mut folders, mut found) = (vec![top.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(read(folder_name(&top), &top, &path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn folder_name(top: &Path) -> PathBuf {
    top.file_name().map(PathBuf::from).unwrap_or_default()
}

fn read(root: PathBuf, top: &Path, path: &Path) -> VerdictSource {
    let text = fs::read_to_string(path).expect("a text file");
    let path = path.strip_prefix(top).expect("below the top").to_string_lossy().into_owned();
    VerdictSource { root, path, code: blank(&text), text }
}

/// The row of a module in [`LAYERS`]; what stands outside the rows comes after its first user.
fn row(module: &str) -> Option<usize> {
    let row = |module: &str| LAYERS.iter().position(|row| row.contains(&module));
    if module == OBSERVE.0 { row(OBSERVE.1) } else { row(module) }
}

/// The modules that a line names by `crate::`.
fn uses(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").filter_map(|(at, name)| words(&line[at + name.len()..]).next())
}

/// The name that a line gives to a hash map, if it does.
fn hash_map_name(line: &str) -> Option<&str> {
    let before = line.split_once(": HashMap<")?.0;
    words(before).last()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The words inside a name, in lower case: `KeyHash` and `key_hash` are both made of key and hash.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_uppercase() {
            parts.push(String::new());
        }
        if let (Some(part), true) = (parts.last_mut(), c != '_') {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

/// The text with comments and the contents of literals turned into spaces, lines kept.
fn blank(text: &str) -> String {
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

/// The length of the literal that `rest` begins with, its prefix letter aside.
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
