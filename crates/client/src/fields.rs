//! What the header fields of a response say about limits, in one form.
//!
//! The newest form that a response has counts:
//!
//! | fields | of |
//! |---|---|
//! | `RateLimit: "a";r=50;t=30`, `RateLimit-Policy: "a";q=100;w=60` | drafts -08 to -11 (IETF) |
//! | `RateLimit: limit=100, remaining=50, reset=30` | draft -07 |
//! | `RateLimit-Limit`, `-Remaining`, `-Reset` | drafts up to -06 |
//! | `X-RateLimit-*`, `X-Rate-Limit-*` | the convention before, with seconds or a point in time |
//!
//! `Retry-After` is read besides them. A malformed field is ignored as a whole, as the draft
//! demands, and a response from a cache (`Age`) says only when to retry. Dates are compared
//! with the `Date` of the response, so that no clocks have to agree.
//!
//! ```
//! use std::time::Duration;
//! use http::HeaderMap;
//! use tidegate_client::fields::Fields;
//!
//! let mut headers = HeaderMap::new();
//! headers.insert("RateLimit-Policy", r#""permin";q=100;w=60"#.parse()?);
//! headers.insert("RateLimit", r#""permin";r=50;t=30"#.parse()?);
//! let limits = Fields::read(&headers, Duration::ZERO).limits;
//! assert_eq!((limits[0].quota, limits[0].remaining), (Some(100), 50));
//! assert_eq!(limits[0].reset, Some(Duration::from_secs(30)));
//! # Ok::<(), http::header::InvalidHeaderValue>(())
//! ```
//!
//! Sources: [draft-ietf-httpapi-ratelimit-headers](
//! https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/), RFC 9651 (structured
//! fields), RFC 9110 (`Retry-After`).

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use http::header::{AGE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use sfv::{BareItem, Dictionary, FieldType, Item, List, ListEntry, Parameters, Parser};

/// The most limits of one response; further ones are ignored.
pub const LIMITS_MAX: usize = 16;

/// The longest time that a field may name. A longer one is cut to this, and one request is then
/// sent to see whether the limit still applies.
pub const TIME_MAX: Duration = Duration::from_secs(86_400);

/// The bytes of a name, and of a partition key, that tell limits apart.
pub const NAME_BYTES_MAX: usize = 256;

/// What a response says about limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    /// In the order of the response.
    pub limits: Vec<Limit>,
    /// At most [`TIME_MAX`].
    pub retry_after: Option<Duration>,
}

/// What remains of one policy. Numbers above 2³² − 1 count as that, times above [`TIME_MAX`] as
/// that.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Empty in the forms that name no policy.
    pub name: String,
    /// Tells apart clients, or other things that are counted, under one name.
    pub partition: Vec<u8>,
    /// Requests of a whole window.
    pub quota: Option<u32>,
    /// Not zero.
    pub window: Option<Duration>,
    pub remaining: u32,
    /// The time within which no more than `remaining` may be used.
    pub reset: Option<Duration>,
}

impl Fields {
    /// Reads the fields of a response that arrives at `wall`, the time since 1970. It matters only
    /// for dates in a response without `Date`.
    pub fn read(headers: &HeaderMap, wall: Duration) -> Self {
        let wall = first(headers, DATE.as_str()).and_then(date).unwrap_or(wall);
        let retry_after = first(headers, RETRY_AFTER.as_str());
        let retry_after = retry_after.and_then(|text| {
            let date = || date(text).map(|date| date.saturating_sub(wall).min(TIME_MAX));
            number(text).map(seconds).or_else(date)
        });
        let is_cached =
            first(headers, AGE.as_str()).and_then(number).is_some_and(|seconds| seconds > 0.0);
        let forms = [draft, draft_07, separate];
        let mut found = forms.into_iter().map(|form| form(headers, wall));
        // From a cache they were true when it was stored.
        let limits = if is_cached { None } else { found.find(|limits| !limits.is_empty()) };
        Self { limits: limits.unwrap_or_default(), retry_after }
    }
}

// === the forms ===

fn draft(headers: &HeaderMap, _wall: Duration) -> Vec<Limit> {
    let mut quotas = BTreeMap::new();
    for item in list(headers, "RateLimit-Policy") {
        if let (Some(name), Some(quota)) = (name(&item), count(&item.params, "q")) {
            quotas.insert((name, partition(&item)), (quota, window(&item)));
        }
    }
    let mut limits: Vec<Limit> = Vec::new();
    for item in list(headers, "RateLimit") {
        let reset = count(&item.params, "t");
        let is_reset_malformed = reset.is_none() && item.params.contains_key("t");
        let (Some(name), Some(remaining)) = (name(&item), count(&item.params, "r")) else {
            return Vec::new();
        };
        if is_reset_malformed {
            return Vec::new();
        }
        let partition = partition(&item);
        let is_known = limits.iter().any(|it| it.name == name && it.partition == partition);
        if is_known || limits.len() == LIMITS_MAX {
            continue;
        }
        let key = (name, partition);
        let of = quotas.get(&key).or_else(|| quotas.get(&(key.0.clone(), Vec::new())));
        let (quota, window) = of.map_or((None, None), |(quota, window)| (Some(*quota), *window));
        let (name, partition) = key;
        let reset = reset.map(whole);
        limits.push(Limit { name, partition, quota, window, remaining, reset });
    }
    limits
}

