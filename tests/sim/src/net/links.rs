//! Loss, duplication, delay and cuts of links.

use std::time::Duration;

use crate::dice::Dice;
use crate::fault::loses_pings;
use crate::layout::Layout;

/// The state of every link, and the random stream that is drawn from for each datagram.
#[derive(Debug)]
pub(crate) struct Links {
    dice: Dice,
    layout: Layout,
    nodes: usize,
    /// `nodes × nodes`: sender's row, receiver's column.
    by_pair: Vec<Link>,
}

/// One direction between two nodes. The default has no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// All datagrams are dropped.
    pub(crate) is_cut: bool,
    /// Share of datagrams lost.
    pub(crate) loss_ppm: u32,
    /// Share of datagrams that arrive twice.
    pub(crate) duplicate_ppm: u32,
    /// Share of datagrams that are delayed, by up to [`Link::delay_ms`]; others overtake them.
    pub(crate) delay_ppm: u32,
    /// Longest delay of a delayed datagram.
    pub(crate) delay_ms: u64,
    /// Larger datagrams are dropped.
    pub(crate) bytes_max: Option<usize>,
}

impl Links {
    pub(crate) fn new(seed: u64, layout: Layout) -> Self {
        let nodes = layout.of_nodes.len();
        Self {
            dice: Dice::new(seed, "weather"),
            layout,
            nodes,
            by_pair: vec![Link::default(); nodes * nodes],
        }
    }

    /// Changes every link for which `matches(from, to)` holds.
    pub(crate) fn change(
        &mut self,
        matches: impl Fn(usize, usize) -> bool,
        change: impl Fn(&mut Link),
    ) {
        for (index, link) in self.by_pair.iter_mut().enumerate() {
            if matches(index / self.nodes, index % self.nodes) {
                change(link);
            }
        }
    }

    pub(crate) fn is_any_cut(&self) -> bool {
        self.by_pair.iter().any(|link| link.is_cut)
    }

    /// Whether datagrams of any size pass between two nodes, if not all of them.
    pub(crate) fn passes_all(&self, one: usize, other: usize) -> bool {
        [(one, other), (other, one)].into_iter().all(|(from, to)| {
            let link = self.by_pair[from * self.nodes + to];
            !link.is_cut && link.bytes_max.is_none()
        })
    }

    /// Whether no link between cores of `region` has a fault.
    pub(crate) fn is_healthy_within(&self, region: usize) -> bool {
        let mut links = self.pairs();
        links.all(|(from, to, link)| {
            let of_nodes = &self.layout.of_nodes;
            let is_of_edge = self.layout.is_edge(from) || self.layout.is_edge(to);
            is_of_edge
                || of_nodes[from] != region
                || of_nodes[to] != region
                || *link == Link::default()
        })
    }

    /// Whether no link between `region` and another has a fault.
    pub(crate) fn is_far_healthy(&self, region: usize) -> bool {
        let mut links = self.pairs();
        links.all(|(from, to, link)| {
            let (from, to) = (self.layout.of_nodes[from], self.layout.of_nodes[to]);
            from == to || from != region && to != region || *link == Link::default()
        })
    }

    /// Whether no node of `region` reaches, or is reached by, one of another region.
    pub(crate) fn is_cut_off(&self, region: usize) -> bool {
        let mut links = self.pairs();
        self.layout.names.len() > 1
            && links.all(|(from, to, link)| {
                let (from, to) = (self.layout.of_nodes[from], self.layout.of_nodes[to]);
                from == to || from != region && to != region || link.is_cut
            })
    }

    /// Whether a link of `node` to a core of its region has a fault that may cost it its lease, or
    /// its replica.
    pub(crate) fn isolates(&self, node: usize) -> bool {
        let may_isolate = |link: &Link| {
            link.is_cut || link.bytes_max.is_some() || loses_pings(link.loss_ppm, link.delay_ms)
        };
        self.pairs().any(|(from, to, link)| {
            let are_cores = !self.layout.is_edge(from) && !self.layout.is_edge(to);
            let is_of_node = from == node || to == node;
            is_of_node && are_cores && self.layout.are_together(from, to) && may_isolate(link)
        })
    }

    /// Every link, with sender and receiver.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, &Link)> {
        let links = self.by_pair.iter().enumerate();
        links.map(|(index, link)| (index / self.nodes, index % self.nodes, link))
    }

    /// Delays of the copies of a datagram beyond the network's own latency; empty when it is lost.
    pub(crate) fn deliveries(&mut self, from: usize, to: usize, bytes: usize) -> Vec<Duration> {
        let link = self.by_pair[from * self.nodes + to];
        let is_too_large = link.bytes_max.is_some_and(|most| bytes > most);
        if link.is_cut || is_too_large || self.dice.chance(link.loss_ppm) {
            return Vec::new();
        }
        let copies = 1 + usize::from(self.dice.chance(link.duplicate_ppm));
        let far_ms = self.layout.latency_ms(from, to);
        let mut delay = || {
            let is_late = self.dice.chance(link.delay_ppm);
            let late_ms = if is_late { self.dice.between(1, link.delay_ms) } else { 0 };
            Duration::from_millis(far_ms + late_ms)
        };
        (0..copies).map(|_| delay()).collect()
    }
}
