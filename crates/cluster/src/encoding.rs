//! Values as bytes: bincode, with a limit.
//!
//! Only this file uses bincode. It is pinned to 2.0.1 (3.0.0 does not compile, and the 2 line is
//! unmaintained); the alternative is postcard, whose serde interface is the same three calls.
//! Decoding always has a limit, because otherwise nine bytes that claim a long vector abort the
//! process. Bytes left over behind the value are an error.

use bincode::enc::write::Writer;
use bincode::error::EncodeError;
use bytes::BufMut;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a value.
pub const BYTES_MAX: usize = 1024 * 1024;

/// The version of every record: what is kept on a disk or in the log of the consensus engine.
const RECORD_VERSION: u8 = 1;

/// Why bytes are not a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// They are not a value of the expected type.
    #[error("{0}")]
    Malformed(String),
    #[error("record of version {0}, expected {RECORD_VERSION}; a newer tidegate wrote it")]
    Version(u8),
    /// The value ends before they do.
    #[error("{0} bytes follow the value")]
    Trailing(usize),
}

/// Appends `value`.
///
/// # Errors
///
/// Why `value` cannot be serialised, as text.
pub fn write<T: Serialize>(value: &T, out: &mut impl BufMut) -> Result<(), String> {
    let written = bincode::serde::encode_into_writer(value, Appender(out), config());
    written.map_err(|error| error.to_string())
}

/// Appends each field. bincode's adapter for `std::io::Write` goes through `write_all` for each.
struct Appender<'a, B>(&'a mut B);

impl<B: BufMut> Writer for Appender<'_, B> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0.put_slice(bytes);
        Ok(())
    }
}

/// `value` as bytes; empty if it cannot be serialised.
pub fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    if write(value, &mut bytes).is_err() {
        bytes.clear();
    }
    bytes
}

/// `value` as bytes that a later release can still tell apart: a version and the value.
pub fn to_record<T: Serialize>(value: &T) -> Vec<u8> {
    let mut record = vec![RECORD_VERSION];
    if write(value, &mut record).is_err() {
        record.clear();
    }
    record
}

/// The value that [`to_record`] encoded.
///
/// # Errors
///
/// Any [`Error`].
pub fn from_record<T: DeserializeOwned>(record: &[u8]) -> Result<T, Error> {
    match record.split_first() {
        Some((&RECORD_VERSION, value)) => from_bytes(value),
        Some((version, _)) => Err(Error::Version(*version)),
        None => Err(Error::Malformed("it is empty".to_owned())),
    }
}

/// The value that [`to_bytes`] encoded.
///
/// # Errors
///
/// Any [`Error`].
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let (value, read) = bincode::serde::decode_from_slice(bytes, config())
        .map_err(|error| Error::Malformed(error.to_string()))?;
    if read != bytes.len() {
        return Err(Error::Trailing(bytes.len() - read));
    }
    Ok(value)
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<BYTES_MAX>()
}
