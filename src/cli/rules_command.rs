//! The arguments of `tidegate rules`; see [`super::rules`].

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;
use tidegate_limiter::descriptor::Entry;
use tidegate_rules::load::Options;

use super::entry::entry;
use super::rules::{self, Dialect, Format};
use super::{Failure, Outcome};

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
}

const VALIDATE_EXAMPLES: &str = "\
Exit code: 0 they make a rule book, 1 they do not.

Examples:
  tidegate rules validate
  tidegate rules validate /etc/tidegate/rules --json";

const TEST_EXAMPLES: &str = "\
Exit code: 0 a rule matches, 1 none does, 2 the files make no rule book.

Examples:
  tidegate rules test demo user=alice
  tidegate rules test edge path=/login remote_address=10.0.0.7 --rules /etc/tidegate/rules";

pub(super) fn run(command: &Command, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let options = Options::default();
    let format = |json: bool| if json { Format::Json } else { Format::Text };
    let yes = match command {
        Command::Validate { paths, strict_compat, json } => {
            let dialect = if *strict_compat { Dialect::Compatible } else { Dialect::Ours };
            rules::validate(paths, &options, dialect, format(*json), out)?
        }
        Command::Test { domain, entries, rules: path, json } => {
            let entries: Vec<Entry<'_>> =
                entries.iter().map(|(key, value)| Entry { key, value }).collect();
            rules::test(path, &options, (domain, &entries), format(*json), out)?
        }
    };
    Ok(if yes { Outcome::Yes } else { Outcome::No })
}
