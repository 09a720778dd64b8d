//! The cluster as seen by this node, for `tidegate status` and `tidegate members`, and its report
//! to peers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_cluster::mesh::{EDGES_MAX, Peer};
use tidegate_cluster::pki;
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::units::NANOS_PER_SEC;
use tidegate_ownership::identity::NodeId;
use tidegate_ownership::membership::{self, Member, UNKNOWN_RULES};
use tidegate_ownership::ring::Ring;
use tidegate_ownership::route::Topology;
use tidegate_ownership::shares;
use tidegate_rules::book::Book;
use tokio::time::Instant;

use super::core::Core;
use super::edge::Edge;
use super::members;
use super::per_topology::PerTopology;
use super::rulebook::RuleBook;
use crate::admin::Inspect;
use crate::admin::report::{
    CertificateReport, ClockReport, EDGES_SHOWN_MAX, EdgeReport, EdgesReport, FollowsReport,
    MemberReport, MemberState, MembersReport, NodeReport, OwnerOf, OwnerReport, OwnershipReport,
    RULES_MAX, RegionsReport, RuleBookReport, RuleReport, StatusReport, StoreReport,
};
use crate::admin::snapshot::{self, KeyRefusals, NodeSnapshot, SelfReport};
use crate::config::Config;
use crate::decide::{CarriedRules, regions_sharing};
use crate::observe::Health;
use crate::observe::samples::{RuleSample, sum_up_beyond};
use crate::reload::certificates;

/// The data behind `/status`, `/members` and `/owner`.
pub(super) struct View {
    pub(super) core: Arc<Core>,
    pub(super) book: RuleBook,
    pub(super) certificates: certificates::Handle,
    pub(super) health: Health,
    pub(super) config: Config,
    pub(super) start: Instant,
    /// Computing them takes a pass over the rings.
    pub(super) ring_shares: PerTopology<RingShares>,
}

/// The share of each node of the ring of its region.
type RingShares = Arc<BTreeMap<NodeId, f64>>;

fn ring_shares(topology: &Topology) -> RingShares {
    let rings = topology.regions().filter_map(|region| topology.region_ring(region));
    let share = |ppm: u32| f64::from(ppm) / 1_000_000.0;
    let arcs = rings.flat_map(Ring::all_arcs);
    Arc::new(arcs.map(|(id, ranges)| (id, share(ranges.share_ppm()))).collect())
}

fn owner_of(region: &str, node: Option<&NodeId>) -> Option<OwnerOf> {
    Some(OwnerOf { region: region.to_owned(), node: node?.to_string() })
}

/// One owner in each region.
fn region_owners(topology: &Topology, token: u64) -> Vec<OwnerOf> {
    let owner = |region| owner_of(region, topology.region_owner(region, token));
    topology.regions().filter_map(owner).collect()
}

impl Inspect for View {
    fn status(&self) -> StatusReport {
        let topology = self.core.topology.load();
        let book = self.core.book.load();
        StatusReport {
            node: self.node_report(&topology),
            cluster: self.config.cluster.name.clone(),
            cluster_id: members::cluster_id(&self.core),
            epoch: hex(topology.view.fingerprint()),
            not_ready: self.health.ready().err(),
            members: self.member_reports(),
            rule_book: self.rule_book_report(&book),
            rules: rules(&self.core, &book, RULES_MAX),
            store: self.store_report(),
            edges: edges(&self.core),
            follows: follows(&self.core),
            ownership: ownership(&self.core),
            clock: self.clock_report(),
            certificate: self.certificate(),
            storage: self.core.snapshot_task.as_ref().map(|snapshot_task| {
                let mut status = snapshot_task.snapshots.status();
                let age = status.written_at.map(|at| snapshot_task.clock.now().since(at));
                status.written_s_ago = age.map(|age| age.as_nanos() / NANOS_PER_SEC);
                status
            }),
        }
    }

    fn members(&self) -> MembersReport {
        members::report(&self.core)
    }

    fn regions(&self) -> RegionsReport {
        members::regions(&self.core)
    }

