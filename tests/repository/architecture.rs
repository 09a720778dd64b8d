//! How the code is laid out: layers, pure parts, libraries used in one place, names.
//!
//! The scan reads the sources with comments and the contents of literals blanked, line by line. It
//! finds words and paths, not types. Each exception is listed beside its rule with the reason, and
//! an exception that is no longer needed fails too. `imports.rs` has the cycles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::source::{self, Problems, Source, words};

/// A module of `src` may use `crate::X` only for an `X` in a row above its own. The crates below
/// them are held apart by Cargo.
const LAYERS: [&[&str]; 11] = [
    &["observe", "traces"],
    &["config"],
    &["storage", "reload"],
    &["xds"],
    &["decide"],
    &["front"],
    &["compat"],
    &["admin"],
    &["enrolment"],
    &["export", "node"],
    &["cli"],
];

/// Crates that a program without a runtime can use: they build none of [`RUNTIME`], not even for
/// their tests.
const PURE_CRATES: [&str; 3] = ["limiter", "rules", "ownership"];

const RUNTIME: [&str; 6] = ["tokio", "quinn", "tonic", "hyper", "rustls", "axum"];

/// No socket, no task, no clock, no randomness, no output: a decision depends on the arguments
/// alone. Whole crates, and the files of the shell that are pure as well.
const PURE: [&str; 28] = [
    "crates/limiter/src/",
    "crates/rules/src/",
    "crates/ownership/src/",
    "crates/client/src/fields.rs",
    "crates/client/src/policy.rs",
    "crates/client/src/recent.rs",
    "crates/client/src/schedule.rs",
    "src/admin/event_reader.rs",
    "src/cli/top/draw.rs",
    "src/cli/top/rates.rs",
    "src/cli/top/screen.rs",
    "src/cli/top/tables.rs",
    "src/decide/refused_keys.rs",
    "src/decide/source_net.rs",
    "src/decide/source_watch.rs",
    "src/enrolment/service_account.rs",
    "src/enrolment/signed_token.rs",
    "src/export/blocklist.rs",
    "src/export/ruleset.rs",
    "src/front/proxy/gradient.rs",
    "src/storage/record.rs",
    "src/storage/origin.rs",
    "src/front/resp/command.rs",
    "src/front/resp/limit.rs",
    "src/front/resp/read.rs",
    "src/front/resp/reply.rs",
    "src/front/resp/session.rs",
    "src/traces/propagation.rs",
];

/// What a pure file must not name, and the pure files that may.
const IMPURE: [(&str, &[&str]); 12] = [
    ("tokio", &[]),
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
    // One function reads the folder; parsing what it read is pure.
    ("fs", &["crates/rules/src/load.rs"]),
];

