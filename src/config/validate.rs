//! The ranges and relations that types cannot hold. Run once, by [`super::load()`].

mod resp;

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use tidegate_limiter::units::Span;
use tidegate_ownership::name::{is_cluster_name, is_label};

use super::node::THREADS_MAX;
use super::stats::TAGS_MAX;
use super::{Cluster, Config, Envoy, Grpc, Limits, Stats, Xds};

/// Most pairs of `xds.node_metadata`, and of `xds.headers`.
pub const XDS_PAIRS_MAX: usize = 64;

/// Most seeds: more than a cluster needs to find itself, few enough to dial all at start.
pub const SEEDS_MAX: usize = 64;

/// A value that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}; {fix}")]
pub struct Invalid {
    /// Its key.
    pub key: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// What would be right.
    pub fix: String,
}

/// Checks every range and relation; the first thing wrong is returned.
pub fn validate(config: &Config) -> Result<(), Invalid> {
    node(config)?;
    cluster(&config.cluster)?;
    tls(config)?;
    listeners(config)?;
    let interval = config.storage.interval;
    within("storage.interval", interval, Span::from_millis(100)..=Span::from_secs(600))?;
    envoy(&config.envoy)?;
    stats(&config.stats)?;
    xds(&config.xds)?;
    limits(&config.limits)
}

fn node(config: &Config) -> Result<(), Invalid> {
    let node = &config.node;
    for (key, name) in
        [("node.id", &node.id), ("node.region", &node.region), ("node.zone", &node.zone)]
    {
        if !is_label(name) {
            return Err(invalid(
                key,
                format!("{name:?} is not a DNS label"),
                "use 1 to 63 of a-z, 0-9 and -, at least one letter, no - at either end",
            ));
        }
    }
    within("node.threads", node.threads, 0..=THREADS_MAX)
}

fn cluster(cluster: &Cluster) -> Result<(), Invalid> {
    if !is_cluster_name(&cluster.name) {
        return Err(invalid(
            "cluster.name",
            format!("{:?} is no cluster name", cluster.name),
            "use 1 to 63 letters, digits, -, _ and .",
        ));
    }
    if cluster.listen.is_none() {
        if cluster.advertise.is_some() {
            return Err(invalid(
                "cluster.advertise",
                "there is nothing to advertise without cluster.listen",
                "set cluster.listen too, or remove it",
            ));
        }
        if !cluster.seeds.is_empty() {
            return Err(invalid(
                "cluster.seeds",
                "a node that stands alone joins nobody",
                "set cluster.listen too, or remove them",
            ));
        }
    }
    if let Some(addr) = cluster.advertised().filter(|addr| addr.ip().is_unspecified()) {
        return Err(invalid(
            "cluster.advertise",
            format!("peers cannot reach {addr}"),
            "set it to the IP:PORT that the other nodes reach this one at",
        ));
    }
    if cluster.seeds.len() > SEEDS_MAX {
        return Err(invalid(
            "cluster.seeds",
            format!("{} seeds are more than {SEEDS_MAX}", cluster.seeds.len()),
            "name two or three members; gossip finds the rest",
        ));
    }
    if let Some(seed) = cluster.seeds.iter().find(|seed| !is_host_port(seed)) {
        return Err(invalid(
            "cluster.seeds",
            format!("{seed:?} is not HOST:PORT"),
            "write each as host:port, such as 10.0.0.7:7600 or tidegate.internal:7600",
        ));
    }
    within("cluster.deadline_ms", cluster.deadline_ms, 1..=1_000)?;
    within("cluster.global_deadline_ms", cluster.global_deadline_ms, 1..=10_000)?;
    within("cluster.sync_interval_ms", cluster.sync_interval_ms, 5..=10_000)?;
    within("cluster.region_sync_interval_ms", cluster.region_sync_interval_ms, 10..=60_000)?;
    within("cluster.gossip_interval_ms", cluster.gossip_interval_ms, 20..=5_000)?;
    within("cluster.vnodes", cluster.vnodes, 1..=1_024)?;
    within("cluster.replicas", cluster.replicas, 0..=3)?;
    within("cluster.replication_interval_ms", cluster.replication_interval_ms, 1..=1_000)?;
    let (ms, secs) = (Span::from_millis, Span::from_secs);
    within("cluster.lease", cluster.lease, ms(150)..=secs(10))?;
    within("cluster.forget_after", cluster.forget_after, secs(10)..=secs(30 * 86_400))?;
    within("cluster.max_skew", cluster.max_skew, ms(10)..=secs(60))
}

