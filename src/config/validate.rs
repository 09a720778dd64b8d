//! Ranges and relations that types cannot express. [`super::load()`] runs it once.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use tidegate_cluster::pki::Role;
use tidegate_limiter::units::Span;
use tidegate_ownership::cluster_map::{REGIONS_MAX, VOTERS_MAX};
use tidegate_ownership::name::{is_cluster_name, is_label};

use super::blocked_sources::{ALLOW_MAX, BlockedSources};
use super::proxy::{AdaptiveConcurrency, Proxy, UPSTREAMS_MAX};
use super::rules::{Envoy, Stats, TAGS_MAX, Xds};
use super::sections::{
    Admin, Cluster, Config, Grpc, Join, Limits, Node, Resp, Storage, THREADS_MAX, VotersFrom,
};
use super::tls_files::TlsFiles;
use super::traces::Traces;

/// Most pairs of `xds.node_metadata`, and of `xds.headers` and `traces.headers`.
pub const PAIRS_MAX: usize = 64;

/// Founders, and nodes that found together.
const FOUNDERS_MAX: usize = 64;
/// Most seeds: more than a cluster needs to form, few enough to dial all at start.
pub const SEEDS_MAX: usize = 64;

/// Most [`Admin::hosts`].
const HOSTS_MAX: usize = 64;

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}; {fix}")]
pub struct Invalid {
    pub key: &'static str,
    pub problem: String,
    pub fix: String,
}

/// Checks every range and relation.
///
/// # Errors
///
/// The first violation.
pub fn validate(config: &Config) -> Result<(), Invalid> {
    dependencies(config)?;
    join(&config.join)?;
    node(&config.node)?;
    edge(config)?;
    cluster(config)?;
    global(config)?;
    mesh_tls(config)?;
    listeners(config)?;
    tls_of_listeners(config)?;
    resp(&config.resp)?;
    proxy(&config.proxy)?;
    admin(&config.admin)?;
    blocked_sources(&config.blocked_sources)?;
    within("http.denied_status", config.http.denied_status, 400..=599)?;
    within("storage.interval", config.storage.interval, ms(100)..=secs(600))?;
    envoy(&config.envoy)?;
    stats(&config.stats)?;
    traces(&config.traces)?;
    xds(&config.xds)?;
    limits(&config.limits)
}

/// Keys that require another one.
fn dependencies(config: &Config) -> Result<(), Invalid> {
    let Config { cluster, join, xds, .. } = config;
    let has_signer = join.signer_cert.is_some();
    let (has_account, has_issuer, has_keys) = (
        join.service_account.is_some(),
        join.service_account_issuer.is_some(),
        join.service_account_keys.is_some(),
    );
    let has_mesh = cluster.listen.is_some();
    let (has_xds_cert, has_xds_key) = (xds.tls_cert.is_some(), xds.tls_key.is_some());
    let has_server = xds.server.is_some();
    let (is_watched, has_admin) =
        (config.blocked_sources.entry.is_some(), config.admin.listen.is_some());
    for (key, is_set, other, has_other) in [
        ("cluster.advertise", cluster.advertise.is_some(), "cluster.listen", has_mesh),
        ("cluster.seeds", !cluster.seeds.is_empty(), "cluster.listen", has_mesh),
        ("cluster.founders", !cluster.founders.is_empty(), "cluster.listen", has_mesh),
        ("cluster.bootstrap_expect", cluster.bootstrap_expect > 0, "cluster.listen", has_mesh),
        ("join.signer_cert", has_signer, "join.signer_key", join.signer_key.is_some()),
        ("join.signer_key", join.signer_key.is_some(), "join.signer_cert", has_signer),
        ("join.signer_cert", has_signer, "cluster.listen", has_mesh),
        ("join.listen", join.listen.is_some(), "join.signer_cert", has_signer),
        ("join.service_account", has_account, "join.listen", join.listen.is_some()),
        ("join.service_account", has_account, "join.service_account_issuer", has_issuer),
        ("join.service_account", has_account, "join.service_account_keys", has_keys),
        ("blocked_sources.entry", is_watched, "admin.listen", has_admin),
        ("xds.tls_cert", has_server && has_xds_cert, "xds.tls_key", has_xds_key),
        ("xds.tls_key", has_server && has_xds_key, "xds.tls_cert", has_xds_cert),
    ] {
        requires(key, is_set, other, has_other)?;
    }
    Ok(())
}

