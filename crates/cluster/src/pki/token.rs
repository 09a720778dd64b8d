//! What an operator carries from a node of the cluster to a new one: one line of text.
//!
//! ```text
//! tgjoin1_ base64url( pin: 32 bytes │ secret: 16 bytes │ node id of the signer )
//! ```
//!
//! The *pin* is the SHA-256 of the authority's certificate, so that the new node recognises the
//! cluster before it trusts anyone. The *secret* is known to the named signer alone, so that no
//! other node, a stolen one say, can take its place and use the token itself.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use tidegate_ownership::name::is_label;

pub const PIN_BYTES: usize = 32;
pub const TOKEN_SECRET_BYTES: usize = 16;

const PREFIX: &str = "tgjoin1_";

/// A token to join with.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// [`pin`] of the authority.
    pub pin: [u8; PIN_BYTES],
    pub secret: [u8; TOKEN_SECRET_BYTES],
    /// The node that made it, and signs for it.
    pub signer: String,
}

/// The text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token of `tidegate ca token`, which begins with {PREFIX}")]
pub struct NotAToken;

/// The SHA-256 of an authority's certificate.
pub fn pin(authority: &CertificateDer<'_>) -> [u8; PIN_BYTES] {
    let mut pin = [0; PIN_BYTES];
    pin.copy_from_slice(digest(&SHA256, authority).as_ref());
    pin
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.pin[..], &self.secret, self.signer.as_bytes()].concat();
        write!(f, "{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// Without the secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("signer", &self.signer).finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let text = text.trim().strip_prefix(PREFIX).ok_or(NotAToken)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| NotAToken)?;
        let (pin, rest) = bytes.split_first_chunk().ok_or(NotAToken)?;
        let (secret, signer) = rest.split_first_chunk().ok_or(NotAToken)?;
        let signer = std::str::from_utf8(signer).ok().filter(|signer| is_label(signer));
        let signer = signer.ok_or(NotAToken)?.to_owned();
        Ok(Self { pin: *pin, secret: *secret, signer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_nothing_else_is_one() {
        let token = JoinToken { pin: [1; 32], secret: [2; 16], signer: "node-1".to_owned() };
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!("  {text}\n").parse(), Ok(token));
        let (short, long) = (&text[..text.len() - 10], format!("{text}!"));
        for wrong in ["", PREFIX, "tgjoin1_AAAA", &text[1..], short, &long] {
            assert_eq!(wrong.parse::<JoinToken>(), Err(NotAToken), "{wrong}");
        }
    }

    #[test]
    fn the_debug_output_of_a_token_has_no_secret() {
        let token = JoinToken { pin: [1; 32], secret: [2; 16], signer: "node-1".to_owned() };
        assert!(!format!("{token:?}").contains("2, 2"));
    }
}
