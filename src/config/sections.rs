//! The sections of `cluster.toml`. Those about rules and about envoyproxy/ratelimit are in
//! [`super::rules`], and `[auth]` is in [`super::auth`].

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use tidegate_cluster::pki::{Role, Tls};
use tidegate_limiter::policy::{Durability, Mode, OnUnavailable};
use tidegate_limiter::store::{KeyHasher, OnFull, Options, Store};
use tidegate_limiter::units::Span;
use tidegate_ownership::QuorumRule;
use tidegate_ownership::identity::NodeId;
use tidegate_rules::Defaults;

use super::auth::Auth;
use super::blocked_sources::BlockedSources;
use super::proxy::Proxy;
use super::rules::{Envoy, Rules, Stats, Xds};
use super::time_zone::TimeZone;
use super::traces::Traces;
use super::value::{Secret, duration};

/// The whole configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub node: Node,
    /// Without a `listen` address the node is standalone.
    pub cluster: Cluster,
    /// What regions do when one of them is lost.
    pub global: Global,
    /// The node's certificate for the mesh.
    pub tls: Tls,
    pub http: Http,
    pub grpc: Grpc,
    pub resp: Resp,
    pub gubernator: Gubernator,
    pub proxy: Proxy,
    pub admin: Admin,
    /// How new nodes get their certificates.
    pub join: Join,
    pub debug: Debug,
    pub rules: Rules,
    pub storage: Storage,
    pub limits: Limits,
    pub auth: Auth,
    /// Which clients a firewall may drop.
    pub blocked_sources: BlockedSources,
    /// Defaults of rules.
    pub defaults: Defaults,
    pub envoy: Envoy,
    pub stats: Stats,
    pub traces: Traces,
    pub xds: Xds,
}

/// `[node]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// Stable name of this node, unchanged by a restart: lower-case letters, digits and `-`, at
    /// least one letter, at most 63. It is the name in the node's certificate and determines its
    /// tokens on the ring: renaming a node moves its keys, changing its address does not.
    ///
    /// Default `node-1`, for a standalone node. Every node of a cluster needs its own.
    pub id: String,
    /// The region, written like `id`. Nodes of one region share strict limits, so a forwarded check
    /// must return within `cluster.deadline` anywhere in it.
    ///
    /// Default `local`. Set it when nodes are more than a few milliseconds apart.
    pub region: String,
    /// The zone inside the region, written like `id`: a failure domain. Replicas are placed in
    /// another zone where there is one.
    ///
    /// Default `local`. Set it to the cloud's availability zone or to the rack.
    pub zone: String,
    /// What the node does: `core` owns keys, votes and gossips; `edge` answers beside a service,
    /// owns nothing, and calls cores, whose certificates and file of `tls.secret` it shares. The
    /// certificate names the role.
    ///
    /// Default `core`. An edge has no `data_dir`, and of `[cluster]` no keys about founding and
    /// voting.
    pub role: Role,
    /// Worker threads for the HTTP and gRPC listeners, 0 to 256; 0 is the number of cores available
    /// to the process. As many again work for peers, so that requests do not hold up a lease; only
    /// with 1 one thread does both, and a node that is overloaded may lose its lease.
    ///
    /// Default 0. Set it where several nodes share a machine: the threads of all nodes together
    /// should not exceed the cores by much.
    pub threads: usize,
    /// Folder in which the node keeps what survives a restart: the cluster map, who it is, and the
    /// counters of windows of an hour and longer. Created when missing. Every node needs its own.
    ///
    /// Default none: in memory. A node that restarts is then another voter, which replaces the one
    /// before; and when all nodes were stopped, a new cluster is founded, and all windows begin
    /// again. Set it where nodes have a disk that survives a restart.
    pub data_dir: Option<PathBuf>,
}