fn requires(key: &'static str, is_set: bool, other: &str, has_other: bool) -> Result<(), Invalid> {
    let fix = format!("set {other} too, or remove it");
    ensure(!is_set || has_other, key, format!("it requires {other}"), fix)
}

fn tls_of_listeners(config: &Config) -> Result<(), Invalid> {
    let Config { http, grpc, resp, gubernator, proxy, admin, .. } = config;
    let listeners =
        [http.tls(), grpc.tls(), resp.tls(), gubernator.tls(), proxy.tls(), admin.tls()];
    listeners.iter().try_for_each(listener_tls)
}

fn listener_tls(files: &TlsFiles<'_>) -> Result<(), Invalid> {
    let keys = files.keys;
    let (has_cert, has_ca) = (files.cert.is_some(), files.client_ca.is_some());
    requires(keys.cert, has_cert, keys.key, files.key.is_some())?;
    requires(keys.key, files.key.is_some(), keys.cert, has_cert)?;
    requires(keys.client_ca, has_ca, keys.cert, has_cert)?;
    requires(keys.client_san, files.client_san.is_some(), keys.client_ca, has_ca)?;
    let Some(san) = files.client_san else { return Ok(()) };
    ensure(
        rustls::pki_types::ServerName::try_from(san).is_ok(),
        keys.client_san,
        format!("{san:?} is neither a DNS name nor an IP address"),
        "write it as in the certificate",
    )
}

fn node(node: &Node) -> Result<(), Invalid> {
    for (key, name) in
        [("node.id", &node.id), ("node.region", &node.region), ("node.zone", &node.zone)]
    {
        ensure(
            is_label(name),
            key,
            format!("{name:?} is not a DNS label"),
            "use 1 to 63 of a-z, 0-9 and -, at least one letter, no - at either end",
        )?;
    }
    within("node.threads", node.threads, 0..=THREADS_MAX)
}

/// What an edge needs, and what does not apply to it.
fn edge(config: &Config) -> Result<(), Invalid> {
    let Config { node, cluster, storage, .. } = config;
    if node.role != Role::Edge {
        return Ok(());
    }
    let (unset, no_storage) = (Cluster::default(), Storage::default());
    let owns = "an edge owns no keys: it writes and hands over none";
    let votes = "an edge founds no cluster and votes in none";
    for (key, is_set, why) in [
        ("node.data_dir", node.data_dir.is_some(), owns),
        ("storage.interval", storage.interval != no_storage.interval, owns),
        ("cluster.replicas", cluster.replicas != unset.replicas, owns),
        ("cluster.handover_timeout", cluster.handover_timeout != unset.handover_timeout, owns),
        ("cluster.founders", !cluster.founders.is_empty(), votes),
        ("cluster.bootstrap_expect", cluster.bootstrap_expect > 0, votes),
        ("cluster.voters", cluster.voters != unset.voters, votes),
        ("cluster.voters_from", cluster.voters_from.is_some(), votes),
        ("cluster.advertise", cluster.advertise.is_some(), "nobody dials an edge"),
    ] {
        ensure(!is_set, key, why, "remove it, or set node.role = \"core\"")?;
    }
    ensure(
        !cluster.seeds.is_empty(),
        "cluster.seeds",
        "an edge needs cores to follow",
        "name two or three cores of its region, HOST:PORT each",
    )
}

