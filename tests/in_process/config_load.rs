//! Every error in the configuration is one line with its position and advice; flags override the
//! environment, which overrides the file.

use std::path::Path;

use tidegate::config::load::{Inputs, assemble};
use tidegate::config::{Cluster, Config, load};

/// `cluster.toml` as it is shipped.
const SHIPPED: &str = include_str!("../../cluster.toml");

/// The file, or none; variables; `--set`s; the whole error text.
type Row = (
    Option<&'static str>,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
    &'static str,
);

#[test]
fn every_error_is_one_line_with_position_and_advice() {
    let rows: &[Row] = &[
        // Keys that do not exist.
        (
            Some("[http]\nlisten = \"127.0.0.1:1\"\nlisen = 1\n"),
            &[],
            &[],
            "c.toml:3: unknown key http.lisen; did you mean http.listen?",
        ),
        (
            Some("[nodes]\nid = \"a\"\n"),
            &[],
            &[],
            "c.toml:1: unknown section [nodes]; did you mean [node]?",
        ),
        (
            Some("[http]\nkeys_max = 5\n"),
            &[],
            &[],
            "c.toml:2: unknown key http.keys_max; did you mean limits.keys_max?",
        ),
        (
            Some("[node]\ncolour = 5\n"),
            &[],
            &[],
            "c.toml:2: unknown key node.colour; [node] has id, region, zone, role, threads, \
             data_dir",
        ),
        (
            None,
            &[],
            &["node.threads=257"],
            "--set node.threads: node.threads: 257 is outside 0 to 256; use a value in that range",
        ),
        (
            None,
            &[("TIDEGATE_NODE__IDD", "a")],
            &[],
            "TIDEGATE_NODE__IDD: unknown key node.idd; did you mean TIDEGATE_NODE__ID?",
        ),
        (
            None,
            &[("TIDEGATE_HTTP_LISTEN", "127.0.0.1:1")],
            &[],
            "TIDEGATE_HTTP_LISTEN: unknown variable; did you mean TIDEGATE_HTTP__LISTEN?",
        ),
        (
            None,
            &[("TIDEGATE_COLOUR", "red")],
            &[],
            "TIDEGATE_COLOUR: unknown variable; write TIDEGATE_SECTION__KEY, with two underscores \
             between section and key",
        ),
        (None, &[], &["node.idd=a"], "--set node.idd: unknown key node.idd; did you mean node.id?"),
        (
            None,
            &[],
            &["node.id"],
            "--set node.id: it has no =; write it as --set section.key=value",
        ),
        // Keys that held milliseconds are durations.
        (
            Some("[cluster]\ndeadline_ms = 25\n"),
            &[],
            &[],
            "c.toml:2: unknown key cluster.deadline_ms; did you mean cluster.deadline = \"25ms\"?",
        ),
        (
            Some("[auth]\nhold_max_ms = 500\n"),
            &[],
            &[],
            "c.toml:2: unknown key auth.hold_max_ms; did you mean auth.hold_max = \"500ms\"?",
        ),
        (
            None,
            &[("TIDEGATE_LIMITS__DRAIN_TIMEOUT_MS", "30000")],
            &[],
            "TIDEGATE_LIMITS__DRAIN_TIMEOUT_MS: unknown key limits.drain_timeout_ms; did you mean \
             TIDEGATE_LIMITS__DRAIN_TIMEOUT=30000ms?",
        ),
        (
            None,
            &[],
            &["cluster.gossip_interval_ms=100"],
            "--set cluster.gossip_interval_ms: unknown key cluster.gossip_interval_ms; did you mean \
             cluster.gossip_interval=100ms?",
        ),
        // Values of the wrong type.
        (
            Some("[cluster]\ndeadline = 10\n"),
            &[],
            &[],
            "c.toml:2: cluster.deadline: invalid type: integer `10`, expected a duration; use numbers \
             with units, such as \"400ms\", \"90s\", \"1h30m\" or \"7d\"",
        ),
        (
            None,
            &[],
            &["cluster.deadline=soon"],
            "--set cluster.deadline: cluster.deadline: \"soon\" is not a duration; use numbers with \
             units, such as \"400ms\", \"90s\", \"1h30m\" or \"7d\"",
        ),
        (
            None,
            &[],
            &["cluster.deadline=2s"],
            "--set cluster.deadline: cluster.deadline: 2s is outside 1ms to 1s; use a value in that \
             range",
        ),
        (
            Some("[limits]\nbody_bytes_max = 2048\nkeys_max = \"many\"\n"),
            &[],
            &[],
            "c.toml:3: limits.keys_max: invalid type: string \"many\", expected usize; use a whole \
             number",
        ),
        (
            Some("[http]\nlisten = \"localhost\"\n"),
            &[],
            &[],
            "c.toml:2: http.listen: invalid socket address syntax; use IP:PORT, such as \
             127.0.0.1:8080",
        ),
        (
            Some("[defaults]\nmode = \"strickt\"\n"),
            &[],
            &[],
            "c.toml:2: defaults.mode: unknown variant `strickt`, expected one of `strict`, \
             `leased`, `eventual`; use one of those",
        ),
        (
            None,
            &[("TIDEGATE_LIMITS__KEYS_MAX", "many")],
            &[],
            "TIDEGATE_LIMITS__KEYS_MAX: limits.keys_max: invalid type: string \"many\", expected \
             usize; use a whole number",
        ),
        (
            None,
            &[("TIDEGATE_HTTP__LISTEN", "8080")],
            &[],
            "TIDEGATE_HTTP__LISTEN: http.listen: invalid type: integer `8080`, expected socket \
             address; use IP:PORT, such as 127.0.0.1:8080",
        ),
        // Values out of range, wherever they were set last.
        (
            Some("[http]\nlisten = \"127.0.0.1:1\"\n[cluster]\nvnodes = 0\n"),
            &[],
            &[],
            "c.toml:4: cluster.vnodes: 0 is outside 1 to 1024; use a value in that range",
        ),
        (
            Some("[http]\nlisten = \"127.0.0.1:1\"\n[cluster]\nvnodes = 0\n"),
            &[("TIDEGATE_CLUSTER__VNODES", "2000")],
            &[],
            "TIDEGATE_CLUSTER__VNODES: cluster.vnodes: 2000 is outside 1 to 1024; use a value in \
             that range",
        ),
        (
            Some(
                "[http]\nlisten = \"127.0.0.1:1\"\n[limits]\nconnections_per_address_max = 1000001\n",
            ),
            &[],
            &[],
            "c.toml:4: limits.connections_per_address_max: 1000001 is outside 0 to 1000000; use a \
             value in that range",
        ),
        (
            None,
            &[("TIDEGATE_NODE__ID", "Edge_1")],
            &[],
            "TIDEGATE_NODE__ID: node.id: \"Edge_1\" is not a DNS label; use 1 to 63 of a-z, 0-9 and \
             -, at least one letter, no - at either end",
        ),
        (
            None,
            &[],
            &["cluster.listen=127.0.0.1:7600"],
            "configuration: tls.ca: the mesh (cluster.listen) requires it; create it with `tidegate ca \
             init --dir pki` and `tidegate ca issue --dir pki --node node-1`, then set it",
        ),
        (
            None,
            &[],
            &["cluster.voters=2"],
            "--set cluster.voters: cluster.voters: 2 voters; use 1, 3, 5 or 7: an even number \
             survives no more failures than one fewer",
        ),
        (
            None,
            &[],
            &["cluster.founders=a,b", "cluster.bootstrap_expect=3", "cluster.listen=127.0.0.1:1"],
            "--set cluster.bootstrap_expect: cluster.bootstrap_expect: cluster.founders is set too; \
             keep bootstrap_expect where names are generated, otherwise founders",
        ),
        (
            None,
            &[],
            &["cluster.voters_from=founders"],
            "--set cluster.voters_from: cluster.voters_from: it requires cluster.founders; name the \
             founders, or remove it",
        ),
        (
            None,
            &[],
            &["cluster.regions=eu,us", "global.founders=a,b,c", "cluster.replicas=0"],
            "--set global.founders: global.founders: it requires cluster.replicas; set \
             cluster.replicas to 1 or more: otherwise counts are not copied to other regions",
        ),
        (
            None,
            &[],
            &["cluster.seeds=a:1"],
            "--set cluster.seeds: cluster.seeds: it requires cluster.listen; set cluster.listen \
             too, or remove it",
        ),
        (
            None,
            &[],
            &["join.service_account=limits/tidegate"],
            "--set join.service_account: join.service_account: it requires join.listen; set \
             join.listen too, or remove it",
        ),
        (
            None,
            &[],
            &[
                "join.service_account=tidegate",
                "join.service_account_issuer=https://kubernetes.example",
                "join.service_account_keys=jwks.json",
                "join.listen=127.0.0.1:7643",
                "join.signer_cert=signer.pem",
                "join.signer_key=signer.key",
                "cluster.listen=127.0.0.1:1",
            ],
            "--set join.service_account: join.service_account: it is no service account; write \
             NAMESPACE/NAME, such as limits/tidegate",
        ),
        (
            None,
            &[],
            &["http.listen=127.0.0.1:8081"],
            "configuration: grpc.listen: another listener has the address 127.0.0.1:8081; give each \
             listener its own port",
        ),
        (
            Some("[node]\nid = \"a\"\n"),
            &[],
            &[],
            "c.toml: http.listen: none of http.listen, grpc.listen, grpc.socket, resp.listen, \
             gubernator.grpc, gubernator.http and proxy.listen is set, so the node would serve nothing; \
             set at least one, such as http.listen = \"127.0.0.1:8080\"",
        ),
        (
            None,
            &[],
            &["proxy.adaptive_concurrency_max=10"],
            "configuration: proxy.adaptive_concurrency_min: 20 is outside 1 to \
             proxy.adaptive_concurrency_max, 10; lower it, or raise proxy.adaptive_concurrency_max",
        ),
        // A listener that others can reach needs a password, which no message repeats.
        (
            None,
            &[("TIDEGATE_RESP__LISTEN", "0.0.0.0:6380")],
            &[],
            "TIDEGATE_RESP__LISTEN: resp.listen: 0.0.0.0:6380 is not on loopback and requires a \
             password, or certificates of clients; set TIDEGATE_RESP__PASSWORD or resp.client_ca, or \
             listen on 127.0.0.1",
        ),
        (
            Some("[resp]\nlisten = \"127.0.0.1:1\"\npassword = 12345\n"),
            &[],
            &[],
            "c.toml:3: resp.password: a number, expected a string; use text in quotes",
        ),
        // Keys that are right by themselves and do not go together.
        (
            Some("[http]\nlisten = \"127.0.0.1:1\"\n[auth]\ndomain = \"edge\"\n"),
            &[],
            &[],
            "c.toml:3: auth.domain without [[auth.descriptors]] limits nothing: add at least one \
             descriptor",
        ),
        (
            None,
            &[("TIDEGATE_AUTH__DOMAIN", "edge")],
            &[],
            "configuration: auth.domain without [[auth.descriptors]] limits nothing: add at least \
             one descriptor",
        ),
        // No TOML at all.
        (
            Some("[http\nlisten = 1\n"),
            &[],
            &[],
            "c.toml:1: unclosed table, expected `]`; write it as TOML (https://toml.io)",
        ),
        (
            Some("[node]\nid = \"a\"\nid = \"b\"\n"),
            &[],
            &[],
            "c.toml:3: duplicate key; write it as TOML (https://toml.io)",
        ),
    ];
    for (file, variables, sets, expected) in rows {
        let error = read(*file, variables, sets).expect_err(expected);
        assert_eq!(error, *expected);
        assert!(!error.contains('\n'));
    }
}

