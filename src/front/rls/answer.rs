//! One request of Envoy's rate limit service from message to message, in no transport's form;
//! shared by gRPC and its JSON form.

use std::sync::atomic::Ordering;

use super::message::{RateLimitRequest, RateLimitResponse};
use super::{Question, question, reply};
use crate::decide::Decide;
use crate::front::bounds::{Bounds, Refusal};
use crate::front::serve::ListenerStats;
use crate::front::within;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The request is none that may be decided. Nothing was counted for it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The decision took longer than [`Bounds::request_timeout`].
    #[error("no decision in time; try again")]
    Late,
}

/// Answers `request`, and counts it in the statistics of the door it came through.
pub async fn answer<D: Decide>(
    decide: &D,
    request: &RateLimitRequest,
    bounds: &Bounds,
    stats: &ListenerStats,
) -> Result<RateLimitResponse, Unanswered> {
    let question = Question::new(request, bounds).and_then(|question| {
        if decide.is_loaded() { Ok(question) } else { Err(Refusal::NotLoaded) }
    });
    let question = question.inspect_err(|_| {
        stats.refused.add(1);
        if let Some(tallies) = decide.tallies() {
            tallies.service.service_error.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    let envoy = decide.envoy();
    let ignored = question::overrides_ignored(request, envoy.overrides);
    // Seldom any: a line that all cores share is not written for nothing.
    if ignored > 0 {
        stats.overrides.add(ignored);
    }
    let answer = within(bounds.request_timeout, decide.decide(question.ask(true)))
        .await
        .ok_or(Unanswered::Late)?;
    Ok(reply::response_to(request, &answer, envoy))
}