/// `[cluster]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Name of the cluster: letters, digits, `-`, `_` and `.`, at most 63. Nodes of another cluster
    /// are refused even with a valid certificate, so that staging never joins production.
    ///
    /// Default `tidegate`. Change it when one certificate authority serves several clusters.
    pub name: String,
    /// UDP address of the mesh, `IP:PORT`. Requires `[tls]`: there is no plaintext mesh.
    ///
    /// Default none: the node is standalone, and an edge takes any free port of `0.0.0.0`. Set it
    /// on every core of a cluster.
    pub listen: Option<SocketAddr>,
    /// Address at which peers reach this node, `IP:PORT`.
    ///
    /// Default `listen`. Set it when `listen` is `0.0.0.0` or the node is behind NAT.
    pub advertise: Option<SocketAddr>,
    /// `HOST:PORT` of some members, at most 64; gossip finds the others. A DNS name may resolve to
    /// several addresses. A node may list itself. An edge names cores.
    ///
    /// Default none: a node that the others list. Two or three nodes that are rarely down together
    /// are enough.
    pub seeds: Vec<String>,
    /// Deadline of a forwarded check inside the region, 1ms to 1s. After it, the rule's
    /// `on_unavailable` applies.
    ///
    /// Default `10ms`: half of Envoy's 20 ms, so that the failure of an owner causes no client
    /// error. Raise it only together with the client's deadline.
    #[serde(deserialize_with = "duration")]
    pub deadline: Span,
    /// Deadline of a forwarded check to another region (`scope: global`), 1ms to 10s.
    ///
    /// Default `150ms`: a round trip half around the globe. Lower it to the needs of the most
    /// distant region.
    #[serde(deserialize_with = "duration")]
    pub global_deadline: Span,
    /// Interval of synchronisation of eventual counters inside the region, 5ms to 10s.
    ///
    /// Default `50ms`: 50 hits of staleness at a limit of 1,000 per second. A shorter interval
    /// costs messages, a longer one admits more over the limit.
    #[serde(deserialize_with = "duration")]
    pub sync_interval: Span,
    /// Interval of synchronisation of eventual counters between regions, 10ms to 60s.
    ///
    /// Default `200ms`: about one round trip; a shorter interval gains nothing.
    #[serde(deserialize_with = "duration")]
    pub region_sync_interval: Span,
    /// Interval of gossip, 20ms to 5s.
    ///
    /// Default `200ms`. A shorter interval costs traffic on every node.
    #[serde(deserialize_with = "duration")]
    pub gossip_interval: Span,
    /// Virtual nodes of a member on the ring, 1 to 1,024. It must be the same on every node,
    /// otherwise nodes disagree about owners.
    ///
    /// Default 128: the largest share stays within 20 % of the mean and the table in the L2 cache.
    /// Change it only while the whole cluster is down.
    pub vnodes: u32,
    /// Copies of each strict counter beside its owner, 0 to 3, in another zone where there is one.
    ///
    /// Default 1: the failure of one node loses no counter. 2 survives two failures within a
    /// second; 0 saves memory and traffic, and a crash loses counters.
    pub replicas: u32,
    /// Interval at which an owner sends changed counters to its replicas, 1ms to 1s. A crash may
    /// lose the hits since the last one, unless the rule has `durability: replicated`.
    ///
    /// Default `5ms`. A longer interval saves messages when few keys are busy.
    #[serde(deserialize_with = "duration")]
    pub replication_interval: Span,
    /// How long a node may own keys after the last grant of a majority of the voters, 150ms to 10s.
    /// The same on every node, and shorter than `down_after`.
    ///
    /// Default `600ms`: six pings, of which five may be lost.
    #[serde(deserialize_with = "duration")]
    pub lease: Span,
    /// Which side may own keys during a partition: the one with the `majority` of the voters, or
    /// with `none` each node what it held before.
    ///
    /// Default `majority`: at most one side decides strict limits, the other falls back to
    /// `on_unavailable`. With `none` up to one limit per side is admitted until the partition
    /// heals.
    pub quorum: QuorumRule,
    /// The nodes that found the cluster of this region, by `node.id`: a majority of them, once. The
    /// same on every node of the region; it may stay when the cluster exists.
    ///
    /// Default none: the node joins a cluster that exists.
    pub founders: BTreeSet<NodeId>,
    /// How many nodes of this region found its cluster, if their names are not known in advance: 1
    /// to 64. Instead of `founders`.
    ///
    /// Default 0: none. Use it for nodes with generated names, and never start twice as many at
    /// once.
    pub bootstrap_expect: usize,
    /// The regions among which keys with `scope: global` are divided, by `node.region`, at most 64.
    /// The same on every node of every region. Read when the cluster of a region is founded.
    ///
    /// Default none: this region only.
    pub regions: BTreeSet<String>,
    /// How many nodes of a region vote: 1, 3, 5 or 7. Fewer do where there are fewer nodes.
    ///
    /// Default 5: two may fail at once.
    pub voters: usize,
    /// Which nodes vote: with `auto` those that are there, chosen across zones and replaced when
    /// they die; with `founders` always the nodes named there.
    ///
    /// Default: `founders` for a node that has `founders` and no `node.data_dir`, otherwise `auto`.
    pub voters_from: Option<VotersFrom>,
    /// How long a member may be silent before the voters evict it, 200ms to 60s. Longer than
    /// `lease`.
    ///
    /// Default `1s`: ten pings.
    #[serde(deserialize_with = "duration")]
    pub down_after: Span,
    /// How long a voter may be gone before another node votes in its place, 1s to 1h. A node that
    /// returns under the same name does so at once.
    ///
    /// Default `10s`: a restart replaces no voter.
    #[serde(deserialize_with = "duration")]
    pub replace_after: Span,
    /// How long others wait for a member to hand over ranges before it is evicted, 2s to 10m.
    ///
    /// Default `10s`.
    #[serde(deserialize_with = "duration")]
    pub settle_after: Span,
    /// How long an evicted member is remembered, 10s to 30d. Limits with `on_unavailable: local`
    /// are divided among remembered members too.
    ///
    /// Default `1h`.
    #[serde(deserialize_with = "duration")]
    pub forget_after: Span,
    /// How long a draining node may take to hand over its counts, 1s to 1h. It gives up after ten
    /// seconds without progress in any case.
    ///
    /// Default `60s`: a million counts over a long link, and with the defaults of
    /// `limits.drain_delay` and `limits.drain_timeout` within the 90 s that systemd waits for a
    /// service to stop. What stops the process must wait longer than the three together.
    #[serde(deserialize_with = "duration")]
    pub handover_timeout: Span,
    /// Largest offset of this node's clock from the members' median, 10ms to 60s. Beyond it the
    /// node logs a warning and uses the median for window numbers.
    ///
    /// Default `500ms`: easily met with NTP, and half of the shortest common window.
    #[serde(deserialize_with = "duration")]
    pub max_skew: Span,
    /// Whether a node whose clock is beyond `max_skew` is not ready.
    ///
    /// Default false: it uses the members' time and its decisions are correct.
    pub skew_unready: bool,
}

