//! Holding a certificate against its authority at a given time, as a peer will.

use std::path::Path;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use tidegate_limiter::units::Timestamp;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::date::date;
use super::{Error, MESH_NAME, Validity};

/// Whether the certificate carries `name`: what the hello asks about the id a peer claims.
pub fn names(cert: &CertificateDer<'_>, name: &str) -> bool {
    let (Ok(cert), Ok(name)) = (EndEntityCert::try_from(cert), ServerName::try_from(name)) else {
        return false;
    };
    cert.verify_is_valid_for_subject_name(&name).is_ok()
}

/// What is verified, and where it stands for the error's text.
pub(super) struct Subject<'a> {
    pub(super) node: &'a str,
    pub(super) path: &'a Path,
    pub(super) authority: &'a Path,
    pub(super) anchors: &'a [TrustAnchor<'static>],
    /// The node's own certificate first.
    pub(super) chain: &'a [CertificateDer<'static>],
}

impl Subject<'_> {
    /// Verifies chain, dates, usage and names at `now`; returns when the certificate ends.
    pub(super) fn verify(&self, now: Timestamp) -> Result<Timestamp, Error> {
        let Some((first, intermediates)) = self.chain.split_first() else {
            return Err(self.foreign(&"it is empty"));
        };
        let cert = EndEntityCert::try_from(first).map_err(|error| self.foreign(&error))?;
        let at = |now: Timestamp, usage: KeyUsage| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()));
            cert.verify_for_usage(
                ALL_VERIFICATION_ALGS,
                self.anchors,
                intermediates,
                time,
                usage,
                None,
                None,
            )
            .map(|_| ())
        };
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            at(now, usage).map_err(|error| self.refusal(&error))?;
        }
        for name in [self.node, MESH_NAME] {
            if !names(first, name) {
                return Err(Error::WrongName {
                    path: self.path.to_owned(),
                    name: name.to_owned(),
                    command: self.command(false),
                });
            }
        }
        // webpki tells the last day only of a certificate that is past it, so it is asked about a
        // time when all are.
        Ok(match at(Timestamp::NEVER, KeyUsage::server_auth()) {
            Err(webpki::Error::CertExpired { not_after, .. }) => {
                Timestamp::from_secs(not_after.as_secs())
            }
            _ => Timestamp::NEVER,
        })
    }

    fn refusal(&self, error: &webpki::Error) -> Error {
        let (path, node) = (self.path.to_owned(), self.node.to_owned());
        let day = |time: &UnixTime| date(Timestamp::from_secs(time.as_secs()));
        match error {
            webpki::Error::CertExpired { not_after, .. } => {
                Error::Expired { path, node, date: day(not_after), command: self.command(true) }
            }
            webpki::Error::CertNotValidYet { not_before, .. } => Error::NotYetValid {
                path,
                node,
                date: day(not_before),
                command: self.command(true),
            },
            other => self.foreign(other),
        }
    }

    fn foreign(&self, reason: &dyn ToString) -> Error {
        Error::Foreign {
            path: self.path.to_owned(),
            authority: self.authority.to_owned(),
            reason: reason.to_string(),
            command: self.command(true),
        }
    }

    fn command(&self, renew: bool) -> String {
        issue_command(self.authority, self.node, renew)
    }
}

/// The command that makes a certificate for `node` beside the authority's file.
pub(super) fn issue_command(authority: &Path, node: &str, renew: bool) -> String {
    let dir = authority.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or_else(|| Path::new("."));
    let renew = if renew { " --renew" } else { "" };
    format!("tidegate ca issue --dir {} --node {node}{renew}", dir.display())
}

/// All certificates of a PEM text.
pub(super) fn certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let certs: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().ok()?;
    (!certs.is_empty()).then_some(certs)
}

/// The trust anchors that some authorities' certificates make.
pub(super) fn anchors(certs: &[CertificateDer<'_>]) -> Option<Vec<TrustAnchor<'static>>> {
    certs.iter().map(|cert| anchor_from_trusted_cert(cert).ok().map(|a| a.to_owned())).collect()
}

/// Whether `cert_pem` is a good certificate of the authority for `node` from its first second on.
pub(super) fn is_issued_by(
    authority_pem: &str,
    cert_pem: &str,
    node: &str,
    validity: Validity,
) -> bool {
    let (Some(chain), Some(anchors)) =
        (certificates(cert_pem), certificates(authority_pem).and_then(|certs| anchors(&certs)))
    else {
        return false;
    };
    // The paths would only be named in an error, which is not looked at.
    let nowhere = Path::new("");
    let subject =
        Subject { node, path: nowhere, authority: nowhere, anchors: &anchors, chain: &chain };
    subject.verify(validity.not_before).is_ok()
}
