//! A network of its own: one namespace for each node, and a hub that joins them and sends the load.
//!
//! ```text
//! tg-PID-hub   br0 10.77.0.254 ── n1 ── n2 ── n3 ── …      (veth ends, ports of the bridge)
//!                                 │     │     │
//! tg-PID-nI    eth0 10.77.0.I ────┘  ───┘  ───┘
//! ```
//!
//! Nothing of it is seen outside: no interface, address or rule is added to the namespace of the
//! caller. PID is the process that made it, so that a later run can recognise what was left behind
//! by one that was killed from what another run still uses.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use crate::shell;

/// The namespaces of one run, by what their names begin with.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    prefix: String,
}

/// What is done to the datagrams that one node receives from some others.
#[derive(Clone, Debug)]
pub(crate) struct Filter<'a> {
    /// Numbers of the nodes whose datagrams are meant.
    pub(crate) from: &'a [usize],
    /// How many in a hundred are dropped.
    pub(crate) loss: u8,
}

/// Nodes there is room for: five, and one that joins.
pub(crate) const PLACES: usize = 6;

const PREFIX: &str = "tg-";

impl Network {
    /// The network that the process `pid` made or will make.
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
        for token in 0..PLACES {
            let (node, port) = (self.node(token), format!("n{}", token + 1));
            shell::run(&format!("ip netns add {node}"))?;
            shell::run(&format!(
                "ip -n {hub} link add {port} type veth peer name eth0 netns {node}"
            ))?;
            shell::run(&format!("ip -n {hub} link set {port} master br0 up"))?;
            shell::run(&format!("ip -n {node} link set lo up"))?;
            shell::run(&format!("ip -n {node} addr add {}/24 dev eth0", node_ip(token)))?;
            shell::run(&format!("ip -n {node} link set eth0 up"))?;
        }
        Ok(())
    }

    /// Ends what runs in it and removes it. Continues after an error; returns what is left.
    pub(crate) fn remove(&self) -> Result<(), String> {
        let mut failures = Vec::new();
        for name in namespaces()?.into_iter().filter(|name| self.owns(name)) {
            let pids = shell::run(&format!("ip netns pids {name}")).unwrap_or_default();
            for pid in pids.split_whitespace().filter(|pid| *pid != own_pid()) {
                // It may have ended between the two.
                let _ = shell::run(&format!("kill -KILL {pid}"));
            }
            failures.extend(shell::run(&format!("ip netns del {name}")).err());
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }

    /// Takes away the networks whose makers are gone; their names.
    pub(crate) fn remove_leftovers() -> Result<Vec<String>, String> {
        let mut makers: Vec<u32> = namespaces()?.iter().filter_map(|name| maker(name)).collect();
        makers.sort_unstable();
        makers.dedup();
        makers.retain(|maker| !is_alive(*maker));
        let leftovers: Vec<Self> = makers.into_iter().map(Self::of).collect();
        for network in &leftovers {
            network.remove()?;
        }
        Ok(leftovers.into_iter().map(|network| network.prefix).collect())
    }

    /// The namespace that the load comes from.
    pub(crate) fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    /// The namespace of one node.
    pub(crate) fn node(&self, token: usize) -> String {
        format!("{}-n{}", self.prefix, token + 1)
    }

    /// From here on the node at `token` loses what matches `filter`. Datagrams only: the mesh is
    /// QUIC, and the load uses TCP, which is not cut.
    pub(crate) fn filter(&self, token: usize, filter: &Filter<'_>) -> Result<(), String> {
        let mut rules = String::from(
            "table inet chaos {}\nflush table inet chaos\ntable inet chaos {\n chain heard {\n  \
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
        let line = format!("nsenter --net=/run/netns/{} -- nft -f -", self.node(token));
        shell::feed(&line, &rules).map(drop)
    }

    /// The node at `token` receives everything again.
    pub(crate) fn heal(&self, token: usize) -> Result<(), String> {
        self.filter(token, &Filter { from: &[], loss: 0 })
    }

    fn owns(&self, name: &str) -> bool {
        name.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Where the load comes from.
pub(crate) fn hub_ip() -> IpAddr {
    Ipv4Addr::new(10, 77, 0, 254).into()
}

/// Where a node is.
pub(crate) fn node_ip(token: usize) -> IpAddr {
    let last = u8::try_from(token + 1).expect("a handful of nodes");
    Ipv4Addr::new(10, 77, 0, last).into()
}

/// Whether a process of this id runs. A zombie does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("\nState:\tZ"))
}

fn namespaces() -> Result<Vec<String>, String> {
    let list = shell::run("ip netns list")?;
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| maker(name).is_some()).map(str::to_owned).collect())
}

/// The process that made a namespace of this name; none when it is not one of ours.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

fn own_pid() -> String {
    std::process::id().to_string()
}