/// Which nodes vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VotersFrom {
    Auto,
    Founders,
}

/// `[global]`: keys of `scope: global` when a region is lost. The same on every node of every
/// region.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Global {
    /// The nodes that found the agreement of the regions, once: one of each region, and one
    /// elsewhere where there are two regions, at most 7. Later other nodes of their regions take
    /// their places.
    ///
    /// Default none: every region decides the keys at home in it for ever, whether others reach it
    /// or not. Set it, with at least three nodes in as many places, so that the keys of a lost
    /// region are decided elsewhere.
    pub founders: BTreeSet<NodeId>,
    /// Whether the keys of a lost region move to other regions by themselves, or when an operator
    /// says so (`tidegate regions --lost`).
    ///
    /// Default `auto`. Use `manual` where keys that begin anew are worse than keys that are
    /// answered by `on_unavailable` until then.
    pub failover: Failover,
    /// How long a region may decide global keys after the last answers of a majority of the global
    /// voters, 1s to 60s.
    ///
    /// Default 5s. Longer than the outages between regions that are to go unnoticed.
    #[serde(deserialize_with = "duration")]
    pub lease: Span,
    /// How long the node that stands for a region may be silent before the region counts as lost,
    /// 2s to 10min, at least `lease`.
    ///
    /// Default 10s. Longer than another node of the region takes to replace it: else the region is
    /// lost with one node.
    #[serde(deserialize_with = "duration")]
    pub down_after: Span,
}

