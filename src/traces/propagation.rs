//! The trace that a request belongs to, as headers say it: W3C trace context (`traceparent`,
//! `tracestate`) and B3 (one header, or several).
//!
//! ```text
//! traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//!                 trace                            parent           sampled
//! b3: 0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1
//! x-b3-traceid, x-b3-spanid, x-b3-sampled: the same in parts
//! ```
//!
//! Where a request has both, B3 counts, as in envoyproxy/ratelimit. What is malformed is ignored: a
//! request is never refused for it.
//!
//! Sources: W3C Trace Context (level 1), openzipkin/b3-propagation.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_cluster::mesh::wire::{TRACE_STATE_BYTES_MAX, TraceContext};

/// What the headers of a request say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Its trace is recorded, and this is the span that the request comes from.
    Sampled(TraceContext),
    /// Its trace is not recorded.
    Unsampled,
    /// It belongs to a trace of which nobody has said whether it is recorded (B3 only).
    Undecided(TraceContext),
    /// It belongs to no trace.
    None,
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const B3: HeaderName = HeaderName::from_static("b3");
const B3_TRACE: HeaderName = HeaderName::from_static("x-b3-traceid");
const B3_SPAN: HeaderName = HeaderName::from_static("x-b3-spanid");
const B3_PARENT: HeaderName = HeaderName::from_static("x-b3-parentspanid");
const B3_SAMPLED: HeaderName = HeaderName::from_static("x-b3-sampled");
const B3_FLAGS: HeaderName = HeaderName::from_static("x-b3-flags");

/// Bytes of a `traceparent` of version 0.
const TRACEPARENT_BYTES: usize = 55;

impl Incoming {
    /// Reads the headers of a request.
    pub fn of(headers: &HeaderMap) -> Self {
        b3(headers).or_else(|| w3c(headers)).unwrap_or(Self::None)
    }
}

/// Replaces the trace in the headers of a request that is passed on: what comes after it belongs to
/// the span of `context`. B3 is written in the forms that the request had.
pub fn inject(context: &TraceContext, headers: &mut HeaderMap) {
    let TraceContext { trace, span, state } = context;
    let (trace, span) = (hex(trace), hex(span));
    if headers.contains_key(&B3) {
        insert(headers, B3, format!("{trace}-{span}-1"));
    }
    if headers.contains_key(&B3_TRACE) {
        if let Some(parent) = headers.get(&B3_SPAN).cloned() {
            headers.insert(B3_PARENT, parent);
        }
        insert(headers, B3_SPAN, span.clone());
        insert(headers, B3_SAMPLED, "1".to_owned());
    }
    insert(headers, TRACEPARENT, format!("00-{trace}-{span}-01"));
    if state.is_empty() {
        // That of a trace which the request does not belong to, or one that is too long.
        headers.remove(&TRACESTATE);
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) {
    // Hexadecimal digits and hyphens are a value.
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
        text
    })
}

// === W3C ===

fn w3c(headers: &HeaderMap) -> Option<Incoming> {
    let mut values = headers.get_all(&TRACEPARENT).iter();
    let bytes = values.next()?.as_bytes();
    if values.next().is_some() || bytes.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let (head, rest) = bytes.split_at_checked(TRACEPARENT_BYTES)?;
    let [version, trace, span, flags] = parts(head)?;
    let [version]: [u8; 1] = digits(version)?;
    // A later version may have more behind another hyphen.
    let is_long = version != 0 && rest.first() == Some(&b'-');
    if version == 0xff || !(rest.is_empty() || is_long) {
        return None;
    }
    let (trace, span) = (id(trace)?, id(span)?);
    let [flags]: [u8; 1] = digits(flags)?;
    Some(if flags & 1 == 0 {
        Incoming::Unsampled
    } else {
        Incoming::Sampled(TraceContext { trace, span, state: state(headers) })
    })
}

/// Empty where there is none, or it is longer than a node has to pass on.
fn state(headers: &HeaderMap) -> String {
    let mut state = String::new();
    for value in headers.get_all(&TRACESTATE) {
        let Ok(value) = value.to_str() else { return String::new() };
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(value);
        if state.len() > TRACE_STATE_BYTES_MAX {
            return String::new();
        }
    }
    state
}

// === B3 ===

fn b3(headers: &HeaderMap) -> Option<Incoming> {
    if let Some(value) = headers.get(&B3)
        && let Some(incoming) = b3_single(value.as_bytes())
    {
        return Some(incoming);
    }
    let sampled = || match (bytes(headers, &B3_FLAGS), bytes(headers, &B3_SAMPLED)) {
        // Debug: recorded whatever else is said.
        (Some(b"1"), _) | (_, Some(b"1" | b"true")) => Some(true),
        (_, Some(b"0" | b"false")) => Some(false),
        _ => None,
    };
    let Some(trace) = bytes(headers, &B3_TRACE) else {
        return (sampled() == Some(false)).then_some(Incoming::Unsampled);
    };
    b3_context(trace, bytes(headers, &B3_SPAN)?, sampled())
}

