//! The files of `tidegate ca`: written completely or not at all, secrets readable by their owner
//! alone.
//!
//! **A pair is replaced as one.** A certificate is of use with its key alone, and a file system
//! replaces one file at a time. So the new key is written beside the one in use first, then the
//! certificate is replaced, then the key. A reader takes the key beside it where that is the
//! certificate's.
//!
//! ```text
//! step            node.pem  node.key  node.key.next   the pair
//! before          old       old                       old
//! 1 write         old       old       new             old
//! 2 replace       new       old       new             new, of node.key.next
//! 3 rename        new       new                       new
//! ```

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tidegate_limiter::units::Timestamp;

use super::authority::{Authority, Issued};
use super::bearer::{Bearer, Scope, Validity};
use super::signer::{NewKey, Signer};
use super::{Error, verify};

/// The authority's certificate.
pub const AUTHORITY_CERT: &str = "ca.pem";
/// The authority's private key.
pub const AUTHORITY_KEY: &str = "ca.key";
/// The certificate of a signer, with those up to the authority.
pub const SIGNER_CERT: &str = "signer.pem";
/// The signer's private key.
pub const SIGNER_KEY: &str = "signer.key";
/// The secret under which keys are hashed: 32 hexadecimal digits in the first line.
pub const CLUSTER_SECRET: &str = "cluster.secret";

/// Largest file of certificates, keys or secrets that is read; a chain has some thousand bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// How often a lock is tried again.
const LOCK_POLL: Duration = Duration::from_millis(20);

const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;

/// Whether existing files may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// An existing file is an error.
    Never,
    /// An existing file is replaced, to renew a certificate.
    Renew,
}

/// Where a node's certificate and private key were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Waits until no other process writes certificates in `folder`, and keeps others waiting until the
/// result is dropped: of two at once, one would leave its certificate beside the key of the other.
/// `None` where the file system knows no locks. `waits` is called before it waits. It blocks.
///
/// Anybody who can read the folder can lock it. The lock serialises commands; it does not control
/// access.
///
/// # Errors
///
/// Another process has it for longer than `patience`.
pub fn alone_in(
    folder: &Path,
    patience: Duration,
    waits: impl FnOnce(),
) -> Result<Option<File>, Error> {
    let Ok(lock) = File::open(or_here(folder)) else { return Ok(None) };
    let mut waits = Some(waits);
    let attempts = patience.as_nanos().div_ceil(LOCK_POLL.as_nanos());
    for _ in 0..=attempts {
        match lock.try_lock() {
            Ok(()) => return Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => waits.take().into_iter().for_each(|waits| waits()),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
        thread::sleep(LOCK_POLL);
    }
    let fix = "find that process with `lslocks`, and end it";
    let problem = format_args!("another process has locked this folder for {patience:?}; {fix}");
    Err(Error::of(folder, problem))
}

/// Creates an authority and a cluster secret in `dir`. Never overwrites: nodes with certificates of
/// the old authority could not connect to nodes that trust a new one.
///
/// # Errors
///
/// One of the files exists or cannot be written, or the system has no randomness.
pub fn init(dir: &Path, validity: Validity, secret: [u8; 16]) -> Result<(), Error> {
    let paths = [AUTHORITY_CERT, AUTHORITY_KEY, CLUSTER_SECRET].map(|name| dir.join(name));
    let [cert, key, secret_path] = paths;
    if let Some(path) = [&cert, &key, &secret_path].into_iter().find(|path| path.exists()) {
        let fix = if cert.exists() {
            "a new authority would lock out the nodes of the old one: choose another --dir"
        } else {
            "without ca.pem it is of an init that was interrupted, and can be removed; or put \
             ca.pem back"
        };
        return Err(Error::of(path, format_args!("already there; {fix}")));
    }
    let authority = Authority::generate(validity)?;
    fs::create_dir_all(dir).map_err(|source| unwritable(dir, &source))?;
    // The certificate is written last: if it exists, so do the other two.
    write(&key, &authority.key_pem(), SECRET, Overwrite::Never)?;
    write(&secret_path, &secret_line(&secret), SECRET, Overwrite::Never)?;
    write(&cert, authority.cert_pem(), PUBLIC, Overwrite::Never)
}

/// Creates a private key and a certificate for `bearer` in `dir`, signed by the authority there.
///
/// # Errors
///
/// The authority's files cannot be used or do not belong together, a name is not a label or that of
/// other files, the node has files already and `overwrite` is [`Overwrite::Never`], or they cannot
/// be written.
pub fn issue(
    dir: &Path,
    bearer: Bearer<'_>,
    validity: Validity,
    overwrite: Overwrite,
) -> Result<IssuedFiles, Error> {
    let opened = open(dir)?;
    let authority = &opened.authority;
    let issued = authority.issue(bearer, validity)?;

    let files = IssuedFiles::of(dir, bearer.node)?;
    let ca_pem = authority.cert_pem();
    if !verify::is_issued_by(ca_pem, &issued.cert_pem, bearer, validity.not_before) {
        return Err(opened.mismatch(dir));
    }
    files.write(&issued, overwrite)?;
    Ok(files)
}

/// Creates a private key and a certificate for a [`Signer`](super::Signer) in `dir`, signed by the
/// authority there.
///
/// # Errors
///
/// As [`issue`]; or the region of the scope is not a label.
pub fn issue_signer(
    dir: &Path,
    scope: Scope<'_>,
    validity: Validity,
    overwrite: Overwrite,
) -> Result<IssuedFiles, Error> {
    let opened = open(dir)?;
    let authority = &opened.authority;
    let issued = authority.issue_signer(scope, validity)?;
    let now = validity.not_before;
    let above = verify::certificates(authority.cert_pem()).unwrap_or_default();
    if Signer::of(&issued.cert_pem, &issued.key_pem, &above, now).is_err() {
        return Err(opened.mismatch(dir));
    }
    let files = IssuedFiles { cert: dir.join(SIGNER_CERT), key: dir.join(SIGNER_KEY) };
    files.write(&issued, overwrite)?;
    Ok(files)
}

/// Creates a private key and a certificate for `bearer` in `out`, signed by the signer in `dir`.
/// The certificate lasts no longer than the signer.
///
/// # Errors
///
/// As [`issue`] with the signer's files; or it may not sign for that node.
pub fn issue_by_signer(
    dir: &Path,
    out: &Path,
    bearer: Bearer<'_>,
    validity: Validity,
    now: Timestamp,
    overwrite: Overwrite,
) -> Result<IssuedFiles, Error> {
    let authorities = read_authorities(&dir.join(AUTHORITY_CERT))?;
    let cert = dir.join(SIGNER_CERT);
    let signer = load_signer(&cert, &dir.join(SIGNER_KEY), &authorities, now)?;
    let key = NewKey::generate()?;
    let chain = signer.sign(&key.request()?, bearer, validity.not_before, validity, now);
    let chain = chain.map_err(|error| Error::of(&cert, error))?;
    let issued = Issued { cert_pem: verify::to_pem(&chain), key_pem: key.to_pem() };
    let files = IssuedFiles::of(out, bearer.node)?;
    files.write(&issued, overwrite)?;
    Ok(files)
}

/// The authorities in a file of `tls.ca`.
///
/// # Errors
///
/// It cannot be read, or has none.
pub fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let init = || "tidegate ca init --dir DIR".to_owned();
    let pem = read_text(path, init)?;
    verify::certificates(&pem).ok_or_else(|| Error::of(path, "contains no certificate"))
}