/// `global.failover`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failover {
    #[default]
    Auto,
    Manual,
}

/// `[http]`: the check API and forward-auth.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// `IP:PORT`.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:8080`.)
    pub listen: Option<SocketAddr>,
    /// Status code of a denied request, 400 to 599.
    ///
    /// Default 429, on which clients back off. 503 is for clients that retry only on 5xx.
    pub denied_status: u16,
    /// Certificate chain of the listener (PEM), its own certificate first. Reloaded when the file
    /// changes.
    ///
    /// Default none: plain text.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM). A file that others can read is refused.
    pub tls_key: Option<PathBuf>,
    /// Authorities that must have signed a client's certificate (PEM).
    ///
    /// Default none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// DNS name or IP address that a client's certificate must contain.
    ///
    /// Default none: any certificate signed by `client_ca` is accepted.
    pub client_san: Option<String>,
}

/// `[grpc]`: Envoy's rate limit service and `grpc.health.v1`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grpc {
    /// `IP:PORT`.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:8081`.)
    pub listen: Option<SocketAddr>,
    /// Path of a Unix socket for clients of this machine, besides `listen` or without it. A file
    /// that no process listens on is replaced.
    ///
    /// Default none: no socket.
    pub socket: Option<PathBuf>,
    /// Age at which clients are asked to open another connection, give or take a tenth.
    ///
    /// Default 0: connections are not closed by age.
    #[serde(deserialize_with = "duration")]
    pub max_connection_age: Span,
    /// Time for requests in flight on a connection that is too old.
    ///
    /// Default `1h`.
    #[serde(deserialize_with = "duration")]
    pub max_connection_age_grace: Span,
    /// Certificate chain of the listener (PEM), its own certificate first. Reloaded when the file
    /// changes.
    ///
    /// Default none: plaintext HTTP/2.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM). A file that others can read is refused.
    pub tls_key: Option<PathBuf>,
    /// Authorities that must have signed a client's certificate (PEM).
    ///
    /// Default none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// DNS name or IP address that a client's certificate must contain.
    ///
    /// Default none: any certificate signed by `client_ca` is accepted.
    pub client_san: Option<String>,
}

/// `[resp]`: Redis clients. The bounds on requests and connections and the time for a command are
/// in `[limits]`, as for the other listeners.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resp {
    /// `IP:PORT`. Off loopback it requires a `password` or a `client_ca`: any client can use up the
    /// limits of others.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:6380`.)
    pub listen: Option<SocketAddr>,
    /// User name that belongs to the password.
    ///
    /// Default `default`, which clients send when they are given a password alone.
    pub username: String,
    /// Password that clients must send (`AUTH`) before any other command. Use the variable
    /// `TIDEGATE_RESP__PASSWORD` where others can read the file.
    ///
    /// Default none: no authentication, on loopback only.
    pub password: Option<Secret>,
    /// Mode of limits that clients define themselves (`CL.THROTTLE`): `strict`, `leased` or
    /// `eventual`. The same on every node.
    ///
    /// Default: the mode of `[defaults]`.
    pub mode: Option<Mode>,
    /// Worker threads for connections, 0 to 256, beside those of `node.threads`; 0 is half the
    /// cores, at least 1.
    ///
    /// Default 0: as with Redis, clients often run on the same machine.
    pub threads: usize,
    /// How long a connection may be idle before it is closed, 1s to 7d.
    ///
    /// Default `10m`: longer than connection pools keep idle connections, short enough that
    /// abandoned ones do not fill the listener.
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Span,
    /// Certificate chain of the listener (PEM), its own certificate first. Reloaded when the file
    /// changes.
    ///
    /// Default none: plain text.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM). A file that others can read is refused.
    pub tls_key: Option<PathBuf>,
    /// Authorities that must have signed a client's certificate (PEM).
    ///
    /// Default none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// DNS name or IP address that a client's certificate must contain.
    ///
    /// Default none: any certificate signed by `client_ca` is accepted.
    pub client_san: Option<String>,
}