    fn owner(&self, domain: &str, entries: &[(String, String)]) -> OwnerReport {
        let topology = self.core.topology.load();
        let entries: Vec<Entry<'_>> =
            entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let book = self.core.book.load();
        let found = book.find(domain, &entries);
        let shared = found.as_ref().and_then(|found| found.counted_as(&entries));
        let counted_as = shared.as_deref().unwrap_or(&entries);
        let token = self.core.hasher.descriptor(domain, counted_as).token();
        let rule = found.as_ref().map(|found| found.rule);
        let has_owner = rule.is_some_and(|rule| rule.mode != Mode::Eventual);
        let scope = rule.filter(|_| has_owner).map(|rule| rule.scope);
        let divided = rule.filter(|rule| rule.mode == Mode::Leased && rule.scope == Scope::Global);
        let shares =
            divided.map(|rule| regions_sharing(&rule.limits, topology.homes().everywhere()));
        let owners = if let Some(count) = shares.filter(|count| *count > 1) {
            let shares = shares::of_key(topology.homes().everywhere(), token);
            let owner = |share: shares::RegionShare<'_>| {
                let home = topology.homes().home(share.token);
                owner_of(home, topology.region_owner(home, share.token))
            };
            shares.into_iter().take(count).filter_map(owner).collect()
        } else if scope == Some(Scope::Global) {
            let home = topology.homes().home(token);
            owner_of(home, topology.region_owner(home, token)).into_iter().collect()
        } else {
            region_owners(&topology, token)
        };
        OwnerReport {
            token: hex(token),
            rule: rule.map(|rule| rule.id.to_string()),
            mode: rule.map(|rule| rule.mode.name().to_owned()),
            scope: scope
                .map(|scope| if scope == Scope::Global { "global" } else { "region" }.to_owned()),
            owners,
        }
    }
}

impl View {
    /// The report of this node to its peers.
    pub(super) fn snapshot(&self) -> NodeSnapshot {
        let core = &self.core;
        let (topology, book) = (core.topology.load(), core.book.load());
        let driver = core.joined.as_ref().map(|joined| &joined.ownership_driver);
        let transferring = driver.map(|driver| driver.transferring_to()).unwrap_or_default();
        let refused = core.decider.refused_keys().most(snapshot::KEYS_MAX, core.clock.now());
        let refused = refused.into_iter().map(|key| KeyRefusals {
            rule: key.rule.to_string(),
            token: hex(key.token),
            key: key.label.map(Into::into),
            per_second: key.per_second,
            error: key.error,
        });
        NodeSnapshot {
            reported: SelfReport {
                node: self.node_report(&topology),
                not_ready: self.health.ready().err(),
                rule_book: self.rule_book_report(&book),
                store: self.store_report(),
                ownership: ownership(core),
                transferring_to: transferring.iter().map(ToString::to_string).collect(),
                clock: self.clock_report(),
            },
            rules: rules(core, &book, snapshot::RULES_MAX),
            refused_keys: refused.collect(),
        }
    }

    /// Every member, as this node sees it.
    pub(super) fn member_reports(&self) -> Vec<MemberReport> {
        let topology = self.core.topology.load_full();
        let fingerprint = self.core.book.load().fingerprint();
        let peers = self.core.mesh().map(|mesh| mesh.peers()).unwrap_or_default();
        let is_edge = self.core.edge.is_some();
        let is_cut_off = self.core.edge.as_ref().is_some_and(Edge::is_cut_off);
        let silent = members::silent(&self.core);
        let shares = self.ring_shares.get(&topology, ring_shares);
        let report = |member: &Member| {
            let peer = peers.iter().find(|peer| peer.id == member.id);
            let is_silent = silent.contains(&member.id);
            let peer = peer.map(|peer| (&**peer, peer.offset_ns(&*self.core.clock)));
            let share = shares.get(&member.id).copied().unwrap_or_default();
            let report = report(member, peer, &topology.me, share, fingerprint);
            match report.state {
                _ if is_silent => MemberReport { state: MemberState::Down, ..report },
                // An edge is connected to those that it uses.
                MemberState::Joining | MemberState::Up if is_cut_off => {
                    MemberReport { state: MemberState::Down, ..report }
                }
                MemberState::Joining if is_edge => {
                    MemberReport { state: MemberState::Up, ..report }
                }
                _ => report,
            }
        };
        topology.view.members().iter().map(report).collect()
    }

