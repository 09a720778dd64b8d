//! `tidegate key`: one key by hand.

use std::fmt::Write as _;
use std::io::{self, Write};

use percent_encoding::{PercentEncode, utf8_percent_encode};
use tidegate_demo::output::Paint;
use tidegate_limiter::units::Span;

use super::Failure;
use super::client::{AdminDoor, RESERVED, write_json, write_reached};
use super::entry::entry;
use super::status::{duration, write_owner};
use crate::admin::key::{INTERVALS, KeyOrdered};
use crate::admin::snapshot::{KeyReport, LimitReport};

/// Show one key, begin it anew, or block it.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Command {
    /// Show the limits of a key as its owner has them; of an eventual rule as the node has them
    Show {
        #[command(flatten)]
        counter: Counter,
        #[command(flatten)]
        common: Common,
    },
    /// Begin the counters of a key anew, at all nodes
    Reset {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Count hits, also beyond the limit of a rule, or give hits back
    Adjust {
        #[command(flatten)]
        counter: Counter,
        /// Hits to count; negative to give back
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        hits: i64,
        #[command(flatten)]
        common: Common,
    },
    /// Refuse a key, at all nodes
    Block {
        #[command(flatten)]
        key: KeyArgs,
        /// For how long, such as 10m [default: until it is unblocked]
        #[arg(long = "for", value_name = "DURATION", value_parser = lasting)]
        span: Option<Span>,
        #[command(flatten)]
        common: Common,
    },
    /// Lift a block
    Unblock {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// Domain of the rules
    #[arg(required_unless_present = "name", conflicts_with = "name")]
    domain: Option<String>,
    /// Entries of the descriptor, outermost first
    #[arg(required_unless_present = "name", value_name = "KEY=VALUE", value_parser = entry)]
    entries: Vec<(String, String)>,
    /// Instead of a descriptor: the name in requests of Gubernator's clients, which carry a limit
    #[arg(long, requires = "unique_key")]
    name: Option<String>,
    /// Their unique key
    #[arg(long, value_name = "KEY", requires = "name")]
    unique_key: Option<String>,
}

/// A key, and which of its counters if its requests carry their limit.
#[derive(Debug, clap::Args)]
pub(super) struct Counter {
    #[command(flatten)]
    key: KeyArgs,
    /// The limit of these requests; with a duration, or an interval of the calendar
    #[arg(long, value_name = "N", requires = "name")]
    limit: Option<u32>,
    /// Their duration, such as 1m
    #[arg(long, requires = "limit", conflicts_with = "calendar")]
    duration: Option<Span>,
    /// Their interval of the calendar
    #[arg(long, value_name = "INTERVAL", requires = "limit", value_parser = INTERVALS)]
    calendar: Option<String>,
    /// Their algorithm
    #[arg(long, requires = "limit", value_parser = ["TOKEN_BUCKET", "LEAKY_BUCKET"])]
    algorithm: Option<String>,
    /// Their burst
    #[arg(long, value_name = "N", requires = "limit")]
    burst: Option<u32>,
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

Exit code: 0 done, and confirmed by all other members; 1 not confirmed by those that are named, or
fewer hits given back than ordered; 2 not done, or no answer: a node that did not answer in time may
still carry it out.

Examples:
  tidegate key show demo user=alice
  tidegate key reset demo user=alice
  tidegate key adjust demo user=alice --hits -5
  tidegate key block demo user=alice --for 10m
  tidegate key unblock demo user=alice --url http://10.1.0.4:8082
  tidegate key show --name requests --unique-key account:1 --limit 100 --duration 1m
  tidegate key reset --name requests --unique-key account:1";

pub(super) fn run(command: &Command, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    let (name, query, parameter, common) = match command {
        Command::Show { counter, common } => {
            let text = |out: &mut dyn Write, report: &KeyReport| {
                write_report(out, Paint { on: screen }, report)
            };
            let path = format!("/key?{}", counter.query());
            common.listener.report(&path, common.json, out, text)?;
            return Ok(true);
        }
        Command::Reset { key, common } => ("reset", key.query(), String::new(), common),
        Command::Adjust { counter, hits, common } => {
            ("adjust", counter.query(), format!("hits={hits}&"), common)
        }
        Command::Block { key, span, common } => {
            let parameter = span.map(|span| format!("for={span}&")).unwrap_or_default();
            ("block", key.query(), parameter, common)
        }
        Command::Unblock { key, common } => ("unblock", key.query(), String::new(), common),
    };
    let path = format!("/key/{name}?{parameter}{query}");
    let ordered: KeyOrdered = common.listener.order_report(&path)?;
    let is_done = ordered.reached.is_confirmed() && ordered.given_back.is_none();
    if common.json {
        write_json(out, &ordered)?;
        return Ok(is_done);
    }
    let KeyOrdered { order, reached, given_back } = ordered;
    let done = match given_back {
        Some(hits) => format!("{order}: gave back {hits} hits, and knew of no more"),
        None => format!("{order}: done"),
    };
    write_reached(out, Paint { on: screen }, &done, &reached)?;
    Ok(is_done)
}

impl KeyArgs {
    fn query(&self) -> String {
        let pair = |(key, value): (&str, &str)| format!("{}={}", encoded(key), encoded(value));
        let Self { domain, entries, name, unique_key } = self;
        let named = [("domain", domain), ("name", name), ("unique_key", unique_key)];
        let named = named.into_iter().filter_map(|(field, value)| Some((field, value.as_deref()?)));
        let entries = entries.iter().map(|(key, value)| (&**key, &**value));
        named.chain(entries).map(pair).collect::<Vec<_>>().join("&")
    }
}

impl Counter {
    fn query(&self) -> String {
        let Self { key, limit, duration, calendar, algorithm, burst } = self;
        let mut query = key.query();
        let fields = [
            ("limit", limit.map(|limit| limit.to_string())),
            ("duration", duration.map(|duration| duration.to_string())),
            ("calendar", calendar.clone()),
            ("algorithm", algorithm.clone()),
            ("burst", burst.map(|burst| burst.to_string())),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                // Writing to a string never fails.
                let _ = write!(query, "&{field}={}", encoded(&value));
            }
        }
        query
    }
}

fn lasting(text: &str) -> Result<Span, String> {
    let span: Option<Span> = text.parse().ok();
    span.filter(|span| *span > Span::ZERO)
        .ok_or_else(|| format!("{text:?} is no duration above 0 such as 10m"))
}

fn encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

/// In seconds where they are enough.
fn rounded_up(millis: u64) -> String {
    if millis < 1_000 { format!("{millis}ms") } else { duration(millis.div_ceil(1_000)) }
}

fn write_report(out: &mut dyn Write, paint: Paint, report: &KeyReport) -> io::Result<()> {
    write_owner(out, &report.owner)?;
    for LimitReport { limit, window_ms, remaining, reset_ms, .. } in &report.limits {
        let (window, reset) = (Span::from_millis(*window_ms), rounded_up(*reset_ms));
        writeln!(out, "{remaining} of {limit} in {window} left, all of it in {reset}")?;
    }
    if let Some(node) = &report.known_by {
        writeln!(
            out,
            "as far as {node} knows: the rule is eventual, others may have counted more"
        )?;
    }
    if report.source.as_deref() == Some("fallback") {
        let text = "no owner has answered in time: this is what on_unavailable says";
        writeln!(out, "{}", paint.red(text))?;
    }
    match report.blocked_for_ms {
        None => {}
        Some(0) => writeln!(out, "{}", paint.red("blocked by hand until it is unblocked"))?,
        Some(left) => {
            let left = rounded_up(left);
            writeln!(out, "{}", paint.red(&format!("blocked by hand for another {left}")))?;
        }
    }
    if let Some(ago) = report.begun_anew_ago_ms {
        writeln!(out, "begun anew by hand {} ago", duration(ago / 1_000))?;
    }
    Ok(())
}
