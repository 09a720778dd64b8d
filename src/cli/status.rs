//! `tidegate status`: the cluster as seen by one node.

use std::io::{self, Write};

use percent_encoding::utf8_percent_encode;
use tidegate_demo::output::{Paint, aligned};
use tidegate_rules::stats::GrantedCounts;

use super::Failure;
use super::client::{AdminDoor, RESERVED};
use super::entry::entry;
use crate::admin::report::{
    CertificateReport, EdgesReport, FollowsReport, MemberReport, OwnershipReport, RuleReport,
    StorageReport, StoreReport,
};
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

/// Rules in the text; there are more in JSON.
const RULES_SHOWN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  tidegate status
  tidegate status --url http://10.1.0.4:8082 --json
  tidegate status --key demo user=alice";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    if let Some([domain, entries @ ..]) = args.key.as_deref() {
        let path = format!("/owner?{}", query(domain, entries)?);
        args.listener.report(&path, args.json, out, write_owner)?;
    } else {
        let paint = Paint { on: screen };
        let text = |out: &mut dyn Write, report: &StatusReport| Text { out, paint }.status(report);
        args.listener.report("/status", args.json, out, text)?;
    }
    Ok(true)
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

// === text output ===

struct Text<'a> {
    out: &'a mut dyn Write,
    paint: Paint,
}

