//! The command line: exit codes, one line on standard error, help, files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Method;
use tidegate::admin::report::{
    CertificateReport, ClockReport, EdgesReport, FollowsReport, MapMemberReport, MapMemberState,
    MapReport, MemberReport, MemberState, NodeReport, OwnerOf, OwnerReport, OwnershipReport,
    RuleBookReport, RuleReport, StorageReport, StoreReport, Votes,
};
use tidegate::admin::{MembersReport, RegionsReport, StatusReport};
use tidegate::storage::map_file::MapFile;
use tidegate_cluster::consensus::Saved;
use tidegate_cluster::pki::IssuedFiles;
use tidegate_ownership::cluster_map::{
    ClusterId, Collection, HomeRegions, Identity, MapMember, MapState, Voters,
};
use tidegate_ownership::identity::{Generation, NodeId};
use tidegate_ownership::{ClusterMap, Epoch, MemberId, Versions};
use tidegate_rules::stats::{GrantedCounts, RuleCounts};
use tidegate_testkit::http_client::Http;
use tidegate_testkit::ports;
use tidegate_testkit::wait::eventually;

use crate::TIDEGATE;

#[test]
fn help_describes_each_command_with_examples() {
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help_serve", &["serve", "--help"]),
        ("help_proxy", &["proxy", "--help"]),
        ("help_ratelimit", &["ratelimit", "--help"]),
        ("help_gubernator", &["gubernator", "--help"]),
        ("help_config_check", &["ratelimit-config-check", "--help"]),
        ("help_check", &["check", "--help"]),
        ("help_rules_validate", &["rules", "validate", "--help"]),
        ("help_rules_test", &["rules", "test", "--help"]),
        ("help_rules_schema", &["rules", "schema", "--help"]),
        ("help_config_schema", &["config", "schema", "--help"]),
        ("help_ca_init", &["ca", "init", "--help"]),
        ("help_ca_issue", &["ca", "issue", "--help"]),
        ("help_ca_signer", &["ca", "signer", "--help"]),
        ("help_ca_token", &["ca", "token", "--help"]),
        ("help_ca_revoke", &["ca", "revoke", "--help"]),
        ("help_join", &["join", "--help"]),
        ("help_status", &["status", "--help"]),
        ("help_top", &["top", "--help"]),
        ("help_healthcheck", &["healthcheck", "--help"]),
        ("help_completions", &["completions", "--help"]),
        ("help_man", &["man", "--help"]),
        ("help_regions", &["regions", "--help"]),
        ("help_members", &["members", "--help"]),
        ("help_forget", &["forget", "--help"]),
        ("help_bootstrap", &["bootstrap", "--help"]),
        ("help_recover", &["recover", "--help"]),
        ("help_export_nftables", &["export", "nftables", "--help"]),
    ] {
        let run = tidegate(args);
        assert_eq!(run.code, 0, "{name}");
        insta::assert_snapshot!(name, run.stdout);
    }
}

