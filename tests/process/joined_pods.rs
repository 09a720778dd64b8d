//! Pods of a Kubernetes cluster get their certificates with the tokens of their service account, at
//! an edge that signs: `tidegate join --service-account-token`, `join.service_account`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_testkit::ports;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::token_issuer::{TokenIssuer, claims_of_pod};

use crate::TIDEGATE;

const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
",
    config: "",
    sets: &["cluster.deadline=1s"],
    has_disks: false,
    has_drain_delay: false,
    regions: &[],
};
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_joins_under_its_own_name_alone_and_again_when_it_restarts() {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let api_server = TokenIssuer::rsa("k1");
    let signer = Signer::start(&cluster, &api_server).await;
    let token = token_of(&api_server, "n4");

    let join = |folder: &str, arguments: &[&str]| signer.join(&token, folder, arguments);
    refused(&join("a", &["--node", "n5"]), "that of another pod than the node that it is to be");
    let elsewhere = ["--node", "n4", "--signer", "n1,n2"];
    refused(&join("a", &elsewhere), "it is not node n1 or n2, which is to see the token");
    let foreign = signer.folder.join("foreign");
    succeeded(&run(&["ca", "init", "--dir", text(&foreign)]));
    let foreign = foreign.join("ca.pem");
    let of_another = ["--node", "n4", "--ca", text(&foreign)];
    refused(&join("a", &of_another), "not of the cluster that the token is for");
    assert!(!signer.folder.join("a/node.pem").exists());

    // A pod without a disk: it joins at each start, and its certificate is renewed in between.
    for start in ["first", "second"] {
        succeeded(&join(start, &["--node", "n4", "--if-needed"]));
        let again = succeeded(&join(start, &["--node", "n4", "--if-needed"]));
        assert!(again.contains("this node has its certificate"), "{again}");
        cluster.add_joined("n4", &signer.folder.join(start), OPTIONS).start();
        cluster.one_view().await;
        let node = &cluster.nodes[3];
        node.logged("renewed this node's certificate signed_by=signer-0", 1).await;
        node.logged("reloaded the files of [tls]", 1).await;
        cluster.one_view().await;
        cluster.nodes.pop().unwrap().kill();
    }
    let keys = ["first", "second"].map(|start| read(&signer.folder.join(start).join("node.key")));
    assert_ne!(keys[0], keys[1]);

    // The API server signs with another key from now on.
    let next = TokenIssuer::p256("k2");
    let token = token_of(&next, "n4");
    let join = |folder: &str| signer.join(&token, folder, &["--node", "n4"]);
    refused(&join("b"), "the published keys have none with the id that it names");
    fs::write(&signer.keys, next.keys()).unwrap();
    succeeded(&join("b"));
    let log = signer.node.log();
    let joined = log.matches("a node joined with a token").count();
    assert_eq!(joined, 3, "{log}");
    assert!(log.contains("refused a node that tried to join") && !log.contains(&token), "{log}");
}

/// An edge that signs.
struct Signer {
    node: Node,
    folder: PathBuf,
    peer: String,
    /// The file of the published keys.
    keys: PathBuf,
}

impl Signer {
    /// As the chart has it: with the files of a signer, by which it makes its own certificate.
    async fn start(cluster: &Cluster, issuer: &TokenIssuer) -> Self {
        let folder = cluster.dir.path().join("pki");
        let mut node = cluster.edge("signer-0", OPTIONS);
        succeeded(&run(&["ca", "signer", "--dir", text(&folder)]));
        // The authority's key is not needed any more.
        fs::remove_file(folder.join("ca.key")).unwrap();
        let own = folder.join("own");
        fs::create_dir(&own).unwrap();
        let issue = ["ca", "issue", "--by-signer", "--node", "signer-0", "--role", "edge"];
        let folders = ["--dir", text(&folder), "--out", text(&own)];
        succeeded(&run(&[&issue[..], &folders].concat()));

        let (keys, listen) = (folder.join("jwks.json"), ports::free());
        fs::write(&keys, issuer.keys()).unwrap();
        let file = |name: &str| folder.join(name).display().to_string();
        for (key, value) in [
            ("tls.cert", file("own/signer-0.pem")),
            ("tls.key", file("own/signer-0.key")),
            ("join.listen", listen.to_string()),
            ("join.signer_cert", file("signer.pem")),
            ("join.signer_key", file("signer.key")),
            // Its last third has begun when it is issued.
            ("join.valid_for", "1m".to_owned()),
            ("join.service_account", "limits/tidegate".to_owned()),
            ("join.service_account_issuer", ISSUER.to_owned()),
            ("join.service_account_keys", keys.display().to_string()),
        ] {
            node.set(&format!("{key}={value}"));
        }
        node.start();
        node.is_serving().await;
        Self { node, folder, peer: listen.to_string(), keys }
    }

    fn join(&self, token: &str, folder: &str, arguments: &[&str]) -> Output {
        let (file, ca) = (self.folder.join("token"), self.folder.join("ca.pem"));
        fs::write(&file, token).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let folder = self.folder.join(folder);
        let mut all = vec!["join", "--peer", &self.peer, "--service-account-token", text(&file)];
        all.extend(["--dir", text(&folder)]);
        for (name, value) in [("--signer", "signer-0"), ("--ca", text(&ca))] {
            if !arguments.contains(&name) {
                all.extend([name, value]);
            }
        }
        run(&[&all, arguments].concat())
    }
}

/// A token for a pod that is good for ten minutes.
#[expect(clippy::disallowed_methods, reason = "what matters is the time that the signer sees")]
fn token_of(issuer: &TokenIssuer, pod: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let end = since.as_secs() + 600;
    issuer.sign(&claims_of_pod(ISSUER, "tidegate", "limits/tidegate", pod, end))
}

fn run(arguments: &[&str]) -> Output {
    Command::new(TIDEGATE).env_clear().args(arguments).output().unwrap()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output, problem: &str) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(problem), "{problem}: {text}");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