fn cluster(config: &Config) -> Result<(), Invalid> {
    let Config { cluster, node, .. } = config;
    ensure(
        is_cluster_name(&cluster.name),
        "cluster.name",
        format!("{:?} is not a valid cluster name", cluster.name),
        "use 1 to 63 letters, digits, -, _ and .",
    )?;
    if let Some(addr) = cluster.advertised().filter(|_| node.role == Role::Core) {
        ensure(
            !addr.ip().is_unspecified(),
            "cluster.advertise",
            format!("peers cannot reach {addr}"),
            "set it to the IP:PORT at which the other nodes reach this one",
        )?;
    }
    at_most("cluster.seeds", cluster.seeds.len(), SEEDS_MAX)?;
    cluster.seeds.iter().try_for_each(|seed| host_port("cluster.seeds", seed))?;
    within("cluster.deadline", cluster.deadline, ms(1)..=secs(1))?;
    within("cluster.global_deadline", cluster.global_deadline, ms(1)..=secs(10))?;
    within("cluster.sync_interval", cluster.sync_interval, ms(5)..=secs(10))?;
    within("cluster.region_sync_interval", cluster.region_sync_interval, ms(10)..=secs(60))?;
    within("cluster.gossip_interval", cluster.gossip_interval, ms(20)..=secs(5))?;
    within("cluster.vnodes", cluster.vnodes, 1..=1_024)?;
    within("cluster.replicas", cluster.replicas, 0..=3)?;
    within("cluster.replication_interval", cluster.replication_interval, ms(1)..=secs(1))?;
    within("cluster.lease", cluster.lease, ms(150)..=secs(10))?;
    at_most("cluster.founders", cluster.founders.len(), FOUNDERS_MAX)?;
    within("cluster.bootstrap_expect", cluster.bootstrap_expect, 0..=FOUNDERS_MAX)?;
    ensure(
        cluster.founders.is_empty() || cluster.bootstrap_expect == 0,
        "cluster.bootstrap_expect",
        "cluster.founders is set too".to_owned(),
        "keep bootstrap_expect where names are generated, otherwise founders",
    )?;
    ensure(
        !cluster.founders.is_empty() || cluster.voters_from != Some(VotersFrom::Founders),
        "cluster.voters_from",
        "it requires cluster.founders".to_owned(),
        "name the founders, or remove it",
    )?;
    at_most("cluster.regions", cluster.regions.len(), REGIONS_MAX)?;
    cluster.regions.iter().try_for_each(|region| {
        let problem = format!("{region:?} is not a DNS label");
        ensure(is_label(region), "cluster.regions", problem, "name values of node.region")
    })?;
    let fix = "use 1, 3, 5 or 7: an even number survives no more failures than one fewer";
    let voters = format!("{} voters", cluster.voters);
    ensure(matches!(cluster.voters, 1 | 3 | 5 | 7), "cluster.voters", voters, fix)?;
    within("cluster.down_after", cluster.down_after, ms(200)..=secs(60))?;
    ensure(
        cluster.down_after >= cluster.lease,
        "cluster.down_after",
        "it is shorter than cluster.lease".to_owned(),
        "a member must not be evicted before its lease can have expired",
    )?;
    within("cluster.replace_after", cluster.replace_after, secs(1)..=secs(3_600))?;
    within("cluster.settle_after", cluster.settle_after, secs(2)..=secs(600))?;
    within("cluster.forget_after", cluster.forget_after, secs(10)..=secs(30 * 86_400))?;
    within("cluster.handover_timeout", cluster.handover_timeout, secs(1)..=secs(3_600))?;
    within("cluster.max_skew", cluster.max_skew, ms(10)..=secs(60))
}

fn global(config: &Config) -> Result<(), Invalid> {
    let (global, cluster) = (&config.global, &config.cluster);
    at_most("global.founders", global.founders.len(), VOTERS_MAX)?;
    ensure(
        global.founders.is_empty() || cluster.regions.len() > 1,
        "global.founders",
        "it requires cluster.regions".to_owned(),
        "name the regions that own global keys, two or more, or remove it",
    )?;
    ensure(
        global.founders.is_empty() || global.founders.len() > 2,
        "global.founders",
        format!("{} founders", global.founders.len()),
        "name three or more: one of each region, and one in a third place where there are two, \
         otherwise the loss of one region takes the majority away from the other",
    )?;
    ensure(
        global.founders.is_empty() || cluster.replicas > 0,
        "global.founders",
        "it requires cluster.replicas".to_owned(),
        "set cluster.replicas to 1 or more: otherwise counts are not copied to other regions",
    )?;
    ensure(
        global.founders.is_empty() || cluster.listen.is_some(),
        "global.founders",
        "it requires cluster.listen".to_owned(),
        "set cluster.listen too, or remove it",
    )?;
    within("global.lease", global.lease, secs(1)..=secs(60))?;
    within("global.down_after", global.down_after, secs(2)..=secs(600))?;
    ensure(
        global.down_after >= global.lease,
        "global.down_after",
        "it is shorter than global.lease".to_owned(),
        "a region must not be given up before its lease can have expired",
    )
}

