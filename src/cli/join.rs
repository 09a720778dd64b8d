//! `tidegate join`: gets a new node its certificate, with a token.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tidegate_cluster::pki::{self, JoinToken, NewKey};
use tidegate_limiter::units::Span;
use tokio::runtime;

use super::{Failure, ca};
use crate::config::UserError;
use crate::enrolment::client::{self, Error, Files, Invitation};
use crate::enrolment::{Credential, Enrolled};

/// Get this node's certificate from a node of the cluster, with a token.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("credential").required(true)))]
pub(super) struct Args {
    /// Address of a node that signs (`join.listen`); of the one that made the token
    #[arg(long, value_name = "HOST:PORT", value_parser = peer)]
    peer: String,
    /// The token that `tidegate ca token` printed
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TIDEGATE_JOIN_TOKEN",
        hide_env_values = true,
        group = "credential"
    )]
    token: Option<String>,
    /// File with the token; others on this machine can see an argument
    #[arg(long, value_name = "FILE", group = "credential")]
    token_file: Option<PathBuf>,
    /// File with the token of this pod's service account, in a Kubernetes cluster
    #[arg(
        long,
        value_name = "FILE",
        group = "credential",
        requires_all = ["node", "ca", "signer"]
    )]
    service_account_token: Option<PathBuf>,
    /// With --service-account-token: the name of this pod, which becomes the node's id
    #[arg(long, value_name = "NAME", requires = "service_account_token")]
    node: Option<String>,
    /// With --service-account-token: the cluster's authority, ca.pem
    #[arg(long, value_name = "FILE", requires = "service_account_token")]
    ca: Option<PathBuf>,
    /// With --service-account-token: ids of the nodes that may see the token
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "service_account_token")]
    signer: Vec<String>,
    /// Output folder
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// Do nothing if the folder has a certificate and its key; with --service-account-token, a
    /// valid one
    #[arg(long)]
    if_needed: bool,
    /// How long to try again while there is no answer
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    wait: Span,
}

const EXAMPLES: &str = "\
Writes ca.pem, node.pem, node.key and cluster.secret. The private key is made here and stays here. A
join that was interrupted can be repeated with the same folder.

Examples:
  tidegate ca token --node node-4                      at a node of the cluster; prints a token
  tidegate join --peer 10.1.0.4:7643 --token tgjoin1_...
  tidegate join --peer 10.1.0.4:7643 --token-file /run/secrets/join --dir /var/lib/tidegate/pki
  tidegate join --peer tidegate-signer:7643 --signer tidegate-signer-0 --ca ca.pem \\
    --node tidegate-0 --service-account-token /var/run/secrets/tidegate/token";

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// One that replaces a revoked certificate begins in the second after, and `serve` refuses it until
/// then.
const NOT_YET_MAX: Duration = Duration::from_secs(5);

/// What a join replaces, it cannot bring back.
const ANOTHER_DIR: &str = "choose another --dir, or move the folder away";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<bool, Failure> {
    let files = Files::of(&args.dir);
    let _alone = ca::created(&args.dir)?;
    let Some(invitation) = invitation(args, &files)? else {
        writeln!(out, "{}: this node has its certificate", files.cert.display())?;
        return Ok(true);
    };
    let key = client::new_key(&invitation, &files)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let joining = join(&invitation, &key, args, &files);
    let Enrolled { node, region, role, .. } = runtime.block_on(joining).map_err(user_error)?;
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

fn peer(text: &str) -> Result<String, &'static str> {
    if text.contains('/') {
        return Err("give HOST:PORT, without https://");
    }
    Ok(text.to_owned())
}

