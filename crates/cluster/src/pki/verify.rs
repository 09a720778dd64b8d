//! Verifies a certificate against its authority at a given time, as a peer does.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use pem::{EncodeConfig, LineEnding, Pem};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use tidegate_limiter::units::Timestamp;
use time::OffsetDateTime;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::Error;
use super::bearer::{Bearer, MESH_NAME, Role, Validity, admission, node_name, region_name};

/// Whether a peer's certificate, the first of `chain`, is valid at `now` under `roots`.
///
/// # Errors
///
/// Why it is not.
pub fn verify_peer(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: Timestamp,
) -> Result<(), String> {
    let (first, intermediates) = chain.split_first().ok_or("there is none")?;
    let cert = EndEntityCert::try_from(first).map_err(|error| error.to_string())?;
    verify_at(&cert, &roots.roots, intermediates, now, KeyUsage::client_auth()).map_err(|error| {
        match error {
            webpki::Error::CertExpired { not_after, .. } => {
                format!("expired on {}", day(not_after))
            }
            webpki::Error::CertNotValidYet { not_before, .. } => {
                format!("not valid before {}", second(not_before))
            }
            other => format!("of an authority that is not in tls.ca ({other})"),
        }
    })
}

/// What is verified; the paths are for errors alone.
pub(super) struct Subject<'a> {
    pub(super) bearer: Bearer<'a>,
    pub(super) path: &'a Path,
    pub(super) authority: &'a Path,
    pub(super) anchors: &'a [TrustAnchor<'static>],
    /// The node's own certificate first.
    pub(super) chain: &'a [CertificateDer<'static>],
}

impl Subject<'_> {
    /// Verifies chain, dates, usage and names at `now`. Returns the dates.
    pub(super) fn verify(&self, now: Timestamp) -> Result<Validity, Error> {
        let Some(first) = self.chain.first() else {
            return Err(self.foreign(&"it is empty"));
        };
        let both = [KeyUsage::server_auth(), KeyUsage::client_auth()];
        let validity = validity(self.chain, self.anchors, &both, now);
        let validity = validity.map_err(|error| self.refusal(&error))?;
        let Bearer { node, region, role } = self.bearer;
        let (region_name, role) = (region_name(region), role.in_certificate());
        for (name, is_named, or) in [
            (node, names_node(first, node), ", or set TIDEGATE_NODE__ID to the certificate's name"),
            (MESH_NAME, names(first, MESH_NAME), ""),
            (
                &region_name,
                names(first, &region_name),
                ", or set TIDEGATE_NODE__REGION to the certificate's region",
            ),
            (role, names(first, role), ", or set node.role to the certificate's role"),
        ] {
            if !is_named {
                let issue = self.command(name != node);
                return Err(Error::of(
                    self.path,
                    format_args!(
                        "does not carry the name {name} (it needs the node id, {MESH_NAME}, \
                         {region_name} and {role}); issue one with `{issue}`{or}"
                    ),
                ));
            }
        }
        Ok(validity)
    }

    fn refusal(&self, error: &webpki::Error) -> Error {
        let (node, renew) = (self.bearer.node, self.command(true));
        let text = match error {
            webpki::Error::CertExpired { not_after, .. } => format!(
                "expired on {}; renew it with `{renew}`, or, if it has joined with a token, with \
                 `tidegate join` and a new one",
                day(*not_after)
            ),
            webpki::Error::CertNotValidYet { not_before, .. } => format!(
                "is not valid before {}; set this machine's clock, or renew it with `{renew}`",
                second(*not_before)
            ),
            other => return self.foreign(other),
        };
        Error::of(self.path, format_args!("the certificate of node {node} {text}"))
    }

    fn foreign(&self, reason: &dyn Display) -> Error {
        let (authority, issue) = (self.authority.display(), self.command(true));
        Error::of(
            self.path,
            format_args!(
                "not a node certificate of the authority in {authority} ({reason}); issue it with \
                 that authority's `{issue}`"
            ),
        )
    }

    fn command(&self, renew: bool) -> String {
        issue_command(self.authority, self.bearer, renew)
    }
}

