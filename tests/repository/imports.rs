//! No import cycle: not between files, and not between the files and folders of any folder.
//!
//! The scan reads `use` items and paths in code (`crate::`, `self::`, `super::`, and names that
//! such a `use` brought in), and follows re-exports to the file that defines the name. An edge from
//! one file to another counts in the folder that both are below: there each file and each subfolder
//! is one node, and every strongly connected component has to be a single node. A `mod.rs` that
//! declares and re-exports its children does not import them; one with code that uses them does.
//! Code under `#[cfg(test)]` is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::source::{self, Source};

#[test]
fn no_import_cycle_between_files_or_folders() {
    let mut report = String::new();
    for (name, sources) in packages() {
        for cycle in Package::new(&sources).cycles() {
            writeln!(report, "{name}{cycle}").expect("a string takes everything");
        }
    }
    assert!(report.is_empty(), "import cycles:\n{report}");
}

/// The crates, by the folder of their sources.
fn packages() -> BTreeMap<String, Vec<Source>> {
    let mut packages: BTreeMap<String, Vec<Source>> = BTreeMap::new();
    for file in source::product() {
        let end = file.path.find("src/").expect("sources are below src") + "src/".len();
        let is_root_of_binary = file.path.ends_with("src/main.rs");
        if !is_root_of_binary {
            packages.entry(file.path[..end].to_owned()).or_default().push(file);
        }
    }
    packages
}

/// A module by its names from the root of its crate.
type Module = Vec<String>;

/// The modules of one crate.
struct Package {
    files: BTreeMap<Module, File>,
}

/// What one file declares and names.
#[derive(Debug, Default)]
struct File {
    /// Names defined at the top level of the file.
    items: BTreeSet<String>,
    /// Names brought in by `use`, with where from. Children see private ones as well.
    names: BTreeMap<String, Vec<String>>,
    /// Paths that end in `*`.
    globs: Vec<Vec<String>>,
    /// Paths that the file uses itself, re-exports aside.
    used: BTreeSet<Vec<String>>,
    /// Paths that it re-exports.
    exported: BTreeSet<Vec<String>>,
}

impl Package {
    fn new(sources: &[Source]) -> Self {
        let files = sources.iter().map(|source| (module(&source.path), parse(&source.code)));
        Self { files: files.collect() }
    }

    /// Which files use which.
    fn edges(&self) -> BTreeSet<(Module, Module)> {
        let mut edges = BTreeSet::new();
        for (from, file) in &self.files {
            let used = file.used.iter().filter_map(|path| self.resolve(from, path, 0));
            let exported = file.exported.iter().filter_map(|path| self.resolve(from, path, 0));
            let exported = exported.filter(|to| !to.starts_with(from));
            edges.extend(used.chain(exported).map(|to| (from.clone(), to)));
        }
        edges.retain(|(from, to)| from != to);
        edges
    }

    /// The module whose file defines what `path` names in the module `from`; `None` for another
    /// crate.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Module::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => {
                let climbs = path.iter().take_while(|name| *name == "super").count();
                (from[..from.len().checked_sub(climbs)?].to_vec(), &path[climbs..])
            }
            first => {
                let file = &self.files[from];
                let child = [&from[..], &[first.to_owned()]].concat();
                if self.files.contains_key(&child) {
                    (child, &path[1..])
                } else if let Some(meant) = file.names.get(first).filter(|_| depth < 8) {
                    if meant.first().map(String::as_str) == Some(first) && meant.len() == 1 {
                        return None;
                    }
                    let whole = [&meant[..], &path[1..]].concat();
                    return self.resolve(from, &whole, depth + 1);
                } else {
                    return None;
                }
            }
        };
        while let Some((name, after)) = rest.split_first() {
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.files.contains_key(&child) {
                (at, rest) = (child, after);
                continue;
            }
            let file = self.files.get(&at)?;
            if file.items.contains(name) || depth >= 8 {
                break;
            }
            if let Some(meant) = file.names.get(name) {
                let whole = [&meant[..], after].concat();
                return self.resolve(&at, &whole, depth + 1).or(Some(at));
            }
            let mut globs = file.globs.iter().filter_map(|glob| self.resolve(&at, glob, depth + 1));
            let defines = |module: &Module| self.files[module].items.contains(name);
            return globs.find(defines).or(Some(at));
        }
        self.files.contains_key(&at).then_some(at)
    }

    /// A description of each cycle.
    fn cycles(&self) -> Vec<String> {
        let mut folders: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        let mut because: BTreeMap<(Module, String, String), Vec<String>> = BTreeMap::new();
        for (from, to) in self.edges() {
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            let node = |module: &Module| module.get(common).map_or(".", String::as_str).to_owned();
            let (folder, start, end) = (from[..common].to_vec(), node(&from), node(&to));
            folders.entry(folder.clone()).or_default().entry(start.clone()).or_default();
            let edges = folders.get_mut(&folder).expect("just added");
            edges.entry(start.clone()).or_default().insert(end.clone());
            let shown = format!("{} uses {}", shown(&from), shown(&to));
            because.entry((folder, start, end)).or_default().push(shown);
        }
        let mut cycles = Vec::new();
        for (folder, edges) in &folders {
            for members in components(edges) {
                let mut text = format!("{}: {}", folder.join("/"), members.join(", "));
                for ((at, start, end), files) in &because {
                    let is_inside = members.contains(start) && members.contains(end);
                    if at == folder && is_inside {
                        for file in files.iter().take(3) {
                            write!(text, "\n    {file}").expect("a string takes everything");
                        }
                    }
                }
                cycles.push(text);
            }
        }
        cycles
    }
}

