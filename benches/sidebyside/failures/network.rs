//! A private network: a namespace for each node, connected by a bridge in the hub, from which the
//! requests come.
//!
//! ```text
//! hub      br0 10.77.0.254 ── n1 ── n2 ── n3       (veth ends, ports of the bridge)
//!                             │     │     │
//! nodes    eth0 10.77.0.N ────┘  ───┘  ───┘
//! ```
//!
//! The namespaces have no names. They end with this process and those that it started.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::network::{enter, namespace, path};

use super::servers::Places;
use crate::processes::{self, command, command_in};

#[derive(Debug)]
pub struct Network {
    /// Kept open: that keeps the namespaces.
    nodes: Vec<File>,
}

const NODES: u8 = 3;
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

impl Network {
    /// Creates it and moves the calling thread into the hub, for good.
    pub fn create() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("network namespaces need root"));
        }
        enter(&namespace()?)?;
        ip("link add br0 type bridge")?;
        ip("addr add 10.77.0.254/24 dev br0")?;
        ip("link set br0 up")?;
        let mut network = Self { nodes: Vec::new() };
        for number in 1..=NODES {
            let (node, index) = (namespace()?, network.nodes.len());
            ip(&format!("link add n{number} type veth peer name eth0 netns {}", path(&node)))?;
            ip(&format!("link set n{number} master br0 up"))?;
            network.nodes.push(node);
            let address = address(number);
            let ip = |line: &str| run(network.command(index, "ip").args(line.split(' ')));
            ip(&format!("addr add {address}/24 dev eth0"))?;
            ip("link set eth0 up")?;
        }
        Ok(network)
    }

    pub fn places(&self) -> Places {
        let node = |(number, node)| (address(number), PathBuf::from(path(node)));
        Places::Namespaces((1..=NODES).zip(&self.nodes).map(node).collect())
    }

    /// Cuts the first node off from the others. The hub reaches all.
    pub fn split(&self) -> io::Result<()> {
        for (index, _) in self.nodes.iter().enumerate() {
            let from = match index {
                0 => format!("{{ {}, {} }}", address(2), address(3)),
                _ => address(1).to_string(),
            };
            run(self.command(index, "nft").arg(format!(
                "add table inet split; add chain inet split received {{ type filter hook input \
                 priority 0; }}; add rule inet split received ip saddr {from} drop"
            )))?;
        }
        Ok(())
    }

    pub fn heal(&self) -> io::Result<()> {
        (0..self.nodes.len())
            .try_for_each(|index| run(self.command(index, "nft").arg("delete table inet split")))
    }

    /// A command in the namespace of a node.
    fn command(&self, index: usize, program: &str) -> Command {
        command_in(Some(path(&self.nodes[index]).as_ref()), program)
    }
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

fn ip(line: &str) -> io::Result<()> {
    run(command("ip").args(line.split(' ')))
}

fn run(command: &mut Command) -> io::Result<()> {
    processes::run(command, COMMAND_TIMEOUT).map(drop)
}