fn bytes<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    headers.get(name).map(HeaderValue::as_bytes)
}

/// `TRACE-SPAN`, `TRACE-SPAN-SAMPLED`, `TRACE-SPAN-SAMPLED-PARENT`, or `0` alone.
fn b3_single(bytes: &[u8]) -> Option<Incoming> {
    if bytes == b"0" {
        return Some(Incoming::Unsampled);
    }
    let mut parts = bytes.split(|byte| *byte == b'-');
    let (trace, span) = (parts.next()?, parts.next()?);
    let sampled = match parts.next() {
        None => None,
        Some(b"1" | b"d") => Some(true),
        Some(b"0") => Some(false),
        Some(_) => return None,
    };
    b3_context(trace, span, sampled)
}

fn b3_context(trace: &[u8], span: &[u8], sampled: Option<bool>) -> Option<Incoming> {
    let trace = match trace.len() {
        16 => {
            let mut long = [0; 16];
            long[8..].copy_from_slice(&id::<8>(trace)?);
            long
        }
        _ => id(trace)?,
    };
    let context = TraceContext { trace, span: id(span)?, state: String::new() };
    Some(match sampled {
        Some(true) => Incoming::Sampled(context),
        Some(false) => Incoming::Unsampled,
        None => Incoming::Undecided(context),
    })
}

// === digits ===

/// Exactly `N` parts between hyphens.
fn parts<const N: usize>(bytes: &[u8]) -> Option<[&[u8]; N]> {
    let mut all = bytes.split(|byte| *byte == b'-');
    let mut parts = [&bytes[..0]; N];
    for part in &mut parts {
        *part = all.next()?;
    }
    all.next().is_none().then_some(parts)
}

/// An id: not all of it zero.
fn id<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    digits(text).filter(|id: &[u8; N]| id.iter().any(|byte| *byte != 0))
}