    /// The owners of a counter whose requests carry its limit.
    pub(super) fn carried_owner(&self, token: u64) -> OwnerReport {
        // What holds for all of them, as the keys that are refused most name it.
        let rule = &self.core.decider.carried_rules().strict;
        OwnerReport {
            token: hex(token),
            rule: Some(rule.id.to_string()),
            mode: Some(rule.mode.name().to_owned()),
            scope: Some("region".to_owned()),
            owners: region_owners(&self.core.topology.load(), token),
        }
    }

    /// The nodes that have copies of a key of which this is the report: those that follow its owner
    /// in the region of that, which of a regional key is this one.
    pub(super) fn replicas(&self, key: &OwnerReport) -> Vec<String> {
        let topology = self.core.topology.load();
        let count = usize::try_from(self.config.cluster.replicas).unwrap_or(usize::MAX);
        let own = key.owners.iter().find(|owner| owner.region == topology.region);
        let owner =
            own.or_else(|| key.owners.first()).and_then(|owner| NodeId::new(&owner.node).ok());
        let region = owner.and_then(|owner| topology.view.get(&owner)).map(|it| &it.region);
        let ring = region.and_then(|region| topology.region_ring(region));
        let (Ok(token), Some(ring)) = (u64::from_str_radix(&key.token, 16), ring) else {
            return Vec::new();
        };
        ring.replicas(token, count).into_iter().skip(1).map(ToString::to_string).collect()
    }

    fn node_report(&self, topology: &Topology) -> NodeReport {
        NodeReport {
            id: topology.me.to_string(),
            region: topology.region.clone(),
            zone: self.config.node.zone.clone(),
            role: self.config.node.role.name().to_owned(),
            generation: self.core.incarnation.generation().0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.start.elapsed().as_secs(),
        }
    }

    fn rule_book_report(&self, book: &Book) -> RuleBookReport {
        RuleBookReport {
            fingerprint: hex(book.fingerprint()),
            rules: book.rules().count(),
            last_error: self.book.handle.status().error.map(|error| error.to_string()),
            agrees: self.core.rule_books_agree(),
        }
    }

    fn store_report(&self) -> StoreReport {
        let stats = self.core.store.stats();
        StoreReport {
            keys: stats.keys as u64,
            keys_max: self.config.limits.keys_max as u64,
            bytes: stats.bytes as u64,
            shared: stats.overflowed,
            refused: stats.refused,
            in_full_domains: stats.in_full_domains,
        }
    }

    fn clock_report(&self) -> ClockReport {
        let skew = self.core.skew();
        ClockReport { median_ms: skew.median_ns / 1_000_000, is_skewed: skew.is_reported() }
    }

    /// `None` for a standalone node.
    fn certificate(&self) -> Option<CertificateReport> {
        let mesh = self.core.mesh()?;
        let identity = mesh.identity();
        let (now, status) = (self.core.clock.system(), self.certificates.status());
        let until = identity.validity.not_after;
        Some(CertificateReport {
            expires: pki::utc_date(until),
            expires_in_s: until.since(now).as_nanos() / NANOS_PER_SEC,
            is_renewal_due: identity.validity.is_renewal_due(now),
            connections_to_renew: mesh.connections_to_renew(),
            authorities: identity.roots.len(),
            problem: status.problem,
            has_next_secret: status.has_next_secret,
        })
    }
}

/// The `max` rules that were checked most, those checked most first, and the sum of the others. The
/// rules of limits that requests carry are among them.
fn rules(core: &Core, book: &Book, max: usize) -> Vec<RuleReport> {
    let CarriedRules { strict, leased } = core.decider.carried_rules();
    let mut samples: Vec<(RuleSample, Mode)> = book
        .rules()
        .chain([strict, leased])
        .map(|rule| (RuleSample { id: rule.id.clone(), counts: rule.stats.read() }, rule.mode))
        .filter(|(sample, _)| sample.counts.checks() > 0)
        .collect();
    samples.sort_by_key(|(sample, _)| Reverse(sample.counts.checks()));
    let modes: Vec<Mode> = samples.iter().map(|(_, mode)| *mode).take(max).collect();
    let mut samples = samples.into_iter().map(|(sample, _)| sample).collect();
    sum_up_beyond(max, &mut samples);
    let modes = modes.into_iter().map(Some).chain([None]);
    let report = |(RuleSample { id, counts }, mode): (RuleSample, Option<Mode>)| RuleReport {
        rule: id.to_string(),
        mode: mode.map(|mode| mode.name().to_owned()),
        counts,
        held: counts.grants.held(),
        error: counts.error(),
    };
    samples.into_iter().zip(modes).map(report).collect()
}

