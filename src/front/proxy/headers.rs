//! The headers of a message that is passed on.
//!
//! Headers that are about one connection end here (RFC 9110, 7.6.1): those that `Connection` names,
//! and the usual ones, named or not. `TE` is kept as far as it says that trailers are understood.
//! What a client says about itself counts only if it is a trusted proxy; otherwise
//! `X-Forwarded-For`, `-Proto` and `-Host` are replaced, and `Forwarded` and `X-Real-IP` removed.
//! Applications behind CGI or WSGI read `X_Real_IP` as they read `X-Real-IP`: a name with
//! underscores that would be read as one of those that end or are set here is removed, whoever sent
//! it.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, FORWARDED, HOST, HeaderMap, HeaderName,
    HeaderValue, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::uri::Authority;
use http::{Method, Version};

use crate::config::auth::Trust;
use crate::front::render;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// About this proxy and its limits only, also when a server sends them.
const OWN: [HeaderName; 8] = [
    render::LIMIT,
    render::REMAINING,
    render::RESET,
    render::RETRY,
    render::SOFT_BREACH,
    render::DELAY,
    render::POLICY,
    render::CURRENT,
];

/// What a client says about itself, beside [`CLAIMS_PREFIX`]. It counts only if it is a trusted
/// proxy.
const CLAIMS: [HeaderName; 2] = [FORWARDED, X_REAL_IP];
const CLAIMS_PREFIX: &str = "x-forwarded-";
/// About one connection.
const HOP: [HeaderName; 6] =
    [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE];
/// About the route, or the form, of a message.
const ROUTE_AND_FORM: [HeaderName; 4] = [HOST, VIA, EXPECT, CONTENT_LENGTH];

/// Why a request is not passed on for its head. Nothing was counted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    #[error("CONNECT is for forward proxies; this is the proxy of one application")]
    Connect,
    #[error("the request needs exactly one Host")]
    Host,
    #[error("the target of the request is a path, or a URL without user information")]
    Target,
    #[error("only 100-continue is an expectation that can be met")]
    Expectation,
    #[error("it has Content-Length more than once, or one that is no number")]
    Length,
}

/// Who sent a request, and how.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub addr: IpAddr,
    /// Whether what it says about its client is believed.
    pub is_trusted: bool,
    pub scheme: &'static str,
}

impl Sender {
    pub fn new(addr: IpAddr, trust: &Trust<'_>, scheme: &'static str) -> Self {
        let addr = addr.to_canonical();
        let is_trusted = match trust {
            Trust::Hops(hops) => *hops > 0,
            Trust::Proxies(networks) => networks.iter().any(|network| network.contains(&addr)),
        };
        Self { addr, is_trusted, scheme }
    }
}

/// Checks what hyper leaves to the application, and lets the authority of the request target be the
/// only `Host`.
///
/// # Errors
///
/// The request is not passed on.
pub fn check(parts: &mut Parts) -> Result<(), HeadError> {
    if parts.method == Method::CONNECT {
        return Err(HeadError::Connect);
    }
    let headers = &mut parts.headers;
    let is_met = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if !headers.get_all(EXPECT).iter().all(is_met) {
        return Err(HeadError::Expectation);
    }
    // HTTP/1 has other lines that are read in two ways: see `framing`.
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    if lengths > 1 || !has_one_length(headers) {
        return Err(HeadError::Length);
    }
    let hosts = headers.get_all(HOST).iter().count();
    let authority = parts.uri.authority().map(Authority::as_str);
    let is_old = parts.version < Version::HTTP_11;
    if hosts > 1 || hosts == 0 && authority.is_none() && !is_old {
        return Err(HeadError::Host);
    }
    // The user information of a target is not passed on as part of a host (RFC 9110, 4.2.4), and
    // the form without a scheme is that of CONNECT.
    let has_user = authority.is_some_and(|authority| authority.contains('@'));
    if has_user || authority.is_some() && parts.uri.scheme().is_none() {
        return Err(HeadError::Target);
    }
    if let Some(authority) = authority {
        // A request target in absolute form overrides the header (RFC 9112, 3.2.2).
        let host = HeaderValue::from_str(authority).map_err(|_| HeadError::Host)?;
        headers.insert(HOST, host);
    }
    Ok(())
}