/// `N` bytes as twice as many hexadecimal digits.
fn digits<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        for digit in pair {
            let digit = char::from(*digit).to_digit(16)?;
            *byte = *byte << 4 | u8::try_from(digit).ok()?;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    fn of(pairs: &[(&'static str, &str)]) -> Incoming {
        Incoming::of(&headers(pairs))
    }

    fn context(state: &str) -> TraceContext {
        let (trace, span) = (digits(TRACE.as_bytes()), digits(SPAN.as_bytes()));
        TraceContext {
            trace: trace.expect("digits"),
            span: span.expect("digits"),
            state: state.to_owned(),
        }
    }

    #[test]
    fn w3c_is_read_as_its_specification_says() {
        let parent = |flags: &str| format!("00-{TRACE}-{SPAN}-{flags}");
        let sampled = || Incoming::Sampled(context(""));
        assert_eq!(of(&[("traceparent", &parent("01"))]), sampled());
        assert_eq!(of(&[("traceparent", &parent("03"))]), sampled(), "other flags do not count");
        assert_eq!(of(&[("traceparent", &parent("00"))]), Incoming::Unsampled);
        let later = format!("cc-{TRACE}-{SPAN}-01");
        assert_eq!(of(&[("traceparent", &later)]), sampled(), "of a later version");
        assert_eq!(of(&[("traceparent", &format!("{later}-what-follows"))]), sampled());
        let with_state =
            of(&[("traceparent", &parent("01")), ("tracestate", "a=1,b=2"), ("tracestate", "c=3")]);
        assert_eq!(with_state, Incoming::Sampled(context("a=1,b=2,c=3")));
        let long = "x".repeat(TRACE_STATE_BYTES_MAX + 1);
        assert_eq!(of(&[("traceparent", &parent("01")), ("tracestate", &long)]), sampled());

        for malformed in [
            String::new(),
            "00".to_owned(),
            format!("{}-and-more", parent("01")),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00_{TRACE}_{SPAN}_01"),
        ] {
            assert_eq!(of(&[("traceparent", &malformed)]), Incoming::None, "{malformed}");
        }
        let twice = [("traceparent", &*parent("01")), ("traceparent", &*parent("01"))];
        assert_eq!(of(&twice), Incoming::None);
    }

    #[test]
    fn b3_is_read_in_both_forms() {
        let sampled = || Incoming::Sampled(context(""));
        let (plain, parent) = (format!("{TRACE}-{SPAN}"), "05e3ac9a4f6e3b90");
        assert_eq!(of(&[("b3", &format!("{plain}-1"))]), sampled());
        assert_eq!(of(&[("b3", &format!("{plain}-d"))]), sampled());
        assert_eq!(of(&[("b3", &format!("{plain}-1-{parent}"))]), sampled());
        assert_eq!(of(&[("b3", &format!("{plain}-0"))]), Incoming::Unsampled);
        assert_eq!(of(&[("b3", "0")]), Incoming::Unsampled);
        assert_eq!(of(&[("b3", &plain)]), Incoming::Undecided(context("")));
        for malformed in ["", "1", "x-y-1", &format!("{plain}-7")] {
            assert_eq!(of(&[("b3", malformed)]), Incoming::None, "{malformed}");
        }

        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        let with = |pairs: &[(&'static str, &str)]| of(&[&ids, pairs].concat());
        assert_eq!(with(&[]), Incoming::Undecided(context("")));
        assert_eq!(with(&[("x-b3-sampled", "1")]), sampled());
        assert_eq!(with(&[("x-b3-sampled", "true")]), sampled());
        assert_eq!(with(&[("x-b3-sampled", "0")]), Incoming::Unsampled);
        assert_eq!(with(&[("x-b3-sampled", "0"), ("x-b3-flags", "1")]), sampled(), "debug");
        assert_eq!(of(&[("x-b3-sampled", "0")]), Incoming::Unsampled);
        assert_eq!(of(&[("x-b3-sampled", "1")]), Incoming::None, "there is no parent");
        assert_eq!(of(&[("x-b3-traceid", TRACE), ("x-b3-sampled", "1")]), Incoming::None);

        let short = of(&[("b3", &format!("{}-{SPAN}-1", &TRACE[16..]))]);
        let Incoming::Sampled(short) = short else { panic!("{short:?}") };
        assert_eq!(hex(&short.trace), format!("{}{}", "0".repeat(16), &TRACE[16..]));
    }

    #[test]
    fn of_two_traces_that_of_b3_counts() {
        let other = format!("00-{}-{SPAN}-00", "1".repeat(32));
        let b3 = format!("{TRACE}-{SPAN}-1");
        let both = of(&[("traceparent", &other), ("tracestate", "a=1"), ("b3", &b3)]);
        assert_eq!(both, Incoming::Sampled(context("")));
        let valid = of(&[("traceparent", &other), ("b3", "what?")]);
        assert_eq!(valid, Incoming::Unsampled);
    }

    #[test]
    fn what_is_passed_on_names_the_span_in_the_forms_that_came() {
        let own = TraceContext { span: [7; 8], ..context("") };
        let parent = format!("00-{TRACE}-0707070707070707-01");

        let mut none = HeaderMap::new();
        inject(&own, &mut none);
        assert_eq!(none, headers(&[("traceparent", &parent)]));

        let b3 = format!("{TRACE}-{SPAN}-1");
        let other = format!("00-{}-{SPAN}-00", "1".repeat(32));
        let mut single =
            headers(&[("b3", &b3), ("traceparent", &other), ("tracestate", "of=another")]);
        inject(&own, &mut single);
        let expected = format!("{TRACE}-0707070707070707-1");
        assert_eq!(single, headers(&[("b3", &expected), ("traceparent", &parent)]));

        let mut parts = headers(&[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)]);
        inject(&own, &mut parts);
        for (name, value) in [
            ("x-b3-traceid", TRACE),
            ("x-b3-spanid", "0707070707070707"),
            ("x-b3-parentspanid", SPAN),
            ("x-b3-sampled", "1"),
            ("traceparent", &parent),
        ] {
            assert_eq!(parts.get(name).map(HeaderValue::as_bytes), Some(value.as_bytes()));
        }

        let mut with_state = headers(&[("traceparent", &other), ("tracestate", "a=1")]);
        inject(&TraceContext { state: "a=1".to_owned(), ..own }, &mut with_state);
        assert_eq!(with_state, headers(&[("traceparent", &parent), ("tracestate", "a=1")]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn any_bytes_are_read(name in 0_usize..6, bytes: Vec<u8>) {
            let names = [TRACEPARENT, TRACESTATE, B3, B3_TRACE, B3_SPAN, B3_SAMPLED];
            let ids = headers(&[("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)]);
            for mut headers in [HeaderMap::new(), ids] {
                if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                    headers.insert(names[name].clone(), value);
                }
                Incoming::of(&headers);
            }
        }

        #[test]
        fn what_is_written_is_read(trace: [u8; 16], span: [u8; 8]) {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let context = TraceContext { trace, span, state: String::new() };
            let mut headers = HeaderMap::new();
            inject(&context, &mut headers);
            prop_assert_eq!(Incoming::of(&headers), Incoming::Sampled(context));
        }
    }
}
