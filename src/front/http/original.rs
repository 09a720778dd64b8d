//! The client's request line, from the headers of the proxy in front.
//!
//! nginx configurations set `X-Original-URI` (and `-Method`), Traefik and Caddy set
//! `X-Forwarded-Uri`, `-Method` and `-Host`. Each of them overwrites its own headers and passes the
//! other family on as the client sent it, so if both are present one may be forged. Only the
//! operator can tell which one; the request is refused as [`Ambiguous`].

use http::header::{HOST, HeaderMap, HeaderName};
use http::request::Parts;

use super::path;
use crate::config::auth::OriginalFrom;

const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The path of forward-auth; with `auth.original = "request"` the client's path follows it.
const MOUNT: &str = "/auth";

/// The client's request line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::front) struct Original {
    pub(super) method: String,
    /// Normalised, without the query.
    pub(super) path: String,
    /// In lower case, without the port; empty if unknown.
    pub(super) host: String,
}

impl Original {
    /// That of a request which the client has sent here itself.
    pub(in crate::front) fn of(parts: &Parts, path_bytes_max: usize) -> Self {
        Self {
            method: parts.method.to_string(),
            path: path::normal(parts.uri.path(), path_bytes_max),
            host: host_name(&own_host(parts)),
        }
    }
}

/// Both families of headers are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request carries both X-Original-* and X-Forwarded-Uri/-Method headers and one of them may \
     be the client's: set auth.original to \"x-original\" (nginx) or \"x-forwarded\" (Traefik, Caddy)"
)]
pub(super) struct Ambiguous;

/// Reads the client's request line from the headers that `which` allows.
pub(super) fn original(
    parts: &Parts,
    which: OriginalFrom,
    path_bytes_max: usize,
) -> Result<Original, Ambiguous> {
    let headers = &parts.headers;
    let has = |names: &[HeaderName]| names.iter().any(|name| headers.contains_key(name));
    let which = match which {
        OriginalFrom::Auto => {
            let x_original = has(&[X_ORIGINAL_URI, X_ORIGINAL_METHOD]);
            let x_forwarded = has(&[X_FORWARDED_URI, X_FORWARDED_METHOD]);
            match (x_original, x_forwarded) {
                (true, true) => return Err(Ambiguous),
                (true, false) => OriginalFrom::XOriginal,
                (false, true) => OriginalFrom::XForwarded,
                (false, false) => OriginalFrom::Request,
            }
        }
        configured => configured,
    };
    let names = match which {
        OriginalFrom::XOriginal => [Some(X_ORIGINAL_URI), Some(X_ORIGINAL_METHOD), None],
        OriginalFrom::XForwarded => {
            [X_FORWARDED_URI, X_FORWARDED_METHOD, X_FORWARDED_HOST].map(Some)
        }
        OriginalFrom::Auto | OriginalFrom::Request => [None, None, None],
    };
    let [uri, method, host] = names.map(|name| text(headers, &name?));
    let own_path = || {
        let path = parts.uri.path();
        path.strip_prefix(MOUNT).unwrap_or(path).to_owned()
    };
    Ok(Original {
        method: method.unwrap_or_else(|| parts.method.to_string()),
        path: path::normal(&uri.unwrap_or_else(own_path), path_bytes_max),
        host: host_name(&host.unwrap_or_else(|| own_host(parts))),
    })
}

fn own_host(parts: &Parts) -> String {
    text(&parts.headers, &HOST)
        .or_else(|| parts.uri.authority().map(ToString::to_string))
        .unwrap_or_default()
}

/// A header's value; invalid UTF-8 becomes the replacement character. Repeated headers are joined
/// to one value, as HTTP defines, so that a second one cannot hide the first.
pub(super) fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut values =
        headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let mut text = values.next()?.into_owned();
    for value in values {
        text.push(',');
        text.push_str(&value);
    }
    (!text.is_empty()).then_some(text)
}

/// `Shop.Example:8443` is `shop.example`.
fn host_name(host: &str) -> String {
    let host = host.trim();
    let name = match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') =>
        {
            // The port is cut from `[::1]:80`, and `::1`, which is not valid without brackets, is
            // kept.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    type Line = (String, String, String);

    fn read(which: OriginalFrom, uri: &str, headers: &[(&str, &str)]) -> Result<Line, Ambiguous> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        original(&parts, which, 1024).map(|it| (it.method, it.path, it.host))
    }

    fn line(method: &str, path: &str, host: &str) -> Line {
        (method.into(), path.into(), host.into())
    }

    #[test]
    fn each_proxy_sets_its_own_headers() {
        use OriginalFrom::{Auto, Request, XForwarded, XOriginal};
        let nginx: &[_] =
            &[("host", "Shop:80"), ("x-original-uri", "/a?b"), ("x-original-method", "PUT")];
        let traefik: &[_] = &[
            ("host", "tidegate:8080"),
            ("x-forwarded-uri", "/a?b"),
            ("x-forwarded-method", "PUT"),
            ("x-forwarded-host", "shop.example"),
        ];
        assert_eq!(read(Auto, "/auth", nginx), Ok(line("PUT", "/a", "shop")));
        assert_eq!(read(XOriginal, "/auth", nginx), Ok(line("PUT", "/a", "shop")));
        assert_eq!(read(Auto, "/auth", traefik), Ok(line("PUT", "/a", "shop.example")));
        assert_eq!(read(XForwarded, "/auth", traefik), Ok(line("PUT", "/a", "shop.example")));
        assert_eq!(read(XOriginal, "/auth", traefik), Ok(line("GET", "/", "tidegate")));
        assert_eq!(read(Request, "/auth/a?b", traefik), Ok(line("GET", "/a", "tidegate")));
        assert_eq!(read(Auto, "/auth/a/b", &[("host", "h")]), Ok(line("GET", "/a/b", "h")));
    }

    #[test]
    fn a_client_cannot_forge_the_other_family() {
        let both: &[_] = &[("x-original-uri", "/free"), ("x-forwarded-uri", "/login")];
        assert_eq!(read(OriginalFrom::Auto, "/auth", both), Err(Ambiguous));
        assert_eq!(read(OriginalFrom::XForwarded, "/auth", both), Ok(line("GET", "/login", "")));
        assert_eq!(read(OriginalFrom::XOriginal, "/auth", both), Ok(line("GET", "/free", "")));
        let by_method: &[_] = &[("x-original-method", "GET"), ("x-forwarded-uri", "/login")];
        assert_eq!(read(OriginalFrom::Auto, "/auth", by_method), Err(Ambiguous));
    }

    #[test]
    fn ports_and_case_of_hosts_are_dropped() {
        for (host, expected) in [
            ("Shop.Example:8443", "shop.example"),
            ("shop.example.", "shop.example"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            ("", ""),
        ] {
            assert_eq!(host_name(host), expected);
        }
    }
}
