//! `tidegate ratelimit-config-check`, and the binary under the name `ratelimit_config_check`: the
//! flags, output and exit codes of envoyproxy/ratelimit's checker, for pipelines that call it.
//!
//! One difference: names that begin with a dot are skipped, so that a mounted `ConfigMap`, whose
//! files also appear in `..data`, can be checked.
//!
//! Source: envoyproxy/ratelimit, `src/config_check_cmd/main.go`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidegate_rules::load::{self, Options, Source};

use super::Failure;
use crate::compat::envoy_ratelimit::environment;
use crate::config::UserError;

/// Check a folder of rule files as envoyproxy/ratelimit's checker does.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// `-config_dir DIR`, `-merge_domain_configs`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAG")]
    flags: Vec<String>,
}

const EXAMPLES: &str = "\
Flags, with one dash or two:
  -config_dir DIR         the folder
  -merge_domain_configs   several files may name one domain

Exit code: 0 the files are right, 1 they are not or cannot be read, 2 a flag is wrong.

Examples:
  tidegate ratelimit-config-check -config_dir /etc/ratelimit/config
  ratelimit_config_check -config_dir=config -merge_domain_configs";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    let Flags { config_dir, merge_domains } = flags(&args.flags)?;
    writeln!(out, "checking rate limit configs...")?;
    writeln!(out, "loading config directory: {config_dir}")?;
    let paths = match entries(Path::new(&config_dir)) {
        Ok(paths) => paths,
        Err(error) => {
            writeln!(out, "error opening directory {config_dir}: {error}")?;
            return Ok(false);
        }
    };
    let mut sources = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        writeln!(out, "opening config file: {name}")?;
        match fs::read(&path) {
            Ok(bytes) => sources.push(Source { name, bytes }),
            Err(error) => {
                writeln!(out, "error reading file {name}: {error}")?;
                return Ok(false);
            }
        }
    }
    let options = Options { merge_domains, ..Options::default() };
    match load::parse(&sources, &options) {
        Ok(_) => {
            writeln!(out, "all rate limit configs ok")?;
            Ok(true)
        }
        Err(error) => {
            writeln!(out, "error loading rate limit configs: {error}")?;
            Ok(false)
        }
    }
}

/// The entries of the folder, sorted.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Flags {
    config_dir: String,
    merge_domains: bool,
}

/// Reads flags as Go's package `flag` does: one dash or two, the value after `=` or in the next
/// argument; the value of a boolean only after `=`.
fn flags(args: &[String]) -> Result<Flags, UserError> {
    let wrong = |what: String| UserError::new(what, "see --help");
    let mut flags = Flags::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let named = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'));
        // Go stops at the first argument that is not a flag, and at `--`.
        let Some(named) = named.filter(|named| !named.is_empty()) else { break };
        let (name, value) = match named.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (named, None),
        };
        match (name, value) {
            ("config_dir", Some(value)) => value.clone_into(&mut flags.config_dir),
            ("config_dir", None) => {
                let value = args.next();
                let missing = || wrong("flag needs an argument: -config_dir".to_owned());
                value.ok_or_else(missing)?.clone_into(&mut flags.config_dir);
            }
            ("merge_domain_configs", None) => flags.merge_domains = true,
            ("merge_domain_configs", Some(value)) => {
                flags.merge_domains = environment::flag(value).ok_or_else(|| {
                    wrong(format!("invalid boolean value {value:?} for -merge_domain_configs"))
                })?;
            }
            _ => return Err(wrong(format!("flag provided but not defined: -{name}"))),
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let read = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(ToString::to_string).collect();
            flags(&args).map_err(|error| error.what)
        };
        let expected =
            |dir: &str, merge_domains| Ok(Flags { config_dir: dir.to_owned(), merge_domains });
        assert_eq!(read(&["-config_dir", "a"]), expected("a", false));
        assert_eq!(read(&["--config_dir=a", "--merge_domain_configs"]), expected("a", true));
        assert_eq!(read(&["-merge_domain_configs=F", "-config_dir=a"]), expected("a", false));
        assert_eq!(read(&["-config_dir=a", "rest", "-x"]), expected("a", false));
        assert_eq!(read(&["-x"]), Err("flag provided but not defined: -x".to_owned()));
        assert_eq!(read(&["-config_dir"]), Err("flag needs an argument: -config_dir".to_owned()));
        assert!(read(&["-merge_domain_configs=maybe"]).is_err());
    }
}
