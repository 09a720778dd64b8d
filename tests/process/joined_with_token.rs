//! A node gets its certificate with a token, renews it by itself, and is shut out when it is
//! revoked: `tidegate ca signer`, `ca token`, `join`, `ca revoke`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use tidegate_cluster::pki::{self, IssuedFiles, JoinToken};
use tidegate_testkit::http_client::{Http, check_body};
use tidegate_testkit::ports;
use tidegate_testkit::process::{Cluster, ClusterOptions, Node, THREE};
use tidegate_testkit::wait::until;
use tokio::time::{Instant, timeout};

use crate::TIDEGATE;

const OPTIONS: ClusterOptions<'_> = ClusterOptions {
    nodes: THREE,
    rules: "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10, on_unavailable: deny, durability: replicated}}
",
    config: "",
    sets: &["cluster.deadline=1s"],
    has_disks: true,
    has_drain_delay: false,
    regions: &[],
};
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_works_once_and_the_certificate_is_renewed_without_a_restart() {
    // Its last third has begun when it is issued.
    let (mut cluster, peer) = signing(&["join.valid_for=1m"]).await;
    let first = &cluster.nodes[0];
    let token = token(first, &["--node", "n4"]);
    let folder = |name: &str| cluster.dir.path().join(name);
    let elsewhere = JoinToken { pin: [7; 32], ..token.parse().unwrap() }.to_string();
    let unknown = JoinToken { secret: [7; 16], ..token.parse().unwrap() }.to_string();
    let other = JoinToken { signer: "n2".to_owned(), ..token.parse().unwrap() }.to_string();
    for (token, problem) in [
        (&*elsewhere, "not of the cluster that the token is for"),
        (&*unknown, "has not made the token"),
        (&*other, "it is not node n2, which is to see the token"),
        ("tgjoin1_AAAA", "not a token"),
    ] {
        refused(join(&peer, token, &folder("refused")), problem);
    }
    // A node without a signer makes none, and nobody makes one for a name that is none.
    let order = |node: &Node, name: &str| ca(node, &["token", "--node", name]);
    refused(order(&cluster.nodes[1], "n4"), "this node signs no certificates");
    refused(order(first, "n_4"), "is not a node id");

    let pki = folder("joined");
    succeeded(&join(&peer, &token, &pki));
    refused(join(&peer, &token, &pki), "this node has joined already");
    refused(join(&peer, &token, &folder("again")), "the token was used already");
    let if_needed =
        tidegate(&["join", "--if-needed", "--peer", &peer, "--token", &token, "--dir"], &pki);
    succeeded(&if_needed);
    let (key, certificate) = (read(&pki, "node.key"), read(&pki, "node.pem"));
    // A unit and an operator at once.
    for round in 0..5 {
        let token = self::token(first, &["--node", "n4"]);
        let pki = folder(&format!("raced-{round}"));
        let arguments = ["join", "--if-needed", "--peer", &peer, "--token", &token, "--dir"];
        let started: Vec<_> = (0..4).map(|_| command(&arguments, &pki).spawn().unwrap()).collect();
        for process in started {
            succeeded(&process.wait_with_output().unwrap());
        }
        let pair = IssuedFiles { cert: pki.join("node.pem"), key: pki.join("node.key") };
        assert!(pair.belong_together(), "round {round}");
    }
    // A key that was in use may be in other hands.
    let raced = folder("raced-0");
    let used = read(&raced, "node.key");
    fs::remove_file(raced.join("node.pem")).unwrap();
    succeeded(&join(&peer, &self::token(first, &["--node", "n4"]), &raced));
    assert_ne!(read(&raced, "node.key"), used, "another token, another key");
    assert!(!raced.join("node.key.next").exists());
    // It is for n4 alone.
    let node = cluster.add_joined("n5", &pki, OPTIONS);
    node.start();
    assert_eq!(node.exit_code(PATIENCE).await, Some(2));
    assert!(node.log().contains("does not carry the name n5"), "{}", node.log());
    cluster.nodes.pop();

    cluster.add_joined("n4", &pki, OPTIONS).start();
    cluster.one_view().await;
    let node = &cluster.nodes[3];
    node.logged("renewed this node's certificate signed_by=n1", 1).await;
    node.logged("reloaded the files of [tls]", 1).await;
    assert_ne!(read(&pki, "node.key"), key, "with a new key");
    let renewed = read(&pki, "node.pem");
    let [earlier, later] =
        [&certificate, &renewed].map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
    assert!(pki::begins_at(&later) > pki::begins_at(&earlier));
    assert_eq!(pki::admitted_at(&later), pki::admitted_at(&earlier), "a revocation ends both");
    cluster.one_view().await;
    let log = cluster.nodes[0].log();
    for line in ["made a token to join", "a node joined with a token", "renewed the certificate"] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let secret = token.parse::<JoinToken>().unwrap().secret;
    assert!(!log.contains(&token) && !log.contains(&hex(&secret)), "the token is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_does_not_finish_its_request_is_cut_off() {
    let (_cluster, peer) = signing(&[]).await;
    let mut curl = Command::new("curl");
    curl.args(["-sk", "-X", "POST", "-H", "content-length: 9000", "-w", "%{http_code}", "-T", "."]);
    curl.arg(format!("https://{peer}/join"));
    curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut stranger = curl.spawn().unwrap();
    let _stays_open = stranger.stdin.take();
    let answered = tokio::task::spawn_blocking(|| stranger.wait_with_output().unwrap());
    let answered = timeout(PATIENCE, answered).await.expect("an answer").unwrap();
    let text = String::from_utf8(answered.stdout).unwrap();
    assert!(text.contains("send the whole request at once") && text.ends_with("408"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_long_a_signer_lasts_is_a_metric_of_the_node_that_signs() {
    let (cluster, _) = signing(&[]).await;
    let [first, others @ ..] = &cluster.nodes[..] else { panic!("no node") };
    // It began an hour before it was made.
    days_of_signer(first, 89).await;
    for node in others {
        let text = cluster.http.get(node.admin, "/metrics").await.unwrap().body;
        assert!(!text.contains("tidegate_signer"), "{} has no signer", node.id);
    }
    let file = cluster.dir.path().join("pki/signer.pem");
    let certificate = fs::read(&file).unwrap();
    fs::write(&file, "nothing").unwrap();
    days_of_signer(first, 0).await;
    first.logged("this node cannot sign certificates", 1).await;
    fs::write(&file, certificate).unwrap();
    days_of_signer(first, 89).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_node_is_refused_by_all_and_its_keys_move() {
    let (mut cluster, peer) = signing(&[]).await;
    let pki = cluster.dir.path().join("joined");
    let [used, unused] = [(); 2].map(|()| token(&cluster.nodes[0], &["--node", "n4"]));
    succeeded(&join(&peer, &used, &pki));
    cluster.add_joined("n4", &pki, OPTIONS).start();
    cluster.one_view().await;
    let client = Http::new();
    let user = key_of(&cluster.nodes[0], "n4").await;
    for _ in 0..7 {
        assert!(passes(&client, &cluster.nodes[1], &user).await);
    }

    refused(ca(&cluster.nodes[1], &["revoke", "--node", "n2"]), "ask another to revoke it");
    refused(ca(&cluster.nodes[1], &["revoke", "--node", "n44"]), "no node n44 is known here");
    succeeded(&ca(&cluster.nodes[1], &["revoke", "--node", "n55", "--unknown"]));
    // A certificate that replaces a revoked one begins in the next second, which `join` waits for.
    let at_once = cluster.dir.path().join("at-once");
    succeeded(&join(&peer, &token(&cluster.nodes[0], &["--node", "n55"]), &at_once));
    assert!(has_begun(&at_once.join("node.pem")));
    // What is confirmed is on the disks, whatever dies next.
    for number in 0..20 {
        let name = format!("z{number}");
        succeeded(&ca(&cluster.nodes[1], &["revoke", "--node", &name, "--unknown"]));
        for node in &cluster.nodes {
            let kept = fs::read_to_string(node.data_dir().join("revoked.json")).unwrap();
            assert!(kept.contains(&format!("\"{name}\"")), "{}: {kept}", node.id);
        }
    }
    let began = Instant::now();
    let revoked = succeeded(&ca(&cluster.nodes[1], &["revoke", "--node", "n4", "--json"]));
    let revoked: Value = serde_json::from_str(&revoked).unwrap();
    assert_eq!((&revoked["revoked"], &revoked["missed"]), (&"n4".into(), &Value::Array(vec![])));
    assert_eq!(revoked["confirmed"].as_array().unwrap().len(), 2, "n4 itself need not: {revoked}");
    for node in &cluster.nodes[..3] {
        let closed = async || match node.metric("tidegate_mesh_untrusted_total").await {
            0 => Err(format!("{} is connected to it", node.id)),
            _ => Ok(()),
        };
        until("all have closed their connection with it", PATIENCE, closed).await;
    }
    println!("all nodes had closed their connections after {:?}", began.elapsed());
    let moved = async || match cluster.nodes[0].owner("d", "user", &user).await {
        owner if owner == "n4" => Err("n4 owns it".to_owned()),
        _ => Ok(()),
    };
    until("its keys move", PATIENCE, moved).await;
    println!("its keys had moved after {:?}", began.elapsed());
    let mut admitted = 0;
    for turn in 0..12 {
        let node = &cluster.nodes[turn % 3];
        admitted += usize::from(passes(&client, node, &user).await);
    }
    assert_eq!(admitted, 3, "seven of ten were used");
    // A thief has its tokens, too, with the key for which one was used.
    let stolen = cluster.dir.path().join("stolen");
    fs::create_dir(&stolen).unwrap();
    let of_used = hex(digest(&SHA256, used.as_bytes()).as_ref());
    let kept = format!("For the token with the SHA-256 {of_used}\n{}", read(&pki, "node.key"));
    let next = stolen.join("node.key.next");
    fs::write(&next, kept).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
    for token in [&used, &unused] {
        refused(join(&peer, token, &stolen), "revoked since the token was made");
    }

    // A thief starts it again, and nobody else: the nodes know it from their disks.
    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    let thief = &cluster.nodes[3];
    thief.logged("the certificate of node n4 is revoked", 1).await;
    for node in &mut cluster.nodes[..3] {
        node.is_serving().await;
        assert_eq!(succeeded(&ca(node, &["revoked"])).split_whitespace().next(), Some("n4"));
    }

    // A new token, and the name is good again.
    let mut stolen = cluster.nodes.pop().unwrap();
    stolen.kill();
    let again = cluster.dir.path().join("again");
    succeeded(&join(&peer, &token(&cluster.nodes[0], &["--node", "n4"]), &again));
    cluster.add_joined("n4", &again, OPTIONS).start();
    cluster.one_view().await;

    // Stolen again.
    succeeded(&ca(&cluster.nodes[1], &["revoke", "--node", "n4"]));
    let thief = &mut cluster.nodes[3];
    thief.kill();
    thief.start();
    thief.logged("the certificate of node n4 is revoked", 1).await;
}

/// Whole days until the signer of a node expires.
async fn days_of_signer(node: &Node, expected: u64) {
    let condition = async || match node.metric("tidegate_signer_expires_seconds").await / 86_400 {
        days if days == expected => Ok(()),
        days => Err(format!("{days} days")),
    };
    until(&format!("the signer lasts for {expected} days"), PATIENCE, condition).await;
}

/// Also one whose certificate was none of a signer when it started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_renews_a_certificate_that_replaced_another_one() {
    // Its last third has begun when it is issued.
    let (cluster, peer) = signing(&["join.valid_for=1m"]).await;
    let pki = cluster.dir.path().join("joined");
    succeeded(&join(&peer, &token(&cluster.nodes[0], &["--node", "n2"]), &pki));
    for (name, own) in [("node.key", "n2.key"), ("node.pem", "n2.pem")] {
        fs::rename(pki.join(name), cluster.dir.path().join("pki").join(own)).unwrap();
    }
    cluster.nodes[1].logged("renewed this node's certificate", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_own_signer_may_not_sign_for_it_asks_others() {
    let (mut cluster, peer) = signing(&["join.valid_for=1m"]).await;
    let folder = |name: &str| cluster.dir.path().join(name);
    let (pki, for_edges) = (folder("joined"), folder("for-edges"));
    succeeded(&join(&peer, &token(&cluster.nodes[0], &["--node", "n2"]), &pki));
    for (name, own) in [("node.key", "n2.key"), ("node.pem", "n2.pem")] {
        fs::rename(pki.join(name), folder("pki").join(own)).unwrap();
    }
    let node = &mut cluster.nodes[1];
    node.set(&format!("join.signer_cert={}", for_edges.join("signer.pem").display()));
    node.set(&format!("join.signer_key={}", for_edges.join("signer.key").display()));
    node.kill();
    node.start();
    cluster.nodes[1].logged("renewed this node's certificate signed_by=n1", 1).await;
}

/// Three nodes, of which the first signs, and the address at which it does. In `for-edges` is a
/// signer of edges alone.
async fn signing(sets: &[&str]) -> (Cluster, String) {
    let mut cluster = Cluster::start(TIDEGATE, OPTIONS).await;
    let pki = cluster.dir.path().join("pki");
    succeeded(&tidegate(&["ca", "signer", "--dir"], &pki));
    let for_edges = cluster.dir.path().join("for-edges");
    fs::create_dir(&for_edges).unwrap();
    for name in ["ca.pem", "ca.key"] {
        fs::copy(pki.join(name), for_edges.join(name)).unwrap();
    }
    succeeded(&tidegate(&["ca", "signer", "--role", "edge", "--dir"], &for_edges));
    // The authority's key is not needed any more.
    for folder in [&pki, &for_edges] {
        fs::remove_file(folder.join("ca.key")).unwrap();
    }
    let listen = ports::free();
    let node = &mut cluster.nodes[0];
    node.set(&format!("join.listen={listen}"));
    node.set(&format!("join.signer_cert={}", pki.join("signer.pem").display()));
    node.set(&format!("join.signer_key={}", pki.join("signer.key").display()));
    for set in sets {
        node.set(set);
    }
    node.kill();
    node.start();
    cluster.one_view().await;
    (cluster, listen.to_string())
}

async fn passes(client: &Http, node: &Node, user: &str) -> bool {
    let reply = client.check(node.http, &check_body("d", "user", user)).await.unwrap();
    reply.status == 200
}

async fn key_of(node: &Node, owner: &str) -> String {
    for number in 0..1_000 {
        let user = format!("u{number}");
        if node.owner("d", "user", &user).await == owner {
            return user;
        }
    }
    panic!("{owner} owns nothing");
}

fn token(node: &Node, arguments: &[&str]) -> String {
    succeeded(&ca(node, &[&["token"], arguments].concat())).trim().to_owned()
}

fn ca(node: &Node, arguments: &[&str]) -> Output {
    let url = format!("http://{}", node.admin);
    let arguments = [&["ca"], arguments, &["--url", &url]].concat();
    Command::new(TIDEGATE).env_clear().args(arguments).output().unwrap()
}

fn join(peer: &str, token: &str, pki: &Path) -> Output {
    tidegate(&["join", "--peer", peer, "--token", token, "--dir"], pki)
}

/// The last argument is a folder.
fn tidegate(arguments: &[&str], folder: &Path) -> Output {
    command(arguments, folder).output().unwrap()
}

fn command(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.env_clear().args(arguments).arg(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: Output, problem: &str) {
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(problem), "{problem}: {text}");
}

fn read(pki: &Path, name: &str) -> String {
    fs::read_to_string(pki.join(name)).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
}

/// Whether a certificate is valid by now.
#[expect(clippy::disallowed_methods, reason = "the clock of the node that is to use it")]
fn has_begun(certificate: &Path) -> bool {
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    pki::begins_at(&certificate).unwrap().as_secs() <= now.as_secs()
}
