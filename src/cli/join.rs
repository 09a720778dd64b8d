//! `tidegate join`: gets a new node its certificate, with a token.

use std::io::Write;
use std::path::PathBuf;

use tidegate_cluster::pki::{self, JoinToken};
use tokio::runtime;

use super::Failure;
use crate::config::UserError;
use crate::enrolment::Enrolled;
use crate::enrolment::client::{self, Error, Files};

/// Get this node's certificate from a node of the cluster, with a token.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Address of the node that made the token (`join.listen`)
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
    /// The token that `tidegate ca token` printed
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TIDEGATE_JOIN_TOKEN",
        hide_env_values = true,
        required_unless_present = "token_file",
        conflicts_with = "token_file"
    )]
    token: Option<String>,
    /// File with the token; others on this machine can see an argument
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Output folder
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// Do nothing if the folder has a certificate already
    #[arg(long)]
    if_needed: bool,
}

const EXAMPLES: &str = "\
Writes ca.pem, node.pem, node.key and cluster.secret. The private key is made here and stays here. A
join that was interrupted can be repeated with the same folder.

Examples:
  tidegate ca token --node node-4                      at a node of the cluster; prints a token
  tidegate join --peer 10.1.0.4:7643 --token tgjoin1_...
  tidegate join --peer 10.1.0.4:7643 --token-file /run/secrets/join --dir /var/lib/tidegate/pki";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    let files = Files::of(&args.dir);
    if files.cert.exists() {
        if args.if_needed {
            writeln!(out, "{}: this node has its certificate", files.cert.display())?;
            return Ok(true);
        }
        let problem = format!("{}: this node has joined already", files.cert.display());
        let fix = "give --if-needed to accept that; or move the folder away to join anew";
        return Err(UserError::new(problem, fix).into());
    }
    let token: JoinToken = text(args)?.parse().map_err(|error: pki::NotAToken| {
        UserError::new(error.to_string(), "give the whole line that it printed")
    })?;
    std::fs::create_dir_all(&args.dir).map_err(|error| {
        let problem = format!("{}: {error}", args.dir.display());
        UserError::new(problem, "choose a writable folder with --dir")
    })?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let enrolled =
        runtime.block_on(client::join(&token, &args.peer, &files)).map_err(user_error)?;
    let Enrolled { node, region, role, .. } = enrolled;
    writeln!(
        out,
        "joined as {node}; put this into cluster.toml:\n\n\
         [node]\nid = \"{node}\"\nregion = \"{region}\"\nrole = \"{role}\"\n\n\
         [tls]\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\nsecret = \"{}\"",
        files.ca.display(),
        files.cert.display(),
        files.key.display(),
        files.secret.display()
    )?;
    Ok(true)
}

fn text(args: &Args) -> Result<String, Failure> {
    match (&args.token, &args.token_file) {
        (Some(token), _) => Ok(token.clone()),
        (None, Some(file)) => {
            Ok(pki::read_secret_text(file, || "tidegate ca token --node NODE".to_owned())?)
        }
        (None, None) => Err(UserError::new("no token", "give --token or --token-file").into()),
    }
}

fn user_error(error: Error) -> Failure {
    let fix = match error {
        Error::Files(error) => return error.into(),
        Error::Refused(_) => "nothing was written that a second attempt does not replace",
        Error::NoAnswer(_) => {
            "set --peer to join.listen of the node that made the token, and open that port to here"
        }
    };
    UserError::new(error.to_string(), fix).into()
}
