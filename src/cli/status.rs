//! `tidegate status`: the cluster as seen by one node.

use std::io::Write;

use http::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::admin_client::{self, AdminDoor};
use super::entry::entry;
use super::table::{self, Paint};
use super::{Failure, Outcome, client};
use crate::admin::report::{MemberReport, OwnershipReport, StorageReport};
use crate::admin::{OwnerReport, StatusReport};
use crate::config::UserError;

/// Show members, regions, ring shares, rules and clocks, or the owner of a key.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    listener: AdminDoor,
    /// Show the owner of a key: a domain, then the descriptor's entries, outermost first
    #[arg(long, num_args = 2.., value_names = ["DOMAIN", "KEY=VALUE"])]
    key: Option<Vec<String>>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate status
  tidegate status --url http://10.1.0.4:8082 --json
  tidegate status --key demo user=alice";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<Outcome, Failure> {
    if let Some([domain, entries @ ..]) = args.key.as_deref() {
        let report: OwnerReport =
            fetch(&args.listener.at(&format!("/owner?{}", query(domain, entries)?)))?;
        if args.json { write_json(out, &report)? } else { write_owner(out, &report)? }
    } else {
        let report: StatusReport = fetch(&args.listener.at("/status"))?;
        if args.json {
            write_json(out, &report)?;
        } else {
            write_status(out, Paint::new(screen), &report)?;
        }
    }
    Ok(Outcome::Yes)
}

fn fetch<T: DeserializeOwned>(url: &str) -> Result<T, Failure> {
    let response = client::ask(Method::GET, url, String::new())?;
    if response.status() == StatusCode::OK
        && let Ok(report) = serde_json::from_slice(response.body())
    {
        return Ok(report);
    }
    let body: Option<Value> = serde_json::from_slice(response.body()).ok();
    let error = body.as_ref().and_then(|body| body.get("error")).and_then(Value::as_str);
    let fix = error.unwrap_or(admin_client::FIX);
    Err(UserError::new(format!("{url} answered {}, not a report", response.status()), fix).into())
}

fn query(domain: &str, entries: &[String]) -> Result<String, Failure> {
    let mut pairs = vec![format!("domain={}", utf8_percent_encode(domain, RESERVED))];
    for pair in entries {
        let (key, value) = entry(pair)
            .map_err(|fix| UserError::new(format!("--key {domain}: {pair:?} is no entry"), fix))?;
        let encode = |text| utf8_percent_encode(text, RESERVED);
        pairs.push(format!("{}={}", encode(&key), encode(&value)));
    }
    Ok(pairs.join("&"))
}

/// Everything but the unreserved characters of RFC 3986 is encoded.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn write_json(out: &mut dyn Write, report: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, report).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

// === text output ===

fn write_status(out: &mut dyn Write, paint: Paint, report: &StatusReport) -> Result<(), Failure> {
    let node = &report.node;
    writeln!(
        out,
        "cluster {}, epoch {}, seen by {} ({}, up {})",
        report.cluster,
        short(&report.epoch),
        node.id,
        node.version,
        duration(node.uptime_s),
    )?;
    if let Some(reason) = &report.not_ready {
        writeln!(out, "{}", paint.red(&format!("not ready: {reason}")))?;
    }
    writeln!(out)?;
    let book = &report.rule_book;
    let rows: Vec<_> = report.members.iter().map(|member| row(member, &book.fingerprint)).collect();
    let head = ["NODE", "REGION", "ZONE", "STATE", "RING", "CLOCK", "RTT", "RULES", "MESH"];
    table::write(out, paint, head, &rows)?;
    writeln!(out)?;
    let count = book.rules;
    let agreement = if book.agrees {
        "the same on all members".to_owned()
    } else {
        paint.red("different on the members marked !")
    };
    writeln!(out, "rules: {} ({count} rules), {agreement}", short(&book.fingerprint))?;
    if let Some(error) = &book.last_error {
        writeln!(out, "{}", paint.red(&format!("the rules folder is not in force: {error}")))?;
    }
    let store = &report.store;
    write!(out, "store: {} of {} keys, {} kB", store.keys, store.keys_max, store.bytes / 1_000)?;
    if store.shared + store.refused > 0 {
        write!(
            out,
            "; was full: {} new keys shared a counter, {} were refused",
            store.shared, store.refused
        )?;
    }
    writeln!(out)?;
    if let Some(ownership) = &report.ownership {
        write_ownership(out, paint, ownership)?;
    }
    if report.clock.is_skewed {
        let text = format!(
            "this node's clock is {} ms behind the members' median, which windows follow",
            report.clock.median_ms
        );
        writeln!(out, "{}", paint.red(&text))?;
    }
    if let Some(storage) = &report.storage {
        write_storage(out, paint, storage)?;
    }
    Ok(())
}

