//! `tidegate key`: one key by hand.

use std::io::{self, Write};

use percent_encoding::utf8_percent_encode;
use tidegate_demo::output::Paint;
use tidegate_limiter::units::Span;

use super::Failure;
use super::client::{AdminDoor, RESERVED, write_announced, write_json};
use super::entry::entry;
use super::status::{duration, write_owner};
use crate::admin::key::KeyOrdered;
use crate::admin::snapshot::{KeyReport, LimitReport};

/// Show one key, begin it anew, or block it.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Command {
    /// Show the limits of a key as its owner has them
    Show {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        common: Common,
    },
    /// Begin the counters of a key anew, at all nodes
    Reset {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        common: Common,
    },
    /// Count hits, also beyond the limit, or give hits back
    Adjust {
        #[command(flatten)]
        key: Key,
        /// Hits to count; negative to give back
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        hits: i64,
        #[command(flatten)]
        common: Common,
    },
    /// Refuse a key, at all nodes
    Block {
        #[command(flatten)]
        key: Key,
        /// For how long, such as 10m [default: until it is unblocked]
        #[arg(long = "for", value_name = "DURATION")]
        span: Option<Span>,
        #[command(flatten)]
        common: Common,
    },
    /// Lift a block
    Unblock {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Key {
    /// Domain of the rules
    domain: String,
    /// Entries of the descriptor, outermost first
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = entry)]
    entries: Vec<(String, String)>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    listener: AdminDoor,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Orders take effect at all nodes that can be reached within a second, and at the others once they
can be; each is a line of the node's log. docs/operations.md says what they do not undo.

Examples:
  tidegate key show demo user=alice
  tidegate key reset demo user=alice
  tidegate key adjust demo user=alice --hits -5
  tidegate key block demo user=alice --for 10m
  tidegate key unblock demo user=alice --url http://10.1.0.4:8082";

pub(super) fn run(command: &Command, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    let (name, key, parameter, common) = match command {
        Command::Show { key, common } => {
            let text = |out: &mut dyn Write, report: &KeyReport| {
                write_report(out, Paint { on: screen }, report)
            };
            let path = format!("/key?{}", key.query());
            common.listener.report(&path, common.json, out, text)?;
            return Ok(true);
        }
        Command::Reset { key, common } => ("reset", key, String::new(), common),
        Command::Adjust { key, hits, common } => ("adjust", key, format!("hits={hits}&"), common),
        Command::Block { key, span, common } => {
            let parameter = span.map(|span| format!("for={span}&")).unwrap_or_default();
            ("block", key, parameter, common)
        }
        Command::Unblock { key, common } => ("unblock", key, String::new(), common),
    };
    let path = format!("/key/{name}?{parameter}{}", key.query());
    let ordered: KeyOrdered = common.listener.order_report(&path)?;
    if common.json {
        write_json(out, &ordered)?;
        return Ok(true);
    }
    let KeyOrdered { order, confirmed, missed } = ordered;
    let done = format!("{order}: done");
    write_announced(out, Paint { on: screen }, &done, (&confirmed, &missed))?;
    Ok(true)
}

impl Key {
    fn query(&self) -> String {
        let encode = |text| utf8_percent_encode(text, RESERVED);
        let domain = format!("domain={}", encode(&self.domain));
        let entries = self.entries.iter();
        let entries = entries.map(|(key, value)| format!("{}={}", encode(key), encode(value)));
        std::iter::once(domain).chain(entries).collect::<Vec<_>>().join("&")
    }
}

fn write_report(out: &mut dyn Write, paint: Paint, report: &KeyReport) -> io::Result<()> {
    write_owner(out, &report.owner)?;
    for LimitReport { limit, window_ms, remaining, reset_ms, .. } in &report.limits {
        let (window, reset) = (Span::from_millis(*window_ms), Span::from_millis(*reset_ms));
        writeln!(out, "{remaining} of {limit} in {window} left, all of it in {reset}")?;
    }
    if report.source.as_deref() == Some("fallback") {
        let text = "no owner has answered in time: this is what on_unavailable says";
        writeln!(out, "{}", paint.red(text))?;
    }
    match report.blocked_for_ms {
        None => {}
        Some(0) => writeln!(out, "{}", paint.red("blocked by hand until it is unblocked"))?,
        Some(left) => {
            let left = Span::from_millis(left);
            writeln!(out, "{}", paint.red(&format!("blocked by hand for another {left}")))?;
        }
    }
    if let Some(ago) = report.begun_anew_ago_ms {
        writeln!(out, "begun anew by hand {} ago", duration(ago / 1_000))?;
    }
    Ok(())
}
