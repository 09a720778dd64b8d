//! Code shared by the targets.
//!
//! Targets that decode messages take complete frames, like those in `tests/golden_frames`. The time
//! is always [`NOW`].

pub mod checks;
pub mod frames;
pub mod standalone;

use tidegate_limiter::units::Timestamp;

/// The timestamp of the golden frames.
pub const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