fn draft_07(headers: &HeaderMap, _wall: Duration) -> Vec<Limit> {
    let members: Dictionary = structured(headers, "RateLimit").unwrap_or_default();
    let value = |name: &str| match members.get(name) {
        Some(ListEntry::Item(item)) => natural(&item.bare_item),
        _ => None,
    };
    let quota = value("limit");
    let limit = |remaining| Limit {
        name: String::new(),
        partition: Vec::new(),
        quota,
        window: window_of(quota, &list(headers, "RateLimit-Policy")),
        remaining,
        reset: value("reset").map(whole),
    };
    value("remaining").map(limit).into_iter().collect()
}

fn separate(headers: &HeaderMap, wall: Duration) -> Vec<Limit> {
    let prefixes = ["RateLimit", "X-RateLimit", "X-Rate-Limit"];
    let limit = |prefix| {
        let value = |end| first(headers, &format!("{prefix}-{end}"));
        let remaining = value("Remaining").and_then(number)?;
        // Envoy lists policies behind the quota: 10, 10;w=1, 1000;w=3600.
        let mut policies = list(headers, &format!("{prefix}-Limit"));
        let quota = policies.first().and_then(|item| natural(&item.bare_item));
        policies.extend(list(headers, "RateLimit-Policy"));
        let reset = value("Reset").and_then(number).map(|reset| seconds(from_now(reset, wall)));
        Some(Limit {
            name: String::new(),
            partition: Vec::new(),
            quota,
            window: window_of(quota, &policies),
            remaining: saturated(remaining),
            reset,
        })
    };
    prefixes.into_iter().find_map(limit).into_iter().collect()
}

/// The window of the policy with this quota: `100;w=60`.
fn window_of(quota: Option<u32>, policies: &[Item]) -> Option<Duration> {
    let quota = quota?;
    let mut of_quota = policies.iter().filter(|item| natural(&item.bare_item) == Some(quota));
    of_quota.find_map(window)
}

/// Seconds from now to a reset that is seconds, or seconds or milliseconds since 1970.
fn from_now(reset: f64, wall: Duration) -> f64 {
    /// 2001, or 31 years: no server means the latter.
    const EPOCH_MIN: f64 = 1e9;
    const EPOCH_MILLIS_MIN: f64 = 1e12;
    match reset {
        EPOCH_MILLIS_MIN.. => reset / 1e3 - wall.as_secs_f64(),
        EPOCH_MIN.. => reset - wall.as_secs_f64(),
        _ => reset,
    }
}

// === values ===

fn first<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A structured field, which may be spread over several fields of its name; `None` if malformed.
fn structured<T: FieldType>(headers: &HeaderMap, name: &str) -> Option<T> {
    let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let lines: Vec<&[u8]> = lines.collect();
    Parser::new(&lines.join(&b", "[..])).parse().ok()
}

/// The items of a list; none if it is malformed.
fn list(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let members: List = structured(headers, name).unwrap_or_default();
    let items = members.into_iter().map(|member| match member {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    });
    items.collect::<Option<_>>().unwrap_or_default()
}

fn name(item: &Item) -> Option<String> {
    let name = match &item.bare_item {
        BareItem::String(name) => name.as_str(),
        BareItem::Token(name) => name.as_str(),
        _ => return None,
    };
    // Both are ASCII.
    Some(name.chars().take(NAME_BYTES_MAX).collect())
}

fn partition(item: &Item) -> Vec<u8> {
    let key = item.params.get("pk").and_then(BareItem::as_byte_sequence).unwrap_or_default();
    key[..key.len().min(NAME_BYTES_MAX)].to_vec()
}

fn window(item: &Item) -> Option<Duration> {
    count(&item.params, "w").filter(|seconds| *seconds > 0).map(whole)
}

fn count(params: &Parameters, name: &str) -> Option<u32> {
    params.get(name).and_then(natural)
}

fn natural(value: &BareItem) -> Option<u32> {
    let value = u64::try_from(i64::from(value.as_integer()?)).ok()?;
    Some(u32::try_from(value).unwrap_or(u32::MAX))
}

/// A decimal number: digits, with an optional fraction.
fn number(text: &str) -> Option<f64> {
    const CHARS_MAX: usize = 20;
    let text = text.trim();
    let is_number = text.len() <= CHARS_MAX && text.chars().all(|c| "0123456789.".contains(c));
    text.parse().ok().filter(|_| is_number)
}

/// The seconds since 1970 of an HTTP date.
fn date(text: &str) -> Option<Duration> {
    httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()
}

fn whole(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into()).min(TIME_MAX)
}

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.clamp(0.0, TIME_MAX.as_secs_f64()))
}

/// Without the fraction.
fn saturated(value: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    let value = value as u32;
    value
}
