//! Lengths of time as people write them: `400ms`, `90s`, `1h30m`.

use serde::{Deserialize, Deserializer, de};
use tidegate_limiter::units::Span;

/// Reads a length of time; for `#[serde(deserialize_with)]`.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}
