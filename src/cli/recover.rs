//! `tidegate recover`: continues a cluster, or the agreement of its regions, from the disk of one
//! node, after a majority of the voters was lost for good.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use tidegate_cluster::consensus::{Saved, disk};
use tidegate_ownership::ClusterMap;
use tidegate_ownership::identity::NodeId;
use tokio::runtime;

use super::Failure;
use crate::config::{self, UserError};
use crate::storage::map_file::{FILE_NAME, MapFile};

/// Make a stopped node the only voter of its cluster, after a majority of the voters was lost for
/// good.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The configuration file of the node, which must not run
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: PathBuf,
    /// Set a configuration key; overrides file and environment
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// The id of the cluster, as `tidegate members` and `tidegate status` show it; with --global,
    /// as `tidegate regions --json` does
    #[arg(long, value_name = "ID")]
    cluster: String,
    /// The agreement of the regions about global keys (global.founders), not that of the region
    #[arg(long)]
    global: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Only for a cluster that cannot elect a leader any more, because the disks of a majority of its
voters are gone. Run it on one node, the one whose epoch in `tidegate members` is the highest.
Counts that only lost nodes had are gone.

--global is for regions that decide no global key any more, because a majority of the global voters
has lost its disks. Run it on a voter of `tidegate regions` that still has its disk.

Examples:
  tidegate recover --config cluster.toml --cluster 3f0c9a5be2d14c7788a1b6f2d9e04c15
  tidegate recover --config cluster.toml --global --cluster 77aa02c4be2d14c7788a1b6f2d9e0500";

/// What has to be typed.
const YES: &str = "yes";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    let config = config::load(Some(&args.config), &args.sets)?;
    let node = NodeId::new(&config.node.id)
        .map_err(|error| UserError::new(format!("node.id: {error}"), "set TIDEGATE_NODE__ID"))?;
    let Some(folder) = config.node.data_dir else {
        let fix = "there is nothing to recover: nodes without it found a new cluster when a \
                   majority of the voters has restarted";
        return Err(UserError::new("node.data_dir is not set", fix).into());
    };
    let file = open(&folder)?;
    let file = if args.global { file.global() } else { file };
    let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", shown(&folder));
    let runtime = runtime::Builder::new_current_thread().build();
    let runtime =
        runtime.map_err(UserError::context("failed to start", "raise the process limit"))?;

    let loaded = runtime.block_on(Saved::load(&file, &node));
    let fix = "check that --config is that of the node to which the folder belongs";
    let loaded = loaded.map_err(|error| UserError::new(problem(&error), fix))?;
    let mut saved = loaded.ok_or_else(|| UserError::new(problem(&disk::Error::NoMap), fix))?;
    let before = saved.map.clone().unwrap_or_default();
    saved.recover(&args.cluster).map_err(|error| {
        let fix = match error {
            disk::Error::OtherCluster(_) => "pass its id as --cluster if that is the one you mean",
            _ => fix,
        };
        UserError::new(problem(&error), fix)
    })?;

    let what = if args.global { "the agreement of the regions" } else { "cluster" };
    warn(&mut io::stderr().lock(), what, &node, &before)?;
    if !args.yes && !is_confirmed(&mut io::stdin().lock())? {
        writeln!(out, "nothing was changed")?;
        return Ok(false);
    }
    let fix = "nothing was changed; make room, or make the folder writable";
    let written = runtime.block_on(saved.save(&file));
    written.map_err(|error| UserError::new(problem(&error), fix))?;
    let epoch = saved.map.map_or(before.epoch, |map| map.epoch);
    let cluster = before.cluster;
    writeln!(out, "recovered: {node} is the only voter of {what} {cluster}, at epoch {epoch}")?;
    if args.global {
        writeln!(
            out,
            "\
next:
1. Start {node}. The other nodes may go on running: they accept the recovered map when they meet it.
2. Empty node.data_dir of every lost voter before it starts again.
3. Check with `tidegate regions` that all nodes show epoch {epoch} or a later one."
        )?;
        return Ok(true);
    }
    writeln!(
        out,
        "\
next:
1. Start {node}. It leads alone and owns all keys.
2. Start the other nodes that still have their disks, with cluster.seeds that name {node}. They
   accept the recovered map and join again; voters are added by themselves.
3. Empty node.data_dir of every lost voter before it starts again.
4. Check with `tidegate members` that all nodes show epoch {epoch} or a later one."
    )?;
    Ok(true)
}

/// Opens the record of a node that does not run.
fn open(folder: &Path) -> Result<MapFile, UserError> {
    if !folder.join(FILE_NAME).exists() {
        let problem = format!("{}: no {FILE_NAME} in it", shown(folder));
        return Err(UserError::new(problem, "use the configuration of a node that was a member"));
    }
    MapFile::open(folder).map_err(|error| {
        let fix = "stop the node if it runs, and run this as the user that owns the folder";
        UserError::new(format!("{}: {error}", shown(folder)), fix)
    })
}

fn shown(folder: &Path) -> String {
    format!("node.data_dir {}", folder.display())
}

fn warn(err: &mut dyn Write, what: &str, node: &NodeId, before: &ClusterMap) -> io::Result<()> {
    let mut voters: Vec<&str> = before.voters.all().map(|voter| voter.node.as_str()).collect();
    voters.sort_unstable();
    let (cluster, epoch) = (before.cluster, before.epoch);
    writeln!(
        err,
        "\
WARNING: {node} becomes the only voter of {what} {cluster}.

Its voters by this disk, at epoch {epoch}: {}.

- Lost: changes of the members after this epoch, and all counts that only lost nodes had. Their keys
  start with full limits.
- The lost voters must NEVER run again with their old node.data_dir. A majority of them would go on
  as the old cluster, and every strict limit would be granted twice.
- Do this on one node only. Two nodes that were recovered disagree for ever.
- If a majority of these voters can still be started, do not go on: start them.
",
        voters.join(", ")
    )
}

/// Asks on a terminal.
fn is_confirmed(stdin: &mut (impl BufRead + IsTerminal)) -> Result<bool, Failure> {
    if !stdin.is_terminal() {
        let problem = "standard input is no terminal to confirm on";
        return Err(UserError::new(problem, "pass --yes if you have read the warning").into());
    }
    write!(io::stderr().lock(), "Type {YES:?} to go on: ")?;
    Ok(reads_yes(stdin)?)
}

fn reads_yes(input: &mut impl BufRead) -> io::Result<bool> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    Ok(line.trim() == YES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_yes_confirms() {
        for (typed, confirms) in [("yes\n", true), ("y\n", false), ("\n", false), ("", false)] {
            assert_eq!(reads_yes(&mut typed.as_bytes()).unwrap(), confirms, "{typed:?}");
        }
    }
}
