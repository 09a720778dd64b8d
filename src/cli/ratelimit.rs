//! `tidegate ratelimit`: a node configured by the environment of envoyproxy/ratelimit.

use super::serve::{self, Log};
use super::{Failure, Outcome};
pub(super) use crate::compat::envoy_ratelimit::command::Args;

pub(super) fn run(args: &Args) -> Result<Outcome, Failure> {
    let start = args.load()?;
    let (filter, format) = args.log(&start);
    serve::node(start.config, &Log { filter, format }, false, || {
        for warning in &start.warnings {
            tracing::warn!("{warning}");
        }
    })
}