impl Text<'_> {
    fn alarm(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", self.paint.red(text))
    }

    fn status(mut self, report: &StatusReport) -> io::Result<()> {
        let StatusReport { cluster, node, rule_book: book, store, .. } = report;
        let (epoch, up) = (short(&report.epoch), duration(node.uptime_s));
        let (id, version) = (&node.id, &node.version);
        let by = if node.role == "edge" { format!("edge {id}") } else { id.clone() };
        writeln!(self.out, "cluster {cluster}, epoch {epoch}, seen by {by} ({version}, up {up})")?;
        if let Some(id) = &report.cluster_id {
            writeln!(self.out, "cluster id {id}")?;
        }
        if let Some(reason) = &report.not_ready {
            self.alarm(&format!("not ready: {reason}"))?;
        }
        writeln!(self.out)?;
        self.members(&report.members, &book.fingerprint)?;
        let (rules, count) = (short(&book.fingerprint), book.rules);
        let is_known = report.members.iter().all(|member| member.rule_book.is_some());
        let agreement = if book.agrees && is_known {
            "the same on all members".to_owned()
        } else if book.agrees {
            "the same on all members but those marked ?, which have not been reached".to_owned()
        } else {
            self.paint.red("different on the members marked !")
        };
        writeln!(self.out, "\nrules: {rules} ({count} rules), {agreement}")?;
        if let Some(error) = &book.last_error {
            self.alarm(&format!("the rules folder is not in force: {error}"))?;
        }
        self.rules(&report.rules)?;
        let StoreReport { keys, keys_max, shared, refused, .. } = store;
        write!(self.out, "store: {keys} of {keys_max} keys, {} kB", store.bytes / 1_000)?;
        if shared + refused > 0 {
            let text = "; was full: ";
            write!(self.out, "{text}{shared} new keys shared a counter, {refused} were refused")?;
        }
        writeln!(self.out)?;
        if let Some(ownership) = &report.ownership {
            self.ownership(ownership)?;
        }
        if let Some(edges) = report.edges.as_ref().filter(|edges| edges.connected > 0) {
            let EdgesReport { connected, connected_max, in_region, .. } = edges;
            let text = format!("edges: {connected} connected, of at most {connected_max}");
            writeln!(self.out, "{text}; about {in_region} in this region")?;
        }
        if let Some(FollowsReport { cores, is_cut_off }) = &report.follows {
            match (cores.is_empty(), is_cut_off) {
                (_, true) => self.alarm("cut off from all cores: on_unavailable answers")?,
                (true, false) => self.alarm("follows no core yet")?,
                (false, false) => writeln!(self.out, "follows: {}", cores.join(", "))?,
            }
        }
        if report.clock.is_skewed {
            let ms = report.clock.median_ms;
            let text = "behind the members' median, which windows follow";
            self.alarm(&format!("this node's clock is {ms} ms {text}"))?;
        }
        if let Some(certificate) = &report.certificate {
            self.certificate(certificate)?;
        }
        report.storage.as_ref().map_or(Ok(()), |storage| self.storage(storage))
    }

    fn certificate(&mut self, certificate: &CertificateReport) -> io::Result<()> {
        let CertificateReport { expires, expires_in_s, authorities, .. } = certificate;
        let text = match expires_in_s {
            0 => format!("certificate: expired on {expires}"),
            left => format!("certificate: valid until {expires}, for {}", duration(*left)),
        };
        let text = match authorities {
            1 => format!("{text}; one authority is trusted"),
            many => format!("{text}; {many} authorities are trusted"),
        };
        if certificate.is_renewal_due {
            self.alarm(&text)?;
        } else {
            writeln!(self.out, "{text}")?;
        }
        if certificate.connections_to_renew > 0 {
            let count = certificate.connections_to_renew;
            writeln!(self.out, "connections still under an earlier certificate: {count}")?;
        }
        if let Some(problem) = &certificate.problem {
            self.alarm(&format!("the files of [tls] are not in use: {problem}"))?;
        }
        if certificate.has_next_secret {
            let text = "tls.secret begins with a secret that is used from the next start on";
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    fn members(&mut self, members: &[MemberReport], ours: &str) -> io::Result<()> {
        let rows: Vec<_> = members.iter().map(|member| row(member, ours)).collect();
        let head = ["NODE", "REGION", "ZONE", "STATE", "RING", "CLOCK", "RTT", "RULES", "MESH"];
        let (head, lines) = aligned(head, rows.iter().map(|(cells, _)| cells));
        writeln!(self.out, "{}", self.paint.bold(&head))?;
        for (line, (_, differs)) in lines.iter().zip(&rows) {
            if *differs { self.alarm(line)? } else { writeln!(self.out, "{line}")? }
        }
        Ok(())
    }

    fn rules(&mut self, rules: &[RuleReport]) -> io::Result<()> {
        if rules.is_empty() {
            return Ok(());
        }
        let head = [
            "RULE", "MODE", "ALLOWED", "SOFT", "DENIED", "LOCAL", "WAITED", "ALONE", "EARLY",
            "ERROR",
        ];
        writeln!(self.out)?;
        let shown = &rules[..rules.len().min(RULES_SHOWN)];
        let rows: Vec<_> = shown.iter().map(rule_row).collect();
        self.table(head, &rows)?;
        if rules.len() > shown.len() {
            writeln!(self.out, "further rules: --json")?;
        }
        let granted = shown.iter().filter(|rule| rule.counts.grants.received > 0);
        let rows: Vec<_> = granted.map(grants_row).collect();
        if !rows.is_empty() {
            writeln!(self.out)?;
            let head =
                ["GRANTED HITS OF", "RECEIVED", "SPENT", "RETURNED", "RECALLED", "LATE", "HELD"];
            self.table(head, &rows)?;
        }
        writeln!(self.out)
    }

    fn table<const N: usize>(&mut self, head: [&str; N], rows: &[[String; N]]) -> io::Result<()> {
        let (head, lines) = aligned(head, rows.iter());
        writeln!(self.out, "{}", self.paint.bold(&head))?;
        lines.iter().try_for_each(|line| writeln!(self.out, "{line}"))
    }

    fn ownership(&mut self, ownership: &OwnershipReport) -> io::Result<()> {
        let OwnershipReport { has_lease, epoch_number, missed, .. } = ownership;
        let share = ownership.decides * 100.0;
        writeln!(self.out, "keys: decides {share:.1}% of the ring, epoch number {epoch_number}")?;
        if !has_lease {
            self.alarm("no lease from a majority: on_unavailable answers for strict limits")?;
        }
        if !missed.is_empty() {
            let missed = missed.join(", ");
            self.alarm(&format!("failed, and still counted as voters: {missed}"))?;
        }
        Ok(())
    }

    fn storage(&mut self, storage: &StorageReport) -> io::Result<()> {
        let StorageReport { path, keys, loaded, skipped, failed, .. } = storage;
        let age = match storage.written_s_ago {
            Some(seconds) => format!("up to date {} ago", duration(seconds)),
            None => "not written yet".to_owned(),
        };
        write!(self.out, "storage: {path}, {keys} keys, {age}; {loaded} were loaded at startup")?;
        if skipped + failed > 0 {
            write!(self.out, ", {skipped} skipped; {failed} rounds failed")?;
        }
        writeln!(self.out)?;
        let problem = storage.problem.as_ref();
        problem.map_or(Ok(()), |text| self.alarm(&format!("snapshots are failing: {text}")))
    }
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

/// The cells of a rule; checks but for allowed, soft-limited and denied, which are hits.
fn rule_row(report: &RuleReport) -> [String; 10] {
    let RuleReport { rule, mode, counts, error, .. } = report;
    let unknown = || "-".to_owned();
    let mode = mode.clone().unwrap_or_else(unknown);
    let is_leased = mode == "leased";
    [
        rule.clone(),
        mode,
        (counts.allowed + counts.shadowed).to_string(),
        counts.soft_limited.to_string(),
        counts.denied.to_string(),
        (counts.local + counts.by_grant + counts.remembered).to_string(),
        counts.by_owner.to_string(),
        (counts.unavailable + counts.alone).to_string(),
        if is_leased { counts.refused_early.to_string() } else { unknown() },
        error.map_or_else(unknown, |error| format!("{:+.1}%", error * 100.0)),
    ]
}

fn grants_row(report: &RuleReport) -> [String; 7] {
    let GrantedCounts { received, refunded, spent, given_back, recalled, late } =
        report.counts.grants;
    let spent = spent.saturating_sub(refunded);
    let numbers = [received, spent, given_back, recalled, late, report.held];
    let [received, spent, given_back, recalled, late, held] = numbers.map(|it| it.to_string());
    [report.rule.clone(), received, spent, given_back, recalled, late, held]
}

pub(super) fn write_owner(out: &mut dyn Write, report: &OwnerReport) -> io::Result<()> {
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
pub(super) fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}