#[test]
fn a_mistake_in_the_configuration_is_one_line_and_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.toml");
    fs::write(&file, "[http]\nlisten = \"127.0.0.1:1\"\nlisen = 1\n").unwrap();
    let file = file.to_str().unwrap();

    let run = tidegate(&["serve", "--config", file]);
    let line = format!("tidegate: {file}:3: unknown key http.lisen; did you mean http.listen?\n");
    assert_eq!((run.code, &*run.stderr, &*run.stdout), (2, &*line, ""));

    let run = tidegate(&["serve", "--config", "/nowhere.toml"]);
    assert_eq!(
        (run.code, &*run.stderr),
        (
            2,
            "tidegate: /nowhere.toml: no such file; pass --config the path of a configuration \
             file, or omit it to run one node on loopback\n"
        )
    );

    let run = output(command(&["serve"]).env("TIDEGATE_NODE__IDD", "x"));
    assert_eq!(
        (run.code, &*run.stderr),
        (
            2,
            "tidegate: TIDEGATE_NODE__IDD: unknown key node.idd; did you mean TIDEGATE_NODE__ID?\n"
        )
    );

    let run = tidegate(&["serve", "--log", "tidegate=loud"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.starts_with("tidegate: log filter \"tidegate=loud\": "), "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1);
}

#[test]
fn config_check_has_the_lines_and_exit_codes_of_envoy_ratelimit() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("ratelimit_config_check");
    std::os::unix::fs::symlink(TIDEGATE, &link).unwrap();
    let config = dir.path().join("config");
    // As a ConfigMap is mounted: its files stand in a folder with dots, too.
    fs::create_dir_all(config.join("..data")).unwrap();
    fs::write(config.join("a.yaml"), "domain: a").unwrap();
    fs::write(config.join("b"), "domain: a").unwrap();
    let folder = config.to_str().unwrap();
    let begin = format!(
        "checking rate limit configs...\nloading config directory: {folder}\n\
         opening config file: {folder}/a.yaml\nopening config file: {folder}/b\n"
    );

    let run = output(Command::new(&link).args(["-config_dir", folder, "-merge_domain_configs"]));
    assert_eq!((run.code, run.stdout), (0, format!("{begin}all rate limit configs ok\n")));

    let run = tidegate(&["ratelimit-config-check", "-config_dir", folder]);
    let error = run.stdout.strip_prefix(&begin).unwrap();
    assert_eq!(run.code, 1);
    assert!(error.starts_with("error loading rate limit configs: "), "{error}");
    assert!(error.contains("duplicate domain 'a' in config file"), "{error}");

    let run = tidegate(&["ratelimit-config-check", "--config_dir=/nowhere"]);
    assert_eq!(run.code, 1);
    assert!(
        run.stdout.contains("error opening directory /nowhere: No such file"),
        "{}",
        run.stdout
    );

    let run = tidegate(&["ratelimit-config-check", "-dir", folder]);
    assert_eq!(
        (run.code, &*run.stderr),
        (2, "tidegate: flag provided but not defined: -dir; see --help\n")
    );
}

#[test]
fn ca_makes_files_that_only_their_owner_reads_and_overwrites_none() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let pki = pki.to_str().unwrap();

    let run = tidegate(&["ca", "init", "--dir", pki]);
    let listed = format!("{pki}/ca.pem\n{pki}/ca.key\n{pki}/cluster.secret\n");
    assert_eq!((run.code, run.stdout, &*run.stderr), (0, listed, ""));
    let run = tidegate(&["ca", "issue", "--dir", pki, "--node", "n1"]);
    assert_eq!((run.code, run.stdout), (0, format!("{pki}/n1.pem\n{pki}/n1.key\n")));
    for name in ["ca.key", "cluster.secret", "n1.key"] {
        let mode = fs::metadata(format!("{pki}/{name}")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }

    let run = tidegate(&["ca", "init", "--dir", pki]);
    let line = format!(
        "tidegate: {pki}/ca.pem: already there; a new authority would lock out the nodes of the \
         old one: choose another --dir\n"
    );
    assert_eq!((run.code, run.stderr), (2, line));
    let issue = ["ca", "issue", "--dir", pki, "--node", "n1"];
    assert_eq!(tidegate(&issue).code, 2);
    assert_eq!(tidegate(&[&issue[..], &["--renew"]].concat()).code, 0);

    let run = tidegate(&["ca", "issue", "--dir", "/nowhere", "--node", "n1"]);
    assert_eq!(
        (run.code, &*run.stderr),
        (
            2,
            "tidegate: /nowhere/ca.pem: no such file; make it with `tidegate ca init --dir \
             /nowhere`\n"
        )
    );
}

/// What is left is of one of them.
#[test]
fn of_two_ca_commands_at_once_in_a_folder_one_waits_for_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let pki = pki.to_str().unwrap();
    let at_once = |arguments: &[&str]| -> usize {
        let piped = |command: &mut Command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let running: Vec<_> = (0..4).map(|_| piped(&mut command(arguments))).collect();
        let codes = running.into_iter().map(|it| it.wait_with_output().unwrap().status.code());
        codes.filter(|code| *code == Some(0)).count()
    };
    for _ in 0..5 {
        let _ = fs::remove_dir_all(pki);
        assert_eq!(at_once(&["ca", "init", "--dir", pki]), 1);
        let issue = ["ca", "issue", "--dir", pki, "--node", "n1"];
        assert_eq!(at_once(&issue), 1, "the authority has its key");
        assert_eq!(at_once(&[&issue[..], &["--renew"]].concat()), 4);
        let [cert, key] = ["n1.pem", "n1.key"].map(|name| Path::new(pki).join(name));
        assert!(IssuedFiles { cert, key }.belong_together());
        assert_eq!(fs::read_dir(pki).unwrap().count(), 5, "no drafts are left");
    }
}