fn mesh_tls(config: &Config) -> Result<(), Invalid> {
    let tls = &config.tls;
    let role = if config.node.role == Role::Edge { " --role edge" } else { "" };
    for (key, path) in [
        ("tls.ca", &tls.ca),
        ("tls.cert", &tls.cert),
        ("tls.key", &tls.key),
        ("tls.secret", &tls.secret),
    ] {
        ensure(
            path.is_some() || config.cluster.listen.is_none(),
            key,
            "the mesh (cluster.listen) requires it",
            format!(
                "create it with `tidegate ca init --dir pki` and `tidegate ca issue --dir pki \
                 --node {}{role}`, then set it",
                config.node.id
            ),
        )?;
    }
    Ok(())
}

fn join(join: &Join) -> Result<(), Invalid> {
    within("join.valid_for", join.valid_for, secs(60)..=secs(3_650 * 86_400))?;
    ensure(
        join.service_account.is_none() || join.service_account_subject().is_some(),
        "join.service_account",
        "it is no service account",
        "write NAMESPACE/NAME, such as limits/tidegate",
    )
}

fn listeners(config: &Config) -> Result<(), Invalid> {
    let listeners = [
        ("http.listen", config.http.listen),
        ("grpc.listen", config.grpc.listen),
        ("resp.listen", config.resp.listen),
        ("gubernator.grpc", config.gubernator.grpc),
        ("gubernator.http", config.gubernator.http),
        ("proxy.listen", config.proxy.listen),
        ("admin.listen", config.admin.listen),
        ("stats.prometheus_listen", config.stats.prometheus_listen),
        ("debug.listen", config.debug.listen),
        ("join.listen", config.join.listen),
    ];
    ensure(
        listeners.iter().take(6).any(|(_, listen)| listen.is_some())
            || config.grpc.socket.is_some(),
        "http.listen",
        "none of http.listen, grpc.listen, grpc.socket, resp.listen, gubernator.grpc, \
         gubernator.http and proxy.listen is set, so the node would serve nothing",
        "set at least one, such as http.listen = \"127.0.0.1:8080\"",
    )?;
    let Grpc { max_connection_age, max_connection_age_grace, .. } = config.grpc;
    let year = secs(365 * 86_400);
    within("grpc.max_connection_age", max_connection_age, Span::ZERO..=year)?;
    within("grpc.max_connection_age_grace", max_connection_age_grace, Span::ZERO..=year)?;
    let mut taken = BTreeSet::new();
    for (key, listen) in listeners {
        // Port 0 is any free port, so two of them do not collide.
        let Some(addr) = listen.filter(|addr| addr.port() != 0) else { continue };
        let problem = format!("another listener has the address {addr}");
        ensure(taken.insert(addr), key, problem, "give each listener its own port")?;
    }
    Ok(())
}

fn resp(resp: &Resp) -> Result<(), Invalid> {
    let name = &resp.username;
    ensure(
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic()),
        "resp.username",
        format!("{name:?} is not a valid name"),
        "use letters, digits and punctuation, no spaces",
    )?;
    ensure(
        resp.password.as_ref().is_none_or(|password| !password.reveal().is_empty()),
        "resp.password",
        "it is empty",
        "use a long random one, or remove it",
    )?;
    if let Some(addr) = resp.listen {
        ensure(
            addr.ip().is_loopback() || resp.password.is_some() || resp.client_ca.is_some(),
            "resp.listen",
            format!(
                "{addr} is not on loopback and requires a password, or certificates of clients"
            ),
            "set TIDEGATE_RESP__PASSWORD or resp.client_ca, or listen on 127.0.0.1",
        )?;
    }
    within("resp.threads", resp.threads, 0..=THREADS_MAX)?;
    within("resp.idle_timeout", resp.idle_timeout, secs(1)..=secs(7 * 86_400))
}