/// `[gubernator]`: clients of Gubernator, over gRPC and JSON. `[limits]` applies as for the other
/// listeners, except for the size of a message, which is 1 MiB as there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gubernator {
    /// `IP:PORT` of the gRPC service `pb.gubernator.V1`.
    ///
    /// Default none: no listener.
    pub grpc: Option<SocketAddr>,
    /// `IP:PORT` of its JSON form, `/v1/GetRateLimits`, `/v1/HealthCheck`, `/v1/LiveCheck`, and of
    /// `/metrics`.
    ///
    /// Default none: no listener.
    pub http: Option<SocketAddr>,
    /// Zone of the calendar for `DURATION_IS_GREGORIAN`, a name of the IANA database such as
    /// `Europe/Berlin`. The same on every node.
    ///
    /// Default `UTC`. Gubernator uses the zone of its machine.
    pub time_zone: TimeZone,
    /// Whether what Gubernator answers for want of arithmetic is answered here too:
    /// `docs/gubernator.md` lists what.
    ///
    /// Default `false`.
    pub quirks: bool,
    /// What a request gets while the owner of its key cannot be reached: `local`, `allow` or
    /// `deny`.
    ///
    /// Default: that of `[defaults]`.
    pub on_unavailable: Option<OnUnavailable>,
    /// When hits are confirmed: `async` or `replicated`, when a replica has them.
    ///
    /// Default `async`.
    pub durability: Durability,
    /// Certificate chain of both listeners (PEM), its own certificate first. Reloaded when the
    /// file changes.
    ///
    /// Default none: plain text.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM). A file that others can read is refused.
    pub tls_key: Option<PathBuf>,
    /// Authorities that must have signed a client's certificate (PEM).
    ///
    /// Default none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// DNS name or IP address that a client's certificate must contain.
    ///
    /// Default none: any certificate signed by `client_ca` is accepted.
    pub client_san: Option<String>,
}

/// `[admin]`: the dashboard, `/status`, `/owner`, `/drain`, `/metrics`, `/healthz` and `/readyz`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// `IP:PORT`. It shows every member and carries out orders: keep it off public networks, and
    /// set `token_file` where others reach it.
    ///
    /// Default none: no listener. (Without a configuration file: `127.0.0.1:8082`.)
    pub listen: Option<SocketAddr>,
    /// Certificate chain of the listener (PEM), its own certificate first. Reloaded when the file
    /// changes.
    ///
    /// Default none: plain text.
    pub tls_cert: Option<PathBuf>,
    /// Private key of `tls_cert` (PEM). A file that others can read is refused.
    pub tls_key: Option<PathBuf>,
    /// Authorities that must have signed a client's certificate (PEM).
    ///
    /// Default none: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// DNS name or IP address that a client's certificate must contain.
    ///
    /// Default none: any certificate signed by `client_ca` is accepted.
    pub client_san: Option<String>,
    /// Names besides `localhost` under which browsers may reach the listener, at most 64, without
    /// ports; requests for other names get 421, so that no page of a stranger whose name resolves
    /// to the listener can use it. Addresses are always served.
    ///
    /// Default none. Name the host of a proxy in front.
    pub hosts: Vec<String>,
    /// File with the token that requests must send, `Authorization: Bearer TOKEN`, of 16 to 1,024
    /// visible characters; only the user of the node and its group may read it. Reloaded when it
    /// changes. `/healthz`, `/readyz` and the files of the dashboard are served without.
    ///
    /// Default none: whoever reaches the listener may use it.
    pub token_file: Option<PathBuf>,
    /// File with a token that only reads, as that of `token_file`, and another one.
    ///
    /// Default none. Without `token_file` nothing writes.
    pub read_token_file: Option<PathBuf>,
    /// Whether the dashboard shows the values of descriptors that are refused most. Values may be
    /// addresses or names of people. Set it on the nodes that receive the requests.
    ///
    /// Default false: it shows a hash of them under `tls.secret`, the same on all nodes.
    pub show_keys: bool,
}

