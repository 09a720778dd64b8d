//! Calendar intervals, in a time zone: what a duration is with `DURATION_IS_GREGORIAN`.
//!
//! ```text
//! 0 minute   1 hour   2 day   3 week, from Monday   4 month   5 year
//! ```
//!
//! An interval begins where the previous one ends, also when clocks are changed: a day then has 23
//! or 25 hours. Its last millisecond is what a client gets as `reset_time`.
//!
//! *Example*: in `Europe/Berlin`, 2026-03-29 begins at 23:00 UTC of the day before and ends 23
//! hours later.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan, ZonedDateTime};
use tidegate_limiter::units::{self, Timestamp};

/// One interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub begins: Timestamp,
    /// The beginning of the next one.
    pub ends: Timestamp,
}

impl Interval {
    /// The interval of this kind, the value of a duration, around `now`; `None` if there is no such
    /// kind, or no calendar for that time.
    pub fn around(kind: i64, now: Timestamp, zone: &TimeZone) -> Option<Self> {
        let nanos = i128::from(now.as_nanos());
        let now = jiff::Timestamp::from_nanosecond(nanos).ok()?.to_zoned_datetime(zone.clone());
        let (begins, length): (ZonedDateTime, Span) = match kind {
            0 => return Self::of_clock(&now, 60),
            1 => return Self::of_clock(&now, 3_600),
            2 => (now.start_of_day().ok()?, 1.day()),
            3 => {
                let since_monday = now.weekday().since(Weekday::Monday);
                let monday = now.checked_sub(i64::from(since_monday).days()).ok()?;
                (monday.start_of_day().ok()?, 1.week())
            }
            4 => (now.first_of_month().ok()?.start_of_day().ok()?, 1.month()),
            5 => (now.first_of_year().ok()?.start_of_day().ok()?, 1.year()),
            _ => return None,
        };
        let ends = begins.checked_add(length).ok()?.start_of_day().ok()?;
        Some(Self { begins: timestamp(&begins)?, ends: timestamp(&ends)? })
    }

    /// A minute or an hour: clocks are changed by whole minutes, and within an hour it is counted
    /// from the last full one.
    fn of_clock(now: &ZonedDateTime, secs: i64) -> Option<Self> {
        let time: Time = now.time();
        let into_hour = i64::from(time.minute()) * 60 + i64::from(time.second());
        let into = units::Span::from_nanos(
            u64::try_from((into_hour % secs) * 1_000_000_000 + i64::from(time.subsec_nanosecond()))
                .ok()?,
        );
        let begins = timestamp(now)?.minus(into);
        Some(Self { begins, ends: begins.plus(units::Span::from_secs(secs.unsigned_abs())) })
    }

    pub const fn length(&self) -> units::Span {
        self.ends.since(self.begins)
    }
}

fn timestamp(zoned: &ZonedDateTime) -> Option<Timestamp> {
    u64::try_from(zoned.timestamp().as_nanosecond()).ok().map(Timestamp::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begin and end as UTC, of the interval around an instant.
    fn around(kind: i64, now: &str, zone: &str) -> Option<(String, String)> {
        let zone = TimeZone::get(zone).expect("a zone");
        let now: jiff::Timestamp = now.parse().expect("an instant");
        let now = Timestamp::from_nanos(u64::try_from(now.as_nanosecond()).expect("after 1970"));
        let text = |at: Timestamp| {
            jiff::Timestamp::from_nanosecond(i128::from(at.as_nanos())).expect("near").to_string()
        };
        Interval::around(kind, now, &zone).map(|it| (text(it.begins), text(it.ends)))
    }

    #[test]
    fn intervals_are_those_of_the_calendar() {
        for (kind, now, begins, ends) in [
            (0, "2026-02-28T23:59:59.9Z", "2026-02-28T23:59:00Z", "2026-03-01T00:00:00Z"),
            (1, "2026-02-28T23:59:59Z", "2026-02-28T23:00:00Z", "2026-03-01T00:00:00Z"),
            (2, "2026-02-28T23:59:59Z", "2026-02-28T00:00:00Z", "2026-03-01T00:00:00Z"),
            (3, "2026-03-01T12:00:00Z", "2026-02-23T00:00:00Z", "2026-03-02T00:00:00Z"),
            (3, "2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"),
            (4, "2024-02-29T12:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
            (5, "2024-12-31T23:00:00Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
        ] {
            let expected = Some((begins.to_owned(), ends.to_owned()));
            assert_eq!(around(kind, now, "UTC"), expected, "{kind} {now}");
        }
        for kind in [-1, 6, i64::MAX] {
            assert_eq!(around(kind, "2026-01-01T00:00:00Z", "UTC"), None);
        }
    }

    #[test]
    fn a_day_on_which_clocks_are_changed_has_another_length() {
        let berlin = |kind, now| around(kind, now, "Europe/Berlin");
        let of = |begins: &str, ends: &str| Some((begins.to_owned(), ends.to_owned()));
        assert_eq!(
            berlin(2, "2026-03-29T12:00:00Z"),
            of("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z")
        );
        assert_eq!(
            berlin(2, "2026-10-25T12:00:00Z"),
            of("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z")
        );
        // The hour that comes twice is two hours.
        assert_eq!(
            berlin(1, "2026-10-25T00:30:00Z"),
            of("2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z")
        );
        assert_eq!(
            berlin(1, "2026-10-25T01:30:00Z"),
            of("2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z")
        );
        // A zone that is half an hour off.
        assert_eq!(
            around(1, "2026-01-01T00:10:00Z", "Asia/Kolkata"),
            of("2025-12-31T23:30:00Z", "2026-01-01T00:30:00Z")
        );
    }
}
