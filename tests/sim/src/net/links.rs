//! Loss, duplication, delay and cuts of links.

use std::time::Duration;

use crate::dice::Dice;

/// The state of every link, and the random stream that is drawn from for each datagram.
#[derive(Debug)]
pub(crate) struct Links {
    dice: Dice,
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
}

impl Links {
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        Self {
            dice: Dice::new(seed, "weather"),
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

    /// Whether no link has a fault.
    pub(crate) fn is_healthy(&self) -> bool {
        self.by_pair.iter().all(|link| *link == Link::default())
    }

    /// Delays of the copies of a datagram beyond the network's own latency; empty when it is lost.
    pub(crate) fn deliveries(&mut self, from: usize, to: usize) -> Vec<Duration> {
        let link = self.by_pair[from * self.nodes + to];
        if link.is_cut || self.dice.chance(link.loss_ppm) {
            return Vec::new();
        }
        let copies = 1 + usize::from(self.dice.chance(link.duplicate_ppm));
        let mut delay = || {
            let is_late = self.dice.chance(link.delay_ppm);
            Duration::from_millis(if is_late { self.dice.between(1, link.delay_ms) } else { 0 })
        };
        (0..copies).map(|_| delay()).collect()
    }
}