fn proxy(proxy: &Proxy) -> Result<(), Invalid> {
    let (has_listener, servers) = (proxy.listen.is_some(), proxy.upstream.len());
    ensure(
        has_listener == (servers > 0),
        if has_listener { "proxy.upstream" } else { "proxy.listen" },
        "proxy.listen and proxy.upstream need each other",
        "set both, such as upstream = [\"http://127.0.0.1:3000\"], or neither",
    )?;
    at_most("proxy.upstream", servers, UPSTREAMS_MAX)?;
    within("proxy.denied_status", proxy.denied_status, 400..=599)?;
    within("proxy.connect_timeout", proxy.connect_timeout, ms(1)..=secs(60))?;
    within("proxy.response_timeout", proxy.response_timeout, ms(1)..=secs(3_600))?;
    within("proxy.idle_timeout", proxy.idle_timeout, ms(1)..=secs(86_400))?;
    within("proxy.pool_idle_timeout", proxy.pool_idle_timeout, ms(1)..=secs(3_600))?;
    within("proxy.in_flight_max", proxy.in_flight_max, 1..=1_000_000)?;
    if let Some(AdaptiveConcurrency { min, max, .. }) = proxy.adaptive_concurrency() {
        within("proxy.adaptive_concurrency_max", max, 1..=1_000_000)?;
        ensure(
            (1..=max).contains(&min),
            "proxy.adaptive_concurrency_min",
            format!("{min} is outside 1 to proxy.adaptive_concurrency_max, {max}"),
            "lower it, or raise proxy.adaptive_concurrency_max",
        )?;
    }
    let window = proxy.adaptive_concurrency_window;
    within("proxy.adaptive_concurrency_window", window, ms(10)..=secs(60))?;
    within("proxy.held_max", proxy.held_max, 1..=1_000_000)?;
    at_most("proxy.proxy_protocol_from", proxy.proxy_protocol_from.len(), UPSTREAMS_MAX)?;
    within("proxy.eject_after", proxy.eject_after, 0..=1_000)?;
    within("proxy.health_interval", proxy.health_interval, ms(10)..=secs(600))
}

fn admin(admin: &Admin) -> Result<(), Invalid> {
    at_most("admin.hosts", admin.hosts.len(), HOSTS_MAX)?;
    let is_host = |host: &String| {
        rustls::pki_types::DnsName::try_from(host.as_str()).is_ok() && !host.contains(':')
    };
    let wrong = admin.hosts.iter().find(|host| !is_host(host));
    ensure(
        wrong.is_none(),
        "admin.hosts",
        format!("{:?} is not a DNS name", wrong.map_or("", String::as_str)),
        "write it without scheme and port, such as \"tidegate.example\"",
    )
}

fn blocked_sources(blocked: &BlockedSources) -> Result<(), Invalid> {
    let is_named = blocked.entry.as_ref().is_none_or(|entry| !entry.is_empty());
    let fix = "name the key of the entry with the client's address, such as remote_address";
    ensure(is_named, "blocked_sources.entry", "it is empty", fix)?;
    within("blocked_sources.factor", blocked.factor, 2..=1_000_000)?;
    within("blocked_sources.after", blocked.after, secs(1)..=secs(3_600))?;
    let min = blocked.refused_per_second_min;
    within("blocked_sources.refused_per_second_min", min, 1..=1_000_000)?;
    within("blocked_sources.block_for", blocked.block_for, secs(1)..=secs(86_400))?;
    within("blocked_sources.ipv6_prefix", blocked.ipv6_prefix, 32..=128)?;
    at_most("blocked_sources.allow", blocked.allow.len(), ALLOW_MAX)
}

