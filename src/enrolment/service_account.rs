//! Which pods of a Kubernetes cluster may join: those of one service account, each under its own
//! name.
//!
//! A kubelet gives a container a token that the API server has signed (a *projected* token), bound
//! to the pod and to an audience, and renews it before it expires. Whom it is for it says itself:
//!
//! ```text
//! iss  https://kubernetes.default.svc.cluster.local      join.service_account_issuer
//! aud  ["tidegate"]                                      join.service_account_audience
//! sub  system:serviceaccount:limits:tidegate             join.service_account = "limits/tidegate"
//! exp  1767226200                                        later than now
//! kubernetes.io  {"pod": {"name": "tidegate-0", …}, …}   the node id that is asked for
//! ```
//!
//! It is verified by the keys that the API server publishes, so the API server need not be reached.
//! That a pod was deleted is not noticed until its token expires. Unlike a token of `tidegate ca
//! token` it works again: a pod without a disk joins at each start.

use std::path::PathBuf;

use serde::Deserialize;
use tidegate_limiter::units::{Span, Timestamp};

use super::signed_token::{self, Keys};
use crate::config::Join;

/// How far the clock of the API server may be ahead.
const AHEAD_MAX: Span = Span::from_secs(60);

/// The pods that may join.
#[derive(Clone, Debug)]
pub(super) struct ServiceAccount {
    pub(super) issuer: String,
    pub(super) audience: String,
    pub(super) subject: String,
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("the token of the service account: {0}")]
    Token(#[from] signed_token::Refused),
    #[error("the token of the service account does not say whom it is for")]
    Claims,
    #[error("the token is of another issuer than join.service_account_issuer")]
    Issuer,
    #[error("the token is for another audience than join.service_account_audience")]
    Audience,
    #[error("the token is of another service account than join.service_account")]
    Subject,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token is that of another pod than the node that it is to be")]
    Pod,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    sub: String,
    exp: u64,
    #[serde(default)]
    nbf: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct Kubernetes {
    /// Missing in a token that is bound to no pod.
    pod: Option<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    name: String,
}

impl ServiceAccount {
    /// That of the configuration, and the file of its issuer's keys; `None` without one.
    pub(super) fn of(config: &Join) -> Option<(Self, PathBuf)> {
        let subject = config.service_account_subject()?;
        let issuer = config.service_account_issuer.clone()?;
        let audience = config.service_account_audience.clone();
        Some((Self { issuer, audience, subject }, config.service_account_keys.clone()?))
    }

    /// Whether the holder of the token may have a certificate for `node` at `now`.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub(super) fn check(
        &self,
        token: &str,
        node: &str,
        keys: &Keys,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let payload = keys.verify(token.trim())?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| Refused::Claims)?;
        let is_for_us = match &claims.aud {
            Audience::One(audience) => *audience == self.audience,
            Audience::Several(audiences) => audiences.contains(&self.audience),
        };
        for (holds, refused) in [
            (claims.iss == self.issuer, Refused::Issuer),
            (is_for_us, Refused::Audience),
            (claims.sub == self.subject, Refused::Subject),
            (now.as_secs() < claims.exp, Refused::Expired),
            (claims.nbf <= now.plus(AHEAD_MAX).as_secs(), Refused::NotYet),
            (claims.kubernetes.pod.is_some_and(|pod| pod.name == node), Refused::Pod),
        ] {
            if !holds {
                return Err(refused);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ring::hmac;
    use serde_json::{Value, json};
    use tidegate_testkit::token_issuer::{TokenIssuer, claims_of_pod, signed};

    use super::*;

    const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
    const EXP: u64 = 1_767_226_200;
    const BEFORE: Timestamp = Timestamp::from_secs(EXP - 1);

    fn claims() -> Value {
        claims_of_pod(ISSUER, "tidegate", "limits/tidegate", "tidegate-0", EXP)
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    fn keys(jwks: &str) -> Keys {
        serde_json::from_str(jwks).expect("a set of keys")
    }

    fn check(token: &str, keys: &Keys, now: Timestamp) -> Result<(), Refused> {
        let join = Join {
            service_account: Some("limits/tidegate".to_owned()),
            service_account_issuer: Some(ISSUER.to_owned()),
            service_account_keys: Some(PathBuf::new()),
            ..Join::default()
        };
        let (account, _) = ServiceAccount::of(&join).expect("a service account");
        account.check(token, "tidegate-0", keys, now)
    }

    #[test]
    fn a_pod_joins_with_its_own_token_until_it_expires() {
        for issuer in [TokenIssuer::rsa("k1"), TokenIssuer::p256("k1")] {
            let (published, token) = (keys(&issuer.keys()), issuer.sign(&claims()));
            assert_eq!(check(&token, &published, BEFORE), Ok(()));
            // A pod without a disk joins at each start.
            assert_eq!(check(&format!("{token}\n"), &published, BEFORE), Ok(()));
            let at_exp = Timestamp::from_secs(EXP);
            assert_eq!(check(&token, &published, at_exp), Err(Refused::Expired));
            let several = issuer.sign(&with("aud", json!(["vault", "tidegate"])));
            assert_eq!(check(&several, &published, BEFORE), Ok(()));
            let one = issuer.sign(&with("aud", json!("tidegate")));
            assert_eq!(check(&one, &published, BEFORE), Ok(()));
        }
    }

    #[test]
    fn a_token_for_another_purpose_or_pod_is_refused() {
        let issuer = TokenIssuer::p256("k1");
        let published = keys(&issuer.keys());
        let (pod, none) = (json!({"pod": {"name": "tidegate-1"}}), json!({"namespace": "limits"}));
        let account = |account: &str| json!(format!("system:serviceaccount:{account}"));
        for (name, value, refused) in [
            ("iss", json!("https://elsewhere"), Refused::Issuer),
            ("aud", json!(["https://kubernetes.default.svc"]), Refused::Audience),
            ("aud", json!([]), Refused::Audience),
            ("sub", account("limits:other"), Refused::Subject),
            ("sub", account("other:tidegate"), Refused::Subject),
            ("sub", json!("system:node:tidegate"), Refused::Subject),
            ("exp", json!(EXP - 601), Refused::Expired),
            ("exp", json!("tomorrow"), Refused::Claims),
            ("exp", Value::Null, Refused::Claims),
            ("nbf", json!(EXP + 60), Refused::NotYet),
            ("kubernetes.io", pod, Refused::Pod),
            ("kubernetes.io", none, Refused::Pod),
            ("kubernetes.io", Value::Null, Refused::Claims),
        ] {
            let token = issuer.sign(&with(name, value.clone()));
            assert_eq!(check(&token, &published, BEFORE), Err(refused), "{name} {value}");
        }
    }

    #[test]
    fn a_token_that_the_issuer_has_not_signed_is_refused() {
        let token = |refused| Err(Refused::Token(refused));
        let (issuer, other) = (TokenIssuer::rsa("k1"), TokenIssuer::p256("k2"));
        let published = keys(&issuer.keys());
        let unknown = other.sign(&claims());
        assert_eq!(check(&unknown, &published, BEFORE), token(signed_token::Refused::UnknownKey));
        // By a key of its own, under the id of a published one.
        let forger = TokenIssuer::p256("k1");
        let forged = forger.sign(&claims());
        assert_eq!(check(&forged, &published, BEFORE), token(signed_token::Refused::Algorithm));
        let both = keys(&json!({"keys": [issuer.jwk(), other.jwk()]}).to_string());
        let forged = forger.sign_as(&json!({"alg": "ES256", "kid": "k2"}), &claims());
        assert_eq!(check(&forged, &both, BEFORE), token(signed_token::Refused::Signature));
        // Other claims under a good signature.
        let good = issuer.sign(&with("exp", json!(1)));
        let mut parts: Vec<_> = good.split('.').collect();
        let wanted = issuer.sign(&claims());
        parts[1] = wanted.split('.').nth(1).expect("claims");
        let changed = parts.join(".");
        assert_eq!(check(&changed, &published, BEFORE), token(signed_token::Refused::Signature));
    }

    #[test]
    fn the_token_does_not_choose_how_it_is_verified() {
        let algorithm = Err(Refused::Token(signed_token::Refused::Algorithm));
        for issuer in [TokenIssuer::rsa("k1"), TokenIssuer::p256("k1")] {
            let (published, public) = (keys(&issuer.keys()), issuer.jwk());
            for none in ["none", "None", "NONE", ""] {
                let token = signed(&json!({"alg": none, "kid": "k1"}), &claims(), |_| Vec::new());
                assert_eq!(check(&token, &published, BEFORE), algorithm, "{none}");
            }
            for secret in [public.to_string(), issuer.keys(), public["n"].to_string()] {
                let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                let token = signed(&json!({"alg": "HS256", "kid": "k1"}), &claims(), |text| {
                    hmac::sign(&secret, text).as_ref().to_vec()
                });
                assert_eq!(check(&token, &published, BEFORE), algorithm);
            }
            for other in ["HS512", "RS512", "PS256", "EdDSA"] {
                let token = issuer.sign_as(&json!({"alg": other, "kid": "k1"}), &claims());
                assert_eq!(check(&token, &published, BEFORE), algorithm, "{other}");
            }
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let issuer = TokenIssuer::p256("k1");
        let published = keys(&issuer.keys());
        let no_token = Err(Refused::Token(signed_token::Refused::NoToken));
        let good = issuer.sign(&claims());
        for text in
            ["", ".", "..", "...", "a.b.c", &good[..40], &format!("{good}.e30"), "e30.e30.e30"]
        {
            assert_eq!(check(text, &published, BEFORE), no_token, "{text}");
        }
        let critical = json!({"alg": "ES256", "kid": "k1", "crit": ["exp"]});
        assert_eq!(check(&issuer.sign_as(&critical, &claims()), &published, BEFORE), no_token);
        // Every byte of a good one changed, and every length.
        for at in 0..good.len() {
            assert!(check(&good[..at], &published, BEFORE).is_err(), "{at} bytes");
            let mut changed = good.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(check(&changed, &published, BEFORE).is_err(), "byte {at}: {changed}");
        }
    }

    #[test]
    fn keys_of_other_kinds_or_uses_verify_nothing() {
        let issuer = TokenIssuer::p256("k1");
        let token = issuer.sign(&claims());
        let algorithm = Err(Refused::Token(signed_token::Refused::Algorithm));
        for (name, value) in [
            ("use", json!("enc")),
            ("kty", json!("OKP")),
            ("kty", json!("oct")),
            ("crv", json!("P-521")),
            ("crv", json!("P-384")),
            ("x", Value::Null),
        ] {
            let mut key = issuer.jwk();
            key[name] = value.clone();
            let published = keys(&json!({"keys": [key]}).to_string());
            assert_eq!(check(&token, &published, BEFORE), algorithm, "{name} {value}");
        }
    }
}
