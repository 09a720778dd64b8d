//! The resources, by hand: the rules of one domain each.
//!
//! Source: `ratelimit/config/ratelimit/v3/rls_conf.proto` of envoyproxy/go-control-plane, which
//! envoyproxy/ratelimit keeps below `api`. It knows fewer keys than a rule file: `value_to_metric`
//! and `share_threshold` are not in it, nor are keys of ours.

use super::structure::Struct;

/// The type of the resources, as `Any` names it.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The rules of one domain.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitConfig {
    /// What it is called in messages.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// Its descriptors.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// One descriptor and what is below it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// Its key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value; empty means any.
    #[prost(string, tag = "2")]
    pub value: String,
    /// What applies when a request's entries end here.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// What may follow.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Counted, never refused.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Named in statistics by all entries of the request.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// A request is refused only when all its descriptors of this kind are.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// What an answer carries when this descriptor let the request pass.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitPolicy {
    /// A [`RateLimitUnit`].
    #[prost(enumeration = "RateLimitUnit", tag = "1")]
    pub unit: i32,
    /// Hits a unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// Everything passes.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// By what other limits can name it.
    #[prost(string, tag = "4")]
    pub name: String,
    /// Limits that do not count where this one does.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// A limit by its name.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitReplace {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The unit of a limit. The week came last and has the last number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    /// Not given.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl RateLimitUnit {
    /// The name in the .proto file, which is what a rule file says too.
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

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn field_numbers_are_the_published_ones() {
        let config = RateLimitConfig {
            name: "n".into(),
            domain: "d".into(),
            descriptors: vec![RateLimitDescriptor {
                key: "k".into(),
                value: "v".into(),
                rate_limit: Some(RateLimitPolicy {
                    unit: RateLimitUnit::Week.into(),
                    requests_per_unit: 5,
                    unlimited: true,
                    name: "p".into(),
                    replaces: vec![RateLimitReplace { name: "q".into() }],
                }),
                descriptors: vec![RateLimitDescriptor::default()],
                shadow_mode: true,
                detailed_metric: true,
                quota_mode: true,
                metadata: Some(Struct::default()),
            }],
        };
        // Written down field by field from the .proto file, not copied from this encoder.
        let golden: &[u8] = &[
            0x0A, 1, b'n', // name = 1
            0x12, 1, b'd', // domain = 2
            0x1A, 32, // descriptors = 3
            0x0A, 1, b'k', // key = 1
            0x12, 1, b'v', // value = 2
            0x1A, 14, // rate_limit = 3
            0x08, 7, // unit = 1
            0x10, 5, // requests_per_unit = 2
            0x18, 1, // unlimited = 3
            0x22, 1, b'p', // name = 4
            0x2A, 3, 0x0A, 1, b'q', // replaces = 5 { name = 1 }
            0x22, 0, // descriptors = 4
            0x28, 1, // shadow_mode = 5
            0x30, 1, // detailed_metric = 6
            0x38, 1, // quota_mode = 7
            0x42, 0, // metadata = 8
        ];
        assert_eq!(config.encode_to_vec(), golden);
        assert_eq!(RateLimitConfig::decode(golden), Ok(config));
    }
}