#[test]
fn rules_answer_with_their_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    let path = file.to_str().unwrap();
    fs::write(
        &file,
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: minute, requests_per_unit: 3 }\n",
    )
    .unwrap();
    assert_eq!(tidegate(&["rules", "validate", path]).code, 0);
    assert_eq!(tidegate(&["rules", "test", "d", "k=v", "--rules", path]).code, 0);
    assert_eq!(tidegate(&["rules", "test", "d", "other=v", "--rules", path]).code, 1);

    fs::write(&file, "domain: d\ndescriptorz: []\n").unwrap();
    assert_eq!(tidegate(&["rules", "validate", path]).code, 1);
    let run = tidegate(&["rules", "test", "d", "k=v", "--rules", path]);
    assert_eq!((run.code, run.stderr.lines().count()), (2, 1), "{}", run.stderr);
    assert!(run.stderr.starts_with("tidegate: "), "{}", run.stderr);
}

#[test]
fn check_answers_with_its_exit_code_whatever_the_status_of_a_refusal() {
    let allowed = "HTTP/1.1 200 OK\r\nx-ratelimit-limit: 10\r\nx-ratelimit-remaining: 9\r\n";
    let denied = "HTTP/1.1 503 Service Unavailable\r\nx-ratelimit-limit: 10\r\n\
                  x-ratelimit-remaining: 0\r\nretry-after: 43\r\n";
    let over = "{\"overallCode\":\"OVER_LIMIT\"}";

    let node = Fake::start(allowed, "{\"overallCode\":\"OK\"}");
    let run = tidegate(&["check", "demo", "user=a=b", "--url", &node.url, "--hits", "2"]);
    assert_eq!((run.code, &*run.stdout), (0, "allowed: limit 10, remaining 9\n"));
    let (head, body) = node.request();
    assert_eq!(head, "POST /v1/check HTTP/1.1");
    let expected = serde_json::json!({
        "domain": "demo",
        "descriptors": [{ "entries": [{ "key": "user", "value": "a=b" }] }],
        "hitsAddend": 2,
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap(), expected);

    let node = Fake::start(denied, over);
    let run = tidegate(&["check", "demo", "user=a", "--url", &node.url]);
    assert_eq!((run.code, &*run.stdout), (1, "denied: limit 10, remaining 0, retry after 43s\n"));

    let node = Fake::start(denied, over);
    let run = tidegate(&["check", "demo", "user=a", "--json", "--url", &node.url]);
    assert_eq!((run.code, run.stdout), (1, format!("{over}\n")));
}

#[test]
fn check_without_a_verdict_is_one_line_and_code_2() {
    // A port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = tidegate(&["check", "demo", "user=a", "--url", &format!("http://{closed}")]);
    let line = format!(
        "tidegate: http://{closed}/v1/check: connection refused; start a node with `tidegate \
         serve`, or set --url to the address of one, with https, --ca and \
         --client-cert where its listener has TLS\n"
    );
    assert_eq!((run.code, run.stderr), (2, line));

    let node = Fake::start(
        "HTTP/1.1 400 Bad Request\r\n",
        "{\"error\":\"rate limit domain must not be empty\"}",
    );
    let run = tidegate(&["check", "", "user=a", "--url", &node.url]);
    let url = &node.url;
    let line = format!(
        "tidegate: {url}/v1/check answered 400 Bad Request; rate limit domain must not be empty\n"
    );
    assert_eq!((run.code, run.stderr), (2, line));

    let node = Fake::start("HTTP/1.1 200 OK\r\n", "<html>");
    let run = tidegate(&["check", "demo", "user=a", "--url", &node.url]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("without a verdict"), "{}", run.stderr);

    let run = tidegate(&["check", "demo", "user=a", "--url", "ftp://node:1"]);
    assert_eq!(
        (run.code, &*run.stderr),
        (
            2,
            "tidegate: ftp://node:1/v1/check: not the URL of a node; set --url to \
             http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:8080\n"
        )
    );
    assert_eq!(tidegate(&["check", "demo", "user"]).code, 2);
    assert_eq!(tidegate(&["check", "demo"]).code, 2);
}

#[test]
fn status_is_a_table_that_marks_who_disagrees() {
    let json = serde_json::to_string(&status()).unwrap();
    let node = Fake::start("HTTP/1.1 200 OK\r\n", &json);
    let run = tidegate(&["status", "--url", &node.url]);
    assert_eq!((run.code, &*run.stderr), (0, ""));
    insta::assert_snapshot!("status", run.stdout);
    assert_eq!(node.request().0, "GET /status HTTP/1.1");

    let node = Fake::start("HTTP/1.1 200 OK\r\n", &json);
    let run = tidegate(&["status", "--json", "--url", &node.url]);
    assert_eq!(serde_json::from_str::<StatusReport>(&run.stdout).unwrap(), status());
}

#[test]
fn regions_are_homes_with_the_nodes_that_stand_for_them() {
    let MembersReport { map, .. } = members();
    let report = RegionsReport {
        node: "n1".to_owned(),
        region: "eu".to_owned(),
        failover: Some("manual".to_owned()),
        homes: vec!["ap".to_owned(), "eu".to_owned()],
        has_lease: true,
        map,
    };
    let node = Fake::start("HTTP/1.1 200 OK\r\n", &serde_json::to_string(&report).unwrap());
    let run = tidegate(&["regions", "--url", &node.url]);
    assert_eq!((run.code, &*run.stderr), (0, ""));
    insta::assert_snapshot!("regions", run.stdout);
    let fixed = RegionsReport { failover: None, map: None, ..report };
    let node = Fake::start("HTTP/1.1 200 OK\r\n", &serde_json::to_string(&fixed).unwrap());
    let run = tidegate(&["regions", "--url", &node.url]);
    let line = "global keys are at home in ap, eu, for ever: n1 has no global.founders\n";
    assert_eq!((run.code, &*run.stdout), (0, line));
}

#[test]
fn members_are_a_table_with_the_voters_that_are_lost() {
    let json = serde_json::to_string(&members()).unwrap();
    let node = Fake::start("HTTP/1.1 200 OK\r\n", &json);
    let run = tidegate(&["members", "--url", &node.url]);
    assert_eq!((run.code, &*run.stderr), (0, ""));
    insta::assert_snapshot!("members", run.stdout);
    assert_eq!(node.request().0, "GET /members HTTP/1.1");

    let node = Fake::start("HTTP/1.1 200 OK\r\n", &json);
    let run = tidegate(&["members", "--json", "--url", &node.url]);
    assert_eq!(serde_json::from_str::<MembersReport>(&run.stdout).unwrap(), members());

    for (is_standalone, line) in [
        (true, "n1 is a standalone node: it has no members\n"),
        (false, "n1 knows no cluster yet: it has no members\n"),
    ] {
        let report = MembersReport { is_standalone, map: None, ..members() };
        let node = Fake::start("HTTP/1.1 200 OK\r\n", &serde_json::to_string(&report).unwrap());
        let run = tidegate(&["members", "--url", &node.url]);
        assert_eq!((run.code, &*run.stdout), (0, line));
    }

    let old = "this edge is cut off: none of them answers, and this map may be old\n";
    for (is_cut_off, hint) in [(false, ""), (true, old)] {
        let report = MembersReport { is_cut_off: Some(is_cut_off), ..members() };
        let node = Fake::start("HTTP/1.1 200 OK\r\n", &serde_json::to_string(&report).unwrap());
        let run = tidegate(&["members", "--url", &node.url]);
        let lines = format!("5 voters, as the cores that this edge follows have sent it\n{hint}\n");
        assert!(run.stdout.contains(&lines) && !run.stdout.contains("present"), "{}", run.stdout);
    }
}

#[test]
fn orders_to_a_node_are_posts_and_a_refusal_is_one_line() {
    let accepted = "HTTP/1.1 202 Accepted\r\n";
    let node = Fake::start(accepted, "{}");
    let run = tidegate(&["bootstrap", "--url", &node.url]);
    let line = "founding a cluster; `tidegate members` shows it in a few seconds\n";
    assert_eq!((run.code, &*run.stdout), (0, line));
    assert_eq!(node.request().0, "POST /bootstrap HTTP/1.1");

    let node = Fake::start(accepted, "{}");
    let run = tidegate(&["forget", "n 4", "--url", &node.url]);
    assert_eq!((run.code, &*run.stdout), (0, "forgetting n 4\n"));
    assert_eq!(node.request().0, "POST /forget?node=n%204 HTTP/1.1");

    let body = "{\"error\":\"this node does not lead; ask node n2, which does\"}";
    let node = Fake::start("HTTP/1.1 409 Conflict\r\n", body);
    let run = tidegate(&["forget", "n4", "--url", &node.url]);
    let url = &node.url;
    let line = format!(
        "tidegate: {url}/forget?node=n4 answered 409 Conflict; this node does not lead; ask node \
         n2, which does\n"
    );
    assert_eq!((run.code, run.stderr), (2, line));
}

/// The node exits in any case. Its last word is what counts.
#[test]
fn drain_ends_with_what_was_handed_over() {
    let ended = "HTTP/1.1 200 OK\r\n";
    let rows = [
        ((ended, "{\"handed_over\":true,\"reason\":null}"), 0, "drained"),
        (
            (ended, "{\"handed_over\":false,\"reason\":\"no progress\"}"),
            1,
            "exited, but not all keys were handed over with their counts: no progress",
        ),
        (
            (ended, "{\"handed_over\":true,\"reason\":null,\"leaves_majority\":false}"),
            1,
            "drained, but the voters that stay are no majority: no strict key is decided until \
             enough of their voters are back",
        ),
        // A release that does not wait.
        (
            ("HTTP/1.1 202 Accepted\r\n", "{\"draining\":true}"),
            0,
            "exited; its log says whether all keys were handed over",
        ),
    ];
    for ((head, body), code, last) in rows {
        let node = Fake::start(head, body);
        let run = tidegate(&["drain", "--url", &node.url]);
        let lines = format!("waiting until the node has drained and exited\n{last}\n");
        assert_eq!((run.code, run.stdout), (code, lines));
        assert_eq!(node.request().0, "POST /drain?wait=true HTTP/1.1");
    }
}

/// It accepts the connection and does not answer.
#[test]
fn a_drain_that_takes_too_long_is_said_to_go_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let run = tidegate(&["drain", "--timeout", "1", "--url", &url]);
    let last = "still running after 1 s; see `tidegate status`";
    let lines = format!("waiting until the node has drained and exited\n{last}\n");
    assert_eq!((run.code, run.stdout), (1, lines));
}

