//! Calendar intervals, in a time zone: what a duration is with `DURATION_IS_GREGORIAN`.
//!
//! ```text
//! 0 minute   1 hour   2 day   3 week, from Monday   4 month   5 year
//! ```
//!
//! An interval begins where the previous one ends, also when clocks are changed: a day then has 23
//! or 25 hours, and an hour or minute in which they are changed ends there, so that two shorter
//! ones take its place. Its last millisecond is what a client gets as `reset_time`.
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
        let now = instant(now)?.to_zoned_datetime(zone.clone());
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
        Some(Self { begins: timestamp(begins.timestamp())?, ends: timestamp(ends.timestamp())? })
    }

    /// A minute or an hour, counted from the last full hour of the clock. It is cut where clocks
    /// are changed by less than an hour, or not at a full one.
    fn of_clock(now: &ZonedDateTime, secs: i64) -> Option<Self> {
        let time: Time = now.time();
        let into_hour = i64::from(time.minute()) * 60 + i64::from(time.second());
        let into = units::Span::from_nanos(
            u64::try_from((into_hour % secs) * 1_000_000_000 + i64::from(time.subsec_nanosecond()))
                .ok()?,
        );
        let (at, zone) = (timestamp(now.timestamp())?, now.time_zone());
        let mut begins = at.minus(into);
        let mut ends = begins.plus(units::Span::from_secs(secs.unsigned_abs()));
        let has_offset = |at| Some(zone.to_offset(instant(at)?) == now.offset());
        if !has_offset(begins)? {
            // Later by a second, so that a change at this instant is before it.
            let after = instant(at.plus(units::Span::from_secs(1)))?;
            begins = timestamp(zone.preceding(after).next()?.timestamp())?;
        }
        if !has_offset(ends.minus(units::Span::from_nanos(1)))? {
            ends = timestamp(zone.following(now.timestamp()).next()?.timestamp())?;
        }
        Some(Self { begins, ends })
    }

    pub const fn length(&self) -> units::Span {
        self.ends.since(self.begins)
    }
}

fn instant(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_nanosecond(i128::from(at.as_nanos())).ok()
}

fn timestamp(at: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(at.as_nanosecond()).ok().map(Timestamp::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begin and end as UTC, of the interval around an instant.
    fn around(kind: i64, now: &str, zone: &str) -> Option<(String, String)> {
        let zone = TimeZone::get(zone).expect("a zone");
        let text = |at: Timestamp| instant(at).expect("near").to_string();
        Interval::around(kind, parsed(now), &zone).map(|it| (text(it.begins), text(it.ends)))
    }

    fn parsed(now: &str) -> Timestamp {
        timestamp(now.parse().expect("an instant")).expect("after 1970")
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
    /// There clocks are changed by half an hour.
    #[test]
    fn an_hour_in_which_clocks_are_changed_ends_there() {
        for (now, begins, ends) in [
            // 02:00 becomes 01:30.
            ("2026-04-04T14:30:00Z", "2026-04-04T14:00:00Z", "2026-04-04T15:00:00Z"),
            ("2026-04-04T15:00:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"),
            ("2026-04-04T15:10:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"),
            ("2026-04-04T15:40:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"),
            // 02:00 becomes 02:30.
            ("2026-10-03T15:00:00Z", "2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z"),
            ("2026-10-03T15:40:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"),
        ] {
            let expected = Some((begins.to_owned(), ends.to_owned()));
            assert_eq!(around(1, now, "Australia/Lord_Howe"), expected, "{now}");
        }
    }

    #[test]
    fn each_interval_begins_where_the_one_before_ends() {
        for (zone, from) in [
            ("Australia/Lord_Howe", "2026-04-04T12:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T12:00:00Z"),
            // One minute after midnight.
            ("America/St_Johns", "2010-11-07T00:10:00Z"),
            ("America/St_Johns", "2010-03-14T00:10:00Z"),
            ("Europe/Berlin", "2026-10-24T23:00:00Z"),
            ("Asia/Kolkata", "2026-01-01T00:10:00Z"),
        ] {
            let tz = TimeZone::get(zone).expect("a zone");
            let around = |kind, now| Interval::around(kind, now, &tz).expect("an interval");
            for kind in 0..6 {
                let mut interval = around(kind, parsed(from));
                for _ in 0..400 {
                    let last = interval.ends.minus(units::Span::from_nanos(1));
                    assert_eq!(around(kind, last), interval, "{kind} in {zone}");
                    let next = around(kind, interval.ends);
                    assert_eq!(next.begins, interval.ends, "{kind} in {zone}");
                    interval = next;
                }
            }
        }
    }
}
