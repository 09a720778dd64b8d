//! An issuer of signed tokens, as the API server of a Kubernetes cluster is one.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

/// An issuer with one key.
pub struct TokenIssuer {
    kid: String,
    key: Key,
}

enum Key {
    P256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl TokenIssuer {
    /// With a new key, which signs by ES256.
    pub fn p256(kid: &str) -> Self {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(kind, key.as_ref(), &random).unwrap();
        Self { kid: kid.to_owned(), key: Key::P256(key) }
    }

    /// With a key that signs by RS256, always the same.
    pub fn rsa(kid: &str) -> Self {
        let key = RsaKeyPair::from_der(&BASE64_STANDARD.decode(RSA_KEY).unwrap()).unwrap();
        Self { kid: kid.to_owned(), key: Key::Rsa(key) }
    }

    /// The public key, as it is published.
    pub fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let kid = &self.kid;
        match &self.key {
            Key::P256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"use": "sig", "kty": "EC", "kid": kid, "crv": "P-256", "alg": "ES256",
                       "x": encode(x), "y": encode(y)})
            }
            Key::Rsa(key) => {
                let public = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"use": "sig", "kty": "RSA", "kid": kid, "alg": "RS256",
                       "n": encode(&public.n), "e": encode(&public.e)})
            }
        }
    }

    /// The set of this key alone.
    pub fn keys(&self) -> String {
        json!({"keys": [self.jwk()]}).to_string()
    }

    pub fn sign(&self, claims: &Value) -> String {
        let alg = match &self.key {
            Key::P256(_) => "ES256",
            Key::Rsa(_) => "RS256",
        };
        self.sign_as(&json!({"alg": alg, "kid": self.kid}), claims)
    }

    /// Signs with this key whatever the header says.
    pub fn sign_as(&self, header: &Value, claims: &Value) -> String {
        signed(header, claims, |text| {
            let random = SystemRandom::new();
            match &self.key {
                Key::P256(key) => key.sign(&random, text).unwrap().as_ref().to_vec(),
                Key::Rsa(key) => {
                    let mut signature = vec![0; key.public().modulus_len()];
                    key.sign(&RSA_PKCS1_SHA256, &random, text, &mut signature).unwrap();
                    signature
                }
            }
        })
    }
}

/// A token whose signature `sign` makes.
pub fn signed(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let part = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let text = format!("{}.{}", part(header), part(claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(sign(text.as_bytes()));
    format!("{text}.{signature}")
}

/// What a projected token of a pod says, until `exp`, in seconds since 1970.
pub fn claims_of_pod(issuer: &str, audience: &str, account: &str, pod: &str, exp: u64) -> Value {
    let (namespace, name) = account.split_once('/').unwrap();
    json!({
        "iss": issuer,
        "aud": [audience],
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
        "exp": exp,
        "iat": exp - 600,
        "nbf": exp - 600,
        "jti": "5f5cd4e4-2b1d-44ce-9ac4-1f3e2d6f1d3a",
        "kubernetes.io": {
            "namespace": namespace,
            "node": {"name": "machine", "uid": "7dcb0a7f-8a4f-4c87-a0d0-3f1f0c2f1a11"},
            "pod": {"name": pod, "uid": "0c1c9c4e-9c8f-4d0c-8a43-51b1d0d5a2a2"},
            "serviceaccount": {"name": name, "uid": "a3a4c0de-0b9d-4ac7-8a0e-2c9a6a7b3b33"},
        },
    })
}

/// Made for these tests, as ring makes none. It protects nothing.
const RSA_KEY: &str = "\
MIIEowIBAAKCAQEAopX/T6EFdIhF/zlWfCUnDOTcRlpbqMMXIYxdMA+lJGvLYoMCGJHIMO61URcN4jREt8d9CGO3xWXTvyMq\
/YBVNvSnkOiYfQ5FNGmw9IG++8uDk83zTLFI0NNR9B5HhqAJgkKlexqvtjpUX8YezJ3/bqAgp1GIevDl+Em4E8fxzrzTLJIu\
/+Yw9P3IQpbxmYYZclxDP1bt+3TjuCnZ0ruSLcocg3AIZBUEtnuxN4TXSvWzCKII0omVTHjFa+kFpnqoG978Ljg/c+FXrxgK\
O1jcPIzP46L19XZftY065B/pAn5Dz+Y0CAMKUhsFY46Sf/XJe4e3Nh4+M8PSTX/HfBSGqwIDAQABAoIBACTPK+Hl1TvYXGyX\
mSZ7LNek+t/stiLDpHmCc1iduihARWg0u+U/ICE/8gn9W7XSWpp3Di43kVQeJS35ctK42tIZ2tQabOenMvDWWutIcqpEHbJ5\
ZrN+0bsBlOTddBkdI3n7x8ZSuORbWV3jl3aA8OMlWq827NzUrGQloIjN9Ed3KO+hbSo5l+F4W3hy4uuD8E3KCACOBOrxRxvt\
d2BTSwGpQ3ezGH1fSuP4dMap0X8A1oi0PXOww4Cv6WmUWafppReNhz4c4GUb6hWkIrc2x11Hi+cFjjnlta3g2qAnpQNZ5bCc\
eMfgKPL23Gqaf4akamAuDZmQ/gqplI/HvoB2G3UCgYEA3bCWArz9EySMSxEcZg+orh/HyUmmpmg4XZTSytsajW5RK9rJTCSo\
SLYHB0KGgVI6fMl1l9xHkqVJRN54a3wYMl9xUxM6chjMZiFLfNtfQ9c7Gc4KmzEK5Xl0jtm/WUhO1B6U4Gg0sjmAChiSW6g9\
j8izOHOs0bwTBq0gRpvPW4UCgYEAu7+y+C/806ysK2OGcZUMNJcdModGIJ4CBlq/py6WW9YPsxt209ezMYdUYNEn+7Q2KQeh\
LSF1BGntnh3dc3Pe/M+YUtXJBflB3lmGh/OE4dFAIHFgU/G8ytMgATZyYakJatXrGd7aBOoaBZOfz3laKJcJKClpLLRKrR2s\
AnJn+G8CgYBrRkUA5DTOa5Qbyxbj6FXmlGhX5fTnd203E4oBMY8iuyw6PW/FEcQBE1xJTg7KS2ET+2SU7LoRozvWQJUi5fTL\
g1XSLm7MwWU/UoM10u3BZUgrD4IgYNX1/xTA/2tRp+TFTlsaUDKXv61OtV81TS8lAah/+7G39/t48pO4tzLbBQKBgQCKyLkG\
J4rv+ftHE4nlWjUshuwJVt+q6sI6akizz4dMGZ9/WXTsQc1vdkcUTmgM8vj6OW6WSt4SRi9lK1RwrJ2QKfDCgs/Xf5qGP41n\
38ZBmwmZMdXwF4jkMU6+Nr40nNyeQcVJWWe2LErSBn8iweS4jnUxX/MkHZ35/C4TnPhoNwKBgB2/aun7PXQBDbdeaRKlH29X\
S3ASxLh5wxrT23QiTvA40nL8vNab1PNOGqEdTTSCZ6NaTKK9ReYlKxh6yPpFkbHw1UzV6ov7eSDrNlx3exwyUxc1dtBHJ8S4\
aYrRaEf4efQqbCVWrVP2q4oNvee6lSR70zvx7a8HF13nbzg7RMg+";