fn envoy(envoy: &Envoy) -> Result<(), Invalid> {
    for (key, name) in [
        ("envoy.limit_header", &envoy.limit_header),
        ("envoy.remaining_header", &envoy.remaining_header),
        ("envoy.reset_header", &envoy.reset_header),
    ] {
        ensure(
            http::HeaderName::try_from(name).is_ok(),
            key,
            format!("{name:?} is not a header name"),
            "use letters, digits and -, such as RateLimit-Limit",
        )?;
    }
    within("envoy.near_limit_ratio", envoy.near_limit_ratio, 0.0..=1.0)
}

fn stats(stats: &Stats) -> Result<(), Invalid> {
    stats.statsd.iter().try_for_each(|server| host_port("stats.statsd", server))?;
    let is_plain = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control());
    for tag in &stats.extra_tags {
        ensure(
            tag.split_once(':').is_some_and(|(key, value)| is_plain(key) && is_plain(value)),
            "stats.extra_tags",
            format!("{tag:?} is not KEY:VALUE"),
            "write each as key:value, such as env:prod",
        )?;
    }
    at_most("stats.extra_tags", stats.extra_tags.len(), TAGS_MAX)?;
    let path = &stats.prometheus_path;
    let is_path = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic());
    ensure(
        // The router would treat braces as a parameter.
        is_path && !path.contains(['{', '}', '?', '#']),
        "stats.prometheus_path",
        format!("{path:?} is not a path"),
        "begin it with /, such as /metrics",
    )?;
    within("stats.flush_interval", stats.flush_interval, ms(100)..=secs(600))
}

fn xds(xds: &Xds) -> Result<(), Invalid> {
    let Some(url) = xds.url() else { return Ok(()) };
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    ensure(
        host.is_some_and(|host| is_host_port(host.strip_suffix('/').unwrap_or(host))),
        "xds.server",
        format!("{url:?} is not a server address"),
        "write HOST:PORT, http://HOST:PORT or https://HOST:PORT",
    )?;
    for (key, is_set) in [
        ("xds.tls", xds.tls),
        ("xds.tls_ca", xds.tls_ca.is_some()),
        ("xds.tls_cert", xds.tls_cert.is_some()),
        ("xds.tls_key", xds.tls_key.is_some()),
        ("xds.server_name", xds.server_name.is_some()),
    ] {
        ensure(
            !is_set || url.starts_with("https://"),
            key,
            "xds.server does not use TLS",
            "begin xds.server with https://, or remove it",
        )?;
    }
    pairs("xds.node_metadata", &xds.node_metadata, '=')?;
    pairs("xds.headers", &xds.headers, ':')?;
    xds.header_pairs().try_for_each(|pair| header("xds.headers", pair))?;
    within("xds.max_message_bytes", xds.max_message_bytes, 1_024..=67_108_864)?;
    within("xds.backoff_initial", xds.backoff_initial, ms(10)..=secs(60))?;
    within("xds.backoff_max", xds.backoff_max, xds.backoff_initial..=secs(600))
}

fn header(key: &'static str, (name, value): (&str, &str)) -> Result<(), Invalid> {
    let is_text = !name.ends_with("-bin") && http::HeaderValue::try_from(value).is_ok();
    ensure(
        is_text && http::HeaderName::try_from(name).is_ok(),
        key,
        format!("{name:?} cannot be sent as a text header"),
        "use letters, digits and - in its name",
    )
}

fn traces(traces: &Traces) -> Result<(), Invalid> {
    let url = traces.url();
    ensure(
        traces.endpoint.is_none() || url.is_some(),
        "traces.endpoint",
        format!("{:?} is not a receiver", traces.endpoint.as_deref().unwrap_or_default()),
        "write http://HOST:PORT or https://HOST:PORT; a path may follow unless traces.protocol is \
         grpc",
    )?;
    let is_tls = url.is_some_and(|url| url.scheme_str() == Some("https"));
    ensure(
        traces.tls_ca.is_none() || traces.endpoint.is_none() || is_tls,
        "traces.tls_ca",
        "traces.endpoint does not use TLS",
        "begin traces.endpoint with https://, or remove it",
    )?;
    within("traces.sampling_rate", traces.sampling_rate, 0.0..=1.0)?;
    pairs("traces.headers", &traces.headers, ':')?;
    traces.header_pairs().try_for_each(|pair| header("traces.headers", pair))?;
    within("traces.timeout", traces.timeout, ms(100)..=secs(60))
}

