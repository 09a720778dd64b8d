//! What may be wrong with a file of counts.

use std::io;

/// Why a file cannot be used, sorted by what is to be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is another cluster's, or of another secret or format. To be set aside.
    #[error("the file is {0}")]
    Foreign(String),
    /// Its bytes are not what was written. To be set aside.
    #[error("the file is damaged: {0}")]
    Torn(String),
    /// Another process has it.
    #[error("another process uses the file; give every node a storage.path of its own")]
    InUse,
    /// The system refuses: no folder, no permission, no room, no disk.
    #[error("{0}")]
    Io(io::Error),
}

impl Error {
    /// Whether another start would find the same file in the same state: it has to go out of the
    /// way.
    pub fn is_of_the_file(&self) -> bool {
        matches!(self, Self::Foreign(_) | Self::Torn(_))
    }
}

impl From<redb::Error> for Error {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            // What is no database, or ends too early, is told as an error of input.
            redb::Error::Io(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Self::Torn(error.to_string())
            }
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
                Self::Io(io::Error::other("an earlier write failed"))
            }
            redb::Error::UpgradeRequired(version) => {
                Self::Foreign(format!("of redb's file format {version}"))
            }
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::TableDoesNotExist(_) => Self::Foreign("another program's".to_owned()),
            other => Self::Torn(other.to_string()),
        }
    }
}
