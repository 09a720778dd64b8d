//! What several targets share.
//!
//! Targets that read messages take whole frames, as the golden ones lie in `tests/golden_frames`.
//! Time stands still at [`NOW`], which those were counted at.

pub mod alone;
pub mod asks;
pub mod wire;

use tidegate_limiter::units::Timestamp;

/// The time of this node, and of the golden frames.
pub const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
