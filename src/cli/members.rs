//! `tidegate members`: the agreed members and voters of a region.

use std::io::{self, Write};

use tidegate_demo::output::{Paint, aligned};
use tidegate_ownership::Epoch;

use super::Failure;
use super::client::AdminDoor;
use super::status::duration;
use crate::admin::MembersReport;
use crate::admin::report::{MapMemberReport, MapMemberState, MapReport, Votes};

/// Show the agreed members and voters of a region, as one node has them in force.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    listener: AdminDoor,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
STATE is up, draining, down (evicted, and remembered) or lost (a voter that is no member).
MEMBER names one admission: a node that restarts gets another. HEARD is how long ago the node
that was asked received a ping of the member.

Examples:
  tidegate members
  tidegate members --url http://10.1.0.4:8082 --json";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    let paint = Paint { on: screen };
    let text = |out: &mut dyn Write, report: &MembersReport| write_report(out, paint, report);
    args.listener.report("/members", args.json, out, text)?;
    Ok(true)
}

fn write_report(out: &mut dyn Write, paint: Paint, report: &MembersReport) -> io::Result<()> {
    let MembersReport { node, is_standalone, is_cut_off, map, .. } = report;
    match map {
        Some(map) => write_map(out, paint, node, *is_cut_off, map),
        None if *is_standalone => writeln!(out, "{node} is a standalone node: it has no members"),
        None => writeln!(out, "{node} knows no cluster yet: it has no members"),
    }
}

fn write_map(
    out: &mut dyn Write,
    paint: Paint,
    node: &str,
    is_cut_off: Option<bool>,
    map: &MapReport,
) -> io::Result<()> {
    let MapReport { cluster, epoch, version, voters, voters_present, .. } = map;
    let epoch = Epoch(*epoch);
    writeln!(out, "cluster {cluster}, epoch {epoch}, protocol {version}, seen by {node}")?;
    if let Some(is_cut_off) = is_cut_off {
        let line = format!("{voters} voters, as the cores that this edge follows have sent it");
        if is_cut_off {
            let hint = "this edge is cut off: none of them answers, and this map may be old";
            writeln!(out, "{line}\n{}\n", paint.red(hint))?;
        } else {
            writeln!(out, "{line}\n")?;
        }
        return write_members(out, paint, node, map, "ZONE");
    }
    let change = if map.voters_change { ", a change of voters is in progress" } else { "" };
    let leader = match &map.leader {
        Some(leader) if leader == node => "this node leads".to_owned(),
        Some(leader) => format!("{leader} leads"),
        None => "this node does not know who leads".to_owned(),
    };
    let line = format!("{voters_present} of {voters} voters present{change}; {leader}");
    if 2 * voters_present > *voters {
        writeln!(out, "{line}\n")?;
    } else {
        let hint = "that is no majority: no strict key is decided here, and this map may be old";
        writeln!(out, "{}\n{}\n", paint.red(&line), paint.red(hint))?;
    }
    write_members(out, paint, node, map, "ZONE")
}

/// The table of the members, with this title of their zones.
pub(super) fn write_members(
    out: &mut dyn Write,
    paint: Paint,
    node: &str,
    map: &MapReport,
    zone: &str,
) -> io::Result<()> {
    let rows: Vec<[String; 7]> = map.members.iter().map(|member| row(member, node)).collect();
    let head = ["NODE", "STATE", "VOTES", zone, "ADDRESS", "MEMBER", "HEARD"];
    let (head, lines) = aligned(head, rows.iter());
    writeln!(out, "{}", paint.bold(&head))?;
    for (line, member) in lines.iter().zip(&map.members) {
        let is_gone = matches!(member.state, MapMemberState::Down | MapMemberState::Lost);
        writeln!(out, "{}", if is_gone { paint.red(line) } else { line.clone() })?;
    }
    Ok(())
}

fn row(member: &MapMemberReport, asked: &str) -> [String; 7] {
    let none = || "-".to_owned();
    let heard = member.heard_ms_ago.filter(|_| member.node != asked);
    [
        member.node.clone(),
        member.state.name().to_owned(),
        match member.votes {
            Votes::No => "no",
            Votes::Yes => "yes",
            Votes::Joining => "joining the voters",
            Votes::Leaving => "leaving the voters",
        }
        .to_owned(),
        member.zone.clone().unwrap_or_else(none),
        member.addr.clone().unwrap_or_else(none),
        member.member.map_or_else(none, |id| id.to_string()),
        heard.map_or_else(none, |ms| match ms {
            0..1_000 => format!("{ms}ms ago"),
            _ => format!("{} ago", duration(ms / 1_000)),
        }),
    ]
}