/// `[join]`: signs certificates for nodes that show a token, and renews those of peers. Set it on
/// two or three nodes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Join {
    /// `IP:PORT` at which new nodes show their token, over TLS with the certificate of `[tls]`. It
    /// has to be reachable for them alone.
    ///
    /// Default none: no node joins here; certificates of peers are renewed nevertheless.
    pub listen: Option<SocketAddr>,
    /// Certificate of `tidegate ca signer` (PEM). Read when it is used, so it can be replaced.
    ///
    /// Default none: this node signs nothing.
    pub signer_cert: Option<PathBuf>,
    /// Private key of `signer_cert` (PEM). A file that others can read is refused.
    pub signer_key: Option<PathBuf>,
    /// How long certificates are valid, 1m to 3650d, and no longer than the signer's own. A node
    /// renews its certificate in the last third of its time.
    ///
    /// Default `30d`.
    #[serde(deserialize_with = "duration")]
    pub valid_for: Span,
    /// `NAMESPACE/NAME`: the Kubernetes service account whose pods may join at `listen`, as cores
    /// of this node's region, each under the name of the pod.
    ///
    /// Default none: nodes join with tokens of `tidegate ca token` alone.
    pub service_account: Option<String>,
    /// Who issues the tokens of the service account: `issuer` in `kubectl get --raw
    /// /.well-known/openid-configuration`.
    pub service_account_issuer: Option<String>,
    /// For whom the tokens are: the `audience` of the projected volume. A token that a pod shows to
    /// somebody else is no use here.
    ///
    /// Default `tidegate`.
    pub service_account_audience: String,
    /// The keys with which the issuer signs (a JWK set): what `kubectl get --raw /openid/v1/jwks`
    /// prints. Read when it is used, so it can be replaced.
    pub service_account_keys: Option<PathBuf>,
}

impl Join {
    /// The subject of the tokens of `service_account`; `None` if it is not `NAMESPACE/NAME`.
    pub fn service_account_subject(&self) -> Option<String> {
        let (namespace, name) = self.service_account.as_deref()?.split_once('/')?;
        let is_name = |name: &str| {
            let allowed = |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
            !name.is_empty() && name.bytes().all(allowed)
        };
        (is_name(namespace) && is_name(name))
            .then(|| format!("system:serviceaccount:{namespace}:{name}"))
    }
}

impl Default for Join {
    fn default() -> Self {
        Self {
            listen: None,
            signer_cert: None,
            signer_key: None,
            valid_for: Span::from_secs(30 * 86_400),
            service_account: None,
            service_account_issuer: None,
            service_account_audience: "tidegate".to_owned(),
            service_account_keys: None,
        }
    }
}

/// `[debug]`: the debug port of envoyproxy/ratelimit, `/rlconfig` and `/stats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Debug {
    /// `IP:PORT`. It is read-only and exposes every rule and statistic: keep it off public
    /// networks.
    ///
    /// Default none: no listener.
    pub listen: Option<SocketAddr>,
}

