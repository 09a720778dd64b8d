//! Signed tokens (JWS, RFC 7515) and the published keys that verify them (JWK sets, RFC 7517).
//!
//! ```text
//! base64url(header) . base64url(payload) . base64url(signature of all before the second dot)
//! {"alg": "RS256", "kid": "k1"}           {"keys": [{"kid": "k1", "kty": "RSA", "n": …, "e": …}]}
//! ```
//!
//! **Invariant:** the published key decides the algorithm, never the token. Each kind of key has
//! one: RSA RS256, P-256 ES256, P-384 ES384. So `none`, and a public key taken for the secret of
//! HS256, are refused as any other name is.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, EcdsaVerificationAlgorithm,
    RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

/// Why a token is not that of the holder of a published key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("it is not a signed token (JWT)")]
    NoToken,
    #[error("the published keys have none with the id that it names")]
    UnknownKey,
    #[error(
        "it is not signed as its key signs: by RS256, ES256 or ES384, as the kind of the key is"
    )]
    Algorithm,
    #[error("its signature is wrong")]
    Signature,
}

/// A set of published keys.
#[derive(Debug, Deserialize)]
pub(super) struct Keys {
    keys: Vec<Key>,
}

/// A public key; those of other kinds verify nothing.
#[derive(Debug, Deserialize)]
struct Key {
    kid: Option<String>,
    kty: String,
    #[serde(rename = "use")]
    intended_use: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
    /// Extensions that must be understood.
    crit: Option<serde::de::IgnoredAny>,
}

/// A key of a kind that is known.
enum Public<'k> {
    Rsa { n: &'k str, e: &'k str },
    Curve { algorithm: &'static EcdsaVerificationAlgorithm, x: &'k str, y: &'k str },
}

impl Keys {
    /// The payload of the token, if one of these keys has signed it.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub(super) fn verify(&self, token: &str) -> Result<Vec<u8>, Refused> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Refused::NoToken)?;
        let (header, payload) = signed.split_once('.').ok_or(Refused::NoToken)?;
        let header: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| Refused::NoToken)?;
        if header.crit.is_some() {
            return Err(Refused::NoToken);
        }
        let (payload, signature) = (decode(payload)?, decode(signature)?);
        let named = |key: &&Key| key.kid.as_deref() == Some(&*header.kid);
        let key = self.keys.iter().find(named).ok_or(Refused::UnknownKey)?;
        let (algorithm, public) = key.public().ok_or(Refused::Algorithm)?;
        if header.alg != algorithm {
            return Err(Refused::Algorithm);
        }
        public.verify(signed.as_bytes(), &signature)?;
        Ok(payload)
    }
}

impl Key {
    /// With the name of its algorithm.
    fn public(&self) -> Option<(&'static str, Public<'_>)> {
        if self.intended_use.as_deref().is_some_and(|intended| intended != "sig") {
            return None;
        }
        match (&*self.kty, self.crv.as_deref()) {
            ("RSA", _) => {
                let (n, e) = (self.n.as_deref()?, self.e.as_deref()?);
                Some(("RS256", Public::Rsa { n, e }))
            }
            ("EC", Some("P-256")) => Some(("ES256", self.curve(&ECDSA_P256_SHA256_FIXED)?)),
            ("EC", Some("P-384")) => Some(("ES384", self.curve(&ECDSA_P384_SHA384_FIXED)?)),
            _ => None,
        }
    }

    fn curve(&self, algorithm: &'static EcdsaVerificationAlgorithm) -> Option<Public<'_>> {
        let (x, y) = (self.x.as_deref()?, self.y.as_deref()?);
        Some(Public::Curve { algorithm, x, y })
    }
}

impl Public<'_> {
    fn verify(&self, signed: &[u8], signature: &[u8]) -> Result<(), Refused> {
        let verified =
            match *self {
                Public::Rsa { n, e } => RsaPublicKeyComponents { n: decode(n)?, e: decode(e)? }
                    .verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature),
                Public::Curve { algorithm, x, y } => {
                    // An uncompressed point (SEC 1, 2.3.3).
                    let point = [&[4], &*decode(x)?, &*decode(y)?].concat();
                    UnparsedPublicKey::new(algorithm, point).verify(signed, signature)
                }
            };
        verified.map_err(|_| Refused::Signature)
    }
}

fn decode(part: &str) -> Result<Vec<u8>, Refused> {
    BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| Refused::NoToken)
}
