//! What a node signs for others, with the files of `join.signer_cert`.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tidegate::config::Join;
use tidegate::enrolment::{Credential, Issuer, JoinRequest};
use tidegate::node::system_environment;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::mesh::Mesh;
use tidegate_cluster::pki::{
    self, Authority, Bearer, JoinToken, NewKey, Overwrite, Revocation, Revocations, Scope, Validity,
};
use tidegate_limiter::units::Span;
use tidegate_ownership::identity::NodeId;
use tidegate_testkit::certificates::{authority, identity, validity};
use tidegate_testkit::clock::ManualClock;
use tidegate_testkit::in_process::cluster_under;

const RULES: &str = "
domain: test
descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 20}}]
";
const MINUTE: u64 = 60;

/// A node is revoked while the one that signs is cut off: what that one makes of a token or of a
/// certificate from before is refused with them, for however long it is cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_signed_without_knowing_of_a_revocation_is_refused_with_what_it_was_made_from() {
    let authority = authority();
    let nodes = cluster_under(&authority, &[("a", "eu")], RULES, |_| {}).await;
    let mesh = &nodes[0].joined().mesh;
    let dir = tempfile::tempdir().unwrap();
    let (environment, _stop) = system_environment();
    let clock = Arc::new(ManualClock::at(environment.clock.system()));
    let its_clock: Arc<dyn Clock> = clock.clone();
    let issuer = issuer(&authority, mesh, dir.path(), &its_clock);

    let bearer = Bearer::core("n4", "eu");
    let make_token = || issuer.make_token(bearer, Span::from_secs(600 * MINUTE)).unwrap();
    let enrolled = |token: &JoinToken| {
        let credential = Credential::Token { token: token.to_string() };
        let request = NewKey::generate().unwrap().request_pem().unwrap();
        issuer.enrol(&JoinRequest { credential, request })
    };
    let renewed = |node: &str| {
        let identity = identity(&authority, &authority, node, "eu");
        issuer.renew_own(&identity, &NewKey::generate().unwrap().request().unwrap())
    };
    let certificate = |pem: &[u8]| CertificateDer::from_pem_slice(pem).unwrap();

    // At the other nodes n4 is revoked half an hour after its tokens were made.
    let (token, other) = (make_token(), make_token());
    clock.advance(Span::from_secs(30 * MINUTE).as_nanos());
    let revocation = Revocation { node: NodeId::new("n4").unwrap(), at: clock.system() };
    let elsewhere = Revocations::default();
    elsewhere.merge([revocation.clone()], clock.system());
    clock.advance(Span::from_secs(150 * MINUTE).as_nanos());
    for signed in [enrolled(&token).unwrap().certificate.into_bytes(), renewed("n4")] {
        let certificate = certificate(&signed);
        assert!(pki::begins_at(&certificate).unwrap() > revocation.at, "it begins later");
        assert_eq!(elsewhere.refuse(&certificate).as_ref(), Some(&revocation.node));
    }
    let unaffected = renewed("n5");
    assert_eq!(elsewhere.refuse(&certificate(&unaffected)), None);

    // The one that signs has received it.
    mesh.revocations.merge([revocation.clone()], clock.system());
    let refused = enrolled(&other).err().unwrap().to_string();
    assert!(refused.contains("revoked since the token was made"), "{refused}");
    assert_eq!(renewed("n4"), Vec::<u8>::new());
    // The operator lets it join again.
    let again = enrolled(&make_token()).unwrap().certificate;
    assert_eq!(elsewhere.refuse(&certificate(again.as_bytes())), None);
    let admitted = pki::admitted_at(&certificate(again.as_bytes())).unwrap();
    assert!(admitted > revocation.at);
}

/// It has not received the revocation after which it was admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_goes_back_to_no_earlier_admission() {
    let authority = authority();
    let nodes = cluster_under(&authority, &[("a", "eu")], RULES, |_| {}).await;
    let dir = tempfile::tempdir().unwrap();
    let (environment, _stop) = system_environment();
    let now = environment.clock.system();
    let issuer = issuer(&authority, &nodes[0].joined().mesh, dir.path(), &environment.clock);
    let validity = Validity { not_before: now, ..validity() };
    let issued = authority.issue(Bearer::core("n4", "eu"), validity).unwrap();
    let mut identity = identity(&authority, &authority, "n4", "eu");
    identity.chain = vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap()];
    let renewed = issuer.renew_own(&identity, &NewKey::generate().unwrap().request().unwrap());
    let renewed = CertificateDer::from_pem_slice(&renewed).unwrap();
    assert_eq!(pki::admitted_at(&renewed), pki::admitted_at(&identity.chain[0]));
}

fn issuer(authority: &Authority, mesh: &Arc<Mesh>, dir: &Path, clock: &Arc<dyn Clock>) -> Issuer {
    let [cert, key] = ["signer.pem", "signer.key"].map(|name| dir.join(name));
    let signer = authority.issue_signer(Scope::default(), validity()).unwrap();
    pki::write_public(&cert, &signer.cert_pem, Overwrite::Never).unwrap();
    pki::write_secret(&key, &signer.key_pem, Overwrite::Never).unwrap();
    let (environment, _stop) = system_environment();
    let config = Join { signer_cert: Some(cert), signer_key: Some(key), ..Join::default() };
    Issuer::of(&config, mesh, clock, environment.entropy).unwrap().unwrap()
}