/// Reads a signer of one of `authorities` from its files.
///
/// # Errors
///
/// A file cannot be used, both do not belong together, or none of the authorities vouches for the
/// signer at `now`.
pub fn load_signer(
    cert: &Path,
    key: &Path,
    authorities: &[CertificateDer<'static>],
    now: Timestamp,
) -> Result<Signer, Error> {
    let command = || "tidegate ca signer --dir DIR".to_owned();
    let cert_pem = read_text(cert, command)?;
    let chain = verify::certificates(&cert_pem).unwrap_or_default();
    let key_pem = read_key(key, &chain, command)?;
    Signer::of(&cert_pem, &key_pem, authorities, now).map_err(|reason| Error::of(cert, reason))
}

/// The authority in a folder, and the command that creates one there.
struct Opened {
    authority: Authority,
    init: String,
}

fn open(dir: &Path) -> Result<Opened, Error> {
    let init = format!("tidegate ca init --dir {}", dir.display());
    let cert_pem = read_text(&dir.join(AUTHORITY_CERT), || init.clone())?;
    let key_pem = read_secret_text(&dir.join(AUTHORITY_KEY), || init.clone())?;
    Ok(Opened { authority: Authority::from_pem(&cert_pem, &key_pem)?, init })
}

impl Opened {
    /// The key is not that of the certificate: it signs without an error, but every peer refuses
    /// what it signed.
    fn mismatch(&self, dir: &Path) -> Error {
        Error::key_mismatch(&dir.join(AUTHORITY_KEY), &dir.join(AUTHORITY_CERT), &self.init)
    }
}

impl IssuedFiles {
    /// In `dir`, by the name of the node.
    ///
    /// # Errors
    ///
    /// They would be those of the authority or of a signer.
    fn of(dir: &Path, node: &str) -> Result<Self, Error> {
        let cert = format!("{node}.pem");
        let files = Self { key: dir.join(format!("{node}.key")), cert: dir.join(&cert) };
        let of_others = match &*cert {
            AUTHORITY_CERT => "the authority",
            SIGNER_CERT => "a signer",
            _ => return Ok(files),
        };
        let text = format_args!("the file of {of_others}; choose another name for the node");
        Err(Error::of(&files.cert, text))
    }

    /// Writes both. New files: the certificate last, so if it exists, so does the key. Existing
    /// ones are replaced so that a node finds a pair whenever it is interrupted.
    ///
    /// # Errors
    ///
    /// One exists and `overwrite` is [`Overwrite::Never`], or cannot be written.
    pub fn write(&self, issued: &Issued, overwrite: Overwrite) -> Result<(), Error> {
        if overwrite == Overwrite::Renew {
            return self.replace(issued);
        }
        if let Some(path) = [&self.cert, &self.key].into_iter().find(|path| path.exists()) {
            let text = "already there; give --renew to replace certificate and key";
            return Err(Error::of(path, text));
        }
        write(&self.key, &issued.key_pem, SECRET, overwrite)?;
        write(&self.cert, &issued.cert_pem, PUBLIC, overwrite)
    }

    fn replace(&self, issued: &Issued) -> Result<(), Error> {
        // The key beside it may be the only one of the present certificate.
        self.complete()?;
        let next = next_key(&self.key);
        // That of a join under way also says for which token it is, until the certificate is there.
        let chain = verify::certificates(&issued.cert_pem).unwrap_or_default();
        if !read_text(&next, String::new).is_ok_and(|pem| is_key_of(&chain, &pem)) {
            write(&next, &issued.key_pem, SECRET, Overwrite::Renew)?;
        }
        sync_folder(&next);
        write(&self.cert, &issued.cert_pem, PUBLIC, Overwrite::Renew)?;
        sync_folder(&self.cert);
        self.take(&next)
    }

    /// Ends a replacement that was interrupted, so that the certificate's key is in its place. Does
    /// nothing otherwise.
    ///
    /// # Errors
    ///
    /// The key cannot be renamed.
    pub fn complete(&self) -> Result<(), Error> {
        let next = next_key(&self.key);
        if next.exists() && !self.belong_together() && belong(&self.cert, &next) {
            self.take(&next)?;
        }
        Ok(())
    }

    /// Where the next key is until the certificate is there that it is for.
    pub fn next_key(&self) -> PathBuf {
        next_key(&self.key)
    }

    /// Whether both are there, and the key is that of the certificate.
    pub fn belong_together(&self) -> bool {
        belong(&self.cert, &self.key)
    }

    /// Whether the certificate there is this one.
    pub fn have(&self, certificate: &CertificateDer<'_>) -> bool {
        chain(&self.cert).is_some_and(|chain| chain.first() == Some(certificate))
    }

    /// Whether the certificate is there and has expired by `now`.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        let ends = chain(&self.cert).and_then(|chain| verify::ends_at(chain.first()?));
        ends.is_some_and(|ends| ends < now)
    }

    /// Whether these are a pair, with a certificate that one of these authorities vouches for at
    /// `now`, as that of this node.
    pub fn are_valid_for(
        &self,
        authorities: &[CertificateDer<'static>],
        node: &str,
        now: Timestamp,
    ) -> bool {
        let chain = chain(&self.cert);
        let Some((first, others)) = chain.as_deref().and_then(<[_]>::split_first) else {
            return false;
        };
        let vouches = |authority| verify::verify_node(first, others, authority, node, now).is_ok();
        self.belong_together() && authorities.iter().any(vouches)
    }

    fn take(&self, next: &Path) -> Result<(), Error> {
        fs::rename(next, &self.key).map_err(|source| unwritable(&self.key, &source))?;
        sync_folder(&self.key);
        Ok(())
    }
}

/// Where the next key is while the certificate is replaced, or joined for.
fn next_key(key: &Path) -> PathBuf {
    let mut next = key.as_os_str().to_owned();
    next.push(".next");
    PathBuf::from(next)
}

/// The text of the key of `chain`: that in `key`, or that beside it, where a replacement was
/// interrupted. `issue` is the command that makes it, for the error.
///
/// # Errors
///
/// As [`read_secret_text`] of `key`, if neither is the key.
pub(super) fn read_key(
    key: &Path,
    chain: &[CertificateDer<'static>],
    issue: impl Fn() -> String,
) -> Result<String, Error> {
    let in_place = read_secret_text(key, &issue);
    if in_place.as_ref().is_ok_and(|pem| is_key_of(chain, pem)) {
        return in_place;
    }
    match read_secret_text(&next_key(key), issue) {
        Ok(next) if is_key_of(chain, &next) => Ok(next),
        _ => in_place,
    }
}

fn belong(cert: &Path, key: &Path) -> bool {
    let pem = read_text(key, String::new).ok();
    chain(cert).zip(pem).is_some_and(|(chain, pem)| is_key_of(&chain, &pem))
}

fn chain(cert: &Path) -> Option<Vec<CertificateDer<'static>>> {
    read_text(cert, String::new).ok().and_then(|pem| verify::certificates(&pem))
}

fn is_key_of(chain: &[CertificateDer<'static>], key_pem: &str) -> bool {
    let provider = rustls::crypto::ring::default_provider();
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes());
    key.is_ok_and(|key| CertifiedKey::from_der(chain.to_vec(), key, &provider).is_ok())
}

/// Without it the system may keep a later rename and lose an earlier one when it crashes. Where a
/// folder cannot be synced, the order is up to its file system.
fn sync_folder(file: &Path) {
    let folder = or_here(file.parent().unwrap_or(file));
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// A file that is named without a folder has an empty one.
fn or_here(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// Writes a file that everybody may read, completely or not at all.
///
/// # Errors
///
/// It exists and `overwrite` is [`Overwrite::Never`], or cannot be written.
pub fn write_public(path: &Path, text: &str, overwrite: Overwrite) -> Result<(), Error> {
    write(path, text, PUBLIC, overwrite)
}

/// As [`write_public`], of a file that its owner alone may read.
///
/// # Errors
///
/// As [`write_public`].
pub fn write_secret(path: &Path, text: &str, overwrite: Overwrite) -> Result<(), Error> {
    write(path, text, SECRET, overwrite)
}

/// A line of the file of secrets.
pub fn secret_line(secret: &[u8; 16]) -> String {
    format!("{}\n", hex::encode(secret))
}

/// Writes the file completely or not at all: under a temporary name first, then moved into place.
fn write(path: &Path, text: &str, mode: u32, overwrite: Overwrite) -> Result<(), Error> {
    let attempt = || -> io::Result<()> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let draft = scopeguard::guard(PathBuf::from(draft), |draft| {
            let _ = fs::remove_file(draft);
        });
        // Left behind by an interrupted run.
        let _ = fs::remove_file(&*draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&*draft)?;
        file.write_all(text.as_bytes())?;
        // The umask narrows the mode given to `open`, so that the node might not read `ca.pem`.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        match overwrite {
            Overwrite::Renew => fs::rename(&*draft, path),
            // Unlike a rename, a link fails if the name exists.
            Overwrite::Never => fs::hard_link(&*draft, path),
        }
    };
    attempt().map_err(|source| unwritable(path, &source))
}

/// Reads a text file of at most [`FILE_BYTES_MAX`]. `create` is the command that creates it, for
/// the error.
pub(super) fn read_text(path: &Path, create: impl Fn() -> String) -> Result<String, Error> {
    read(path, create, open_regular, false)
}

/// Like [`read_text`], and refuses a file that users other than owner and group can access.
///
/// # Errors
///
/// It cannot be read, is too long, no UTF-8, or others can read it.
pub fn read_secret_text(path: &Path, create: impl Fn() -> String) -> Result<String, Error> {
    read(path, create, open_regular, true)
}

/// As [`read_secret_text`], of a command, which may be given a pipe: `--token-file <(...)`.
///
/// # Errors
///
/// As [`read_secret_text`].
pub fn read_secret_argument(path: &Path, create: impl Fn() -> String) -> Result<String, Error> {
    read(path, create, |path| File::open(path), true)
}

fn read(
    path: &Path,
    create: impl Fn() -> String,
    open: impl Fn(&Path) -> io::Result<File>,
    is_secret: bool,
) -> Result<String, Error> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => {
            Error::of(path, format_args!("no such file; make it with `{}`", create()))
        }
        _ => Error::of(path, format_args!("{source}; let the user that runs the node read it")),
    };
    let file = open(path).map_err(unreadable)?;
    // The mode of the open file, so that the file checked is the file read.
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if is_secret && mode & 0o007 != 0 {
        let fix = format_args!("run `chmod 600 {}`", path.display());
        return Err(Error::of(path, format_args!("others can read it; {fix}")));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// Opens a file for reading.
///
/// # Errors
///
/// As [`File::open`], and for what is no regular file: a pipe would block the thread that reads it
/// until there is a writer.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    File::open(path)
}

fn unwritable(path: &Path, source: &io::Error) -> Error {
    Error::of(path, format_args!("{source}; it has to be a folder that this user may write to"))
}