/// `None` if the folder has what a join writes, and its certificate has not expired.
fn invitation(args: &Args, files: &Files) -> Result<Option<Invitation>, Failure> {
    let authority = args.dir.join(pki::AUTHORITY_KEY);
    if authority.exists() {
        let problem = format!("{}: this folder has an authority", authority.display());
        return Err(UserError::new(problem, ANOTHER_DIR).into());
    }
    let pair = files.pair();
    pair.complete()?;
    let has_secret = std::fs::metadata(&files.secret).is_ok_and(|file| file.len() > 0);
    let has_others = has_secret && pki::read_authorities(&files.ca).is_ok();
    if let (Some(token), Some(node), Some(ca)) = (&args.service_account_token, &args.node, &args.ca)
    {
        let authorities = pki::read_authorities(ca)?;
        if args.if_needed && has_others && pair.are_valid_for(&authorities, node, ca::now()) {
            return Ok(None);
        }
        let token = pki::read_secret_text(token, || "a projected volume".to_owned())?;
        let (service_account_token, node) = (token.trim().to_owned(), node.clone());
        return Ok(Some(Invitation {
            credential: Credential::ServiceAccount { service_account_token, node },
            pins: authorities.iter().map(pki::pin).collect(),
            signers: args.signer.clone(),
        }));
    }
    if has_others && pair.belong_together() && !pair.has_expired(ca::now()) {
        if args.if_needed {
            return Ok(None);
        }
        let problem = format!("{}: this node has joined already", files.cert.display());
        let fix = "give --if-needed to accept that; or move the folder away to join anew";
        return Err(UserError::new(problem, fix).into());
    }
    let token: JoinToken = text(args)?.parse().map_err(|error: pki::NotAToken| {
        UserError::new(error.to_string(), "give the whole line that it printed")
    })?;
    let known = pki::read_authorities(&files.ca).unwrap_or_default();
    if !known.is_empty() && !known.iter().map(pki::pin).any(|pin| pin == token.pin) {
        let problem = format!("{}: of another cluster than the token", files.ca.display());
        return Err(UserError::new(problem, ANOTHER_DIR).into());
    }
    // A certificate that has expired, or is without its key, is of no use, and is replaced.
    Ok(Some(token.into()))
}

async fn join(
    invitation: &Invitation,
    key: &NewKey,
    args: &Args,
    files: &Files,
) -> Result<Enrolled, Error> {
    let mut enrolled = client::enrol(invitation, &args.peer, key).await;
    let again = async {
        while let Err(Error::NoAnswer(_)) = enrolled {
            tokio::time::sleep(PAUSE).await;
            enrolled = client::enrol(invitation, &args.peer, key).await;
        }
    };
    let _ = tokio::time::timeout(args.wait.to_std(), again).await;
    let enrolled = enrolled?;
    let (early, late) = from_dates(&enrolled.certificate);
    if early > NOT_YET_MAX || late > Duration::ZERO {
        let when = if late > Duration::ZERO { "ended before" } else { "begins after" };
        let away = early.max(late);
        return Err(Error::Refused(format!(
            "{} has signed a certificate that {when} the time of this machine, by {away:.0?}: set \
             the clocks, and join again, with another token if that of the other one was wrong",
            args.peer
        )));
    }
    files.write(&enrolled, key)?;
    tokio::time::sleep(early).await;
    Ok(enrolled)
}

/// How long the certificate is not valid yet by the clock of this machine, and for how long it has
/// not been any more.
fn from_dates(pem: &str) -> (Duration, Duration) {
    let Ok(certificate) = CertificateDer::from_pem_slice(pem.as_bytes()) else {
        return (Duration::ZERO, Duration::ZERO);
    };
    let now = ca::now();
    let begins = pki::begins_at(&certificate).unwrap_or(now);
    let ends = pki::ends_at(&certificate).unwrap_or(now);
    (begins.since(now).to_std(), now.since(ends).to_std())
}

fn text(args: &Args) -> Result<String, Failure> {
    match (&args.token, &args.token_file) {
        (Some(token), _) => Ok(token.clone()),
        (None, Some(file)) => {
            Ok(pki::read_secret_argument(file, || "tidegate ca token --node NODE".to_owned())?)
        }
        (None, None) => Err(UserError::new("no token", "give --token or --token-file").into()),
    }
}

