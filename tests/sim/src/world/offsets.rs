//! How far the decision clocks of the nodes were from the true time.

use super::World;

/// The least and the largest offset of any running core, by spans of [`SPAN_MS`].
#[derive(Debug, Default)]
pub(crate) struct Offsets(Vec<Option<(i64, i64)>>);

const SPAN_MS: u64 = 100;
const FOLLOW_INTERVAL_MS: u64 = 10;

impl Offsets {
    /// The least and the largest offset in milliseconds between two times.
    pub(crate) fn between(&self, from_ms: u64, to_ms: u64) -> (i64, i64) {
        let at = |ms: u64| usize::try_from(ms / SPAN_MS).unwrap_or(usize::MAX).min(self.0.len());
        let last = (at(to_ms) + 1).min(self.0.len());
        let known = self.0[at(from_ms).min(last)..last].iter().flatten().copied();
        known.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or_default()
    }

    fn record(&mut self, at_ms: u64, offset_ms: i64) {
        let at = usize::try_from(at_ms / SPAN_MS).unwrap_or(0);
        self.0.resize(self.0.len().max(at + 1), None);
        let (least, most) = self.0[at].unwrap_or((offset_ms, offset_ms));
        self.0[at] = Some((least.min(offset_ms), most.max(offset_ms)));
    }
}

impl World<'_> {
    pub(super) fn follow_clocks(&mut self) {
        let is_of_use = self.selection.are_leased || self.selection.are_reserved;
        if !is_of_use || !self.is_time(FOLLOW_INTERVAL_MS) {
            return;
        }
        let at_ms = self.time.millis();
        let cores = &self.nodes[..self.layout.cores()];
        for node in cores.iter().filter(|node| node.process.is_some()) {
            let offset_ms = node.clock.decision_offset_ms();
            self.offsets.record(at_ms, offset_ms);
        }
    }
}
