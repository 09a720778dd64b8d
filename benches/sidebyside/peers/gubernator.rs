//! Gubernator: a single node, and several that find each other by its member list.
//!
//! Its member list tells peers apart by their address without the port, so each node of a cluster
//! has a loopback address of its own: 127.0.3.1, 127.0.3.2 and so on. It also needs a host name of
//! its own, which is that of a UTS namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::clients::Http;
use crate::processes::{self, Server};

/// Names the program, if it is not in the search path.
pub const VARIABLE: &str = "GUBERNATOR_BIN";
/// Its own default is 50,000 keys, beyond which it forgets.
pub const CACHE_SIZE: u64 = 2_000_000;
/// Sets the host name to the first argument and becomes the program that is the second.
const NAMED: &str = "echo \"$0\" > /proc/sys/kernel/hostname && exec \"$1\"";
const START_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Gubernator {
    pub server: Rc<Server>,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
}

/// The program, or what to do to have it.
pub fn program() -> io::Result<PathBuf> {
    processes::find_peer("gubernator", VARIABLE)
}

/// How a node is started.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub folder: &'a Path,
    pub ip: Ipv4Addr,
    /// A node of the cluster, which may be itself. Without one it stays alone, on free ports.
    pub seed: Option<Ipv4Addr>,
    /// On how many threads it runs Go code at a time, if not on all.
    pub threads: Option<u8>,
    /// `None`: its own default.
    pub cache_size: Option<u64>,
    /// The network namespace that it runs in, if not that of the caller.
    pub namespace: Option<&'a Path>,
}

/// Starts one node with all its threads.
pub fn start(folder: &Path) -> io::Result<Gubernator> {
    let cache_size = Some(CACHE_SIZE);
    let (ip, seed, threads, namespace) = (Ipv4Addr::LOCALHOST, None, None, None);
    let node = Setting { folder, ip, seed, threads, cache_size, namespace }.spawn()?;
    node.wait_for_peers(1)?;
    Ok(node)
}

/// Starts a cluster. Each node runs Go code on one thread at a time, as the nodes of tidegate do:
/// they share the machine.
pub fn start_cluster(folder: &Path, nodes: u8) -> io::Result<Vec<Gubernator>> {
    let (seed, threads, cache_size) = (Some(address(1)), Some(1), Some(CACHE_SIZE));
    let setting = |ip| Setting { folder, ip, seed, threads, cache_size, namespace: None };
    let started: io::Result<Vec<_>> =
        (1..=nodes).map(|number| setting(address(number)).spawn()).collect();
    let started = started?;
    for node in &started {
        node.wait_for_peers(started.len())?;
    }
    Ok(started)
}

/// The address of node `number` of a cluster.
pub fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 3, number)
}

impl Setting<'_> {
    /// Starts a node and does not wait until it knows others.
    pub fn spawn(&self) -> io::Result<Gubernator> {
        let at = |port| SocketAddr::new(IpAddr::V4(self.ip), port);
        let (grpc, http, gossip) = match self.seed {
            Some(_) => (at(1_051), at(1_050), at(7_946)),
            None => (processes::free_tcp()?, processes::free_tcp()?, processes::free_tcp()?),
        };
        let known = self.seed.map_or(gossip, |seed| SocketAddr::new(seed.into(), gossip.port()));
        let mut command = processes::command_in(self.namespace, "unshare");
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command
            .args(["--uts", "sh", "-c", NAMED, &self.ip.to_string()])
            .arg(program()?)
            .env("GUBER_GRPC_ADDRESS", grpc.to_string())
            .env("GUBER_ADVERTISE_ADDRESS", grpc.to_string())
            .env("GUBER_HTTP_ADDRESS", http.to_string())
            .env("GUBER_MEMBERLIST_ADDRESS", gossip.to_string())
            .env("GUBER_MEMBERLIST_BIND_ADDRESS", gossip.to_string())
            .env("GUBER_MEMBERLIST_KNOWN_NODES", known.to_string())
            .env("GUBER_LOG_LEVEL", "error");
        if let Some(size) = self.cache_size {
            command.env("GUBER_CACHE_SIZE", size.to_string());
        }
        if let Some(threads) = self.threads {
            command.env("GOMAXPROCS", threads.to_string());
        }
        let mut server =
            Server::start(&mut command, self.folder, &format!("gubernator-{}", self.ip))?;
        server.wait_for(grpc)?;
        server.wait_for(http)?;
        Ok(Gubernator { server: Rc::new(server), grpc, http })
    }
}

impl Gubernator {
    /// How many nodes this one knows, itself included.
    pub fn peers(&self) -> io::Result<usize> {
        let health = Http::connect(self.http)?.get("/v1/HealthCheck")?;
        let health: serde_json::Value = serde_json::from_str(&health)?;
        let peers = health["peer_count"].as_u64().unwrap_or_default();
        Ok(usize::try_from(peers).unwrap_or_default())
    }

    /// Waits until the member list of this node has `nodes` entries, its own included.
    pub fn wait_for_peers(&self, nodes: usize) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match self.peers() {
                Ok(peers) if peers == nodes => return Ok(()),
                other if Instant::now() > deadline => {
                    let why = format!("gubernator knows {other:?} nodes of {nodes}");
                    return Err(io::Error::other(why));
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}