fn tls(config: &Config) -> Result<(), Invalid> {
    let tls = &config.tls;
    let files = [
        ("tls.ca", &tls.ca),
        ("tls.cert", &tls.cert),
        ("tls.key", &tls.key),
        ("tls.secret", &tls.secret),
    ];
    if config.cluster.listen.is_none() {
        return Ok(());
    }
    match files.into_iter().find(|(_, path)| path.is_none()) {
        None => Ok(()),
        Some((key, _)) => Err(invalid(
            key,
            "the mesh (cluster.listen) needs it",
            format!(
                "make it with `tidegate ca init --dir pki` and `tidegate ca issue --dir pki --node \
                 {}`, then set it",
                config.node.id
            ),
        )),
    }
}

fn listeners(config: &Config) -> Result<(), Invalid> {
    let listeners = [
        ("http.listen", config.http.listen),
        ("grpc.listen", config.grpc.listen),
        ("resp.listen", config.resp.listen),
        ("admin.listen", config.admin.listen),
        ("stats.prometheus_listen", config.stats.prometheus_listen),
        ("debug.listen", config.debug.listen),
    ];
    let asked = [config.http.listen, config.grpc.listen, config.resp.listen];
    if asked.iter().all(Option::is_none) {
        return Err(invalid(
            "http.listen",
            "none of http.listen, grpc.listen and resp.listen is set, so nobody could ask this node",
            "set at least one, such as http.listen = \"127.0.0.1:8080\"",
        ));
    }
    for (i, (_, first)) in listeners.iter().enumerate() {
        for (key, second) in &listeners[i + 1..] {
            if let (Some(a), Some(b)) = (first, second)
                && collide(*a, *b)
            {
                return Err(invalid(
                    key,
                    format!("{b} is another door's address"),
                    "give each door a port of its own",
                ));
            }
        }
    }
    grpc(&config.grpc)?;
    resp::resp(&config.resp)?;
    within("http.denied_status", config.http.denied_status, 400..=599)
}

fn grpc(grpc: &Grpc) -> Result<(), Invalid> {
    if grpc.tls_cert.is_some() != grpc.tls_key.is_some() {
        let key = if grpc.tls_cert.is_some() { "grpc.tls_key" } else { "grpc.tls_cert" };
        return Err(invalid(key, "certificate and key go together", "set both, or neither"));
    }
    if grpc.client_ca.is_some() && grpc.tls_cert.is_none() {
        let problem = "without TLS no client shows a certificate";
        return Err(invalid("grpc.client_ca", problem, "set grpc.tls_cert and grpc.tls_key too"));
    }
    let Some(san) = &grpc.client_san else { return Ok(()) };
    if grpc.client_ca.is_none() {
        let problem = "without grpc.client_ca no client's certificate is looked at";
        return Err(invalid("grpc.client_san", problem, "set grpc.client_ca too, or remove it"));
    }
    if rustls::pki_types::ServerName::try_from(san.as_str()).is_err() {
        let problem = format!("{san:?} is neither a DNS name nor an IP address");
        return Err(invalid("grpc.client_san", problem, "write it as in the certificate"));
    }
    Ok(())
}

fn envoy(envoy: &Envoy) -> Result<(), Invalid> {
    for (key, name) in [
        ("envoy.limit_header", &envoy.limit_header),
        ("envoy.remaining_header", &envoy.remaining_header),
        ("envoy.reset_header", &envoy.reset_header),
    ] {
        if http::HeaderName::try_from(name).is_err() {
            let problem = format!("{name:?} is no name of a header");
            return Err(invalid(
                key,
                problem,
                "use letters, digits and -, such as RateLimit-Limit",
            ));
        }
    }
    within("envoy.near_limit_ratio", envoy.near_limit_ratio, 0.0..=1.0)
}

fn stats(stats: &Stats) -> Result<(), Invalid> {
    if let Some(server) = stats.statsd.as_ref().filter(|server| !is_host_port(server)) {
        return Err(invalid(
            "stats.statsd",
            format!("{server:?} is not HOST:PORT"),
            "write it as host:port, such as statsd.internal:8125",
        ));
    }
    let is_none = |tag: &&String| {
        let is_plain = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control());
        let parted = tag.split_once(':');
        !parted.is_some_and(|(key, value)| is_plain(key) && is_plain(value))
    };
    if let Some(tag) = stats.extra_tags.iter().find(is_none) {
        return Err(invalid(
            "stats.extra_tags",
            format!("{tag:?} is not KEY:VALUE"),
            "write each as key:value, such as env:prod",
        ));
    }
    if stats.extra_tags.len() > TAGS_MAX {
        return Err(invalid(
            "stats.extra_tags",
            format!("{} tags are more than {TAGS_MAX}", stats.extra_tags.len()),
            "each is in every line: send the few that tell one process from another",
        ));
    }
    let path = &stats.prometheus_path;
    let is_path = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic());
    // In braces the router would see a parameter.
    if !is_path || path.contains(['{', '}', '?', '#']) {
        return Err(invalid(
            "stats.prometheus_path",
            format!("{path:?} is no path"),
            "begin it with /, such as /metrics",
        ));
    }
    let range = Span::from_millis(100)..=Span::from_secs(600);
    within("stats.flush_interval", stats.flush_interval, range)
}