#[test]
fn flags_override_variables_override_the_file() {
    let file = "[node]\nid = \"from-file\"\nregion = \"from-file\"\nzone = \"from-file\"\n\
                [http]\nlisten = \"127.0.0.1:1\"\n";
    let variables = [("TIDEGATE_NODE__REGION", "from-env"), ("TIDEGATE_NODE__ZONE", "from-env")];
    let config = read(Some(file), &variables, &["node.zone=from-flag"]).unwrap();
    assert_eq!(
        [&*config.node.id, &*config.node.region, &*config.node.zone],
        ["from-file", "from-env", "from-flag"]
    );
}

#[test]
fn a_variable_becomes_a_value_of_its_key_s_type() {
    let variables = [
        ("TIDEGATE_CLUSTER__NAME", "7"),
        ("TIDEGATE_NODE__ZONE", "\"quoted\""),
        ("TIDEGATE_LIMITS__KEYS_MAX", "5_000"),
        ("TIDEGATE_LIMITS__ON_FULL", "refuse"),
        ("TIDEGATE_LIMITS__CONNECTIONS_PER_ADDRESS_MAX", "0"),
        ("TIDEGATE_HTTP__LISTEN", "[::1]:9000"),
    ];
    let config = read(None, &variables, &[]).unwrap();
    assert_eq!(config.cluster.name, "7");
    assert_eq!(config.node.zone, "quoted");
    assert_eq!(config.limits.keys_max, 5_000);
    assert_eq!(config.limits.connections_per_address_max, 0);
    assert_eq!(config.limits.on_full, tidegate_limiter::store::OnFull::Refuse);
    assert_eq!(config.http.listen, "[::1]:9000".parse().ok());
}