fn write_ownership(
    out: &mut dyn Write,
    paint: Paint,
    ownership: &OwnershipReport,
) -> Result<(), Failure> {
    let OwnershipReport { has_lease, epoch_number, decides, missed, .. } = ownership;
    writeln!(
        out,
        "keys: decides {:.1}% of the ring, epoch number {epoch_number}",
        decides * 100.0
    )?;
    if !has_lease {
        let text = "no lease from a majority: on_unavailable answers for strict limits";
        writeln!(out, "{}", paint.red(text))?;
    }
    if !missed.is_empty() {
        let text = format!("failed, and still counted as voters: {}", missed.join(", "));
        writeln!(out, "{}", paint.red(&text))?;
    }
    Ok(())
}

fn write_storage(
    out: &mut dyn Write,
    paint: Paint,
    storage: &StorageReport,
) -> Result<(), Failure> {
    let StorageReport { path, keys, loaded, skipped, failed, .. } = storage;
    let age = match storage.written_s_ago {
        Some(seconds) => format!("up to date {} ago", duration(seconds)),
        None => "not written yet".to_owned(),
    };
    write!(out, "storage: {path}, {keys} keys, {age}; {loaded} were loaded at startup")?;
    if skipped + failed > 0 {
        write!(out, ", {skipped} skipped; {failed} rounds failed")?;
    }
    writeln!(out)?;
    if let Some(problem) = &storage.problem {
        writeln!(out, "{}", paint.red(&format!("snapshots are failing: {problem}")))?;
    }
    Ok(())
}

/// A member's cells, and whether its rules differ from those of the answering node.
fn row(member: &MemberReport, ours: &str) -> ([String; 9], bool) {
    let unknown = || "?".to_owned();
    let differs = member.rule_book.as_ref().is_some_and(|theirs| theirs != ours);
    let mark = if differs { " !" } else { "" };
    let cells = [
        member.id.clone(),
        member.region.clone(),
        member.zone.clone(),
        member.state.name().to_owned(),
        format!("{:.1}%", member.ring_share * 100.0),
        member.clock_offset_ms.map_or_else(unknown, |ms| format!("{ms:+}ms")),
        member.rtt_us.map_or_else(unknown, |us| format!("{us}us")),
        member.rule_book.as_ref().map_or_else(unknown, |book| format!("{}{mark}", short(book))),
        member.addr.clone().unwrap_or_else(|| "-".to_owned()),
    ];
    (cells, differs)
}

fn write_owner(out: &mut dyn Write, report: &OwnerReport) -> Result<(), Failure> {
    match (&report.rule, &report.mode) {
        (Some(rule), Some(mode)) => {
            let scope = report.scope.as_ref().map_or(String::new(), |scope| format!(", {scope}"));
            writeln!(out, "rule {rule} ({mode}{scope}), token {}", report.token)?;
        }
        _ => writeln!(out, "no rule matches, so it is not limited; token {}", report.token)?,
    }
    for owner in &report.owners {
        writeln!(out, "owner in {}: {}", owner.region, owner.node)?;
    }
    Ok(())
}

/// The first eight digits are enough to compare by eye.
fn short(fingerprint: &str) -> &str {
    fingerprint.get(..8).unwrap_or(fingerprint)
}

/// The two largest units: `3d 4h`, `2m 5s`.
fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}