fn pairs(key: &'static str, pairs: &[String], separator: char) -> Result<(), Invalid> {
    at_most(key, pairs.len(), PAIRS_MAX)?;
    pairs.iter().try_for_each(|pair| {
        ensure(
            pair.contains(separator),
            key,
            format!("{pair:?} has no {separator}"),
            format!("write each as NAME{separator}VALUE"),
        )
    })
}

fn limits(limits: &Limits) -> Result<(), Invalid> {
    within("limits.keys_max", limits.keys_max, 1..=1_000_000_000)?;
    within("limits.domain_keys_max", limits.domain_keys_max, 0..=1_000_000_000)?;
    within("limits.fine_keys_max", limits.fine_keys_max, 0..=100_000_000)?;
    within("limits.connections_max", limits.connections_max, 1..=1_000_000)?;
    let per_address = limits.connections_per_address_max;
    within("limits.connections_per_address_max", per_address, 0..=1_000_000)?;
    within("limits.body_bytes_max", limits.body_bytes_max, 1_024..=16_777_216)?;
    within("limits.descriptors_max", limits.descriptors_max, 1..=1_000)?;
    within("limits.entries_max", limits.entries_max, 1..=100)?;
    within("limits.value_bytes_max", limits.value_bytes_max, 1..=65_536)?;
    within("limits.header_timeout", limits.header_timeout, ms(10)..=secs(600))?;
    within("limits.drain_delay", limits.drain_delay, Span::ZERO..=secs(600))?;
    within("limits.drain_timeout", limits.drain_timeout, Span::ZERO..=secs(600))
}

// === checks ===

fn ensure(
    is_valid: bool,
    key: &'static str,
    problem: impl Into<String>,
    fix: impl Into<String>,
) -> Result<(), Invalid> {
    if is_valid {
        return Ok(());
    }
    Err(Invalid { key, problem: problem.into(), fix: fix.into() })
}

