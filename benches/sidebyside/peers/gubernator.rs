//! Gubernator: a single node, and several that find each other by its member list.
//!
//! Its member list tells peers apart by their address without the port, so each node of a cluster
//! has a loopback address of its own: 127.0.3.1, 127.0.3.2 and so on.

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

/// Starts one node with all its threads.
pub fn start(folder: &Path) -> io::Result<Gubernator> {
    let node = spawn(folder, Ipv4Addr::LOCALHOST, None, None)?;
    node.wait_for_peers(1)?;
    Ok(node)
}

/// Starts a cluster. Each node runs Go code on one thread at a time, as the nodes of tidegate do:
/// they share the machine.
pub fn start_cluster(folder: &Path, nodes: u8) -> io::Result<Vec<Gubernator>> {
    let first = address(1);
    let started: io::Result<Vec<_>> =
        (1..=nodes).map(|number| spawn(folder, address(number), Some(first), Some("1"))).collect();
    let started = started?;
    for node in &started {
        node.wait_for_peers(started.len())?;
    }
    Ok(started)
}

/// Adds node `number` to the cluster of node 1, and does not wait for it.
pub fn join(folder: &Path, number: u8) -> io::Result<Gubernator> {
    spawn(folder, address(number), Some(address(1)), Some("1"))
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 3, number)
}

fn spawn(
    folder: &Path,
    ip: Ipv4Addr,
    seed: Option<Ipv4Addr>,
    threads: Option<&str>,
) -> io::Result<Gubernator> {
    let at = |port| SocketAddr::new(IpAddr::V4(ip), port);
    let (grpc, http) = match seed {
        Some(_) => (at(1_051), at(1_050)),
        None => (processes::free_tcp()?, processes::free_tcp()?),
    };
    let gossip = match seed {
        Some(_) => at(7_946),
        None => processes::free_tcp()?,
    };
    let known = seed.map_or(gossip, |seed| SocketAddr::new(IpAddr::V4(seed), gossip.port()));
    let mut command = processes::command(program()?);
    command
        .env("GUBER_GRPC_ADDRESS", grpc.to_string())
        .env("GUBER_ADVERTISE_ADDRESS", grpc.to_string())
        .env("GUBER_HTTP_ADDRESS", http.to_string())
        .env("GUBER_MEMBERLIST_ADDRESS", gossip.to_string())
        .env("GUBER_MEMBERLIST_KNOWN_NODES", known.to_string())
        .env("GUBER_CACHE_SIZE", CACHE_SIZE.to_string())
        .env("GUBER_LOG_LEVEL", "error");
    if let Some(threads) = threads {
        command.env("GOMAXPROCS", threads);
    }
    let mut server = Server::start(&mut command, folder, &format!("gubernator-{ip}"))?;
    server.wait_for(grpc)?;
    server.wait_for(http)?;
    Ok(Gubernator { server: Rc::new(server), grpc, http })
}

impl Gubernator {
    /// How many nodes this one knows, itself included.
    pub fn peers(&self) -> io::Result<usize> {
        let health = Http::connect(self.http)?.get("/v1/HealthCheck")?;
        let health: serde_json::Value = serde_json::from_str(&health)?;
        let peers = health["peer_count"].as_u64().unwrap_or_default();
        Ok(usize::try_from(peers).unwrap_or_default())
    }

    /// Waits until this node knows so many nodes.
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