/// `mod.rs`, `lib.rs` and `name.rs` beside `name/` are the module of their folder.
fn module(path: &str) -> Module {
    let (_, path) = path.split_once("src/").expect("sources are below src");
    let path = path.strip_suffix(".rs").expect("a Rust file");
    let mut names: Module = path.split('/').map(str::to_owned).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib")) {
        names.pop();
    }
    names
}

fn shown(module: &Module) -> String {
    if module.is_empty() { "lib.rs".into() } else { module.join("::") }
}

/// Strongly connected components of more than one node.
fn components(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached = |start: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(node) = open.pop() {
            for next in edges.get(node).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> =
        edges.keys().map(|node| (node, reached(node))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (node, reached) in &reach {
        let is_mutual = |other: &&String| {
            reached.contains(*other) && reach.get(*other).is_some_and(|back| back.contains(*node))
        };
        let members: Vec<String> = edges.keys().filter(is_mutual).cloned().collect();
        if members.len() > 1 {
            found.insert(members);
        }
    }
    found.into_iter().collect()
}

// === reading one file ===

/// Reads a file whose comments and literals are blanked.
fn parse(code: &str) -> File {
    let tokens = tokens(code);
    let mut reader = Reader { tokens: &tokens, at: 0, file: File::default() };
    reader.items(0, 0);
    reader.file
}

/// Identifiers, `::`, and single characters.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let length = if is_name(first) {
            rest.find(|c| !is_name(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

struct Reader<'a> {
    tokens: &'a [&'a str],
    at: usize,
    file: File,
}

const DEFINING: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).copied().unwrap_or_default()
    }

    /// Reads up to the end of a block; `inline` is how many inline modules are around it, `braces`
    /// how many other blocks.
    fn items(&mut self, inline: usize, braces: usize) {
        let mut is_public = false;
        while self.at < self.tokens.len() {
            let token = self.peek(0);
            match token {
                "}" => return,
                "#" if self.is_test_only() => self.skip_item(),
                "pub" => {
                    is_public = true;
                    self.at += 1;
                    if self.peek(0) == "(" {
                        self.skip_to(")");
                    }
                    continue;
                }
                "use" => {
                    self.at += 1;
                    self.use_tree(&[], is_public, inline);
                }
                "mod" if self.peek(2) == ";" => self.at += 3,
                "mod" if self.peek(2) == "{" => {
                    if inline + braces == 0 {
                        self.define(1);
                    }
                    self.at += 3;
                    self.items(inline + 1, braces);
                    self.at += 1;
                }
                "{" => {
                    self.at += 1;
                    self.items(inline, braces + 1);
                    self.at += 1;
                }
                _ if DEFINING.contains(&token) && inline + braces == 0 => {
                    self.define(1);
                    self.at += 1;
                }
                _ if self.peek(1) == "::" && is_identifier(token) => self.path(inline),
                _ => self.at += 1,
            }
            is_public = false;
        }
    }

    fn define(&mut self, ahead: usize) {
        let name = self.peek(ahead).to_owned();
        if is_identifier(&name) {
            self.file.items.insert(name);
        }
    }

    fn is_test_only(&self) -> bool {
        ["[", "cfg", "(", "test", ")", "]"]
            .iter()
            .zip(1..)
            .all(|(token, ahead)| self.peek(ahead) == *token)
    }

    /// Skips attributes and the item behind them.
    fn skip_item(&mut self) {
        while !matches!(self.peek(0), "{" | ";" | "") {
            self.at += 1;
        }
        if self.peek(0) == "{" {
            let mut depth = 0;
            loop {
                match self.peek(0) {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    _ => {}
                }
                self.at += 1;
                if depth == 0 || self.at >= self.tokens.len() {
                    return;
                }
            }
        }
        self.at += 1;
    }

    fn skip_to(&mut self, end: &str) {
        while self.at < self.tokens.len() && self.peek(0) != end {
            self.at += 1;
        }
        self.at += 1;
    }

    /// A path in code.
    fn path(&mut self, inline: usize) {
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && is_identifier(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        if let Some(path) = outside(&path, inline) {
            self.file.used.insert(path);
        }
    }

    /// A tree of `use`, behind `prefix`.
    fn use_tree(&mut self, prefix: &[String], is_public: bool, inline: usize) {
        let mut path = prefix.to_vec();
        loop {
            match self.peek(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "}" | "") {
                        self.use_tree(&path, is_public, inline);
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    if let Some(path) = outside(&path, inline) {
                        self.file.globs.push(path.clone());
                        self.import(path, is_public);
                    }
                    return;
                }
                "::" => self.at += 1,
                name if is_identifier(name) && name != "as" => {
                    path.push(name.to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if self.peek(0) == "as" {
            self.peek(1).clone_into(&mut name);
            self.at += 2;
        }
        if let Some(path) = outside(&path, inline) {
            // Names of an inline module are not names of the file.
            if inline == 0 {
                self.file.names.insert(name, path.clone());
            }
            self.import(path, is_public);
        }
    }

    fn import(&mut self, path: Vec<String>, is_public: bool) {
        let paths = if is_public { &mut self.file.exported } else { &mut self.file.used };
        paths.insert(path);
    }
}

fn is_identifier(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The path as the file's own module would write it; `None` when it does not leave an inline
/// module.
fn outside(path: &[String], inline: usize) -> Option<Vec<String>> {
    let climbs = path.iter().take_while(|name| *name == "super").count();
    if inline == 0 || path.first().is_some_and(|name| name == "crate") {
        return Some(path.to_vec());
    }
    if climbs == 0 || climbs < inline {
        return None;
    }
    let rest = &path[climbs..];
    let start = match climbs - inline {
        0 => vec!["self".to_owned()],
        more => vec!["super".to_owned(); more],
    };
    Some([&start[..], rest].concat())
}

// === the scan itself ===

fn package(files: &[(&str, &str)]) -> Package {
    let files = files.iter().map(|(path, code)| (module(&format!("src/{path}")), parse(code)));
    Package { files: files.collect() }
}

#[test]
fn two_files_that_use_each_other_are_a_cycle_and_one_direction_is_none() {
    let root = ("lib.rs", "pub mod a; mod b;");
    let (a, b) = (("a.rs", "use crate::b::B; pub struct A;"), ("b.rs", "pub struct B;"));
    assert_eq!(package(&[root, a, b]).cycles(), Vec::<String>::new());
    let back = ("b.rs", "pub struct B; fn f() -> super::a::A { super::a::A }");
    assert_eq!(package(&[root, a, back]).cycles().len(), 1);
}

#[test]
fn a_parent_that_only_re_exports_does_not_import_and_one_with_code_does() {
    let child = ("a/x.rs", "use super::Y; pub struct X;");
    let other = ("a/y.rs", "pub struct Y;");
    let declares = ("a/mod.rs", "mod x; mod y; pub use x::X; pub(crate) use self::y::Y;");
    assert_eq!(package(&[("lib.rs", "mod a;"), declares, child, other]).cycles().len(), 0);
    let acts = ("a/mod.rs", "mod x; pub struct Y; fn f() { x::g(); }");
    assert_eq!(package(&[("lib.rs", "mod a;"), acts, child]).cycles().len(), 1);
}

#[test]
fn folders_are_nodes_and_tests_do_not_count() {
    let root = ("lib.rs", "mod a; mod b;");
    let one = ("a/mod.rs", "pub mod x; pub mod y;");
    let two = ("b/mod.rs", "pub mod u; pub mod v;");
    let (x, u) =
        (("a/x.rs", "use crate::b::{u, v::V}; fn f() { u::g() }"), ("b/u.rs", "fn g() {}"));
    let v = ("b/v.rs", "pub struct V;\n#[cfg(test)]\nmod tests { use crate::a::y::Y; }");
    assert_eq!(package(&[root, one, two, x, u, v, ("a/y.rs", "pub struct Y;")]).cycles().len(), 0);
    let v = ("b/v.rs", "pub struct V(crate::a::y::Y);");
    assert_eq!(package(&[root, one, two, x, u, v, ("a/y.rs", "pub struct Y;")]).cycles().len(), 1);
}

#[test]
fn an_inline_module_belongs_to_its_file() {
    let root = ("lib.rs", "mod a; mod b;");
    let a = ("a.rs", "pub struct A; mod m { use super::A; use super::super::b::B; }");
    let b = ("b.rs", "use crate::a::A; pub struct B;");
    assert_eq!(package(&[root, a, b]).cycles().len(), 1);
}