#[expect(clippy::needless_pass_by_value, reason = "callers pass literals and Copy values")]
fn within<T: PartialOrd + Display>(
    key: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Invalid> {
    let (min, max) = (range.start(), range.end());
    let problem = format!("{value} is outside {min} to {max}");
    ensure(range.contains(&value), key, problem, "use a value in that range")
}

fn at_most(key: &'static str, count: usize, max: usize) -> Result<(), Invalid> {
    ensure(count <= max, key, format!("{count} entries are more than {max}"), "remove some")
}

fn host_port(key: &'static str, text: &str) -> Result<(), Invalid> {
    let fix = "write it as host:port, such as 10.0.0.7:7600 or node-1.internal:7600";
    ensure(is_host_port(text), key, format!("{text:?} is not HOST:PORT"), fix)
}

/// `host:port`, where host is a name, an IPv4 address or an IPv6 address in brackets.
fn is_host_port(text: &str) -> bool {
    if text.parse::<SocketAddr>().is_ok_and(|addr| addr.port() != 0) {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_is_name = (1..=253).contains(&host.len())
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    host_is_name && port.parse::<u16>().is_ok_and(|port| port != 0)
}

const fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

const fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standalone_configuration_is_valid() {
        assert_eq!(validate(&Config::standalone()), Ok(()));
    }

    #[test]
    fn seeds_are_host_and_port() {
        for good in ["10.0.0.1:7600", "[::1]:7600", "node-1.mesh.internal:1", "a:65535"] {
            assert!(is_host_port(good), "{good}");
        }
        for bad in
            ["", "a", "a:", ":1", "a:0", "a:65536", "10.0.0.1:0", "a b:1", "::1:7600", "http://a:1"]
        {
            assert!(!is_host_port(bad), "{bad}");
        }
    }

    #[test]
    fn the_keys_of_a_management_server_are_checked() {
        let server = |server: &str| Xds { server: Some(server.to_owned()), ..Xds::default() };
        let file = || Some("x.pem".into());
        for good in [
            Xds::default(),
            server("gateway:18000"),
            server("dns:///gateway:18000"),
            server("https://[::1]:18000/"),
            Xds { tls: true, tls_ca: file(), ..server("gateway:18000") },
            Xds { tls_cert: file(), tls_key: file(), ..server("https://gateway:18000") },
        ] {
            assert_eq!(xds(&good), Ok(()));
        }
        let pairs = |pair: &str, count| vec![pair.to_owned(); count];
        for (key, bad) in [
            ("xds.server", server("gateway")),
            ("xds.server", server("unix:///gateway.sock")),
            ("xds.server", server("http://gateway:18000/path")),
            ("xds.tls", Xds { tls: true, ..server("http://gateway:18000") }),
            ("xds.tls_ca", Xds { tls_ca: file(), ..server("gateway:18000") }),
            ("xds.node_metadata", Xds { node_metadata: pairs("a", 1), ..server("g:1") }),
            ("xds.node_metadata", Xds { node_metadata: pairs("a=b", 65), ..server("g:1") }),
            ("xds.headers", Xds { headers: pairs("a b:c", 1), ..server("g:1") }),
            ("xds.headers", Xds { headers: pairs("a:c\nd", 1), ..server("g:1") }),
            ("xds.headers", Xds { headers: pairs("a-bin:c", 1), ..server("g:1") }),
            ("xds.max_message_bytes", Xds { max_message_bytes: 1, ..server("g:1") }),
            ("xds.backoff_initial", Xds { backoff_initial: Span::ZERO, ..server("g:1") }),
            ("xds.backoff_max", Xds { backoff_max: Span::from_millis(20), ..server("g:1") }),
        ] {
            assert_eq!(xds(&bad).map_err(|invalid| invalid.key), Err(key), "{bad:?}");
        }
    }

    #[test]
    fn the_keys_of_the_resp_listener_are_checked() {
        let at = |addr: &str| Resp { listen: addr.parse().ok(), ..Resp::default() };
        let with = |password: &str| Some(password.into());
        for good in [
            Resp::default(),
            at("127.0.0.1:6380"),
            at("[::1]:6380"),
            Resp { password: with("x"), ..at("0.0.0.0:6380") },
        ] {
            assert_eq!(resp(&good), Ok(()));
        }
        for (key, bad) in [
            ("resp.listen", at("0.0.0.0:6380")),
            ("resp.listen", at("[::]:6380")),
            ("resp.password", Resp { password: with(""), ..at("0.0.0.0:6380") }),
            ("resp.username", Resp { username: "a b".to_owned(), ..Resp::default() }),
            ("resp.threads", Resp { threads: 257, ..Resp::default() }),
            ("resp.idle_timeout", Resp { idle_timeout: Span::ZERO, ..Resp::default() }),
        ] {
            assert_eq!(resp(&bad).map_err(|invalid| invalid.key), Err(key), "{bad:?}");
        }
    }

    #[test]
    fn a_certificate_requires_its_key() {
        let server = Some("https://gateway:18000".to_owned());
        for (key, xds) in [
            ("xds.tls_cert", Xds { tls_cert: Some("x.pem".into()), ..Xds::default() }),
            ("xds.tls_key", Xds { tls_key: Some("x.pem".into()), ..Xds::default() }),
        ] {
            let config =
                Config { xds: Xds { server: server.clone(), ..xds }, ..Config::standalone() };
            assert_eq!(validate(&config).map_err(|invalid| invalid.key), Err(key));
        }
    }

    #[test]
    fn two_listeners_on_port_zero_do_not_collide() {
        let mut config = Config::standalone();
        config.http.listen = "127.0.0.1:0".parse().ok();
        config.grpc.listen = config.http.listen;
        assert_eq!(validate(&config), Ok(()));
    }
}