#[test]
fn a_node_that_is_killed_while_it_drains_is_not_said_to_be_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let node = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
    });
    let run = tidegate(&["drain", "--url", &url]);
    node.join().unwrap();
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("no response: "), "{}", run.stderr);
    assert!(run.stderr.contains("see with `tidegate status` and in its log"), "{}", run.stderr);
}

#[test]
fn recover_refuses_what_it_cannot_do_and_asks_before_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let (config, data) = (dir.path().join("cluster.toml"), dir.path().join("data"));
    fs::create_dir(dir.path().join("rules")).unwrap();
    let rule =
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]\n";
    fs::write(dir.path().join("rules/a.yaml"), rule).unwrap();
    let section = |more: &str| {
        let text = format!("[http]\nlisten = \"127.0.0.1:1\"\n[node]\nid = \"n1\"\n{more}");
        fs::write(&config, text).unwrap();
    };
    let recover = |cluster: &str, more: &[&str]| {
        let args = ["recover", "--config", config.to_str().unwrap(), "--cluster", cluster];
        tidegate(&[&args[..], more].concat())
    };
    let line = |run: &Run| (run.code, run.stderr.replace(data.to_str().unwrap(), "DATA"));
    let refused = |what: &str| (2, format!("tidegate: {what}\n"));

    section("");
    let what = "node.data_dir is not set; there is nothing to recover: nodes without it found a \
                new cluster when a majority of the voters has restarted";
    assert_eq!(line(&recover("1", &[])), refused(what));
    section(&format!("data_dir = {:?}\n", data.to_str().unwrap()));
    let what = "node.data_dir DATA: no cluster-map.redb in it; use the configuration of a node \
                that was a member";
    assert_eq!(line(&recover("1", &[])), refused(what));
    assert!(!data.exists());

    let saved = saved();
    on_disk(&data, Some(&saved));
    let what = "node.data_dir DATA: the record is of cluster 00000000000000000000000000000005; \
                pass its id as --cluster if that is the one you mean";
    assert_eq!(line(&recover("6", &["--yes"])), refused(what));
    let id = "00000000000000000000000000000005";
    let run = recover(id, &[]);
    assert_eq!(run.code, 2);
    insta::assert_snapshot!("recover_warning", run.stderr);
    assert_eq!(on_disk(&data, None), saved, "nothing was changed");

    let run = recover(id, &["--yes"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    insta::assert_snapshot!("recover", run.stdout);
    let map = on_disk(&data, None).map.unwrap();
    let epoch = Epoch(7).recovered();
    assert_eq!(map.epoch, epoch);
    assert_eq!(map.voters, Voters { changed_at: epoch, ..Voters::of([saved.identity()]) });
}

#[test]
fn status_of_a_key_names_its_owners() {
    let report = OwnerReport {
        token: "00000000000000ff".to_owned(),
        rule: Some("demo.user".to_owned()),
        mode: Some("strict".to_owned()),
        scope: Some("region".to_owned()),
        owners: vec![
            OwnerOf { region: "eu".to_owned(), node: "n1".to_owned() },
            OwnerOf { region: "us".to_owned(), node: "n3".to_owned() },
        ],
    };
    let json = serde_json::to_string(&report).unwrap();
    let node = Fake::start("HTTP/1.1 200 OK\r\n", &json);
    let run = tidegate(&["status", "--url", &node.url, "--key", "demo", "user=a b&c"]);
    assert_eq!(
        run.stdout,
        "rule demo.user (strict, region), token 00000000000000ff\nowner in eu: n1\nowner in us: n3\n"
    );
    assert_eq!(node.request().0, "GET /owner?domain=demo&user=a%20b%26c HTTP/1.1");
}

#[test]
fn healthcheck_is_an_exit_code() {
    for (head, body, code) in [
        ("HTTP/1.1 200 OK\r\n", "ready\n", 0),
        ("HTTP/1.1 503 Service Unavailable\r\n", "join: no member yet\n", 1),
    ] {
        let node = Fake::start(head, body);
        let run = tidegate(&["healthcheck", "--url", &node.url]);
        assert_eq!((run.code, &*run.stdout), (code, body));
        assert_eq!(node.request().0, "GET /readyz HTTP/1.1");
    }
    let node = Fake::start("HTTP/1.1 200 OK\r\n", "ok\n");
    assert_eq!(tidegate(&["healthcheck", "--alive", "--url", &node.url]).code, 0);
    assert_eq!(node.request().0, "GET /healthz HTTP/1.1");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(tidegate(&["healthcheck", "--url", &format!("http://{free}")]).code, 2);
}

#[test]
fn every_command_has_a_manual_page_and_a_shell_completes_it() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    assert_eq!(tidegate(&["man", pages.to_str().unwrap()]).code, 0);
    let bash = tidegate(&["completions", "bash"]).stdout;
    for name in ["serve", "ca-issue", "rules-test", "export-nftables"] {
        let page = fs::read_to_string(pages.join(format!("tidegate-{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
        let last = name.rsplit('-').next().unwrap();
        assert!(bash.contains(last), "{last} is not completed");
    }
    let run = tidegate(&["man", "/proc/nowhere"]);
    assert_eq!((run.code, run.stderr.lines().count()), (2, 1), "{}", run.stderr);
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let json = serde_json::to_string(&status()).unwrap();
    let node = Fake::start("HTTP/1.1 200 OK\r\n", &json);
    let mut child = command(&["status", "--url", &node.url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// Such as a collector whose disk is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_not_read_stops_no_node() {
    /// Each order is a line of the log. A pipe takes 64 KiB, and 8,192 lines wait.
    const ORDERS: usize = 9_500;
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("rules.yaml"),
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9}}]\n",
    )
    .unwrap();
    let admin = ports::free();
    let mut node = command(&["serve", "--set"]);
    node.arg(format!("admin.listen={admin}"));
    for listener in ["http", "grpc", "resp"] {
        node.args(["--set", &format!("{listener}.listen={}", ports::free())]);
    }
    node.args(["--set", &format!("rules.path={}", dir.path().display())]);
    let node = node.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Also when an assertion fails.
    let node = scopeguard::guard(node, |mut node| drop(node.kill()));
    let http = Http::default();
    eventually("it is ready", Duration::from_secs(30), || {
        std::net::TcpStream::connect(admin).is_ok()
    })
    .await;
    let order = async |order| {
        let path = format!("/key/block?for=1h&domain=d&k={}", order % 500);
        let done = http.send(Method::POST, admin, &path, &[], Bytes::new()).await.unwrap();
        assert_eq!(done.status, 200, "order {order}: {}", done.body);
    };
    stream::iter(0..ORDERS).for_each_concurrent(16, order).await;
    let metrics = http.get(admin, "/metrics").await.unwrap().body;
    let dropped = metrics.lines().find_map(|line| {
        line.strip_prefix("tidegate_log_lines_dropped_total ")?.parse::<u64>().ok()
    });
    assert!(dropped > Some(0), "{dropped:?} lines in\n{metrics}");
    let mut node = scopeguard::ScopeGuard::into_inner(node);
    node.kill().unwrap();
    let unread = node.wait_with_output().unwrap().stderr.len();
    assert!(unread >= 60_000, "the pipe was full: {unread} bytes");
}

// === running the binary ===

struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

fn tidegate(args: &[&str]) -> Run {
    output(&mut command(args))
}

/// The binary in an empty environment: that of the tests must not matter.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.args(args).env_clear().stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

// === a node that responds once ===

struct Fake {
    url: String,
    thread: thread::JoinHandle<(String, String)>,
}

impl Fake {
    /// Answers its one request with `head` (status line and headers) and `body`.
    fn start(head: &str, body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let request = read_request(&mut BufReader::new(stream.try_clone().unwrap()));
            stream.write_all(answer.as_bytes()).unwrap();
            request
        });
        Self { url, thread }
    }

    /// The request line and the body of the request.
    fn request(self) -> (String, String) {
        self.thread.join().unwrap()
    }
}