/// Turns the headers of a checked request into those for the application.
pub fn pass_request(headers: &mut HeaderMap, version: Version, sender: Sender) {
    let has_trailers = accepts_trailers(headers);
    end_hop(headers);
    headers.remove(EXPECT);
    remove_aliases(headers);
    if version == Version::HTTP_2 {
        join_cookies(headers);
    }
    if has_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    for name in OWN {
        headers.remove(name);
    }
    if !sender.is_trusted {
        remove_claims(headers);
    }
    // In one line, because some applications read the first one only.
    let mut hops = Vec::new();
    for value in headers.get_all(X_FORWARDED_FOR) {
        hops.extend_from_slice(value.as_bytes());
        hops.extend_from_slice(b", ");
    }
    hops.extend_from_slice(sender.addr.to_string().as_bytes());
    // Of valid values and an address.
    if let Ok(hops) = HeaderValue::from_bytes(&hops) {
        headers.insert(X_FORWARDED_FOR, hops);
    }
    if let Entry::Vacant(entry) = headers.entry(X_FORWARDED_PROTO) {
        entry.insert(HeaderValue::from_static(sender.scheme));
    }
    if let (Some(host), false) = (headers.get(HOST), headers.contains_key(X_FORWARDED_HOST)) {
        let host = host.clone();
        headers.insert(X_FORWARDED_HOST, host);
    }
    via(headers, version);
}

/// Frames the body of a request that is passed on by HTTP/1, when its length is not known: hyper
/// sends a `GET` without its body unless the headers announce it.
pub fn frame(headers: &mut HeaderMap, length: Option<u64>) {
    if length.is_none() {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Turns the headers of a response of the application into those for the client.
pub fn pass_response(headers: &mut HeaderMap, version: Version) {
    end_hop(headers);
    for name in OWN {
        headers.remove(name);
    }
    via(headers, version);
}

/// Turns trailers, of either direction, into those for the other side. What only a head can say is
/// no part of them (RFC 9110, 6.5.1): an application may merge them into it.
pub(super) fn pass_trailers(trailers: &mut HeaderMap) {
    for name in OWN.iter().chain(&HOP).chain(&ROUTE_AND_FORM) {
        trailers.remove(name);
    }
    remove_claims(trailers);
    remove_aliases(trailers);
}

/// Whether the body of a response can be passed on: a transfer coding other than `chunked` ends
/// here and is not undone, and there must be one way to find the end. Leaves at most one
/// `Content-Length`, and none beside chunks.
pub(super) fn has_one_form(headers: &mut HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(is_chunked) && codings.next().is_none() && has_one_length(headers)
}

/// Whether the request is one of gRPC, which has a status of its own.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(http::header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|value| value.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// The scheme that the client used, as far as it is known.
pub fn scheme(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}

/// Whether a message has one length at most. Chunks override it (RFC 9112, 6.3), and several that
/// are equal become one.
fn has_one_length(headers: &mut HeaderMap) -> bool {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
        return true;
    }
    let lines = headers.get_all(CONTENT_LENGTH).iter();
    let mut lengths = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let Some(first) = lengths.next().map(<[u8]>::trim_ascii) else { return true };
    let is_number = !first.is_empty() && first.iter().all(u8::is_ascii_digit);
    let mut others = lengths.map(<[u8]>::trim_ascii).peekable();
    if others.peek().is_none() || !is_number {
        return is_number;
    }
    match HeaderValue::from_bytes(first) {
        Ok(length) if others.all(|other| other == first) => {
            headers.insert(CONTENT_LENGTH, length);
            true
        }
        _ => false,
    }
}

/// In HTTP/2 each cookie may have a line of its own, elsewhere all have one (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() < 2 {
        return;
    }
    // Of valid values.
    if let Ok(cookies) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, cookies);
    }
}

