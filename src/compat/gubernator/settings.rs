//! Every variable of Gubernator's daemon, and its meaning here. `docs/gubernator.md` shows the same
//! table, and a test compares the two.

/// One variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    pub here: Here,
}

/// The meaning of a variable here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// It sets this key, or this command-line option.
    Sets(&'static str),
    /// It is ignored, for this reason.
    Ignored(&'static str),
}

/// The variable with this name, or the group that it is in.
pub fn find(name: &str) -> Option<&'static Setting> {
    let is_of = |setting: &&Setting| match setting.name.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == setting.name,
    };
    ALL.iter().find(is_of)
}

const fn sets(name: &'static str, key: &'static str) -> Setting {
    Setting { name, here: Here::Sets(key) }
}

const fn ignored(name: &'static str, why: &'static str) -> Setting {
    Setting { name, here: Here::Ignored(why) }
}

const OWN_MESH: &str = "nodes find each other by `cluster.seeds`, with certificates";
const NO_BATCHES: &str = "checks of one key that wait leave together, without a timer";
const BY_GRANTS: &str = "`GLOBAL` is decided from hits that the owner has granted";
const OWN_RING: &str = "the ring is that of `cluster.vnodes`";
const HANDED_OUT: &str = "certificates are not made by the node; `tidegate ca` makes them";

/// All variables, in the order of the documentation. A `*` at the end stands for any further
/// letters.
pub const ALL: &[Setting] = &[
    sets("GUBER_GRPC_ADDRESS", "gubernator.grpc"),
    sets("GUBER_HTTP_ADDRESS", "gubernator.http"),
    sets("GUBER_CACHE_SIZE", "limits.keys_max"),
    sets("GUBER_INSTANCE_ID", "node.id"),
    sets("GUBER_DATA_CENTER", "node.region"),
    sets("GUBER_TLS_CERT", "gubernator.tls_cert"),
    sets("GUBER_TLS_KEY", "gubernator.tls_key"),
    sets("GUBER_TLS_CLIENT_AUTH", "gubernator.client_ca"),
    sets("GUBER_TLS_CLIENT_AUTH_CA_CERT", "gubernator.client_ca"),
    sets("GUBER_LOG_LEVEL", "--log"),
    sets("GUBER_LOG_FORMAT", "--log-format"),
    sets("GUBER_DEBUG", "--log"),
    sets("TZ", "gubernator.time_zone"),
    ignored("GUBER_ADVERTISE_ADDRESS", "`cluster.advertise` is the address of the mesh, over UDP"),
    ignored("GUBER_STATUS_HTTP_ADDRESS", "`/healthz` is on `http.listen` and `admin.listen`"),
    ignored("GUBER_PEER_DISCOVERY_TYPE", OWN_MESH),
    ignored("GUBER_MEMBERLIST_*", OWN_MESH),
    ignored("GUBER_ETCD_*", OWN_MESH),
    ignored("GUBER_K8S_*", OWN_MESH),
    ignored("GUBER_DNS_*", OWN_MESH),
    ignored("GUBER_RESOLV_CONF", OWN_MESH),
    ignored("GUBER_PEER_PICKER*", OWN_RING),
    ignored("GUBER_REPLICATED_HASH_REPLICAS", OWN_RING),
    ignored("GUBER_BATCH_*", NO_BATCHES),
    ignored("GUBER_DISABLE_BATCHING", NO_BATCHES),
    ignored("GUBER_GLOBAL_*", BY_GRANTS),
    ignored("GUBER_FORCE_GLOBAL", BY_GRANTS),
    ignored("GUBER_MULTI_REGION_*", "regions share limits as `scope: global` says; flags do not"),
    ignored("GUBER_WORKER_COUNT", "a key is decided on the thread that read its request"),
    ignored("GUBER_GRPC_MAX_CONN_AGE_SEC", "connections are not closed by age"),
    ignored("GUBER_METRIC_FLAGS", "metrics of the process are those of tidegate"),
    ignored("GUBER_TRACING_LEVEL", "`[traces]` says where spans are sent, and how many"),
    ignored("GUBER_TLS_MIN_VERSION", "the listener accepts TLS 1.2 and 1.3"),
    ignored("GUBER_TLS_*", HANDED_OUT),
];
