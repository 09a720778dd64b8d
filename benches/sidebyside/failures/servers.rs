//! Clusters of both servers, with the listeners of the same protocol, and what happens to them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::client::Client;
use crate::peers::{gubernator, tidegate};
use crate::processes::{self, Server};

/// A server of Gubernator's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gubernator,
    Tidegate,
}

/// Where the nodes of a cluster run.
#[derive(Clone, Debug)]
pub enum Places {
    /// Each on a loopback address of its own.
    Loopback,
    /// Each in a namespace of its own, with these addresses.
    Namespaces(Vec<(Ipv4Addr, PathBuf)>),
}

/// How many keys a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysMax {
    /// More than any scenario has.
    Ample,
    /// 50,000: the default of Gubernator, which for it is not set.
    FiftyThousand,
    Of(u64),
}

#[derive(Debug)]
pub struct Cluster {
    kind: Kind,
    folder: PathBuf,
    places: Places,
    keys_max: KeysMax,
    pub nodes: Vec<Node>,
}

#[derive(Debug)]
pub struct Node {
    pub server: Rc<Server>,
    pub grpc: SocketAddr,
    /// As other nodes name the owner of a key.
    pub name: String,
}

const CONFIG: &str = "cluster.toml";
/// Nodes usually start, and join, within a second.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

impl Kind {
    pub const ALL: [Self; 2] = [Self::Gubernator, Self::Tidegate];

    pub fn name(self) -> &'static str {
        match self {
            Self::Gubernator => "Gubernator",
            Self::Tidegate => "tidegate",
        }
    }

    /// Why it cannot be measured, if so.
    pub fn absent(self) -> Option<String> {
        match self {
            Self::Gubernator => gubernator::program().err().map(|error| error.to_string()),
            Self::Tidegate => None,
        }
    }
}

impl Places {
    /// Of the node with this number, from 1.
    fn of(&self, kind: Kind, number: u8) -> (Ipv4Addr, Option<&Path>) {
        match self {
            Self::Loopback if kind == Kind::Gubernator => (gubernator::address(number), None),
            Self::Loopback => (Ipv4Addr::new(127, 0, 4, number), None),
            Self::Namespaces(namespaces) => {
                let (ip, path) = &namespaces[usize::from(number) - 1];
                (*ip, Some(path))
            }
        }
    }
}

impl Cluster {
    /// Starts three nodes and waits until each knows the others. Files are in `folder`, which no
    /// other cluster uses.
    pub fn start(kind: Kind, folder: &Path, places: Places, keys: KeysMax) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let folder = folder.to_owned();
        let mut cluster = Self { kind, folder, places, keys_max: keys, nodes: Vec::new() };
        if kind == Kind::Tidegate {
            tidegate::run(&["ca", "init", "--dir", &cluster.pki()])?;
            fs::create_dir_all(cluster.folder.join("rules"))?;
            fs::write(cluster.folder.join(CONFIG), "# Listeners that are not named are off.\n")?;
        }
        for number in 1..=3 {
            let node = cluster.spawn(number)?;
            cluster.nodes.push(node);
        }
        cluster.wait_for_peers()?;
        Ok(cluster)
    }

    /// Adds a node and waits until each knows all others.
    pub fn join(&mut self) -> io::Result<()> {
        let number = u8::try_from(self.nodes.len() + 1).map_err(io::Error::other)?;
        let node = self.spawn(number)?;
        self.nodes.push(node);
        self.wait_for_peers()
    }

    pub fn client(&self) -> io::Result<Client> {
        Client::connect(self.nodes.iter().map(|node| node.grpc))
    }

    fn wait_for_peers(&self) -> io::Result<()> {
        let (client, deadline) = (self.client()?, Instant::now() + START_TIMEOUT);
        for (index, node) in self.nodes.iter().enumerate() {
            loop {
                match client.peers(index) {
                    Ok(peers) if peers == self.nodes.len() => break,
                    seen if Instant::now() > deadline => {
                        let (name, all) = (&node.name, self.nodes.len());
                        let why = format!("{name} does not know {all} nodes: {seen:?}");
                        return Err(io::Error::other(why));
                    }
                    _ => std::thread::sleep(POLL),
                }
            }
        }
        Ok(())
    }

    fn spawn(&self, number: u8) -> io::Result<Node> {
        match self.kind {
            Kind::Gubernator => self.spawn_gubernator(number),
            Kind::Tidegate => self.spawn_tidegate(number),
        }
    }

    fn spawn_gubernator(&self, number: u8) -> io::Result<Node> {
        let (ip, namespace) = self.places.of(self.kind, number);
        let (seed, _) = self.places.of(self.kind, 1);
        let cache_size = match self.keys_max {
            KeysMax::Ample => Some(gubernator::CACHE_SIZE),
            KeysMax::FiftyThousand => None,
            KeysMax::Of(keys) => Some(keys),
        };
        let (folder, seed, threads) = (&self.folder, Some(seed), Some(1));
        let setting = gubernator::Setting { folder, ip, seed, threads, cache_size, namespace };
        let gubernator::Gubernator { server, grpc, .. } = setting.spawn()?;
        Ok(Node { server, grpc, name: grpc.to_string() })
    }

    /// With the settings that docs/gubernator.md names, and one thread.
    fn spawn_tidegate(&self, number: u8) -> io::Result<Node> {
        let (ip, namespace) = self.places.of(self.kind, number);
        let (seed, _) = self.places.of(self.kind, 1);
        let at = |ip, port| SocketAddr::new(IpAddr::V4(ip), port);
        let (id, pki) = (format!("node-{number}"), PathBuf::from(self.pki()));
        let file = |name: &str| pki.join(name).display().to_string();
        let (grpc, admin, mesh) = (at(ip, 1_051), at(ip, 9_600), 7_946);
        tidegate::run(&["ca", "issue", "--dir", &self.pki(), "--node", &id])?;
        let mut settings = vec![
            ("node.id", id.clone()),
            ("node.threads", "1".into()),
            ("gubernator.grpc", grpc.to_string()),
            ("gubernator.http", at(ip, 1_050).to_string()),
            ("admin.listen", admin.to_string()),
            ("rules.required", "false".into()),
            ("rules.may_be_empty", "true".into()),
            ("cluster.listen", at(ip, mesh).to_string()),
            ("cluster.seeds", at(seed, mesh).to_string()),
            ("cluster.bootstrap_expect", "3".into()),
            ("tls.ca", file("ca.pem")),
            ("tls.cert", file(&format!("{id}.pem"))),
            ("tls.key", file(&format!("{id}.key"))),
            ("tls.secret", file("cluster.secret")),
        ];
        match self.keys_max {
            KeysMax::Ample => {}
            KeysMax::FiftyThousand => settings.push(("limits.keys_max", "50000".into())),
            KeysMax::Of(keys) => settings.push(("limits.keys_max", keys.to_string())),
        }
        let mut command = processes::command_in(namespace, tidegate::binary());
        command.args(["serve", "--config", CONFIG, "--log", "warn"]).current_dir(&self.folder);
        for (key, value) in settings {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        let mut server = Server::start(&mut command, &self.folder, &format!("tidegate-{id}"))?;
        // The others open when the cluster is there.
        server.wait_for(admin)?;
        Ok(Node { server: Rc::new(server), grpc, name: id })
    }

    fn pki(&self) -> String {
        self.folder.join("pki").display().to_string()
    }
}