fn accepts_trailers(headers: &HeaderMap) -> bool {
    let mut codings =
        headers.get_all(TE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Removes what is about the connection that the message came from.
fn end_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named = headers.get_all(CONNECTION).iter();
        let named = named.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let named = named.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
        // A client must not remove what routes the request.
        let named: Vec<HeaderName> = named.filter(|name| name != HOST).collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in HOP {
        headers.remove(name);
    }
}

/// Removes names that an application may read as those of headers that end or are set here, or that
/// frame the message: with underscores in place of hyphens.
fn remove_aliases(headers: &mut HeaderMap) {
    let is_ours = |name: &str| {
        name.starts_with(CLAIMS_PREFIX)
            || CLAIMS.iter().chain(&HOP).chain(&OWN).chain(&ROUTE_AND_FORM).any(|it| it == name)
    };
    let is_alias = |name: &&HeaderName| {
        name.as_str().contains('_') && is_ours(&name.as_str().replace('_', "-"))
    };
    remove_where(headers, is_alias);
}

fn remove_claims(headers: &mut HeaderMap) {
    let is_claim =
        |name: &&HeaderName| CLAIMS.contains(*name) || name.as_str().starts_with(CLAIMS_PREFIX);
    remove_where(headers, is_claim);
}

fn remove_where(headers: &mut HeaderMap, is_removed: impl Fn(&&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(is_removed).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Adds this hop (RFC 9110, 7.6.3). `version` is the protocol that the message came by.
fn via(headers: &mut HeaderMap, version: Version) {
    let via = match version {
        Version::HTTP_2 => "2 tidegate",
        Version::HTTP_11 => "1.1 tidegate",
        _ => "1.0 tidegate",
    };
    headers.append(VIA, HeaderValue::from_static(via));
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::try_from(*name).expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
            .collect();
        lines.sort();
        lines
    }

    fn passed(lines: &[(&str, &str)], is_trusted: bool) -> Vec<String> {
        let mut headers = headers(lines);
        let addr = "203.0.113.7".parse().expect("an address");
        pass_request(&mut headers, Version::HTTP_11, Sender { addr, is_trusted, scheme: "http" });
        shown(&headers)
    }

    #[test]
    fn what_is_about_one_connection_ends_here() {
        let lines = [
            ("host", "shop"),
            ("connection", "keep-alive, X-Hop ,Host"),
            ("connection", "close, content-length"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip, Trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("ratelimit", "\"x\";r=1;t=1"),
            ("x-ratelimit-remaining", "9"),
            ("trailer", "x-checksum"),
            ("via", "1.1 front"),
            ("accept", "*/*"),
        ];
        assert_eq!(
            passed(&lines, false),
            [
                "accept: */*",
                "host: shop",
                "te: trailers",
                "trailer: x-checksum",
                "via: 1.1 front",
                "via: 1.1 tidegate",
                "x-forwarded-for: 203.0.113.7",
                "x-forwarded-host: shop",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn a_server_says_nothing_about_the_limits() {
        let mut headers = headers(&[
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("ratelimit", "\"x\";r=1;t=1"),
            ("ratelimit-policy", "\"x\";q=1;w=1"),
            ("x-ratelimit-limit", "77"),
            ("x-ratelimit-remaining", "66"),
            ("x-ratelimit-reset", "1"),
            ("x-ratelimit-retry-after", "9"),
            ("x-ratelimit-delay", "9"),
            ("x-ratelimit-soft-breach", "1"),
            ("x-ratelimit-of-the-application", "5"),
            ("retry-after", "5"),
        ]);
        pass_response(&mut headers, Version::HTTP_11);
        assert_eq!(
            shown(&headers),
            ["retry-after: 5", "via: 1.1 tidegate", "x-ratelimit-of-the-application: 5"]
        );
    }

    #[test]
    fn trailers_say_nothing_that_only_a_head_can_say() {
        let mut trailers = headers(&[
            ("ratelimit", "\"x\";r=1;t=1"),
            ("x-ratelimit-remaining", "9"),
            ("x-real-ip", "1.1.1.1"),
            ("x-forwarded-port", "1"),
            ("x_forwarded_for", "1.1.1.1"),
            ("content-length", "5"),
            ("host", "other"),
            ("grpc-status", "0"),
            ("x-checksum", "1"),
        ]);
        pass_trailers(&mut trailers);
        assert_eq!(shown(&trailers), ["grpc-status: 0", "x-checksum: 1"]);
    }

    #[test]
    fn a_response_has_one_end() {
        for (lines, left) in [
            (&[("content-length", "5")][..], Some("content-length: 5")),
            (&[("content-length", "5"), ("content-length", "5")], Some("content-length: 5")),
            (&[("content-length", "5 , 5")], Some("content-length: 5")),
            (&[("content-length", "5"), ("content-length", "6")], None),
            (&[("content-length", "5, 6")], None),
            (&[("content-length", "+5")], None),
            (&[("content-length", "")], None),
            (
                &[("content-length", "5"), ("transfer-encoding", "chunked")],
                Some("transfer-encoding: chunked"),
            ),
            (&[("transfer-encoding", "gzip")], None),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], None),
        ] {
            let mut headers = headers(lines);
            let shown = has_one_form(&mut headers).then(|| shown(&headers).join(" | "));
            assert_eq!(shown.as_deref(), left, "{lines:?}");
        }
    }

    #[test]
    fn cookies_of_http2_are_one_line_for_the_application() {
        let lines = [("cookie", "a=1"), ("x-a", "1"), ("cookie", "b=2"), ("x-a", "2")];
        let mut headers = headers(&lines);
        let addr = "203.0.113.7".parse().expect("an address");
        let sender = Sender { addr, is_trusted: false, scheme: "http" };
        pass_request(&mut headers, Version::HTTP_2, sender);
        let shown = shown(&headers);
        assert_eq!(shown[..3], ["cookie: a=1; b=2", "via: 2 tidegate", "x-a: 1"], "{shown:?}");
    }

    #[test]
    fn only_a_trusted_proxy_speaks_for_its_client() {
        let lines = [
            ("host", "inner"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop"),
            ("x-forwarded-port", "8443"),
            ("x-real-ip", "1.1.1.1"),
            ("forwarded", "for=1.1.1.1"),
        ];
        assert_eq!(
            passed(&lines, true),
            [
                "forwarded: for=1.1.1.1",
                "host: inner",
                "via: 1.1 tidegate",
                "x-forwarded-for: 1.1.1.1, 203.0.113.7",
                "x-forwarded-host: shop",
                "x-forwarded-port: 8443",
                "x-forwarded-proto: https",
                "x-real-ip: 1.1.1.1",
            ]
        );
        assert_eq!(
            passed(&lines, false),
            [
                "host: inner",
                "via: 1.1 tidegate",
                "x-forwarded-for: 203.0.113.7",
                "x-forwarded-host: inner",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn a_name_with_underscores_cannot_stand_for_one_that_is_set_here() {
        let lines = [
            ("host", "shop"),
            ("x_forwarded_for", "1.1.1.1"),
            ("x-forwarded_port", "1"),
            ("X_Real_IP", "1.1.1.1"),
            ("x_ratelimit_soft_breach", "1"),
            ("content_length", "5"),
            ("transfer_encoding", "chunked"),
            ("x_own", "kept"),
        ];
        for is_trusted in [false, true] {
            assert_eq!(
                passed(&lines, is_trusted),
                [
                    "host: shop",
                    "via: 1.1 tidegate",
                    "x-forwarded-for: 203.0.113.7",
                    "x-forwarded-host: shop",
                    "x-forwarded-proto: http",
                    "x_own: kept",
                ]
            );
        }
    }

    #[test]
    fn the_request_target_names_the_host() {
        for (uri, lines, outcome) in [
            ("/a", &[("host", "a")][..], Ok("a")),
            ("http://b/a", &[("host", "a")], Ok("b")),
            ("http://b/a", &[], Ok("b")),
            ("/a", &[], Err(HeadError::Host)),
            ("/a", &[("host", "a"), ("host", "a")], Err(HeadError::Host)),
            ("http://b/a", &[("host", "a"), ("host", "b")], Err(HeadError::Host)),
            ("http://u:p@b/a", &[("host", "b")], Err(HeadError::Target)),
            ("b:80", &[("host", "b")], Err(HeadError::Target)),
            ("/a", &[("host", "a"), ("expect", "100-Continue")], Ok("a")),
            ("/a", &[("host", "a"), ("expect", "money")], Err(HeadError::Expectation)),
            (
                "/a",
                &[("host", "a"), ("content-length", "1"), ("content-length", "2")],
                Err(HeadError::Length),
            ),
        ] {
            let (mut parts, ()) = Request::get(uri).body(()).expect("a request").into_parts();
            parts.headers = headers(lines);
            let checked = check(&mut parts);
            let host = parts.headers.get(HOST).map(|host| host.to_str().expect("text"));
            assert_eq!(checked.map(|()| host.unwrap_or_default()), outcome, "{uri} {lines:?}");
        }
        let (mut parts, ()) = Request::connect("a:1").body(()).expect("a request").into_parts();
        assert_eq!(check(&mut parts), Err(HeadError::Connect));
    }

    #[test]
    fn grpc_is_known_by_its_content_type() {
        for (content_type, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc(&headers(&[("content-type", content_type)])), is, "{content_type}");
        }
    }
}