fn xds(xds: &Xds) -> Result<(), Invalid> {
    let Some(url) = xds.url() else { return Ok(()) };
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if !host.is_some_and(|host| is_host_port(host.strip_suffix('/').unwrap_or(host))) {
        return Err(invalid(
            "xds.server",
            format!("{url:?} is no server"),
            "write HOST:PORT, http://HOST:PORT or https://HOST:PORT",
        ));
    }
    if !url.starts_with("https://") {
        let files = [
            ("xds.tls", xds.tls),
            ("xds.tls_ca", xds.tls_ca.is_some()),
            ("xds.tls_cert", xds.tls_cert.is_some()),
            ("xds.tls_key", xds.tls_key.is_some()),
            ("xds.server_name", xds.server_name.is_some()),
        ];
        if let Some((key, _)) = files.into_iter().find(|(_, is_set)| *is_set) {
            let problem = "there is no TLS with this server";
            return Err(invalid(key, problem, "begin xds.server with https://, or remove it"));
        }
    }
    if xds.tls_cert.is_some() != xds.tls_key.is_some() {
        let key = if xds.tls_cert.is_some() { "xds.tls_key" } else { "xds.tls_cert" };
        return Err(invalid(key, "certificate and key go together", "set both, or neither"));
    }
    for (key, pairs, sign) in
        [("xds.node_metadata", &xds.node_metadata, '='), ("xds.headers", &xds.headers, ':')]
    {
        if pairs.len() > XDS_PAIRS_MAX {
            let problem = format!("{} pairs are more than {XDS_PAIRS_MAX}", pairs.len());
            return Err(invalid(key, problem, "give fewer"));
        }
        if let Some(pair) = pairs.iter().find(|pair| !pair.contains(sign)) {
            let problem = format!("{pair:?} has no {sign}");
            return Err(invalid(key, problem, format!("write each as NAME{sign}VALUE")));
        }
    }
    for (name, value) in xds.header_pairs() {
        let is_text = !name.ends_with("-bin") && http::HeaderValue::try_from(value).is_ok();
        if !is_text || http::HeaderName::try_from(name).is_err() {
            let problem = format!("{name:?} cannot be sent as a header of text");
            return Err(invalid("xds.headers", problem, "use letters, digits and - in its name"));
        }
    }
    within("xds.max_message_bytes", xds.max_message_bytes, 1_024..=67_108_864)?;
    let initial = xds.backoff_initial;
    within("xds.backoff_initial", initial, Span::from_millis(10)..=Span::from_secs(60))?;
    within("xds.backoff_max", xds.backoff_max, initial..=Span::from_secs(600))
}

fn limits(limits: &Limits) -> Result<(), Invalid> {
    within("limits.keys_max", limits.keys_max, 1..=1_000_000_000)?;
    within("limits.connections_max", limits.connections_max, 1..=1_000_000)?;
    within("limits.body_bytes_max", limits.body_bytes_max, 1_024..=16_777_216)?;
    within("limits.descriptors_max", limits.descriptors_max, 1..=1_000)?;
    within("limits.entries_max", limits.entries_max, 1..=100)?;
    within("limits.value_bytes_max", limits.value_bytes_max, 1..=65_536)?;
    within("limits.header_timeout_ms", limits.header_timeout_ms, 10..=600_000)?;
    within("limits.drain_timeout_ms", limits.drain_timeout_ms, 0..=600_000)
}

fn within<T: PartialOrd + Display + Copy>(
    key: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Invalid> {
    if range.contains(&value) {
        return Ok(());
    }
    let (min, max) = range.into_inner();
    Err(invalid(key, format!("{value} is outside {min} to {max}"), "give a number in that range"))
}

/// Port 0 asks the system for any free port, so two of them do not collide.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    a == b && a.port() != 0
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

fn invalid(key: &'static str, problem: impl Into<String>, fix: impl Into<String>) -> Invalid {
    Invalid { key, problem: problem.into(), fix: fix.into() }
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
    fn a_management_server_is_held_against_its_keys() {
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
            ("xds.tls_key", Xds { tls_cert: file(), ..server("https://gateway:18000") }),
            ("xds.tls_cert", Xds { tls_key: file(), ..server("https://gateway:18000") }),
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
    fn two_doors_on_port_zero_do_not_collide() {
        let mut config = Config::standalone();
        config.http.listen = "127.0.0.1:0".parse().ok();
        config.grpc.listen = config.http.listen;
        assert_eq!(validate(&config), Ok(()));
    }
}