fn user_error(error: Error) -> Failure {
    let fix = match error {
        Error::Files(error) => return error.into(),
        Error::Refused(_) => "nothing was written that a second attempt does not replace",
        Error::NoAnswer(_) => {
            "set --peer to join.listen of a node that signs, and open that port to here"
        }
    };
    UserError::new(error.to_string(), fix).into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tidegate_cluster::pki::{Bearer, Overwrite, Validity};
    use tidegate_limiter::units::Timestamp;

    use super::*;

    fn args(dir: &Path, token: &str) -> Args {
        Args {
            peer: "127.0.0.1:1".to_owned(),
            token: Some(token.to_owned()),
            token_file: None,
            service_account_token: None,
            node: None,
            ca: None,
            signer: Vec::new(),
            dir: dir.to_owned(),
            if_needed: true,
            wait: Span::ZERO,
        }
    }

    #[test]
    fn a_certificate_without_its_key_needs_another_join() {
        let dir = tempfile::tempdir().unwrap();
        let now = ca::now();
        let until = now.plus(Span::from_secs(3_600));
        let validity = Validity { not_before: now.minus(pki::BACKDATED), not_after: until };
        pki::init(dir.path(), validity, [7; 16]).unwrap();
        for node in ["n1", "n2"] {
            pki::issue(dir.path(), Bearer::core(node, "eu"), validity, Overwrite::Never).unwrap();
        }
        let of = |name: &str| fs::read(dir.path().join(name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path());
        let pin = pki::pin(&pki::read_authorities(&dir.path().join("ca.pem")).unwrap()[0]);
        let token = JoinToken { pin, secret: [7; 16], signer: "n1".to_owned() };
        let args = args(folder.path(), &token.to_string());
        let is_needed = || invitation(&args, &files).unwrap().is_some();
        assert!(is_needed(), "there is nothing");
        fs::write(&files.cert, of("n1.pem")).unwrap();
        assert!(is_needed(), "there is no key");
        fs::write(&files.key, of("n2.key")).unwrap();
        assert!(is_needed(), "it is the key of another certificate");
        fs::write(&files.key, of("n1.key")).unwrap();
        fs::write(&files.ca, "").unwrap();
        fs::write(&files.secret, of("cluster.secret")).unwrap();
        assert!(is_needed(), "there is no authority");
        fs::write(&files.ca, of("ca.pem")).unwrap();
        fs::write(&files.secret, "").unwrap();
        assert!(is_needed(), "there is no secret");
        fs::write(&files.secret, of("cluster.secret")).unwrap();
        assert!(!is_needed());
        let past = Validity { not_before: Timestamp::EPOCH, not_after: now.minus(pki::BACKDATED) };
        pki::issue(dir.path(), Bearer::core("n3", "eu"), past, Overwrite::Never).unwrap();
        fs::write(&files.cert, of("n3.pem")).unwrap();
        fs::write(&files.key, of("n3.key")).unwrap();
        assert!(is_needed(), "it has expired");
    }

    /// A join there would replace the authority's certificate and the secret of its nodes.
    #[test]
    fn a_folder_of_another_authority_is_left_alone() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let validity = Validity {
            not_before: Timestamp::EPOCH,
            not_after: ca::now().plus(Span::from_secs(3_600)),
        };
        for dir in [&dir, &other] {
            pki::init(dir.path(), validity, [7; 16]).unwrap();
        }
        let files = Files::of(dir.path());
        let token_of = |ca: &Path| {
            let pin = pki::pin(&pki::read_authorities(ca).unwrap()[0]);
            JoinToken { pin, secret: [7; 16], signer: "n1".to_owned() }.to_string()
        };
        let result = |ca: &Path| {
            let invited = invitation(&args(dir.path(), &token_of(ca)), &files);
            invited.map(|invited| invited.is_some()).map_err(|failure| failure.to_string())
        };
        let (own, others) = (files.ca.clone(), Files::of(other.path()).ca);
        assert!(result(&own).unwrap_err().contains("ca.key: this folder has an authority"));
        fs::remove_file(dir.path().join(pki::AUTHORITY_KEY)).unwrap();
        assert!(result(&others).unwrap_err().contains("ca.pem: of another cluster than the token"));
        assert_eq!(result(&own), Ok(true), "as a join that was interrupted");
    }
}