#[test]
fn a_list_is_a_toml_array_or_parted_by_commas() {
    let mesh = "[cluster]\nlisten = \"127.0.0.1:7600\"\n[http]\nlisten = \"127.0.0.1:1\"\n\
                [tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\nsecret = \"d\"\n";
    for (text, expected) in [
        ("[\"a:1\", \"b:2\"]", &["a:1", "b:2"][..]),
        ("a:1, b:2,", &["a:1", "b:2"]),
        ("a:1", &["a:1"]),
        ("[]", &[]),
    ] {
        let config = read(Some(mesh), &[("TIDEGATE_CLUSTER__SEEDS", text)], &[]).unwrap();
        assert_eq!(config.cluster.seeds, expected, "{text}");
    }
}

/// A value that the environment sets is not missing in the file, in any order.
#[test]
fn a_later_layer_may_complete_or_put_right_an_earlier_one() {
    let file = "[http]\nlisten = \"127.0.0.1:1\"\n[limits]\nkeys_max = \"many\"\n\
                [[auth.descriptors]]\nentries = [{ key = \"path\", source = \"path\" }]\n";
    let variables = [("TIDEGATE_AUTH__DOMAIN", "edge"), ("TIDEGATE_LIMITS__KEYS_MAX", "7")];
    let config = read(Some(file), &variables, &[]).unwrap();
    assert_eq!((config.auth.domain.as_deref(), config.limits.keys_max), (Some("edge"), 7));

    let both = [
        ("TIDEGATE_AUTH__DESCRIPTORS", "[{ entries = [{ key = \"path\", source = \"path\" }] }]"),
        ("TIDEGATE_AUTH__DOMAIN", "edge"),
    ];
    assert_eq!(read(None, &both, &[]).unwrap().auth.descriptors.len(), 1);
}

