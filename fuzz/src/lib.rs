//! Code shared by the targets.
//!
//! Targets that decode messages take complete frames, like those in `tests/golden_frames`. The time
//! is always [`NOW`].

pub mod checks;
pub mod frames;
pub mod gubernator;
pub mod standalone;

use std::sync::LazyLock;

use tidegate_limiter::units::Timestamp;
use tokio::runtime::{Builder, Runtime};

/// The timestamp of the golden frames.
pub const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

/// Runs a future that waits for nothing but others of its own.
pub fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}
