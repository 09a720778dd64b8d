//! `tidegate top`: the dashboard in a terminal.
//!
//! ```text
//! node ─ /events ─▶ follow ─▶ rates ─▶ screen ─▶ tables ─▶ draw ─▶ terminal
//!                            (pure)    (pure)    (pure)   (pure)
//! ```
//!
//! Each snapshot is complete, so that one that comes late is skipped, as on the page.

mod draw;
mod follow;
mod rates;
mod screen;
mod tables;
mod terminal;

use std::io::{self, Write};
use std::path::PathBuf;

use tokio::runtime;

use self::follow::{Lost, Nodes};
use self::rates::Picture;
use self::screen::Screen;
use super::client::{no_answer, parse, read_token};
use super::{Failure, shutdown};
use crate::admin::{Listener, Reach};
use crate::config::{Secret, UserError};

/// Most nodes to ask.
const NODES_MAX: usize = 64;

/// Show the whole cluster, live: members, rules with their rates, keys that are limited now.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URL of a node's admin listener; repeat it for nodes to ask when that one is gone
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_ADMIN_URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:8082"
    )]
    url: Vec<String>,
    #[command(flatten)]
    reach: Reach,
    /// File with the token of the admin listeners (`admin.token_file`)
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_TOKEN_FILE", hide_env = true)]
    token_file: Option<PathBuf>,
    /// Print one picture, with the rates of a second, and exit
    #[arg(long)]
    once: bool,
    /// Print it as JSON
    #[arg(long, requires = "once")]
    json: bool,
}

const EXAMPLES: &str = "\
Keys: 1 members, 2 rules, 3 keys limited now, 0 or Tab all; arrows scroll, / filters, s sorts,
p pauses, ? explains, q quits. NO_COLOR is respected. docs/dashboard.md has the fields of --json.

Examples:
  tidegate top
  tidegate top --url http://10.1.0.4:8082 --url http://10.1.0.5:8082
  tidegate top --once
  tidegate top --once --json | jq '.members[] | select(.state == \"down\").id'
  tidegate top --once --json | jq '.rates.refused_per_second'";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    if !args.once && !screen {
        let fix = "use --once, or --once --json";
        return Err(UserError::new("standard output is not a terminal", fix).into());
    }
    let nodes = args.nodes()?;
    let fix = "raise the process limit (ulimit -u)";
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(UserError::context("failed to start the runtime", fix))?;
    if args.once {
        let picture = runtime.block_on(nodes.picture());
        let (url, picture) = picture.map_err(|Lost { url, why }| no_answer(&url, &why))?;
        if args.json {
            write_json(out, &picture)?;
        } else {
            for line in draw::lines(&Screen::of(url, picture)) {
                writeln!(out, "{line}")?;
            }
        }
        return Ok(true);
    }
    // See https://no-color.org.
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    runtime.block_on(async {
        let what = "failed to install signal handlers";
        let signal =
            shutdown::first_signal().map_err(UserError::context(what, "raise `ulimit -n`"))?;
        terminal::show(nodes, has_colour, signal).await?;
        Ok(true)
    })
}

impl Args {
    fn nodes(&self) -> Result<Nodes, Failure> {
        if self.url.len() > NODES_MAX {
            let problem = format!("--url is there {} times", self.url.len());
            return Err(
                UserError::new(problem, format!("give it at most {NODES_MAX} times")).into()
            );
        }
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let token = token.as_deref().map(Secret::from);
        let listener = |url: &String| {
            let (url, reach) = (parse(url)?, self.reach.clone());
            Ok(Listener { url, reach, token: token.clone() })
        };
        let listeners = self.url.iter().map(listener).collect::<Result<_, Failure>>()?;
        Ok(Nodes { listeners })
    }
}

/// JSON escapes control characters below 32 alone, and terminals obey those from 127 on too.
fn write_json(out: &mut dyn Write, picture: &Picture) -> io::Result<()> {
    let json = serde_json::to_string_pretty(picture)?;
    for part in json.split_inclusive(is_high_control) {
        match part.chars().next_back().filter(|c| is_high_control(*c)) {
            None => out.write_all(part.as_bytes())?,
            Some(c) => write!(out, "{}\\u{:04x}", part.trim_end_matches(c), u32::from(c))?,
        }
    }
    writeln!(out)
}

/// They stand inside of strings only, where an escape means the same.
fn is_high_control(c: char) -> bool {
    c.is_control() && c >= '\u{7f}'
}