/// `[limits]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum number of counters on a node, 1 to 1,000,000,000. At the bound `on_full` applies;
    /// counters in use are never evicted.
    ///
    /// Default 1,000,000: some 50 MB. Set it to the number of keys active within a window.
    pub keys_max: usize,
    /// Maximum number of counters of one domain on a node, 0 to 1,000,000,000; 0 is none but
    /// `keys_max`. At the bound `on_full` applies to new keys of that domain alone. Set it on all
    /// nodes or on none, and not while nodes run that do not have it: they refuse each other.
    ///
    /// Default 0. Where domains are tenants, set it so that a flood in one leaves room for the
    /// others: to a half of `keys_max` with a few of them, to less with many.
    pub domain_keys_max: usize,
    /// Treatment of a new key when the store is full: `share` or `refuse`.
    ///
    /// Default `share`: new clients share one limit, so a flood of invented keys neither locks them
    /// out nor multiplies the limit.
    pub on_full: OnFull,
    /// Maximum number of keys with a fine window on a node, 0 to 100,000,000; 0 is none. Further
    /// keys near a `sliding_window_counter` limit are decided from two counts.
    ///
    /// Default 65,536: usually some tens of MB, at most 280 MB where all of them use limits of
    /// 1,000 and more. Raise it with the number of keys that are near their limits at a time.
    pub fine_keys_max: usize,
    /// Maximum number of connections of a listener, 1 to 1,000,000. Further ones wait in the
    /// system's accept queue.
    ///
    /// Default 10,000: at most some 200 MB of connection state. Keep it below `ulimit -n`.
    pub connections_max: usize,
    /// Maximum number of connections of one client address at a listener, 0 to 1,000,000; 0 is no
    /// maximum. Further ones are closed at once. An IPv6 /64 is one address; loopback and
    /// `auth.trusted_proxies` are exempt.
    ///
    /// Default 1,000: a tenth of `connections_max`, so that one host cannot occupy a listener, and
    /// far above the pools of a proxy or a Redis client. Raise it where many clients share an
    /// address (NAT).
    pub connections_per_address_max: usize,
    /// Maximum size of a request body in bytes, 1,024 to 16,777,216. Larger ones are refused (413).
    ///
    /// Default 65,536: several times the largest request within the other default bounds.
    pub body_bytes_max: usize,
    /// Maximum number of descriptors in a request, 1 to 1,000.
    ///
    /// Default 32: each costs a lookup and possibly a forwarded check, so this bounds the work of
    /// one request.
    pub descriptors_max: usize,
    /// Maximum number of entries in a descriptor, 1 to 100.
    ///
    /// Default 16: deeper than rules in practice.
    pub entries_max: usize,
    /// Maximum length of a key or value in bytes, 1 to 65,536.
    ///
    /// Default 1,024: a long path or token fits.
    pub value_bytes_max: usize,
    /// How long a client may take to send its request header, 10ms to 10m. Slower ones are
    /// disconnected.
    ///
    /// Default `5s`: bounds how long a slow-loris attack holds a connection.
    #[serde(deserialize_with = "duration")]
    pub header_timeout: Span,
    /// How long a node goes on as before once it is to drain, while `/readyz` and the gRPC health
    /// service say that it is not ready, 0s to 10m. A standalone node does not wait: no other
    /// one could answer in its place.
    ///
    /// Default `5s`: load balancers ask each second or two, and stop sending after two answers.
    #[serde(deserialize_with = "duration")]
    pub drain_delay: Span,
    /// How long a draining node waits for requests in flight, 0s to 10m.
    ///
    /// Default `10s`: a third of the 30 s that Kubernetes gives a pod to terminate.
    #[serde(deserialize_with = "duration")]
    pub drain_timeout: Span,
}

/// `[storage]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// Interval at which changed counters of windows of an hour and longer are written to
    /// `node.data_dir`, 100ms to 10m: the hits that a crash of the whole cluster may lose.
    ///
    /// Default `3s`.
    #[serde(deserialize_with = "duration")]
    pub interval: Span,
}

/// Largest number of threads of each kind.
pub(super) const THREADS_MAX: usize = 256;

impl Config {
    /// The configuration without a file: a standalone node whose listeners are on loopback.
    pub fn standalone() -> Self {
        let mut config = Self::default();
        config.listen_on_loopback();
        config
    }

