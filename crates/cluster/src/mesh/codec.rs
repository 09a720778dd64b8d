//! Bytes on a mesh stream: length-prefixed, versioned bincode frames.
//!
//! ```text
//! +-----------------+-----------+------------------------+
//! | length: u32, LE | version   | body: bincode          |
//! | (version + body)| u8        |                        |
//! +-----------------+-----------+------------------------+
//! ```
//!
//! The body is what [`encoding`] makes of a message. The hello settles the version
//! of all later frames of a connection ([`Versions::agreed`]); another one is an error.

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_ownership::Versions;

use crate::encoding;

/// The newest version that this node speaks. `tidegate_next_wire` is set for the test of upgrades
/// only: a release that is one version ahead.
pub const VERSION: u8 = if cfg!(tidegate_next_wire) { 7 } else { 6 };

/// The versions that this node speaks.
pub const VERSIONS: Versions = Versions { lowest: 4, highest: VERSION };

/// The first version with [`Call::CombinedCheck`](super::wire::Call::CombinedCheck). What came
/// before has the same layout in all versions from 4 on.
pub const COMBINED_CHECKS: u8 = 5;

/// The first version in which nodes know what the rest of a node is
/// ([`ActorId::rest`](tidegate_limiter::engine::ActorId::rest)).
pub const RESTS: u8 = 5;

/// The first version with reservations: [`Call::Reserve`](super::wire::Call::Reserve), and states
/// of them. Development versions of 5 had some of another layout.
pub const RESERVATIONS: u8 = 6;

/// The first version with
/// [`Algorithm::FirstHitWindow`](tidegate_limiter::quota::Algorithm::FirstHitWindow), and states of
/// it.
pub const FIRST_HIT_WINDOWS: u8 = 6;

/// The first version with [`Call::Interventions`](super::wire::Call::Interventions).
pub const INTERVENTIONS: u8 = 6;

/// The first version with [`Call::Snapshot`](super::wire::Call::Snapshot).
pub const SNAPSHOTS: u8 = 6;

/// The first version with [`Call::Revocations`](super::wire::Call::Revocations) and
/// [`Call::Certificate`](super::wire::Call::Certificate).
pub const REVOCATIONS: u8 = 6;

/// The first version with [`Call::TracedCheck`](super::wire::Call::TracedCheck).
pub const TRACED_CHECKS: u8 = 6;

/// The first version with [`Call::Carried`](super::wire::Call::Carried).
pub const CARRIED_CHECKS: u8 = 6;

/// The version of the frames of every hello and its answer, whatever follows them: their layout
/// never changes, so that nodes of all versions can tell each other what they speak.
pub const HELLO_VERSION: u8 = 4;

/// The largest frame, version and body. A larger one is rejected, and its stream is closed.
pub const FRAME_BYTES_MAX: usize = encoding::BYTES_MAX;

const LENGTH_BYTES: usize = 4;

/// Why bytes are not a valid frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("frame of {0} bytes is larger than {FRAME_BYTES_MAX}")]
    TooLarge(usize),
    /// There is no version byte.
    #[error("frame is empty")]
    Empty,
    #[error("frame of version {0}, expected {1}")]
    Version(u8, u8),
    /// The body is not a message of the expected type.
    #[error("frame body: {0}")]
    Body(String),
    /// The stream ended inside a frame.
    #[error("frame is cut off after {0} bytes")]
    Truncated(usize),
    /// The body ends before the frame does.
    #[error("frame has {0} bytes behind its body")]
    Trailing(usize),
}

/// Appends `message` to `out` as one frame of `version`. On an error `out` is unchanged.
///
/// # Errors
///
/// [`Error::TooLarge`] beyond [`FRAME_BYTES_MAX`], [`Error::Body`] when `message` cannot be
/// serialised.
pub fn encode<T: Serialize>(message: &T, version: u8, out: &mut BytesMut) -> Result<(), Error> {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, version]);
    let written = encoding::write(message, out);
    let length = out.len() - start - LENGTH_BYTES;
    let outcome = match (written, u32::try_from(length)) {
        (Err(error), _) => Err(Error::Body(error)),
        (Ok(()), Ok(prefix)) if length <= FRAME_BYTES_MAX => {
            out[start..start + LENGTH_BYTES].copy_from_slice(&prefix.to_le_bytes());
            return Ok(());
        }
        (Ok(()), _) => Err(Error::TooLarge(length)),
    };
    out.truncate(start);
    outcome
}

