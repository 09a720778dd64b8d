//! A private network: one namespace for each node, and a hub that connects them and sends the load.
//!
//! ```text
//! tg-PID-hub   br0 10.77.0.254 ── n1 ── n2 ── n3 ── …      (veth ends, ports of the bridge)
//!                                 │     │     │
//! tg-PID-nI    eth0 10.77.0.I ────┘  ───┘  ───┘
//! ```
//!
//! It adds no interface, address or rule to the caller's namespace. PID is the process that created
//! it. A later run removes networks whose creator no longer runs.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use crate::shell;

/// The namespaces of one run, identified by a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    prefix: String,
}

/// Drops datagrams that one node receives from some others.
#[derive(Clone, Debug)]
pub(crate) struct Filter<'a> {
    /// Indexes of the senders.
    pub(crate) from: &'a [usize],
    /// Percentage dropped.
    pub(crate) loss: u8,
}

/// Five nodes, and those that join.
pub(crate) const NODES_MAX: usize = 8;

const PREFIX: &str = "tg-";

impl Network {
    /// The network of the process `pid`.
    pub(crate) fn of(pid: u32) -> Self {
        Self { prefix: format!("{PREFIX}{pid}") }
    }

    pub(crate) fn create(&self) -> Result<(), String> {
        let hub = self.hub();
        shell::run(&format!("ip netns add {hub}"))?;
        shell::run(&format!("ip -n {hub} link set lo up"))?;
        shell::run(&format!("ip -n {hub} link add br0 type bridge"))?;
        shell::run(&format!("ip -n {hub} addr add {}/24 dev br0", hub_ip()))?;
        shell::run(&format!("ip -n {hub} link set br0 up"))?;
        for node_index in 0..NODES_MAX {
            let (node, port) = (self.node(node_index), format!("n{}", node_index + 1));
            shell::run(&format!("ip netns add {node}"))?;
            shell::run(&format!(
                "ip -n {hub} link add {port} type veth peer name eth0 netns {node}"
            ))?;
            shell::run(&format!("ip -n {hub} link set {port} master br0 up"))?;
            shell::run(&format!("ip -n {node} link set lo up"))?;
            shell::run(&format!("ip -n {node} addr add {}/24 dev eth0", node_ip(node_index)))?;
            shell::run(&format!("ip -n {node} link set eth0 up"))?;
        }
        Ok(())
    }

    /// Kills the processes in it and removes it. Continues after an error and returns the failures.
    pub(crate) fn remove(&self) -> Result<(), String> {
        let mut failures = Vec::new();
        for name in namespaces()?.into_iter().filter(|name| self.owns(name)) {
            let pids = shell::run(&format!("ip netns pids {name}")).unwrap_or_default();
            for pid in pids.split_whitespace().filter(|pid| *pid != own_pid()) {
                // It may have exited since.
                let _ = shell::run(&format!("kill -KILL {pid}"));
            }
            failures.extend(shell::run(&format!("ip netns del {name}")).err());
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }

    /// Removes the networks whose creators have exited; returns their names.
    pub(crate) fn remove_leftovers() -> Result<Vec<String>, String> {
        let mut creators: Vec<u32> =
            namespaces()?.iter().filter_map(|name| creator(name)).collect();
        creators.sort_unstable();
        creators.dedup();
        creators.retain(|creator| !is_alive(*creator));
        let leftovers: Vec<Self> = creators.into_iter().map(Self::of).collect();
        for network in &leftovers {
            network.remove()?;
        }
        Ok(leftovers.into_iter().map(|network| network.prefix).collect())
    }

    pub(crate) fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    pub(crate) fn node(&self, node_index: usize) -> String {
        format!("{}-n{}", self.prefix, node_index + 1)
    }

    /// Installs `filter` at a node. It applies to datagrams only: the mesh uses QUIC, and the load
    /// uses TCP, which is not affected.
    pub(crate) fn filter(&self, node_index: usize, filter: &Filter<'_>) -> Result<(), String> {
        let mut rules = String::from(
            "table inet chaos {}\nflush table inet chaos\ntable inet chaos {\n chain received {\n  \
             type filter hook input priority 0;\n",
        );
        for from in filter.from {
            let source = node_ip(*from);
            let chance = match filter.loss {
                100.. => String::new(),
                loss => format!("numgen random mod 100 < {loss} "),
            };
            // Writing to a `String` cannot fail.
            let _ = writeln!(rules, "  meta l4proto udp ip saddr {source} {chance}drop");
        }
        rules.push_str(" }\n}\n");
        let line = format!("nsenter --net=/run/netns/{} -- nft -f -", self.node(node_index));
        shell::run_with_input(&line, &rules).map(drop)
    }

    /// Removes the filter of a node.
    pub(crate) fn heal(&self, node_index: usize) -> Result<(), String> {
        self.filter(node_index, &Filter { from: &[], loss: 0 })
    }

    fn owns(&self, name: &str) -> bool {
        name.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Address of the load's sender.
pub(crate) fn hub_ip() -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 254).into()
}

/// Address of a node.
pub(crate) fn node_ip(node_index: usize) -> IpAddr {
    let last = u8::try_from(node_index + 1).expect("a handful of nodes");
    Ipv4Addr::new(10, 77, 0, last).into()
}

/// Whether a process with this id runs. A zombie does not count.
pub(crate) fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("\nState:\tZ"))
}

fn namespaces() -> Result<Vec<String>, String> {
    let list = shell::run("ip netns list")?;
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| creator(name).is_some()).map(str::to_owned).collect())
}

/// The creator of a namespace, by its name; `None` for the namespace of another program.
fn creator(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

fn own_pid() -> String {
    std::process::id().to_string()
}
