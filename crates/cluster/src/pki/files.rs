//! The files of `tidegate ca`: written once, secrets for their owner alone.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::identity::{read_secret_text, read_text};
use super::{Authority, Error, Validity, verify};

/// The authority's certificate, in the folder that `ca init` fills.
pub const AUTHORITY_CERT: &str = "ca.pem";
/// The authority's private key.
pub const AUTHORITY_KEY: &str = "ca.key";
/// The secret that key hashes are made under.
pub const CLUSTER_SECRET: &str = "cluster.secret";

const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;

/// Whether files of the same name may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// They are left alone, and that is an error.
    Never,
    /// They are replaced: a certificate is renewed.
    Renew,
}

/// Where a node's certificate and key were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedFiles {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Makes an authority and a cluster secret in `dir`. Nothing is ever overwritten: a new authority
/// under the old one's name would lock every node out.
pub fn init(dir: &Path, validity: Validity, secret: [u8; 16]) -> Result<(), Error> {
    let paths = [AUTHORITY_CERT, AUTHORITY_KEY, CLUSTER_SECRET].map(|name| dir.join(name));
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        return Err(Error::Exists {
            path: path.clone(),
            fix: "a new authority would lock out the nodes of the old one: choose another --dir",
        });
    }
    let authority = Authority::generate(validity)?;
    fs::create_dir_all(dir).map_err(|source| Error::Write { path: dir.to_owned(), source })?;
    let [cert, key, secret_path] = paths;
    // The certificate goes last: where it stands, the other two stand too.
    write(&key, &authority.key_pem(), SECRET, Overwrite::Never)?;
    write(&secret_path, &hex(secret), SECRET, Overwrite::Never)?;
    write(&cert, authority.cert_pem(), PUBLIC, Overwrite::Never)
}

/// Makes a certificate and a key for `node`, signed by the authority in `dir`, beside it.
pub fn issue(
    dir: &Path,
    node: &str,
    validity: Validity,
    overwrite: Overwrite,
) -> Result<IssuedFiles, Error> {
    let init = || format!("tidegate ca init --dir {}", dir.display());
    let authority_cert = dir.join(AUTHORITY_CERT);
    let cert_pem = read_text(&authority_cert, init)?;
    let key_pem = read_secret_text(&dir.join(AUTHORITY_KEY), init)?;
    let authority = Authority::from_pem(&cert_pem, &key_pem)?;
    let issued = authority.issue(node, validity)?;

    let files =
        IssuedFiles { cert: dir.join(format!("{node}.pem")), key: dir.join(format!("{node}.key")) };
    // A foreign key would sign well, and every peer would refuse the certificate.
    if !verify::is_issued_by(&cert_pem, &issued.cert_pem, node, validity) {
        return Err(Error::KeyMismatch {
            key: dir.join(AUTHORITY_KEY),
            cert: authority_cert,
            command: init(),
        });
    }

    if overwrite == Overwrite::Never
        && let Some(path) = [&files.cert, &files.key].into_iter().find(|path| path.exists())
    {
        return Err(Error::Exists {
            path: path.clone(),
            fix: "give --renew to replace certificate and key",
        });
    }
    write(&files.key, &issued.key_pem, SECRET, overwrite)?;
    write(&files.cert, &issued.cert_pem, PUBLIC, overwrite)?;
    Ok(files)
}

/// Writes a whole file or none: under another name first, then moved to its place.
fn write(path: &Path, text: &str, mode: u32, overwrite: Overwrite) -> Result<(), Error> {
    let attempt = || -> io::Result<()> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        // What a run that was cut short left behind.
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(text.as_bytes())?;
        // The mode given to `open` is narrowed by the umask, which may hide `ca.pem` from the node.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        match overwrite {
            Overwrite::Renew => fs::rename(&draft, path),
            // A link, unlike a rename, fails where something stands already.
            Overwrite::Never => fs::hard_link(&draft, path).and_then(|()| fs::remove_file(&draft)),
        }
    };
    attempt().map_err(|source| Error::Write { path: path.to_owned(), source })
}

fn hex(bytes: [u8; 16]) -> String {
    let mut text = bytes.iter().fold(String::with_capacity(33), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    text.push('\n');
    text
}