#[test]
fn the_shipped_file_is_one_node_on_loopback() {
    let config = read(Some(SHIPPED), &[], &[]).unwrap();
    let standalone = Config::standalone();
    assert_eq!(format!("{config:?}"), format!("{standalone:?}"));
}

/// A commented line of the shipped file has the default of the code, unless it is an example.
#[test]
fn the_shipped_file_names_every_key_with_its_default() {
    let uncommented: String = SHIPPED
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    let config = read(Some(&uncommented), &[], &[]).unwrap();
    let standalone = Config::standalone();
    assert_eq!(format!("{:?}", config.limits), format!("{:?}", standalone.limits));
    assert_eq!(format!("{:?}", config.defaults), format!("{:?}", standalone.defaults));
    assert_eq!(config.http.denied_status, standalone.http.denied_status);
    assert_eq!(config.auth.descriptors.len(), 2);
    let cluster =
        Cluster { listen: None, advertise: None, seeds: Vec::new(), ..config.cluster.clone() };
    assert_eq!(format!("{cluster:?}"), format!("{:?}", standalone.cluster));
    for key in tidegate::config::keys() {
        let (section, name) = key.split_once('.').unwrap();
        let (_, rest) = SHIPPED.split_once(&format!("\n[{section}]\n")).unwrap();
        let text = rest.split("\n[").next().unwrap_or(rest);
        assert!(
            text.contains(&format!("{name} =")) || text.contains(&format!(".{name}]")),
            "{key}"
        );
    }
}

#[test]
fn a_password_of_digits_is_text_in_a_variable_and_is_not_shown() {
    let variables = [("TIDEGATE_RESP__PASSWORD", "12345"), ("TIDEGATE_RESP__LISTEN", "[::]:1")];
    let config = read(None, &variables, &[]).unwrap();
    assert_eq!(config.resp.password.as_ref().map(tidegate::config::Secret::reveal), Some("12345"));
    assert!(!format!("{config:?}").contains("12345"));
}

