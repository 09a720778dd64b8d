//! A time zone by its name in the IANA database.

use jiff::tz;
use serde::{Deserialize, Deserializer};

/// The zone of a calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeZone(pub tz::TimeZone);

impl Default for TimeZone {
    fn default() -> Self {
        Self(tz::TimeZone::UTC)
    }
}

impl<'de> Deserialize<'de> for TimeZone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        tz::TimeZone::get(&name).map(Self).map_err(|_| {
            serde::de::Error::custom(format!(
                "{name:?} is not a zone of the IANA database; write it as in Europe/Berlin, or UTC"
            ))
        })
    }
}