/// A library or a type that only the named files or folders name, so that it can be replaced there.
const CONFINED: [(&str, &[&str]); 22] = [
    ("bincode", &["crates/cluster/src/encoding.rs"]),
    ("raft", &["crates/cluster/src/consensus/engine.rs"]),
    ("slog", &["crates/cluster/src/consensus/engine.rs"]),
    ("chitchat", &["crates/cluster/src/gossip.rs", "crates/cluster/src/gossip/"]),
    ("hashring", &["crates/ownership/src/ring.rs"]),
    (
        "quinn",
        &[
            "crates/cluster/src/mesh/",
            "crates/cluster/src/environment.rs",
            "src/node/system.rs",
            "src/node/udp.rs",
        ],
    ),
    // Of `sd_notify` the function has the name of the crate `notify`.
    ("notify", &["src/node/systemd.rs", "src/reload/watch.rs"]),
    ("sd_notify", &["src/node/systemd.rs"]),
    ("redb", &["src/storage/"]),
    ("postcard", &["src/storage/record.rs"]),
    ("ratatui", &["src/cli/top/"]),
    ("crossterm", &["src/cli/top/"]),
    ("rcgen", &["crates/cluster/src/pki/"]),
    ("saphyr_parser", &["crates/rules/src/yaml/"]),
    ("sfv", &["crates/client/src/fields.rs", "crates/tower/src/http_node.rs"]),
    ("reqwest_middleware", &["crates/client/src/pacing.rs"]),
    ("fastrand", &["crates/client/src/pacer.rs", "src/front/connection.rs", "src/traces/span.rs"]),
    ("opentelemetry_proto", &["src/node/traces/receiver.rs", "src/traces/"]),
    ("lru", &["crates/client/src/recent.rs"]),
    // `tidegate ca` runs without a node, so it has no environment to take them from.
    ("getrandom", &["src/cli/ca.rs", "src/node/system.rs"]),
    // Nor have clients: the demo, and the pacer; nor limits of a process without a node.
    (
        "SystemTime",
        &[
            "crates/client/src/pacer.rs",
            "crates/demo/src/steps.rs",
            "crates/tower/src/in_process/clock.rs",
            "src/cli/ca.rs",
            "src/node/system.rs",
        ],
    ),
    // All but that of `node/system.rs` are tokio's, which a paused runtime turns into virtual
    // time: they bound waits at the edges and reach no decision.
    (
        "Instant",
        &[
            "crates/cluster/src/membership.rs",
            "crates/cluster/src/mesh/",
            "crates/cluster/src/ticks.rs",
            // How long a forwarded request may still take; the verdict has its own `now`.
            "src/decide/carried.rs",
            "src/decide/combiner.rs",
            "src/decide/forward.rs",
            "src/decide/owner_search.rs",
            "src/decide/reserve.rs",
            "src/decide/shares.rs",
            // When the requests of a program may leave.
            "crates/client/src/pacer.rs",
            // The demo is a client of real nodes and measures how long their answers take.
            "crates/demo/src/",
            "crates/tower/src/in_process/clock.rs",
            // When entries of the kernel end; the list has its own `now`.
            "src/export/mod.rs",
            // How old the picture is; the screen has its own `now`.
            "src/cli/top/terminal.rs",
            "src/front/",
            "src/node/",
        ],
    ),
];

/// The files that read the clock of the system.
const CLOCK_READERS: [&str; 5] = [
    "src/node/system.rs",
    "src/cli/ca.rs",
    "crates/client/src/pacer.rs",
    "crates/demo/src/steps.rs",
    "crates/tower/src/in_process/clock.rs",
];

/// The one file that may be unsafe: it says why, and what was measured.
const UNSAFE_FILE: &str = "crates/limiter/src/store/prefetch.rs";

const LINE_CHARS_MAX: usize = 100;

/// Words that name nothing.
const BANNED_WORDS: [&str; 5] = ["manager", "helper", "util", "utils", "master"];

/// Packages and modules of packages that have such a word in their own name.
const FOREIGN_NAMES: [&str; 4] = ["tokio_util", "hyper_util", "http_body_util", "futures_util"];
const FOREIGN_PATH: &str = "raft::util::";

#[test]
fn a_module_uses_only_modules_above_it() {
    let mut problems = Problems::default();
    for file in source::below("src") {
        let module = module(&file);
        let Some(own) = row(module) else {
            problems.add_if(!["lib", "main"].contains(&module), &file, 0, "is in no layer");
            continue;
        };
        for (number, line) in file.lines() {
            for used in uses(line).filter(|used| *used != module) {
                let is_above = row(used).is_some_and(|row| row < own);
                let what = format!("{module} uses {used}, which is not above it");
                problems.add_if(!is_above, &file, number, &what);
            }
        }
    }
    problems.report();
}

#[test]
fn a_module_reaches_others_only_by_their_full_name() {
    let mut problems = Problems::default();
    for file in source::product() {
        for (number, line) in file.lines() {
            // An inner module, such as one of tests, is one deeper and indented.
            let depth = depth(&file) + usize::from(line.starts_with(' '));
            let climbs = line.split("super::").collect::<Vec<_>>();
            let longest = climbs.iter().fold((1, 1), |(longest, run): (usize, usize), part| {
                let run = if part.is_empty() { run + 1 } else { 1 };
                (longest.max(run), run)
            });
            let supers = if climbs.len() == 1 { 0 } else { longest.0 };
            let what = "climbs out of its top-level module: use crate::";
            problems.add_if(supers > depth, &file, number, what);
            // The layers are read line by line.
            let is_list = file.path.starts_with("src/") && line.contains("use crate::{");
            problems.add_if(is_list, &file, number, "name one module a line");
        }
    }
    problems.report();
}