/// Removes the first whole frame from `buffer` and returns it without its length; `None` when it is
/// incomplete.
///
/// # Errors
///
/// [`Error::TooLarge`] when its length is beyond [`FRAME_BYTES_MAX`].
pub fn split(buffer: &mut BytesMut) -> Result<Option<Bytes>, Error> {
    let Some(prefix) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Error::TooLarge(length));
    }
    if buffer.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Decodes the message in a frame of `expected` that [`split`] returned.
///
/// # Errors
///
/// Any [`Error`] but [`Error::TooLarge`] and [`Error::Truncated`].
pub fn decode<T: DeserializeOwned>(frame: &[u8], expected: u8) -> Result<T, Error> {
    let (&version, body) = frame.split_first().ok_or(Error::Empty)?;
    if version != expected {
        return Err(Error::Version(version, expected));
    }
    encoding::from_bytes(body).map_err(|error| match error {
        encoding::Error::Trailing(bytes) => Error::Trailing(bytes),
        other => Error::Body(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(message: &(u64, Vec<u8>)) -> BytesMut {
        let mut out = BytesMut::new();
        encode(message, VERSION, &mut out).expect("a small message encodes");
        out
    }

    #[test]
    fn a_frame_in_pieces_is_returned_once_it_is_complete() {
        let whole = frame(&(7, vec![1, 2, 3]));
        let mut buffer = BytesMut::new();
        for (index, byte) in whole.iter().enumerate() {
            assert!(split(&mut buffer).expect("no error yet").is_none(), "after {index} bytes");
            buffer.extend_from_slice(&[*byte]);
        }
        let body = split(&mut buffer).expect("valid").expect("whole");
        assert_eq!(decode::<(u64, Vec<u8>)>(&body, VERSION).expect("valid"), (7, vec![1, 2, 3]));
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_huge_length_is_rejected_before_memory_is_reserved() {
        let mut buffer = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
        assert!(matches!(split(&mut buffer), Err(Error::TooLarge(_))));
    }

    #[test]
    fn a_short_frame_that_claims_a_long_vector_is_an_error() {
        let claims_2_to_the_60 = [VERSION, 0, 253, 0, 0, 0, 0, 0, 0, 0, 16];
        assert!(matches!(
            decode::<(u64, Vec<u8>)>(&claims_2_to_the_60, VERSION),
            Err(Error::Body(_))
        ));
    }

    #[test]
    fn trailing_bytes_and_other_versions_are_rejected() {
        let mut body = frame(&(7, vec![]))[LENGTH_BYTES..].to_vec();
        body.push(0);
        assert!(matches!(decode::<(u64, Vec<u8>)>(&body, VERSION), Err(Error::Trailing(1))));
        body.pop();
        body[0] = VERSION + 1;
        let newer = decode::<(u64, Vec<u8>)>(&body, VERSION);
        assert!(matches!(newer, Err(Error::Version(version, VERSION)) if version == VERSION + 1));
        assert!(matches!(decode::<(u64, Vec<u8>)>(&[], VERSION), Err(Error::Empty)));
    }

    #[test]
    fn a_message_too_large_leaves_the_buffer_unchanged() {
        let mut out = frame(&(1, vec![]));
        let before = out.clone();
        assert!(encode(&(1u64, vec![0u8; FRAME_BYTES_MAX + 1]), VERSION, &mut out).is_err());
        assert_eq!(out, before);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn what_is_encoded_is_decoded(id: u64, bytes: Vec<u8>) {
            let message = (id, bytes);
            let mut out = frame(&message);
            let body = split(&mut out).expect("valid").expect("whole");
            prop_assert_eq!(decode::<(u64, Vec<u8>)>(&body, VERSION).expect("valid"), message);
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(body)) = split(&mut buffer) {
                let _ = decode::<(u64, Vec<u8>)>(&body, VERSION);
            }
        }
    }
}
