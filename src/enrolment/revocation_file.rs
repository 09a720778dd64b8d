//! Keeps revocations on the disk, so that a cluster that was stopped as a whole still refuses what
//! it refused before: `revoked.json` in `node.data_dir`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::pki::{Revocation, Revocations};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::config::UserError;

const NAME: &str = "revoked.json";
/// Until the next attempt to write.
const RETRY: Duration = Duration::from_secs(5);

/// Reads what was kept in `folder`, where [`keep`] is going to write.
///
/// # Errors
///
/// There is a file, and it cannot be read: a node that went on without would accept what was
/// revoked.
pub fn load(folder: &Path, revocations: &Revocations) -> Result<(), UserError> {
    let path = folder.join(NAME);
    let unusable = |error: &dyn std::fmt::Display| {
        UserError::new(
            format!("{}: {error}", path.display()),
            "make it readable; or remove it, and the node takes the revocations of its peers",
        )
    };
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => b"[]".into(),
        Err(error) => return Err(unusable(&error)),
    };
    let kept: Vec<Revocation> = serde_json::from_slice(&text).map_err(|error| unusable(&error))?;
    revocations.restore(kept);
    revocations.set_kept(0);
    Ok(())
}

/// Writes every change to `folder`, until `stop`.
pub async fn keep(folder: PathBuf, revocations: Arc<Revocations>, stop: CancellationToken) {
    let mut changes = revocations.changes();
    let (mut kept, mut is_said) = (None, false);
    loop {
        let change = *changes.borrow_and_update();
        if kept == Some(change) {
            // Its sender lives as long as the mesh.
            if stop.run_until_cancelled(changes.changed()).await.is_none() {
                return;
            }
            continue;
        }
        let (folder, all) = (folder.clone(), revocations.all());
        // A file that a node without a revocation has no use for is not made.
        let is_needed = change > 0;
        let writing = move || if is_needed { write(&folder, &all) } else { Ok(()) };
        let writing = tokio::task::spawn_blocking(writing).await;
        match writing.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => {
                revocations.set_kept(change);
                kept = Some(change);
                if std::mem::take(&mut is_said) {
                    tracing::info!("the revocations are in node.data_dir again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_said, true) {
                    tracing::error!(
                        %error,
                        "failed to write the revocations to node.data_dir, and trying again; \
                         meanwhile this node confirms none, and after a restart it accepts what \
                         is revoked until it has heard of it from a peer"
                    );
                }
                if stop.run_until_cancelled(sleep(RETRY)).await.is_none() {
                    return;
                }
            }
        }
    }
}

/// Completely or not at all.
fn write(folder: &Path, revocations: &[Revocation]) -> io::Result<()> {
    let (path, draft) = (folder.join(NAME), folder.join("revoked.json.new"));
    let mut file = File::create(&draft)?;
    serde_json::to_writer(&mut file, revocations)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(draft, path)?;
    File::open(folder)?.sync_all()
}