#[test]
fn pure_crates_build_no_runtime() {
    let dependencies = lock_file();
    for name in PURE_CRATES {
        let (mut seen, mut open) = (BTreeSet::new(), vec![format!("tidegate-{name}")]);
        while let Some(package) = open.pop() {
            if seen.insert(package.clone()) {
                open.extend(dependencies.get(&package).into_iter().flatten().cloned());
            }
        }
        assert!(seen.len() > 3, "tidegate-{name} is not in Cargo.lock");
        let found: Vec<&str> = RUNTIME.into_iter().filter(|name| seen.contains(*name)).collect();
        assert_eq!(found, Vec::<&str>::new(), "tidegate-{name} depends on a runtime");
    }
}

#[test]
fn pure_files_take_nothing_from_outside() {
    let mut problems = Problems::default();
    let mut needed = BTreeSet::new();
    for file in source::product().into_iter().filter(|file| file.is_in(&PURE)) {
        for (number, line) in file.lines() {
            for (word, allowed) in IMPURE {
                if words(line).any(|found| found == word) {
                    let is_allowed = allowed.contains(&file.path.as_str());
                    needed.insert((word, file.path.clone()));
                    problems.add_if(!is_allowed, &file, number, &format!("is pure, names {word}"));
                }
            }
            let reads_environment = line.contains("env::") && !line.contains("env!");
            problems.add_if(reads_environment, &file, number, "is pure, names std::env");
        }
    }
    for (word, allowed) in IMPURE {
        for path in allowed {
            assert!(needed.contains(&(word, (*path).into())), "{path} no longer names {word}");
        }
    }
    problems.report();
}

#[test]
fn pure_files_do_not_depend_on_the_order_of_a_hash_map() {
    let mut problems = Problems::default();
    for file in source::product().into_iter().filter(|file| file.is_in(&PURE)) {
        let maps: BTreeSet<&str> =
            file.lines().filter_map(|(_, line)| hash_map_name(line)).collect();
        for (number, line) in file.lines() {
            for map in &maps {
                let walks = ["iter", "iter_mut", "into_iter", "keys", "values", "values_mut"];
                let is_walked = walks.iter().any(|walk| line.contains(&format!("{map}.{walk}(")))
                    || [".drain(", ".retain("]
                        .iter()
                        .any(|end| line.contains(&format!("{map}{end}")))
                    || line.trim_start().starts_with("for ") && line.contains(&format!("{map} {{"));
                let what = format!("iterates over the hash map {map}");
                problems.add_if(is_walked, &file, number, &what);
            }
        }
    }
    problems.report();
}

#[test]
fn replaceable_libraries_are_named_in_one_place() {
    let mut problems = Problems::default();
    let sources = source::product();
    for (word, places) in CONFINED {
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for file in &sources {
            for (number, line) in file.lines() {
                // A path or an import; a field or a binding may well be called `notify`.
                let is_path =
                    line.contains(&format!("{word}::")) || line.contains(&format!("::{word}"));
                let is_used = is_path && words(line).any(|found| found == word);
                if is_used || line.trim() == format!("use {word};") {
                    let place = places.iter().find(|place| file.is_in(&[place]));
                    used.extend(place);
                    let what = format!("names {word}, which belongs in {places:?}");
                    problems.add_if(place.is_none(), file, number, &what);
                }
            }
        }
        for place in places {
            assert!(
                used.contains(place),
                "{place} no longer names {word}: remove it from the list"
            );
        }
    }
    problems.report();
}

#[test]
fn the_system_clock_is_read_in_one_place() {
    let mut problems = Problems::default();
    for file in source::product() {
        let is_import =
            |line: &str| line.starts_with("use tokio::time::") && names(line, "Instant");
        let is_tokio = file.code.lines().any(is_import);
        for (number, line) in file.lines() {
            let reads = line.contains("Instant::now(") || line.contains("SystemTime::now(");
            let is_virtual = is_tokio && !line.contains("SystemTime")
                || line.contains("tokio::time::Instant::now(");
            let is_allowed = file.is_in(&CLOCK_READERS) || is_virtual;
            let what = "reads a clock: take `now` as an argument or use the environment";
            problems.add_if(reads && !is_allowed, &file, number, what);
        }
    }
    problems.report();
}