#[test]
fn an_empty_variable_and_one_for_the_command_line_change_nothing() {
    let variables = [("TIDEGATE_HTTP__LISTEN", ""), ("TIDEGATE_LOG", "debug")];
    let config = read(None, &variables, &[]).unwrap();
    assert_eq!(config.http.listen, Config::standalone().http.listen);
}

#[test]
fn paths_of_the_file_are_relative_to_it_and_those_of_variables_are_not() {
    let file = "[http]\nlisten = \"127.0.0.1:1\"\n[tls]\nca = \"pki/ca.pem\"\nkey = \"/abs/key\"\n\
                [node]\ndata_dir = \"data\"\n";
    let inputs = Inputs {
        file: Some((Path::new("/etc/tidegate/cluster.toml"), file)),
        variables: vec![("TIDEGATE_TLS__CERT".to_owned(), "here.pem".to_owned())],
        sets: &[],
    };
    let (config, _) = assemble(&inputs).unwrap();
    assert_eq!(config.tls.ca.as_deref(), Some(Path::new("/etc/tidegate/pki/ca.pem")));
    assert_eq!(config.tls.key.as_deref(), Some(Path::new("/abs/key")));
    assert_eq!(config.tls.cert.as_deref(), Some(Path::new("here.pem")));
    assert_eq!(config.rules.path, Path::new("/etc/tidegate/rules"));
    assert_eq!(config.node.data_dir.as_deref(), Some(Path::new("/etc/tidegate/data")));
}

#[test]
fn keys_that_do_not_apply_to_an_edge_are_refused() {
    let edge = "[node]\nrole = \"edge\"\n[http]\nlisten = \"127.0.0.1:1\"\n[tls]\nca = \"a\"\n\
                cert = \"b\"\nkey = \"c\"\nsecret = \"d\"\n";
    let seeds = ["cluster.seeds=core-1:7600"];
    let config = read(Some(edge), &[], &seeds).unwrap();
    assert_eq!(config.cluster.listen, "0.0.0.0:0".parse().ok(), "nobody dials it");
    assert!(read(Some(edge), &[], &[]).unwrap_err().contains("cluster.seeds: an edge needs cores"));
    for (set, why) in [
        ("node.data_dir=data", "it writes and hands over none"),
        ("storage.interval=1s", "it writes and hands over none"),
        ("cluster.replicas=2", "it writes and hands over none"),
        ("cluster.handover_timeout=5s", "it writes and hands over none"),
        ("cluster.founders=n1", "votes in none"),
        ("cluster.bootstrap_expect=1", "votes in none"),
        ("cluster.voters=3", "votes in none"),
        ("cluster.voters_from=auto", "votes in none"),
        ("cluster.advertise=10.0.0.1:7600", "nobody dials an edge"),
    ] {
        let error = read(Some(edge), &[], &[seeds[0], set]).unwrap_err();
        let key = set.split_once('=').unwrap().0;
        assert!(error.contains(key) && error.contains(why), "{set}: {error}");
    }
    let error = read(Some(edge), &[], &[seeds[0], "node.role=edgy"]).unwrap_err();
    assert!(error.contains("node.role"), "{error}");
}

#[test]
fn a_missing_file_is_one_line_with_advice() {
    let error = load(Some(Path::new("/nowhere/cluster.toml")), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/nowhere/cluster.toml: no such file; pass --config the path of a configuration file, or \
         omit it to run one node on loopback"
    );
}

#[test]
fn a_rules_folder_that_is_named_has_to_exist() {
    let sets = ["rules.path=/nowhere/rules".to_owned()];
    let error = load(None, &sets).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--set rules.path: rules.path: /nowhere/rules does not exist; create it with at least one \
         rule file, or set TIDEGATE_RULES__PATH"
    );
}

fn read(file: Option<&str>, variables: &[(&str, &str)], sets: &[&str]) -> Result<Config, String> {
    let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
    let inputs = Inputs {
        file: file.map(|text| (Path::new("c.toml"), text)),
        variables: variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        sets: &sets,
    };
    assemble(&inputs).map(|(config, _)| config).map_err(|error| error.to_string())
}