fn verify_at(
    cert: &EndEntityCert<'_>,
    anchors: &[TrustAnchor<'static>],
    intermediates: &[CertificateDer<'_>],
    now: Timestamp,
    usage: KeyUsage,
) -> Result<(), webpki::Error> {
    let time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()));
    let algorithms = ALL_VERIFICATION_ALGS;
    cert.verify_for_usage(algorithms, anchors, intermediates, time, usage, None, None).map(|_| ())
}

/// Verifies a chain for `usages` at `now`. Returns from when until when all of it is valid.
pub(super) fn validity(
    chain: &[CertificateDer<'_>],
    anchors: &[TrustAnchor<'static>],
    usages: &[KeyUsage],
    now: Timestamp,
) -> Result<Validity, webpki::Error> {
    let (first, intermediates) = chain.split_first().ok_or(webpki::Error::UnknownIssuer)?;
    let cert = EndEntityCert::try_from(first)?;
    let at = |now, usage| verify_at(&cert, anchors, intermediates, now, usage);
    for usage in usages {
        at(now, *usage)?;
    }
    // webpki reports the dates of a certificate only where it is not valid, so verify at a time
    // before every certificate and at one when every certificate has expired.
    let not_before = match at(Timestamp::EPOCH, KeyUsage::server_auth()) {
        Err(webpki::Error::CertNotValidYet { not_before, .. }) => timestamp(not_before),
        _ => Timestamp::EPOCH,
    };
    let not_after = match at(Timestamp::NEVER, KeyUsage::server_auth()) {
        Err(webpki::Error::CertExpired { not_after, .. }) => timestamp(not_after),
        _ => Timestamp::NEVER,
    };
    Ok(Validity { not_before, not_after })
}

/// When a certificate begins; `None` if it cannot be read.
pub fn begins_at(cert: &CertificateDer<'_>) -> Option<Timestamp> {
    let cert = EndEntityCert::try_from(cert).ok()?;
    // webpki checks the dates of the first certificate before it looks for an authority.
    match verify_at(&cert, &[], &[], Timestamp::EPOCH, KeyUsage::server_auth()) {
        Err(webpki::Error::CertNotValidYet { not_before, .. }) => Some(timestamp(not_before)),
        _ => None,
    }
}

/// When the node of a certificate was admitted, which is what a revocation compares with; `None` if
/// the certificate cannot be read.
///
/// A certificate that is renewed, or that a token of earlier is shown for, goes back to that time:
/// it names it. So it is refused together with what it was made from, whether or not the signer
/// knew of a revocation in between. Any other was admitted when it begins.
pub fn admitted_at(cert: &CertificateDer<'_>) -> Option<Timestamp> {
    let begins = begins_at(cert)?;
    let end = EndEntityCert::try_from(cert).ok()?;
    Some(end.valid_dns_names().filter_map(admission).fold(begins, Timestamp::min))
}

/// When a certificate ends; `None` if it cannot be read.
pub fn ends_at(cert: &CertificateDer<'_>) -> Option<Timestamp> {
    let cert = EndEntityCert::try_from(cert).ok()?;
    match verify_at(&cert, &[], &[], Timestamp::NEVER, KeyUsage::server_auth()) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Some(timestamp(not_after)),
        _ => None,
    }
}

/// Whether the certificate is that of a node with this id, as an authority or a signer names it.
pub fn names_node(cert: &CertificateDer<'_>, node: &str) -> bool {
    names(cert, node) || names(cert, &node_name(node))
}

/// Whether a certificate, with `others` in between, is one of `authority` for a node with this id.
///
/// # Errors
///
/// Why it is not.
pub fn verify_node(
    cert: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
    authority: &CertificateDer<'_>,
    node: &str,
    now: Timestamp,
) -> Result<(), String> {
    let anchors = anchors(std::slice::from_ref(authority)).ok_or("the authority is malformed")?;
    let end = EndEntityCert::try_from(cert).map_err(|error| error.to_string())?;
    let verified = verify_at(&end, &anchors, others, now, KeyUsage::server_auth());
    verified.map_err(|error| match error {
        webpki::Error::CertExpired { not_after, .. } => format!(
            "its certificate expired on {}, and the time here is {}",
            second(not_after),
            utc_second(now)
        ),
        webpki::Error::CertNotValidYet { not_before, .. } => format!(
            "its certificate is not valid before {}, and the time here is {}",
            second(not_before),
            utc_second(now)
        ),
        other => other.to_string(),
    })?;
    if !names_node(cert, node) {
        return Err("its certificate has another name".to_owned());
    }
    Ok(())
}

/// Certificates as PEM, in their order.
pub fn to_pem(certs: &[CertificateDer<'_>]) -> String {
    let certs: Vec<_> = certs.iter().map(|cert| Pem::new("CERTIFICATE", cert.to_vec())).collect();
    pem::encode_many_config(&certs, EncodeConfig::new().set_line_ending(LineEnding::LF))
}

/// Whether the certificate is valid for the DNS name `name`.
pub fn names(cert: &CertificateDer<'_>, name: &str) -> bool {
    let (Ok(cert), Ok(name)) = (EndEntityCert::try_from(cert), ServerName::try_from(name)) else {
        return false;
    };
    cert.verify_is_valid_for_subject_name(&name).is_ok()
}

/// The command that creates a certificate for `node` in the folder of the authority's file.
pub(super) fn issue_command(authority: &Path, bearer: Bearer<'_>, renew: bool) -> String {
    let Bearer { node, region, role } = bearer;
    let dir = authority.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or_else(|| Path::new("."));
    let dir = dir.display();
    let role = if role == Role::Edge { " --role edge" } else { "" };
    let renew = if renew { " --renew" } else { "" };
    format!("tidegate ca issue --dir {dir} --node {node} --region {region}{role}{renew}")
}

/// All certificates of a PEM text. `None` if there is none or one is malformed.
pub(super) fn certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let certs: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().ok()?;
    (!certs.is_empty()).then_some(certs)
}

/// The trust anchors of these authorities. `None` if one is malformed.
pub(super) fn anchors(certs: &[CertificateDer<'_>]) -> Option<Vec<TrustAnchor<'static>>> {
    certs.iter().map(|cert| anchor_from_trusted_cert(cert).ok().map(|a| a.to_owned())).collect()
}

/// Whether peers that trust the authority accept `cert_pem` as that of `bearer` at this time.
pub(super) fn is_issued_by(
    authority_pem: &str,
    cert_pem: &str,
    bearer: Bearer<'_>,
    at: Timestamp,
) -> bool {
    let (Some(chain), Some(anchors)) =
        (certificates(cert_pem), certificates(authority_pem).and_then(|certs| anchors(&certs)))
    else {
        return false;
    };
    // The paths are for the error's text, which is not used.
    let nowhere = Path::new("");
    let (path, authority) = (nowhere, nowhere);
    let subject = Subject { bearer, path, authority, anchors: &anchors, chain: &chain };
    subject.verify(at).is_ok()
}

pub(super) fn timestamp(time: UnixTime) -> Timestamp {
    Timestamp::from_secs(time.as_secs())
}

fn day(time: UnixTime) -> String {
    utc_date(timestamp(time))
}

/// One that begins now may begin within this day.
fn second(time: UnixTime) -> String {
    utc_second(timestamp(time))
}

/// The second, as in `2026-11-20 09:30:00 UTC`.
pub fn utc_second(at: Timestamp) -> String {
    let at = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(at.as_secs());
    let (hour, minute, second) = at.to_hms();
    format!("{} {hour:02}:{minute:02}:{second:02} UTC", at.date())
}

/// The UTC date, as in `2026-11-20`.
pub fn utc_date(at: Timestamp) -> String {
    (OffsetDateTime::UNIX_EPOCH + Duration::from_secs(at.as_secs())).date().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_four_two_and_two_digits() {
        for (secs, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_767_225_599, "2025-12-31"),
            (1_767_225_600, "2026-01-01"),
        ] {
            assert_eq!(utc_date(Timestamp::from_secs(secs)), text);
        }
        assert_eq!(utc_date(Timestamp::NEVER), "2554-07-21");
    }
}