#[test]
fn files_begin_with_what_they_hold() {
    let mut problems = Problems::default();
    for file in source::product() {
        let is_documented = file.text.starts_with("//! ");
        problems.add_if(!is_documented, &file, 1, "begins without a `//!` sentence");
    }
    problems.report();
}

#[test]
fn lines_fit_and_nothing_is_left_for_later() {
    let mut problems = Problems::default();
    // In halves, so that this file may hold them.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|halves| halves.concat());
    let machines = [["/ho", "me/"], ["/wo", "rk/"], ["/ro", "ot/"], ["/Us", "ers/"]];
    let machines = machines.map(|halves| halves.concat());
    let testkit = source::below("crates/testkit/src");
    let tests = source::below("tests").into_iter().chain(source::below("benches")).chain(testkit);
    for file in source::product().into_iter().chain(tests) {
        for (line, number) in file.text.lines().zip(1..) {
            // A long message may be quoted as it is, and tests quote many.
            let is_quote = line.contains('"') && !line.trim_start().starts_with("//");
            let is_exempt = is_quote || file.path.starts_with("tests/");
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
    for file in source::product() {
        let in_path = file.path.split(['/', '.', '_']).find(|part| BANNED_WORDS.contains(part));
        problems.add_if(in_path.is_some(), &file, 0, "has a name that says nothing");
        for (number, line) in
            file.lines().map(|(number, line)| (number, line.replace(FOREIGN_PATH, "")))
        {
            for name in words(&line).filter(|name| !FOREIGN_NAMES.contains(name)) {
                let is_banned = parts(name).iter().any(|part| BANNED_WORDS.contains(&&**part));
                problems.add_if(is_banned, &file, number, &format!("{name}: find the real noun"));
            }
        }
    }
    problems.report();
}

#[test]
fn one_file_is_unsafe() {
    let manifest = fs::read_to_string(source::root().join("Cargo.toml")).expect("the manifest");
    assert!(manifest.contains("unsafe_code = \"deny\""));
    let mut problems = Problems::default();
    for file in source::product() {
        for (number, line) in file.lines() {
            let is_unsafe = words(line).any(|word| matches!(word, "unsafe" | "unsafe_code"));
            problems.add_if(is_unsafe && file.path != UNSAFE_FILE, &file, number, "is unsafe");
        }
    }
    problems.report();
}

/// The module of `src` that a file belongs to.
fn module(file: &Source) -> &str {
    let first = file.path.split('/').nth(1).unwrap_or_default();
    first.strip_suffix(".rs").unwrap_or(first)
}

/// How many modules below its crate's root a file is.
fn depth(file: &Source) -> usize {
    let (_, path) = file.path.split_once("src/").expect("sources are below src");
    let is_folder = path.ends_with("mod.rs") || path == "lib.rs" || path == "main.rs";
    path.split('/').count() - usize::from(is_folder)
}

/// The row of a module in [`LAYERS`].
fn row(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

/// The modules that a line names by `crate::`.
fn uses(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").filter_map(|(at, name)| words(&line[at + name.len()..]).next())
}

fn names(line: &str, word: &str) -> bool {
    words(line).any(|found| found == word)
}

/// The name that a line gives to a hash map, if it does.
fn hash_map_name(line: &str) -> Option<&str> {
    let before = line.split_once(": HashMap<")?.0;
    words(before).last()
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

/// Names of the packages that each package of `Cargo.lock` depends on.
fn lock_file() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(source::root().join("Cargo.lock")).expect("the lock file");
    let mut dependencies: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in text.split("[[package]]\n").skip(1) {
        let name = package.lines().find_map(|line| line.strip_prefix("name = \""));
        let name = name.expect("a name").trim_end_matches('"').to_owned();
        // A line is `"name",` or `"name version",`.
        let needed = package.lines().filter_map(|line| line.strip_prefix(" \""));
        let needed = needed.filter_map(|line| line.split([' ', '"']).next());
        dependencies.entry(name).or_default().extend(needed.map(str::to_owned));
    }
    dependencies
}