fn report(
    member: &Member,
    peer: Option<(&Peer, i64)>,
    me: &NodeId,
    ring_share: f64,
    own_book: u64,
) -> MemberReport {
    let is_me = member.id == *me;
    let state = match (member.state, peer) {
        (membership::MemberState::Draining, _) => MemberState::Draining,
        (membership::MemberState::Up, _) if is_me => MemberState::This,
        (membership::MemberState::Up, Some((peer, _))) if peer.is_unreachable() => {
            MemberState::Down
        }
        (membership::MemberState::Up, Some(_)) => MemberState::Up,
        (membership::MemberState::Up, None) => MemberState::Joining,
    };
    MemberReport {
        id: member.id.to_string(),
        region: member.region.clone(),
        zone: member.zone.clone(),
        generation: member.generation.0,
        addr: Some(member.addr.to_string()).filter(|_| member.addr.port() != 0),
        http: member.http.map(|addr| addr.to_string()),
        state,
        rule_book: Some(if is_me { own_book } else { member.rule_book })
            .filter(|book| *book != UNKNOWN_RULES)
            .map(hex),
        clock_offset_ms: match peer {
            Some((_, offset_ns)) => Some(offset_ns / 1_000_000),
            None if is_me => Some(0),
            None => None,
        },
        ring_share,
        rtt_us: peer.map(|(peer, _)| peer.rtt_ns() / 1_000).filter(|rtt| *rtt > 0),
    }
}

/// `None` unless it is a core of a cluster.
fn edges(core: &Core) -> Option<EdgesReport> {
    let connected = core.joined.as_ref()?.mesh.edges();
    let report = |edge: &Arc<Peer>| EdgeReport {
        id: edge.id.to_string(),
        region: edge.region.clone(),
        is_up: !edge.is_unreachable(),
    };
    Some(EdgesReport {
        connected: connected.len(),
        connected_max: EDGES_MAX,
        in_region: core.topology.load().edges,
        first: connected.iter().take(EDGES_SHOWN_MAX).map(report).collect(),
    })
}

/// `None` unless it is an edge.
fn follows(core: &Core) -> Option<FollowsReport> {
    let edge = core.edge.as_ref()?;
    let cores = edge.follower.homes().iter().map(ToString::to_string).collect();
    Some(FollowsReport { cores, is_cut_off: edge.is_cut_off() })
}

/// `None` for a standalone node, and for an edge.
fn ownership(core: &Core) -> Option<OwnershipReport> {
    let lost = core.joined.as_ref()?.ownership_driver.lost_voters();
    let epoch = core.ownership.owned_ranges().epoch;
    Some(OwnershipReport {
        has_lease: core.ownership.has_lease(),
        epoch_number: epoch.0,
        decides: f64::from(core.decided_ppm()) / 1_000_000.0,
        missed: lost.iter().map(ToString::to_string).collect(),
    })
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

#[cfg(test)]
mod tests {
    use tidegate_ownership::identity::Generation;

    use super::*;

    #[test]
    fn rules_of_a_member_without_gossip_are_unknown_and_no_others() {
        let id = |name| NodeId::new(name).expect("a valid id");
        let member = |rule_book| Member {
            id: id("b"),
            generation: Generation(1),
            addr: ([10, 0, 0, 2], 7600).into(),
            region: "eu".to_owned(),
            zone: String::new(),
            state: membership::MemberState::Up,
            rule_book,
            http: None,
            has_lease: true,
        };
        let shown = |rule_book| report(&member(rule_book), None, &id("a"), 0.0, 7).rule_book;
        assert_eq!(shown(UNKNOWN_RULES), None);
        assert_eq!(shown(9), Some(hex(9)));
    }
}
