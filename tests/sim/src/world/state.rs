//! Whether the cluster is in a state that a scenario waits for, and what is missing.

use std::sync::{Arc, PoisonError};

use tidegate_limiter::policy::Scope;
use tidegate_ownership::ClusterMap;
use tidegate_ownership::cluster_map::{Identity, MapState};
use tidegate_ownership::ranges::Ranges;

use super::overlap::sample;
use super::{Process, World};
use crate::fault::Awaited;

impl World<'_> {
    /// What is missing until the cluster is in the state `awaited`; `None` when it is.
    pub(crate) fn missing(&self, awaited: Awaited) -> Option<String> {
        match awaited {
            Awaited::LiveVoters => self.missing_voters(),
            Awaited::AllOwned | Awaited::TakenOver => self.missing_owners(),
            Awaited::OneEvicted => self.missing_eviction(),
            Awaited::Settled => (0..self.layout.names.len())
                .find_map(|region| self.missing_members(region))
                .or_else(|| self.unsettled())
                .or_else(|| self.missing_owners()),
            Awaited::AllHomes => self.missing_homes(),
            Awaited::GlobalSettled => {
                self.missing(Awaited::Settled).or_else(|| self.missing_global())
            }
        }
    }

    fn missing_voters(&self) -> Option<String> {
        let map = self.newest_map(0);
        if map.voters.are_joint() {
            return Some(format!("the voters are changing: {:?}", map.voters));
        }
        let running: Vec<Identity> = self.processes().filter_map(Process::identity).collect();
        let is_there = |voter: &Identity| {
            running.contains(voter) && map.present().any(|member| member.identity == *voter)
        };
        let voters = &map.voters.current;
        let gone: Vec<&Identity> = voters.iter().filter(|voter| !is_there(voter)).collect();
        let wanted = if running.len() < 5 { 3 } else { 5 };
        let are_enough = voters.len() == wanted;
        (!are_enough || !gone.is_empty())
            .then(|| format!("of {voters:?}, wanted {wanted}, {gone:?} are not there"))
    }

    fn missing_eviction(&self) -> Option<String> {
        let map = self.newest_map(0);
        let mut running = self.processes().filter_map(Process::identity);
        let is_evicted = |node: Identity| {
            let member = map.get(&node.node).filter(|member| member.identity == node);
            member.is_some_and(|member| member.state == MapState::Down)
        };
        (!running.any(is_evicted)).then(|| "no node is evicted".to_owned())
    }

    fn missing_members(&self, region: usize) -> Option<String> {
        let map = self.newest_map(region);
        for node in self.layout.nodes(region).map(|index| &self.nodes[index]) {
            let Some(process) = &node.process else { continue };
            let own = process.map();
            if (own.cluster, own.epoch) != (map.cluster, map.epoch) {
                return Some(format!(
                    "{} is at epoch {} of {}, another node at {} of {}",
                    node.id, own.epoch, own.cluster, map.epoch, map.cluster
                ));
            }
        }
        let processes = self.processes_of(region);
        let mut running: Vec<Identity> = processes.filter_map(Process::identity).collect();
        running.sort();
        let members: Vec<Identity> = map.present().map(|one| one.identity.clone()).collect();
        (members != running).then(|| format!("members are {members:?}, but {running:?} run"))
    }

    fn unsettled(&self) -> Option<String> {
        let is_unsettled = |index: &usize| {
            let process = self.nodes[*index].process.as_ref();
            let is_settled = |it: &Process| it.is_settled() || self.layout.is_edge(*index);
            process.is_some_and(|it| !is_settled(it) || it.listener.is_none())
        };
        let node = &self.nodes[(0..self.nodes.len()).find(is_unsettled)?];
        Some(format!("{} does not have its ranges", node.id))
    }

    /// Whether a voter of the first region reaches a majority of them, with datagrams of any size.
    pub(crate) fn can_agree(&self) -> bool {
        let map = self.newest_map(0);
        let identity = |node: usize| self.nodes[node].process.as_ref()?.identity();
        let running: Vec<(usize, Identity)> =
            (0..self.nodes.len()).filter_map(|node| Some((node, identity(node)?))).collect();
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().filter(|(_, leader)| map.voters.contains(leader)).any(|(from, _)| {
            map.voters.is_majority(|voter| {
                let to = running.iter().find(|(_, identity)| identity == voter);
                to.is_some_and(|(to, _)| to == from || links.passes_all(*from, *to))
            })
        })
    }

    /// Of each region that has nodes.
    fn missing_owners(&self) -> Option<String> {
        (0..self.layout.names.len()).find_map(|region| {
            let decided = self
                .processes_of(region)
                .filter_map(Process::deciding)
                .fold(Ranges::EMPTY, |all, own| all.with(&own.owned.decides));
            let missing = Ranges::all().without(&decided);
            let (ppm, name) = (missing.share_ppm(), self.layout.names[region]);
            (!missing.is_empty()).then(|| format!("{ppm} ppm of the ring of {name} have no owner"))
        })
    }

    fn missing_global(&self) -> Option<String> {
        if let Some(homes) = self.missing_homes() {
            return Some(homes);
        }
        let map = self.newest_global_map();
        for node in &self.nodes[..self.layout.cores()] {
            let Some(process) = &node.process else { continue };
            let own = process.global_map();
            if (own.cluster, own.epoch) != (map.cluster, map.epoch) {
                return Some(format!(
                    "{} is at epoch {} of the global map {}, another node at {} of {}",
                    node.id, own.epoch, own.cluster, map.epoch, map.cluster
                ));
            }
        }
        let deciding: Vec<_> = self.processes().filter_map(Process::deciding).collect();
        sample().find_map(|token| {
            let owners = deciding.iter().filter(|own| own.has(Scope::Global, token)).count();
            (owners != 1).then(|| format!("global token {token:x} has {owners} owners"))
        })
    }

    fn missing_homes(&self) -> Option<String> {
        let map = self.newest_global_map();
        let homes = &self.layout.names[..self.layout.homes];
        let is_complete = homes.iter().all(|&region| map.homes.contains(region));
        (self.layout.failover.is_some() && !is_complete)
            .then(|| format!("of {homes:?}, only {:?} are homes", map.homes.names))
    }

    /// The map of the highest epoch that is in force on a running node of `region`.
    pub(super) fn newest_map(&self, region: usize) -> Arc<ClusterMap> {
        let maps = self.processes_of(region).map(Process::map);
        maps.max_by_key(|map| map.epoch).unwrap_or_default()
    }

    /// Running processes of `region`.
    fn processes_of(&self, region: usize) -> impl Iterator<Item = &Process> {
        let nodes = self.layout.nodes(region);
        nodes.filter_map(|node| self.nodes[node].process.as_ref())
    }
}