fn read_request(reader: &mut impl BufRead) -> (String, String) {
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim().to_ascii_lowercase().strip_prefix("content-length: ") {
            Some(number) => length = number.parse().unwrap(),
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (first.trim().to_owned(), String::from_utf8(body).unwrap())
}

/// A member of a cluster of three voters, at epoch 7.
fn saved() -> Saved {
    let identity = |name: &str| Identity { node: NodeId::new(name).unwrap(), birth: 1 };
    let member = MapMember {
        id: MemberId(1),
        identity: identity("n1"),
        start: 1,
        generation: Generation(1),
        addr: ([127, 0, 0, 1], 7600).into(),
        zone: "a".to_owned(),
        versions: Versions::default(),
        state: MapState::Up,
    };
    let map = ClusterMap {
        cluster: ClusterId(5),
        epoch: Epoch(7),
        voters: Voters::of(["n1", "n2", "n3"].map(identity)),
        members: vec![member],
        last_member: MemberId(1),
        homes: HomeRegions::default(),
        version: 4,
        collection: Collection::default(),
    };
    Saved { node: NodeId::new("n1").unwrap(), birth: 1, map: Some(map), engine: None }
}

/// Replaces the record in `folder` if there is another, and reads it.
fn on_disk(folder: &Path, record: Option<&Saved>) -> Saved {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let file = MapFile::open(folder).unwrap();
    if let Some(record) = record {
        runtime.block_on(record.save(&file)).unwrap();
    }
    runtime.block_on(Saved::load(&file, &NodeId::new("n1").unwrap())).unwrap().unwrap()
}

fn members() -> MembersReport {
    let member = |node: &str, state, votes, heard_ms_ago| MapMemberReport {
        node: node.to_owned(),
        state,
        votes,
        zone: Some("a".to_owned()),
        addr: Some("10.0.0.1:7600".to_owned()),
        member: Some(12),
        heard_ms_ago,
    };
    let lost = |node: &str| MapMemberReport {
        node: node.to_owned(),
        state: MapMemberState::Lost,
        votes: Votes::Yes,
        ..MapMemberReport::default()
    };
    MembersReport {
        node: "n1".to_owned(),
        region: "eu".to_owned(),
        is_standalone: false,
        is_cut_off: None,
        map: Some(MapReport {
            cluster: "000102030405060708090a0b0c0d0e0f".to_owned(),
            epoch: (1 << 48) + 7,
            version: 4,
            voters: 5,
            voters_present: 3,
            voters_change: true,
            leader: Some("n2".to_owned()),
            members: vec![
                member("n1", MapMemberState::Up, Votes::Yes, None),
                member("n2", MapMemberState::Up, Votes::Yes, Some(47)),
                member("n3", MapMemberState::Down, Votes::No, None),
                member("n4", MapMemberState::Draining, Votes::Leaving, Some(1_250)),
                member("n5", MapMemberState::Up, Votes::Joining, Some(75_000)),
                member("n6", MapMemberState::Up, Votes::No, Some(12)),
                lost("n6"),
                lost("n7"),
            ],
        }),
    }
}

fn status() -> StatusReport {
    let member = |id: &str, region: &str, state, book: Option<&str>| MemberReport {
        id: id.to_owned(),
        region: region.to_owned(),
        zone: "a".to_owned(),
        generation: 1,
        addr: Some("10.0.0.1:7600".to_owned()),
        http: None,
        state,
        rule_book: book.map(str::to_owned),
        clock_offset_ms: book.map(|_| -3),
        ring_share: 0.3333,
        rtt_us: book.map(|_| 180),
    };
    StatusReport {
        node: NodeReport {
            id: "n1".to_owned(),
            region: "eu".to_owned(),
            zone: "a".to_owned(),
            role: "core".to_owned(),
            generation: 1,
            version: "0.1.0".to_owned(),
            uptime_s: 90_061,
        },
        cluster: "prod".to_owned(),
        cluster_id: Some("000102030405060708090a0b0c0d0e0f".to_owned()),
        epoch: "a7b3c9d100000000".to_owned(),
        not_ready: Some("rules: starting".to_owned()),
        members: vec![
            member("n1", "eu", MemberState::This, Some("0123456789abcdef")),
            member("n2", "eu", MemberState::Up, Some("fedcba9876543210")),
            member("node-3", "us-east", MemberState::Joining, None),
        ],
        rule_book: RuleBookReport {
            fingerprint: "0123456789abcdef".to_owned(),
            rules: 12,
            last_error: Some("a.yaml:3: unknown key".to_owned()),
            agrees: false,
        },
        rules: vec![
            RuleReport {
                rule: "shop.user".to_owned(),
                mode: Some("leased".to_owned()),
                counts: RuleCounts {
                    allowed: 900,
                    denied: 80,
                    soft_limited: 41,
                    local: 3,
                    by_grant: 870,
                    by_owner: 90,
                    admitted_by_owner: 30,
                    remembered: 17,
                    refused_early: 4,
                    grants: GrantedCounts {
                        received: 960,
                        refunded: 25,
                        spent: 895,
                        given_back: 40,
                        recalled: 30,
                        late: 8,
                    },
                    ..RuleCounts::default()
                },
                held: 12,
                error: None,
            },
            RuleReport {
                rule: "shop.page".to_owned(),
                mode: Some("eventual".to_owned()),
                counts: RuleCounts { allowed: 515, local: 700, alone: 3, ..RuleCounts::default() },
                held: 0,
                error: Some(0.031),
            },
            RuleReport {
                rule: "(other)".to_owned(),
                counts: RuleCounts { shadowed: 9, unavailable: 9, ..RuleCounts::default() },
                ..RuleReport::default()
            },
        ],
        store: StoreReport {
            keys: 5,
            keys_max: 100,
            bytes: 4_096,
            shared: 2,
            refused: 0,
            in_full_domains: 0,
        },
        edges: Some(EdgesReport {
            connected: 3,
            connected_max: 2_048,
            in_region: 12,
            first: Vec::new(),
        }),
        follows: Some(FollowsReport { cores: vec!["n2".to_owned()], is_cut_off: false }),
        ownership: Some(OwnershipReport {
            has_lease: false,
            epoch_number: 7,
            decides: 0.0,
            missed: vec!["n4".to_owned(), "n5".to_owned()],
        }),
        clock: ClockReport { median_ms: 750, is_skewed: true },
        certificate: Some(CertificateReport {
            expires: "2026-12-01".to_owned(),
            expires_in_s: 700_000,
            is_renewal_due: true,
            connections_to_renew: 1,
            authorities: 2,
            problem: Some("pki/n1.key: not the key of pki/n1.pem".to_owned()),
            has_next_secret: true,
        }),
        storage: Some(StorageReport {
            path: "counts.redb".to_owned(),
            problem: Some("No space left on device".to_owned()),
            written_at: None,
            written_s_ago: Some(75),
            keys: 4,
            loaded: 3,
            skipped: 1,
            written: 9,
            rounds: 20,
            failed: 25,
        }),
    }
}
