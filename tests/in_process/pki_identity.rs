//! A node refuses to start with a certificate that its peers would refuse, with an error of one
//! line; the files of `tidegate ca` are valid.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use tidegate::config::Tls;
use tidegate_cluster::pki::{self, Bearer, Identity, Overwrite, Scope, Validity};
use tidegate_limiter::units::{Span, Timestamp};

/// 1 January 2026.
const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
const DAY: Span = Span::from_secs(86_400);

#[test]
fn what_ca_makes_a_node_accepts() {
    let pki = Pki::new();
    let identity = pki.load("n1").unwrap();
    assert_eq!(identity.node, "n1");
    assert_eq!(identity.validity, validity());
    assert_eq!(identity.secret, [7; 16]);
    assert_eq!(identity.chain.len(), 1);
    assert!(pki::names(&identity.chain[0], "n1"));
    for name in [pki::MESH_NAME, "eu.region.tidegate", "core.role.tidegate"] {
        assert!(pki::names(&identity.chain[0], name), "{name}");
    }
    assert!(!pki::names(&identity.chain[0], "us.region.tidegate"));
    assert!(!pki::names(&identity.chain[0], "n2"));
}

#[test]
fn secrets_are_written_for_their_owner_alone() {
    let pki = Pki::new();
    for (name, mode) in [
        ("ca.pem", 0o644),
        ("ca.key", 0o600),
        ("cluster.secret", 0o600),
        ("n1.pem", 0o644),
        ("n1.key", 0o600),
    ] {
        let metadata = fs::metadata(pki.dir().join(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
    }
    let left: Vec<_> = fs::read_dir(pki.dir()).unwrap().collect();
    assert_eq!(left.len(), 5, "drafts are left behind: {left:?}");
}

#[test]
fn the_debug_output_of_an_identity_has_no_secret() {
    let text = format!("{:?}", Pki::new().load("n1").unwrap());
    assert!(!text.contains("secret") && !text.contains("[7, 7"), "{text}");
}

#[test]
fn a_key_or_secret_that_others_can_read_is_refused() {
    for name in ["n1.key", "cluster.secret"] {
        for mode in [0o604, 0o644, 0o602, 0o601] {
            let pki = Pki::new();
            let path = pki.dir().join(name);
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                pki.refusal("n1", NOW),
                format!("{name}: others can read it; run `chmod 600 {name}`"),
            );
        }
    }
    let pki = Pki::new();
    fs::set_permissions(pki.dir().join("n1.key"), Permissions::from_mode(0o640)).unwrap();
    assert!(pki.load("n1").is_ok(), "a group that was given the key may read it");
}

#[test]
fn a_certificate_out_of_its_time_is_refused_with_its_date() {
    let pki = Pki::new();
    assert!(pki.load_at("n1", NOW.plus(DAY)).is_ok(), "the last second counts");
    assert_eq!(
        pki.refusal("n1", NOW.plus(DAY).plus(Span::from_secs(1))),
        "n1.pem: the certificate of node n1 expired on 2026-01-02; renew it with `tidegate ca issue \
         --dir . --node n1 --region eu --renew`, or, if it has joined with a token, with `tidegate \
         join` and a new one",
    );
    assert_eq!(
        pki.refusal("n1", NOW.minus(Span::from_secs(1))),
        "n1.pem: the certificate of node n1 is not valid before 2026-01-01 00:00:00 UTC; set \
         this machine's clock, or renew it with `tidegate ca issue --dir . --node n1 --region eu \
         --renew`",
    );
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    let (pki, other) = (Pki::new(), Pki::new());
    for name in ["n1.pem", "n1.key"] {
        fs::copy(other.dir().join(name), pki.dir().join(name)).unwrap();
    }
    assert_eq!(
        pki.refusal("n1", NOW),
        "n1.pem: not a node certificate of the authority in ca.pem (InvalidSignatureForPublicKey); \
         issue it with that authority's `tidegate ca issue --dir . --node n1 --region eu --renew`",
    );
}

#[test]
fn a_certificate_without_the_node_s_name_is_refused() {
    let pki = Pki::new();
    let tls = pki.tls("n1");
    let error = pki::load(&tls, eu("n2"), NOW).unwrap_err();
    assert_eq!(
        pki.relative(&error.to_string()),
        "n1.pem: does not carry the name n2 (it needs the node id, mesh.tidegate, \
         eu.region.tidegate and core.role.tidegate); issue one with `tidegate ca issue --dir . \
         --node n2 --region eu`, or set TIDEGATE_NODE__ID to the certificate's name",
    );
}

/// As is one of a time when certificates named no region, whatever the region is.
#[test]
fn a_certificate_of_another_region_is_refused() {
    let pki = Pki::new();
    let bearer = Bearer::core("n1", "us");
    let error = pki::load(&pki.tls("n1"), bearer, NOW).unwrap_err();
    assert_eq!(
        pki.relative(&error.to_string()),
        "n1.pem: does not carry the name us.region.tidegate (it needs the node id, mesh.tidegate, \
         us.region.tidegate and core.role.tidegate); issue one with `tidegate ca issue --dir . \
         --node n1 --region us --renew`, or set TIDEGATE_NODE__REGION to the certificate's region",
    );
}

#[test]
fn further_lines_of_the_secret_s_file_are_accepted_from_peers() {
    let pki = Pki::new();
    let path = pki.dir().join("cluster.secret");
    let lines = |count: u8| (1..=count).map(|line| format!("{line:02x}").repeat(16) + "\n");
    fs::write(&path, lines(4).collect::<String>()).unwrap();
    let identity = pki.load("n1").unwrap();
    assert_eq!(identity.secret, [1; 16]);
    assert_eq!(identity.other_secrets, [[2; 16], [3; 16], [4; 16]]);
    fs::write(&path, lines(5).collect::<String>()).unwrap();
    let text = pki.refusal("n1", NOW);
    assert!(text.starts_with("cluster.secret: contains no 32 hexadecimal digits"), "{text}");
}

#[test]
fn several_authorities_are_trusted() {
    let (pki, other) = (Pki::new(), Pki::new());
    let pem = |pki: &Pki| fs::read_to_string(pki.dir().join("ca.pem")).unwrap();
    fs::write(pki.dir().join("ca.pem"), pem(&other) + &pem(&pki)).unwrap();
    let identity = pki.load("n1").unwrap();
    assert_eq!(identity.roots.len(), 2);
    let theirs = other.load("n1").unwrap().chain;
    assert_eq!(pki::verify_peer(&theirs, &identity.roots, NOW), Ok(()));
    fs::write(pki.dir().join("ca.pem"), pem(&other)).unwrap();
    let text = pki.refusal("n1", NOW);
    assert!(text.starts_with("n1.pem: not a node certificate of the authority"), "{text}");
    let only_ours = Pki::new().load("n1").unwrap().roots;
    let error = pki::verify_peer(&theirs, &only_ours, NOW).unwrap_err();
    assert!(error.starts_with("of an authority that is not in tls.ca"), "{error}");
    let late = NOW.plus(DAY).plus(DAY);
    let error = pki::verify_peer(&theirs, &identity.roots, late).unwrap_err();
    assert_eq!(error, "expired on 2026-01-02");
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let pki = Pki::new();
    pki.issue("n2");
    fs::copy(pki.dir().join("n2.key"), pki.dir().join("n1.key")).unwrap();
    assert_eq!(
        pki.refusal("n1", NOW),
        "n1.key: not the key of n1.pem; copy both from one `tidegate ca issue --dir . --node n1 \
         --region eu --renew`",
    );
}

#[test]
fn the_authority_s_own_certificate_is_no_node_certificate() {
    let pki = Pki::new();
    for (from, to) in [("ca.pem", "n1.pem"), ("ca.key", "n1.key")] {
        fs::copy(pki.dir().join(from), pki.dir().join(to)).unwrap();
    }
    let text = pki.refusal("n1", NOW);
    assert!(text.starts_with("n1.pem: not a node certificate of the authority"), "{text}");
}

#[test]
fn a_file_that_is_missing_or_holds_something_else_is_named() {
    let rows = [
        ("ca.pem", "certificate", "tidegate ca init --dir ."),
        ("n1.pem", "certificate", "tidegate ca issue --dir . --node n1 --region eu"),
        ("n1.key", "private key", "tidegate ca issue --dir . --node n1 --region eu"),
        ("cluster.secret", "32 hexadecimal digits", "tidegate ca init --dir ."),
    ];
    for (name, what, command) in rows {
        let pki = Pki::new();
        fs::write(pki.dir().join(name), "rubbish\n").unwrap();
        let renew = if command.contains("issue") { " --renew" } else { "" };
        assert_eq!(
            pki.refusal("n1", NOW),
            format!("{name}: contains no {what}; create it again with `{command}{renew}`"),
        );
        fs::remove_file(pki.dir().join(name)).unwrap();
        assert_eq!(
            pki.refusal("n1", NOW),
            format!("{name}: no such file; make it with `{command}`"),
        );
    }
}

#[test]
fn nothing_is_overwritten_unless_it_is_renewed() {
    let pki = Pki::new();
    let authority = fs::read(pki.dir().join("ca.key")).unwrap();
    let error = pki::init(pki.dir(), validity(), [8; 16]).unwrap_err();
    assert_eq!(
        pki.relative(&error.to_string()),
        "ca.pem: already there; a new authority would lock out the nodes of the old one: choose \
         another --dir",
    );
    assert_eq!(fs::read(pki.dir().join("ca.key")).unwrap(), authority);

    let before = fs::read(pki.dir().join("n1.key")).unwrap();
    let error = pki::issue(pki.dir(), eu("n1"), validity(), Overwrite::Never).unwrap_err();
    assert_eq!(
        pki.relative(&error.to_string()),
        "n1.pem: already there; give --renew to replace certificate and key",
    );
    assert_eq!(fs::read(pki.dir().join("n1.key")).unwrap(), before);

    let longer = Validity { not_after: NOW.plus(DAY).plus(DAY), ..validity() };
    pki::issue(pki.dir(), eu("n1"), longer, Overwrite::Renew).unwrap();
    assert_eq!(pki.load("n1").unwrap().validity, longer);
}

/// The files as they are when a replacement stops after each of its steps.
#[test]
fn a_replacement_that_stops_anywhere_leaves_a_pair() {
    let pki = Pki::new();
    let file = |name: &str| pki.dir().join(name);
    let read = |name: &str| fs::read(file(name)).unwrap();
    let before = [read("n1.pem"), read("n1.key")];
    let longer = |days: u32| {
        let not_after = (0..days).fold(NOW.plus(DAY), |until, _| until.plus(DAY));
        Validity { not_after, ..validity() }
    };
    let renew = |days| pki::issue(pki.dir(), eu("n1"), longer(days), Overwrite::Renew).unwrap();
    renew(1);
    assert!(!file("n1.key.next").exists());
    let after = [read("n1.pem"), read("n1.key")];
    let is_left_at = |cert: &[u8], key: Option<&[u8]>| {
        fs::write(file("n1.pem"), cert).unwrap();
        fs::remove_file(file("n1.key")).unwrap();
        for (name, text) in [("n1.key", key), ("n1.key.next", Some(&after[1][..]))] {
            let Some(text) = text else { continue };
            fs::write(file(name), text).unwrap();
            fs::set_permissions(file(name), Permissions::from_mode(0o600)).unwrap();
        }
    };
    let pair = pki::IssuedFiles { cert: file("n1.pem"), key: file("n1.key") };
    for (cert, key, validity) in [
        (&before[0], Some(&before[1]), validity()),
        (&after[0], Some(&before[1]), longer(1)),
        (&after[0], None, longer(1)),
        (&after[0], Some(&after[1]), longer(1)),
    ] {
        is_left_at(cert, key.map(|key| &key[..]));
        assert_eq!(pki.load("n1").unwrap().validity, validity, "without a change");
        pair.complete().unwrap();
        assert!(pair.belong_together());
        assert_eq!(pki.load("n1").unwrap().validity, validity);
        // The next one begins with what the last one has left.
        is_left_at(cert, key.map(|key| &key[..]));
        renew(2);
        assert!(pair.belong_together() && !file("n1.key.next").exists());
        assert_eq!(pki.load("n1").unwrap().validity, longer(2));
    }
}

#[test]
fn an_authority_s_key_that_is_not_its_certificate_s_issues_nothing() {
    let (pki, other) = (Pki::new(), Pki::new());
    fs::copy(other.dir().join("ca.key"), pki.dir().join("ca.key")).unwrap();
    let error = pki::issue(pki.dir(), eu("n2"), validity(), Overwrite::Never).unwrap_err();
    assert_eq!(
        pki.relative(&error.to_string()),
        "ca.key: not the key of ca.pem; copy both from one `tidegate ca init --dir .`",
    );
    assert!(!pki.dir().join("n2.pem").exists());
}

#[test]
fn a_name_that_is_no_node_id_is_refused() {
    let pki = Pki::new();
    for name in ["../n1", "N1", "a.b", "7", ""] {
        let error = pki::issue(pki.dir(), eu(name), validity(), Overwrite::Never).unwrap_err();
        assert!(error.to_string().contains("is not a node id; use 1 to 63"), "{error}");
    }
}

/// `--renew` would replace the authority, which no node trusts then.
#[test]
fn a_node_s_files_are_never_those_of_the_authority_or_of_a_signer() {
    let pki = Pki::new();
    let validity = validity();
    pki::issue_signer(pki.dir(), Scope::default(), validity, Overwrite::Never).unwrap();
    let names = ["ca.pem", "ca.key", "signer.pem", "signer.key"];
    let read = || names.map(|name| fs::read(pki.dir().join(name)).unwrap());
    let before = read();
    for overwrite in [Overwrite::Never, Overwrite::Renew] {
        for (name, whose) in [("ca", "the authority"), ("signer", "a signer")] {
            let by_authority = pki::issue(pki.dir(), eu(name), validity, overwrite);
            let (dir, out) = (pki.dir(), pki.dir());
            let by_signer = pki::issue_by_signer(dir, out, eu(name), validity, NOW, overwrite);
            for issued in [by_authority, by_signer] {
                assert_eq!(
                    pki.relative(&issued.unwrap_err().to_string()),
                    format!("{name}.pem: the file of {whose}; choose another name for the node"),
                );
            }
        }
    }
    assert_eq!(read(), before);
}

/// A simulator's clock may start at the epoch; its certificates have to be good then.
#[test]
fn a_certificate_can_be_good_from_the_epoch_on() {
    let dir = tempfile::tempdir().unwrap();
    let validity = Validity { not_before: Timestamp::EPOCH, not_after: Timestamp::NEVER };
    pki::init(dir.path(), validity, [0; 16]).unwrap();
    pki::issue(dir.path(), eu("n1"), validity, Overwrite::Never).unwrap();
    for now in [Timestamp::EPOCH, NOW, Timestamp::from_secs(10_000_000_000)] {
        pki::load(&tls(dir.path(), "n1"), eu("n1"), now).unwrap();
    }
}

/// A folder with an authority and a certificate for `n1`, good for one day.
struct Pki(TempDir);

impl Pki {
    fn new() -> Self {
        let pki = Self(tempfile::tempdir().unwrap());
        pki::init(pki.dir(), validity(), [7; 16]).unwrap();
        pki.issue("n1");
        pki
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn issue(&self, node: &str) {
        pki::issue(self.dir(), eu(node), validity(), Overwrite::Never).unwrap();
    }

    fn tls(&self, node: &str) -> Tls {
        tls(self.dir(), node)
    }

    fn load(&self, node: &str) -> Result<Identity, pki::Error> {
        self.load_at(node, NOW)
    }

    fn load_at(&self, node: &str, now: Timestamp) -> Result<Identity, pki::Error> {
        pki::load(&self.tls(node), eu(node), now)
    }

    fn refusal(&self, node: &str, now: Timestamp) -> String {
        self.relative(&self.load_at(node, now).unwrap_err().to_string())
    }

    /// The text as it would be with this folder as the working directory.
    fn relative(&self, text: &str) -> String {
        assert!(!text.contains('\n'), "{text}");
        let dir = self.dir().to_str().unwrap();
        text.replace(&format!("{dir}/"), "").replace(dir, ".")
    }
}

fn eu(node: &str) -> Bearer<'_> {
    Bearer::core(node, "eu")
}

fn validity() -> Validity {
    Validity { not_before: NOW, not_after: NOW.plus(DAY) }
}

fn tls(dir: &Path, node: &str) -> Tls {
    Tls {
        ca: Some(dir.join("ca.pem")),
        cert: Some(dir.join(format!("{node}.pem"))),
        key: Some(dir.join(format!("{node}.key"))),
        secret: Some(dir.join("cluster.secret")),
    }
}
