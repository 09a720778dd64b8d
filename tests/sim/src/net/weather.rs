//! What happens to a datagram on its way.

use std::time::Duration;

use crate::dice::Dice;

/// The state of every link, and the dice that decide each datagram's fate.
#[derive(Debug)]
pub(crate) struct Weather {
    dice: Dice,
    nodes: usize,
    /// `nodes × nodes`, the sender's row by the receiver's column.
    links: Vec<Link>,
}

/// One direction between two nodes. The default is a good line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Nothing arrives.
    pub(crate) is_cut: bool,
    /// Datagrams lost, of a million.
    pub(crate) loss_ppm: u32,
    /// Datagrams that arrive twice, of a million.
    pub(crate) duplicate_ppm: u32,
    /// Datagrams that are late by up to [`Link::late_ms`], of a million; others overtake them.
    pub(crate) late_ppm: u32,
    /// The most that a late datagram is late.
    pub(crate) late_ms: u64,
}

impl Weather {
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        Self {
            dice: Dice::new(seed, "weather"),
            nodes,
            links: vec![Link::default(); nodes * nodes],
        }
    }

    /// Changes every link whose ends satisfy `concerns(from, to)`.
    pub(crate) fn change(
        &mut self,
        concerns: impl Fn(usize, usize) -> bool,
        change: impl Fn(&mut Link),
    ) {
        for (index, link) in self.links.iter_mut().enumerate() {
            if concerns(index / self.nodes, index % self.nodes) {
                change(link);
            }
        }
    }

    /// Whether any link is cut.
    pub(crate) fn is_any_cut(&self) -> bool {
        self.links.iter().any(|link| link.is_cut)
    }

    /// Whether every link is a good line.
    pub(crate) fn is_fair(&self) -> bool {
        self.links.iter().all(|link| *link == Link::default())
    }

    /// When the copies of a datagram arrive, as delays beyond the network's own: none when it is
    /// lost.
    pub(crate) fn fate(&mut self, from: usize, to: usize) -> Vec<Duration> {
        let link = self.links[from * self.nodes + to];
        if link.is_cut || self.dice.chance(link.loss_ppm) {
            return Vec::new();
        }
        let copies = 1 + usize::from(self.dice.chance(link.duplicate_ppm));
        let mut delay = || {
            let is_late = self.dice.chance(link.late_ppm);
            Duration::from_millis(if is_late { self.dice.between(1, link.late_ms) } else { 0 })
        };
        (0..copies).map(|_| delay()).collect()
    }
}
