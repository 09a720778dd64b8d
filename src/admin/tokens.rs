//! The files of `admin.token_file` and `admin.read_token_file`, which are read again when they
//! change.
//!
//! The files are read every [`RELOAD_INTERVAL`]: a token is replaced by replacing its file, and the
//! one before is refused from then on. **Invariant:** files that a node would not start with (none
//! there, one that others can read, half a token, twice the same one) change nothing but the log.

use std::path::{Path, PathBuf};

use tidegate_cluster::pki;
use tokio_util::sync::CancellationToken;

use super::access::{Access, Tokens};
use crate::config::{Admin, UserError};
use crate::reload::files::{RELOAD_INTERVAL, read_again};

/// Lengths of a token: none that can be guessed, one that fits a header.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 1_024;

/// The command that makes a token.
pub const MAKE_TOKEN: &str = "openssl rand -hex 32";

/// The tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] pki::Error),
    #[error(transparent)]
    Token(#[from] UserError),
}

/// Where the tokens are.
#[derive(Clone, Debug)]
struct Files {
    write: Option<PathBuf>,
    read: Option<PathBuf>,
}

/// The task that reads the files.
pub struct Reloader {
    files: Files,
    access: Access,
    /// The last result of reading them.
    last: Result<Tokens, String>,
}

impl Access {
    /// Whom the listener of `[admin]` serves, and what keeps its tokens those of the files, if
    /// there are some.
    ///
    /// # Errors
    ///
    /// A file cannot be read, others can read it, its content is no token, or both have the same.
    pub fn of(admin: &Admin) -> Result<(Self, Option<Reloader>), Error> {
        let files = Files { write: admin.token_file.clone(), read: admin.read_token_file.clone() };
        let tokens = files.read()?;
        let access = Self::new(admin.hosts.iter().cloned(), tokens.clone());
        let has_files = tokens != Tokens::default();
        let reloader = Reloader { files, access: access.clone(), last: Ok(tokens) };
        Ok((access, has_files.then_some(reloader)))
    }
}

impl Reloader {
    /// Reads the files again and again until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(RELOAD_INTERVAL)).await.is_some() {
            let files = self.files.clone();
            let path = files.write.as_ref().or(files.read.as_ref()).cloned().unwrap_or_default();
            let reading = read_again(&path, move || files.read());
            let Some(read) = stop.run_until_cancelled(reading).await else { return };
            self.apply(read.and_then(|read| read.map_err(|error| error.to_string())));
        }
    }

    /// Applies what was read, unless it is unchanged.
    fn apply(&mut self, read: Result<Tokens, String>) {
        if read == self.last {
            return;
        }
        match &read {
            Ok(tokens) => {
                self.access.replace_tokens(tokens.clone());
                tracing::info!("reloaded the tokens of the admin listener");
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "failed to reload the tokens of the admin listener; the previous ones are kept"
                );
            }
        }
        self.last = read;
    }
}

impl Files {
    fn read(&self) -> Result<Tokens, Error> {
        let token = |key, file: &Option<PathBuf>| {
            file.as_deref().map(|path| read_token(key, path)).transpose()
        };
        let write = token("admin.token_file", &self.write)?;
        let read = token("admin.read_token_file", &self.read)?;
        if write.is_some() && write == read {
            let problem = "admin.token_file and admin.read_token_file have the same token";
            let fix = format!("make another one with `{MAKE_TOKEN}`");
            return Err(UserError::new(problem, fix).into());
        }
        Ok(Tokens { write, read })
    }
}

fn read_token(key: &str, path: &Path) -> Result<String, Error> {
    let text = pki::read_secret_text(path, || MAKE_TOKEN.to_owned())?;
    let token = text.trim();
    let is_token = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_token {
        return Ok(token.to_owned());
    }
    let problem = format!(
        "{key} {}: its content is no token, {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} visible ASCII \
         characters",
        path.display()
    );
    Err(UserError::new(problem, format!("make one with `{MAKE_TOKEN}`")).into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_without_a_token_of_their_own_are_refused_and_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, text: &str, mode| {
            fs::write(path(name), text).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let (long, longer) = ("x".repeat(TOKEN_BYTES_MAX), "x".repeat(TOKEN_BYTES_MAX + 1));
        let admin = Admin {
            token_file: Some(path("write")),
            read_token_file: Some(path("read")),
            ..Admin::default()
        };
        let refusal = || Access::of(&admin).map(|_| ()).unwrap_err().to_string();
        assert!(refusal().contains("no such file"), "{}", refusal());
        write("read", "  0123456789abcdef\n", 0o600);
        for (text, mode, says) in [
            ("0123456789abcde\n", 0o600, "admin.token_file"),
            ("0123456789 abcdef\n", 0o600, "visible"),
            ("0123456789äbcdef\n", 0o600, "visible"),
            (&longer, 0o600, "16 to 1024"),
            ("", 0o600, "visible"),
            ("0123456789abcdeg\n", 0o644, "others can read it"),
            ("0123456789abcdef", 0o600, "the same token"),
        ] {
            write("write", text, mode);
            assert!(refusal().contains(says), "{text}: {}", refusal());
        }
        write("write", &long, 0o640);
        let (access, reloader) = Access::of(&admin).unwrap_or_else(|error| panic!("{error}"));
        let mut reloader = reloader.unwrap();

        let is_in_use = |write: &str, read: &str| {
            let tokens = Tokens { write: Some(write.to_owned()), read: Some(read.to_owned()) };
            access.has(&tokens)
        };
        assert!(is_in_use(&long, "0123456789abcdef"));
        let mut reload = || {
            let read = reloader.files.read().map_err(|error| error.to_string());
            reloader.apply(read);
        };
        fs::remove_file(path("write")).unwrap();
        reload();
        assert!(is_in_use(&long, "0123456789abcdef"));
        write("write", "another token it has\n", 0o600);
        reload();
        assert!(is_in_use(&long, "0123456789abcdef"));
        write("write", "another-token-it-has\n", 0o600);
        reload();
        assert!(is_in_use("another-token-it-has", "0123456789abcdef"));
    }
}
