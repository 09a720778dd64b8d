//! The listener of Gubernator's clients over a standalone node.

use std::sync::Arc;

use tidegate::decide::Decider;
use tidegate::front::bounds::Bounds;
use tidegate::front::gubernator::{GubernatorListener, Settings};
use tidegate::node::Core;
use tidegate_proto::gubernator::RateLimitResp;

use crate::standalone::Ready;

pub fn listener(node: &Core) -> GubernatorListener<Decider, Ready> {
    GubernatorListener {
        decide: Arc::new(node.decider.clone()),
        probes: Arc::new(Ready),
        settings: Settings::default(),
        bounds: Bounds::default(),
        topology: node.topology.clone(),
        advertise: String::new(),
        stats: Arc::default(),
        calls: Arc::default(),
        metrics: tidegate::front::pages::Page::default(),
    }
}

/// No response has more left than a limit and its credit, or a number below zero.
pub fn check(responses: &[RateLimitResp]) {
    let range = 0..=i64::from(u32::MAX);
    for RateLimitResp { limit, remaining, .. } in responses {
        assert!(range.contains(limit) && range.contains(remaining));
    }
}
