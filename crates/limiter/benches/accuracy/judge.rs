//! The exact judge: the time of every admitted hit of every source.

use std::collections::VecDeque;

use crate::workload::{Request, WINDOW};

/// A log per source.
pub(crate) struct Judge {
    logs: Vec<VecDeque<u64>>,
    asked: u64,
    full: u64,
}

impl Judge {
    pub(crate) fn new(sources: usize) -> Self {
        Self { logs: vec![VecDeque::new(); sources], asked: 0, full: 0 }
    }

    /// Whether fewer hits than the limit passed in `(now − window, now]`.
    pub(crate) fn fits(&mut self, request: &Request) -> bool {
        let log = &mut self.logs[request.source as usize];
        while log.front().is_some_and(|at| at + WINDOW.as_nanos() <= request.at) {
            log.pop_front();
        }
        let fits = log.len() < request.limit as usize;
        self.asked += 1;
        self.full += u64::from(!fits);
        fits
    }

    pub(crate) fn admit(&mut self, request: &Request) {
        self.logs[request.source as usize].push_back(request.at);
    }

    /// Of all requests.
    pub(crate) fn refused_percent(&self) -> f64 {
        self.full as f64 * 100.0 / self.asked.max(1) as f64
    }

    /// Hits that are stored.
    pub(crate) fn hits(&self) -> usize {
        self.logs.iter().map(VecDeque::len).sum()
    }
}
