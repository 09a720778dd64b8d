//! `tidegate ca`: the cluster's certificates.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Subcommand, value_parser};
use percent_encoding::utf8_percent_encode;
use tidegate_cluster::pki::{self, Bearer, IssuedFiles, Overwrite, Role, Scope, Validity};
use tidegate_demo::output::Paint;
use tidegate_limiter::units::{Span, Timestamp};

use super::Failure;
use super::client::{AdminDoor, RESERVED, write_json, write_reached};
use crate::admin::certificates::{RevokedNode, RevokedReport, TokenReport};
use crate::config::UserError;

/// Validity of an authority: longer than the life of the machines that use it.
const AUTHORITY_DAYS: u32 = 3_650;
/// How long a command waits for another one that writes to the same folder.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

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
        /// Sign with signer.pem and signer.key of the folder, which needs no ca.key
        #[arg(long)]
        by_signer: bool,
        /// With --by-signer: output folder [default: that of --dir]
        #[arg(long, value_name = "DIR", requires = "by_signer")]
        out: Option<PathBuf>,
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
        /// Begin now, and not an hour ago: for a node whose certificate was revoked within the hour
        #[arg(long)]
        from_now: bool,
        /// Replace an existing certificate and key
        #[arg(long)]
        renew: bool,
    },
    /// Create an authority for daily use, signed by the cluster's: signer.pem, signer.key
    #[command(after_help = SIGNER_EXAMPLES)]
    Signer {
        /// The folder created by `ca init`
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Only for nodes of this region [default: of any]
        #[arg(long, value_name = "NAME")]
        region: Option<String>,
        /// Only for nodes of this role: core or edge [default: of both]
        #[arg(long, value_name = "ROLE", value_parser = role)]
        role: Option<Role>,
        /// Validity in days
        #[arg(long, value_name = "N", default_value_t = 90,
              value_parser = value_parser!(u32).range(1..=3650))]
        days: u32,
        /// Replace an existing certificate and key
        #[arg(long)]
        renew: bool,
    },
    /// Make a token with which one new node can join, once
    #[command(after_help = TOKEN_EXAMPLES)]
    Token {
        /// The new node's id
        #[arg(long, value_name = "NAME")]
        node: String,
        /// Its region [default: that of the node that is asked]
        #[arg(long, value_name = "NAME")]
        region: Option<String>,
        /// What it does: core or edge
        #[arg(long, value_name = "ROLE", default_value = "core", value_parser = role)]
        role: Role,
        /// How long the token is good, 1m to 7d
        #[arg(long, value_name = "DURATION", default_value = "1h")]
        ttl: Span,
        #[command(flatten)]
        listener: AdminDoor,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Refuse the certificates of a node from now on, at all nodes
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke {
        /// The node's id
        #[arg(long, value_name = "NAME")]
        node: String,
        /// Also if no node of this name is known: an edge that does not run, or a forgotten member
        #[arg(long)]
        unknown: bool,
        #[command(flatten)]
        listener: AdminDoor,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the nodes whose certificates are refused
    Revoked {
        #[command(flatten)]
        listener: AdminDoor,
        /// Print JSON
        #[arg(long)]
        json: bool,
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
  tidegate ca issue --dir pki --node node-1 --renew --days 90
  tidegate ca issue --dir signer --by-signer --node signer-0 --role edge --out pki";

const SIGNER_EXAMPLES: &str = "\
Put both files on two or three nodes, as join.signer_cert and join.signer_key: these sign for nodes
that show a token, and renew certificates. ca.key stays off the nodes. Whoever steals a signer can
sign only what it is for, and not after its time.

Examples:
  tidegate ca signer --dir pki
  tidegate ca signer --dir pki --region eu --role edge --days 30";

const TOKEN_EXAMPLES: &str = "\
Ask a node that has a signer. The token is for that node alone: give the new one the address of its
join.listen.

Examples:
  tidegate ca token --node node-4
  tidegate ca token --node checkout-7 --role edge --ttl 10m";

const REVOKE_EXAMPLES: &str = "\
Every node closes its connections with that node and refuses its certificates that were issued until
now; its keys move as after a crash. With a new token it may join again under its name.

Exit code: 0 confirmed by all other members, 1 not by those that are named, 2 not revoked.

Examples:
  tidegate ca revoke --node node-4
  tidegate ca revoked";

pub(super) fn run(command: &Command, screen: bool, out: &mut dyn Write) -> Result<bool, Failure> {
    match command {
        Command::Init { dir } => {
            init(dir)?;
            for name in [pki::AUTHORITY_CERT, pki::AUTHORITY_KEY, pki::CLUSTER_SECRET] {
                writeln!(out, "{}", dir.join(name).display())?;
            }
        }
        Command::Issue {
            dir,
            by_signer,
            out: folder,
            node,
            region,
            role,
            days,
            from_now,
            renew,
        } => {
            let overwrite = if *renew { Overwrite::Renew } else { Overwrite::Never };
            let bearer = Bearer { node, region, role: *role };
            let (now, mut validity) = (now(), validity(*days));
            if *from_now {
                // After a revocation of this second.
                validity.not_before = Timestamp::from_secs(now.as_secs() + 1);
            }
            let files = if *by_signer {
                let now = now.max(validity.not_before);
                let folder = folder.as_ref().unwrap_or(dir);
                let _alone = alone_in(folder)?;
                pki::issue_by_signer(dir, folder, bearer, validity, now, overwrite)?
            } else {
                let _alone = alone_in(dir)?;
                pki::issue(dir, bearer, validity, overwrite)?
            };
            write_files(out, &files)?;
        }
        Command::Signer { dir, region, role, days, renew } => {
            let overwrite = if *renew { Overwrite::Renew } else { Overwrite::Never };
            let scope = Scope { region: region.as_deref(), role: *role };
            let _alone = alone_in(dir)?;
            write_files(out, &pki::issue_signer(dir, scope, validity(*days), overwrite)?)?;
        }
        Command::Token { node, region, role, ttl, listener, json } => {
            let encode = |text| utf8_percent_encode(text, RESERVED);
            let region = region.as_deref().map(|region| format!("&region={}", encode(region)));
            let (node, role, region) = (encode(node), role.name(), region.unwrap_or_default());
            let path = format!("/join/tokens?node={node}&role={role}&ttl={ttl}{region}");
            let made: TokenReport = listener.order_report(&path)?;
            if *json {
                write_json(out, &made)?;
            } else {
                writeln!(out, "{}", made.token)?;
            }
        }
        Command::Revoke { node, unknown, listener, json } => {
            let unknown = if *unknown { "&unknown=true" } else { "" };
            let path = format!("/revoke?node={}{unknown}", utf8_percent_encode(node, RESERVED));
            let report: RevokedReport = listener.order_report(&path)?;
            let is_confirmed = report.reached.is_confirmed() && !report.not_on_disk;
            if *json {
                write_json(out, &report)?;
                return Ok(is_confirmed);
            }
            let (done, paint) = (format!("{node}: revoked"), Paint { on: screen });
            write_reached(out, paint, &done, &report.reached)?;
            if report.not_on_disk {
                let text = "the asked node cannot write it to node.data_dir, and tries again";
                writeln!(out, "{}", paint.red(text))?;
            }
            return Ok(is_confirmed);
        }
        Command::Revoked { listener, json } => {
            listener.report("/revoked", *json, out, |out, revoked: &Vec<RevokedNode>| {
                for RevokedNode { node, at } in revoked {
                    writeln!(out, "{node}  until {}", pki::utc_second(Timestamp::from_secs(*at)))?;
                }
                Ok(())
            })?;
        }
    }
    Ok(true)
}

fn write_files(out: &mut dyn Write, files: &IssuedFiles) -> io::Result<()> {
    writeln!(out, "{}\n{}", files.cert.display(), files.key.display())
}

fn role(text: &str) -> Result<Role, &'static str> {
    Role::of_name(text).ok_or("use core or edge")
}

/// Creates an authority and a secret.
fn init(dir: &Path) -> Result<(), Failure> {
    let mut secret = [0; 16];
    let fix = "run it on a system with /dev/urandom";
    getrandom::fill(&mut secret).map_err(UserError::context("failed to create a secret", fix))?;
    let _alone = created(dir)?;
    pki::init(dir, validity(AUTHORITY_DAYS), secret)?;
    Ok(())
}

/// Creates a folder of certificates, and waits as [`alone_in`].
pub(super) fn created(dir: &Path) -> Result<Option<File>, Failure> {
    fs::create_dir_all(dir).map_err(|error| {
        let problem = format!("{}: {error}", dir.display());
        UserError::new(problem, "choose a writable folder with --dir")
    })?;
    Ok(alone_in(dir)?)
}

/// Waits until no other command writes certificates there, until the result is dropped.
fn alone_in(dir: &Path) -> Result<Option<File>, pki::Error> {
    pki::alone_in(dir, LOCK_PATIENCE, || {
        let text = format!("{}: another tidegate command is at work; waiting", dir.display());
        let _ = writeln!(io::stderr().lock(), "{text}");
    })
}

/// From an hour ago for `days` days.
fn validity(days: u32) -> Validity {
    let now = now();
    Validity {
        not_before: now.minus(pki::BACKDATED),
        not_after: now.plus(Span::from_secs(u64::from(days) * 86_400)),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command that runs outside a node and the simulator"
)]
pub(super) fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH.plus(Span::from(since_epoch))
}
