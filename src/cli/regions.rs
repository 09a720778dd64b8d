//! `tidegate regions`: which regions own global keys, and who stands for them.

use std::io::{self, Write};

use percent_encoding::utf8_percent_encode;
use tidegate_demo::output::Paint;

use super::Failure;
use super::client::{AdminDoor, RESERVED};
use super::members::write_members;
use crate::admin::report::RegionsReport;

/// Show the regions that own global keys, or say that one is lost.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    listener: AdminDoor,
    /// Move the keys of this region to the others: it is lost
    #[arg(long, value_name = "REGION")]
    lost: Option<String>,
    /// Print JSON
    #[arg(long, conflicts_with = "lost")]
    json: bool,
}

const EXAMPLES: &str = "\
The table shows the nodes that stand for their regions in the agreement about the homes of keys of
scope: global (global.founders).

--lost is for global.failover = \"manual\". It takes effect once no node of the region is a member of
that agreement any more, which takes global.down_after, and only at the node that leads. The order
expires after global.down_after and a minute, or when that node stops.

Examples:
  tidegate regions
  tidegate regions --lost eu --url http://10.1.0.4:8082";

pub(super) fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    if let Some(region) = &args.lost {
        let name = utf8_percent_encode(region, RESERVED);
        args.listener.order(&format!("/regions/lost?region={name}"))?;
        writeln!(
            out,
            "the global keys of {region} move once none of its nodes stands for it; `tidegate \
             regions` shows when they have"
        )?;
        return Ok(true);
    }
    let paint = Paint { on: screen };
    let text = |out: &mut dyn Write, report: &RegionsReport| write_report(out, paint, report);
    args.listener.report("/regions", args.json, out, text)?;
    Ok(true)
}

fn write_report(out: &mut dyn Write, paint: Paint, report: &RegionsReport) -> io::Result<()> {
    let RegionsReport { node, region, failover, homes, has_lease, map } = report;
    let Some(failover) = failover else {
        return writeln!(
            out,
            "global keys are at home in {}, for ever: {node} has no global.founders",
            homes.join(", ")
        );
    };
    let Some(map) = map else {
        return writeln!(out, "{node} knows no agreement of the regions yet");
    };
    let lease = match (homes.contains(region), *has_lease) {
        (false, _) => format!("{region}, the region of {node}, is no home"),
        (true, true) => format!("{region}, the region of {node}, has its lease"),
        (true, false) => {
            paint.red(&format!("{region}, the region of {node}, has no lease: it decides none"))
        }
    };
    writeln!(out, "global keys are at home in {}; failover is {failover}", homes.join(", "))?;
    writeln!(out, "{lease}\n")?;
    write_members(out, paint, node, map, "REGION")
}
