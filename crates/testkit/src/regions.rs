//! Regions that are far from each other: nodes in this process, behind relays that delay what
//! passes between regions.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use tidegate::config::Config;
use tidegate_ownership::identity::NodeId;

use crate::certificates::{authority, identity};
use crate::in_process::{Node, NodeOptions, settled};
use crate::relay::{Link, Relay};

/// Nodes in several regions.
pub struct Regions {
    /// In the order in which they were named.
    pub nodes: Vec<Node>,
    /// In front of each node.
    relays: Vec<Relay>,
}

impl Regions {
    /// Starts nodes `(id, region)` of regions that are `round_trip` apart, and waits until they
    /// have settled.
    pub async fn start(
        nodes: &[(&str, &str)],
        round_trip: Duration,
        rules: &str,
        change: fn(&mut Config),
    ) -> Self {
        let authority = authority();
        let listens: Vec<SocketAddr> = nodes.iter().map(|_| free_addr()).collect();
        let regions: BTreeSet<&str> = nodes.iter().map(|(_, region)| *region).collect();
        let (mut started, mut relays) = (Vec::<Node>::new(), Vec::<Relay>::new());
        for (at, (id, region)) in nodes.iter().enumerate() {
            let of_region = || nodes.iter().zip(&listens).filter(|((_, other), _)| other == region);
            let near = of_region().map(|(_, listen)| *listen);
            let link = Link::long(round_trip).near(near);
            let relay = Relay::start(listens[at], link).await;
            let seeds: Vec<SocketAddr> = relays.iter().map(|relay| relay.front).collect();
            let options = NodeOptions {
                id,
                region,
                seeds: &seeds,
                identity: identity(&authority, &authority, id, region),
                rules,
                change,
            };
            let founders = of_region().map(|((id, _), _)| NodeId::new(id).expect("a valid id"));
            let founders: BTreeSet<NodeId> = founders.collect();
            let regions = regions.iter().map(|region| (*region).to_owned()).collect();
            let together = |config: &mut Config| {
                config.cluster.listen = Some(listens[at]);
                config.cluster.advertise = Some(relay.front);
                config.cluster.bootstrap_expect = 0;
                config.cluster.founders = founders;
                config.cluster.regions = regions;
            };
            started.push(Node::start_with(options, together).await);
            relays.push(relay);
        }
        for node in &started {
            node.wait_for_view("all nodes", |view| view.owners().count() == nodes.len()).await;
        }
        settled(&started.iter().collect::<Vec<_>>()).await;
        Self { nodes: started, relays }
    }

    /// The nodes of a region.
    pub fn of<'a>(&'a self, region: &'a str) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().filter(move |node| node.core.topology.load().region == region)
    }

    /// Cuts all regions from each other, or heals the cuts.
    pub fn cut(&self, is_cut: bool) {
        self.relays.iter().for_each(|relay| relay.link.cut(is_cut));
    }
}

/// An address that was free a moment ago.
fn free_addr() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    socket.local_addr().expect("bound")
}
