//! `tidegate ca`: the cluster's certificates.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Subcommand, value_parser};
use tidegate_cluster::pki::{self, Bearer, Overwrite, Role, Validity};
use tidegate_limiter::units::{Span, Timestamp};

use super::Failure;
use crate::config::UserError;

/// Validity of an authority: longer than the life of the machines that use it.
const AUTHORITY_DAYS: u32 = 3_650;

/// Certificates are valid from an hour ago, because a node's clock may be behind this machine's.
const CLOCK_SLACK: Span = Span::from_secs(3_600);

/// Create the cluster's certificates.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create the cluster's authority and secret: ca.pem, ca.key, cluster.secret
    #[command(after_help = INIT_EXAMPLES)]
    Init {
        /// Output folder; existing files are not overwritten
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
    /// Create a node's certificate and key: NAME.pem, NAME.key
    #[command(after_help = ISSUE_EXAMPLES)]
    Issue {
        /// The folder created by `ca init`
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The node's id, as in [node] id
        #[arg(long, value_name = "NAME")]
        node: String,
        /// The node's region, as in [node] region
        #[arg(long, value_name = "NAME", default_value = "local")]
        region: String,
        /// What the node does, as in [node] role: core or edge
        #[arg(long, value_name = "ROLE", default_value = "core", value_parser = role)]
        role: Role,
        /// Validity in days
        #[arg(long, value_name = "N", default_value_t = 365,
              value_parser = value_parser!(u32).range(1..=3650))]
        days: u32,
        /// Replace an existing certificate and key
        #[arg(long)]
        renew: bool,
    },
}

const INIT_EXAMPLES: &str = "\
Give ca.pem and cluster.secret to every node. Keep ca.key off the nodes: whoever has it can join.

Example:
  tidegate ca init --dir pki";

const ISSUE_EXAMPLES: &str = "\
The certificate carries the node's id, its region, its role, and mesh.tidegate, the name that
peers dial by. A node takes replaced files into use without a restart.

Examples:
  tidegate ca issue --dir pki --node node-1
  tidegate ca issue --dir pki --node node-1 --region eu
  tidegate ca issue --dir pki --node checkout-7 --role edge
  tidegate ca issue --dir pki --node node-1 --renew --days 90";

pub(super) fn run(command: &Command, out: &mut dyn Write) -> Result<bool, Failure> {
    match command {
        Command::Init { dir } => {
            init(dir)?;
            for name in [pki::AUTHORITY_CERT, pki::AUTHORITY_KEY, pki::CLUSTER_SECRET] {
                writeln!(out, "{}", dir.join(name).display())?;
            }
        }
        Command::Issue { dir, node, region, role, days, renew } => {
            let overwrite = if *renew { Overwrite::Renew } else { Overwrite::Never };
            let bearer = Bearer { node, region, role: *role };
            let files = pki::issue(dir, bearer, validity(*days), overwrite)?;
            writeln!(out, "{}\n{}", files.cert.display(), files.key.display())?;
        }
    }
    Ok(true)
}

fn role(text: &str) -> Result<Role, &'static str> {
    let roles = [Role::Core, Role::Edge];
    roles.into_iter().find(|role| role.name() == text).ok_or("use core or edge")
}

/// Creates an authority and a secret.
fn init(dir: &Path) -> Result<(), Failure> {
    let mut secret = [0; 16];
    let fix = "run it on a system with /dev/urandom";
    getrandom::fill(&mut secret).map_err(UserError::context("failed to create a secret", fix))?;
    pki::init(dir, validity(AUTHORITY_DAYS), secret)?;
    Ok(())
}

/// From an hour ago for `days` days.
#[expect(
    clippy::disallowed_methods,
    reason = "a command that runs outside a node and the simulator"
)]
fn validity(days: u32) -> Validity {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::EPOCH.plus(Span::from(since_epoch));
    Validity {
        not_before: now.minus(CLOCK_SLACK),
        not_after: now.plus(Span::from_secs(u64::from(days) * 86_400)),
    }
}