    /// An edge dials and is not dialed: without an address it takes any port.
    pub(super) fn edge_listens_anywhere(&mut self) {
        if self.node.role == Role::Edge {
            self.cluster.listen.get_or_insert_with(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        }
    }

    /// Gives listeners without an address their loopback default.
    pub(super) fn listen_on_loopback(&mut self) {
        for (listen, port) in [
            (&mut self.http.listen, 8080),
            // The port of envoyproxy/ratelimit.
            (&mut self.grpc.listen, 8081),
            // One above Redis' own port, which may be in use.
            (&mut self.resp.listen, 6380),
            // The default of `tidegate status`.
            (&mut self.admin.listen, 8082),
        ] {
            listen.get_or_insert((Ipv4Addr::LOCALHOST, port).into());
        }
    }
}

impl Cluster {
    /// The address announced to peers: `advertise`, else `listen`; none for a standalone node.
    pub fn advertised(&self) -> Option<SocketAddr> {
        self.listen.map(|listen| self.advertise.unwrap_or(listen))
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            id: "node-1".into(),
            region: "local".into(),
            zone: "local".into(),
            role: Role::Core,
            threads: 0,
            data_dir: None,
        }
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            name: "tidegate".into(),
            listen: None,
            advertise: None,
            seeds: Vec::new(),
            deadline: Span::from_millis(10),
            global_deadline: Span::from_millis(150),
            sync_interval: Span::from_millis(50),
            region_sync_interval: Span::from_millis(200),
            gossip_interval: Span::from_millis(200),
            vnodes: 128,
            replicas: 1,
            replication_interval: Span::from_millis(5),
            lease: Span::from_millis(600),
            quorum: QuorumRule::Majority,
            founders: BTreeSet::new(),
            bootstrap_expect: 0,
            regions: BTreeSet::new(),
            voters: 5,
            voters_from: None,
            down_after: Span::from_secs(1),
            replace_after: Span::from_secs(10),
            settle_after: Span::from_secs(10),
            forget_after: Span::from_secs(3_600),
            handover_timeout: Span::from_secs(60),
            max_skew: Span::from_millis(500),
            skew_unready: false,
        }
    }
}

impl Default for Global {
    fn default() -> Self {
        Self {
            founders: BTreeSet::new(),
            failover: Failover::Auto,
            lease: Span::from_secs(5),
            down_after: Span::from_secs(10),
        }
    }
}

impl Default for Grpc {
    fn default() -> Self {
        Self {
            listen: None,
            socket: None,
            max_connection_age: Span::ZERO,
            max_connection_age_grace: Span::from_secs(3_600),
            tls_cert: None,
            tls_key: None,
            client_ca: None,
            client_san: None,
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: None,
            denied_status: 429,
            tls_cert: None,
            tls_key: None,
            client_ca: None,
            client_san: None,
        }
    }
}

impl Default for Resp {
    fn default() -> Self {
        Self {
            listen: None,
            username: "default".to_owned(),
            password: None,
            mode: None,
            threads: 0,
            idle_timeout: Span::from_secs(600),
            tls_cert: None,
            tls_key: None,
            client_ca: None,
            client_san: None,
        }
    }
}

impl Limits {
    /// An empty store within these bounds.
    pub fn new_store(&self) -> Store {
        let options = Options { keys_max: self.keys_max, on_full: self.on_full, shards: None };
        let store = Store::new(options).with_fine_keys(self.fine_keys_max);
        store.with_domain_keys(self.domain_keys_max)
    }

    /// A hasher whose keys the store can bound as it has to.
    pub fn new_hasher(&self, secret: [u8; 16]) -> KeyHasher {
        KeyHasher::new(secret).with_domains(self.names_domains())
    }

    /// Whether keys name their domain.
    pub fn names_domains(&self) -> bool {
        self.domain_keys_max > 0
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys_max: 1_000_000,
            domain_keys_max: 0,
            on_full: OnFull::Share,
            fine_keys_max: 65_536,
            connections_max: 10_000,
            connections_per_address_max: 1_000,
            body_bytes_max: 64 * 1024,
            descriptors_max: 32,
            entries_max: 16,
            value_bytes_max: 1024,
            header_timeout: Span::from_secs(5),
            drain_delay: Span::from_secs(5),
            drain_timeout: Span::from_secs(10),
        }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self { interval: Span::from_secs(3) }
    }
}
