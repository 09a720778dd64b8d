//! Runs `nft`, which carries out a document as one transaction.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// How long a transaction may take: a thousand times what it takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Where Debian keeps it, which is not in the path of every user.
const SYSTEM_NFT: &str = "/usr/sbin/nft";

/// Why a transaction was not carried out. Nothing of it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{program}: {error}; install nftables (apt install nftables), or name it with --nft")]
    NotRun { program: PathBuf, error: io::Error },
    #[error("{program} failed ({status}): {says}; {fix}")]
    Failed { program: PathBuf, status: ExitStatus, says: String, fix: &'static str },
    #[error("{program} did not end within {TIMEOUT:?}; check the load of this machine")]
    Slow { program: PathBuf },
}

/// Carries out `document`.
pub(super) async fn apply(program: &Path, document: &Value) -> Result<(), Error> {
    let outcome = match apply_with(program, document).await {
        Err(Error::NotRun { error, .. })
            if error.kind() == io::ErrorKind::NotFound && program == Path::new("nft") =>
        {
            apply_with(Path::new(SYSTEM_NFT), document).await
        }
        outcome => outcome,
    };
    outcome.map_err(|error| match error {
        // The name that was asked for.
        Error::NotRun { error, .. } => Error::NotRun { program: program.to_owned(), error },
        error => error,
    })
}

async fn apply_with(program: &Path, document: &Value) -> Result<(), Error> {
    let not_run = |error| Error::NotRun { program: program.to_owned(), error };
    let mut child = Command::new(program)
        .args(["-j", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(not_run)?;
    let stdin = child.stdin.take();
    let bytes = document.to_string();
    let writes = async {
        if let Some(mut stdin) = stdin {
            // It fails when nft ends early, and nft says why.
            let _ = stdin.write_all(bytes.as_bytes()).await;
        }
    };
    let ended = async { tokio::join!(writes, child.wait_with_output()).1 };
    let output = tokio::time::timeout(TIMEOUT, ended)
        .await
        .map_err(|_| Error::Slow { program: program.to_owned() })?
        .map_err(not_run)?;
    if output.status.success() {
        return Ok(());
    }
    let says = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let fix = if says.contains("Operation not permitted") {
        "run as root, or with CAP_NET_ADMIN (AmbientCapabilities in a systemd unit)"
    } else {
        "`nft list table inet tidegate` shows what there is"
    };
    Err(Error::Failed { program: program.to_owned(), status: output.status, says, fix })
}
