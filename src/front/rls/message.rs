//! The messages of Envoy's rate limit service, by hand.
//!
//! Sources: `envoy/service/ratelimit/v3/rls.proto` and
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto` of envoyproxy/envoy. Fields that this
//! server never reads or sets (request headers, body, quota) are left out: protobuf skips what it
//! does not know.

use tidegate_limiter::units::Span;

use super::structure::Struct;

/// One question: may these hits pass?
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitRequest {
    /// Which set of rules applies.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Each is decided by itself.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Hits of every descriptor that names none itself; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// An ordered list of entries.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitDescriptor {
    /// Outermost first.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit that the caller wants in place of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Hits of this descriptor alone (a `UInt64Value`); 0 only looks.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// The hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and its value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Entry {
    /// The key a rule names.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value a rule may name.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A limit that the caller brings along.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// Hits a unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// A [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// A [`Code`]: over the limit when any descriptor is.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One a descriptor, in the request's order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// What Envoy adds to the response, whatever the answer is.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// What Envoy keeps with the request, for its logs and later filters.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// The header's name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The answer to one descriptor.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorStatus {
    /// A [`Code`].
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit that applied, if one did.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// Hits that would still pass.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until the whole limit is there again.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit, as people wrote it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// Hits a unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// A [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The rule's name, if it has one.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// And nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// Whether hits may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Not known.
    Unknown = 0,
    /// They may.
    Ok = 1,
    /// They may not.
    OverLimit = 2,
}

/// The unit of a limit. A window of another length is [`Unit::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// Not one of the others.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days, as envoyproxy/ratelimit counts a month.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Code {
    /// The code of a verdict.
    pub const fn of(allowed: bool) -> Self {
        if allowed { Self::Ok } else { Self::OverLimit }
    }

    /// The name in proto3-JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ok => "OK",
            Self::OverLimit => "OVER_LIMIT",
        }
    }
}

impl Unit {
    /// Every unit, in the order of its number.
    pub const ALL: [Self; 8] = [
        Self::Unknown,
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Month,
        Self::Year,
        Self::Week,
    ];

    /// The unit that is exactly as long as `window`, else [`Unit::Unknown`].
    pub fn of(window: Span) -> Self {
        Self::ALL.into_iter().find(|unit| unit.window() == Some(window)).unwrap_or(Self::Unknown)
    }

    /// How long the unit is.
    pub const fn window(self) -> Option<Span> {
        const DAY: u64 = 86_400;
        let secs = match self {
            Self::Unknown => return None,
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
            Self::Week => 7 * DAY,
        };
        Some(Span::from_secs(secs))
    }

    /// The name in proto3-JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
            Self::Week => "WEEK",
        }
    }
}

impl Duration {
    /// `span` in whole seconds, rounded up: envoyproxy/ratelimit sends whole seconds, and Envoy
    /// cuts the fraction off, which would name a time that is too early.
    pub fn whole_seconds(span: Span) -> Self {
        Self { seconds: i64::try_from(span.as_secs_ceil()).unwrap_or(i64::MAX), nanos: 0 }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn field_numbers_are_envoys() {
        let request = RateLimitRequest {
            domain: "d".into(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: "k".into(), value: "v".into() }],
                limit: Some(RateLimitOverride { requests_per_unit: 5, unit: Unit::Minute.into() }),
                hits_addend: Some(3),
                is_negative_hits: true,
            }],
            hits_addend: 2,
        };
        // Written down field by field from the .proto files, not copied from this encoder.
        let golden: &[u8] = &[
            0x0A, 1, b'd', // domain = 1
            0x12, 20, // descriptors = 2
            0x0A, 6, 0x0A, 1, b'k', 0x12, 1, b'v', // entries = 1 { key = 1, value = 2 }
            0x12, 4, 0x08, 5, 0x10, 2, // limit = 2 { requests_per_unit = 1, unit = 2 }
            0x1A, 2, 0x08, 3, // hits_addend = 3, a UInt64Value
            0x20, 1, // is_negative_hits = 4
            0x18, 2, // hits_addend = 3
        ];
        assert_eq!(request.encode_to_vec(), golden);
        assert_eq!(RateLimitRequest::decode(golden), Ok(request));

        let response = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![DescriptorStatus {
                code: Code::OverLimit.into(),
                current_limit: Some(RateLimit {
                    requests_per_unit: 9,
                    unit: Unit::Week.into(),
                    name: "n".into(),
                }),
                limit_remaining: 4,
                duration_until_reset: Some(Duration { seconds: 12, nanos: 0 }),
            }],
            response_headers_to_add: vec![HeaderValue { key: "k".into(), value: "v".into() }],
            dynamic_metadata: Some(Struct::default()),
        };
        let golden: &[u8] = &[
            0x08, 2, // overall_code = 1
            0x12, 17, // statuses = 2
            0x08, 2, // code = 1
            0x12, 7, 0x08, 9, 0x10, 7, 0x1A, 1, b'n', // current_limit = 2
            0x18, 4, // limit_remaining = 3
            0x22, 2, 0x08, 12, // duration_until_reset = 4
            0x1A, 6, 0x0A, 1, b'k', 0x12, 1, b'v', // response_headers_to_add = 3
            0x32, 0, // dynamic_metadata = 6
        ];
        assert_eq!(response.encode_to_vec(), golden);
    }

    #[test]
    fn a_unit_names_only_a_window_of_its_own_length() {
        for unit in Unit::ALL {
            assert_eq!(unit.window().map_or(Unit::Unknown, Unit::of), unit);
        }
        assert_eq!(Unit::of(Span::from_secs(90)), Unit::Unknown);
        assert_eq!(Unit::of(Span::from_secs(31 * 86_400)), Unit::Unknown);
    }

    #[test]
    fn durations_are_never_too_short() {
        assert_eq!(Duration::whole_seconds(Span::from_nanos(1)).seconds, 1);
        assert_eq!(Duration::whole_seconds(Span::from_secs(12)).seconds, 12);
        assert_eq!(Duration::whole_seconds(Span::ZERO).seconds, 0);
    }
}
