//! Requests that a page of another site makes a browser send.
//!
//! A browser on an operator's machine reaches listeners that strangers do not: those on loopback
//! and in a private network. Any page that it shows can make it send a `POST` there, with any body,
//! although the page cannot read the response. A browser marks such a request with the site of the
//! page, in `Origin` and in `Sec-Fetch-Site`; programs set neither.
//!
//! This is no authentication: a program that reaches the listener is not affected, and neither is a
//! page whose own host name resolves to the listener (DNS rebinding), because its `Origin` is the
//! `Host`. Forward-auth is not checked, because its proxies pass on the headers of their clients.
//!
//! Source: the Fetch standard, "`Origin` header"; the W3C's "Fetch Metadata Request Headers".

use http::header::{HOST, HeaderName, ORIGIN};
use http::request::Parts;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A page of another site made a browser send the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a web page of another site sent this request (Origin is not the Host, or Sec-Fetch-Site is \
     cross-site); send it from a program such as curl, without these headers"
)]
pub struct CrossSite;

/// Whether the request may be served.
///
/// # Errors
///
/// [`CrossSite`] when a browser sent it for a page that is not from this listener.
pub fn check(parts: &Parts) -> Result<(), CrossSite> {
    let headers = &parts.headers;
    let is_cross_site = headers
        .get_all(SEC_FETCH_SITE)
        .iter()
        .any(|site| site.as_bytes().eq_ignore_ascii_case(b"cross-site"));
    // HTTP/2 has the host in the URI.
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = authority.or_else(|| Some(headers.get(HOST)?.as_bytes()));
    let is_own = |origin: &[u8]| host.is_some_and(|host| is_of_host(origin, host));
    let is_foreign = headers.get_all(ORIGIN).iter().any(|origin| !is_own(origin.as_bytes()));
    if is_cross_site || is_foreign { Err(CrossSite) } else { Ok(()) }
}

/// Whether an origin, `http://127.0.0.1:8082`, is of the host `127.0.0.1:8082`. Both leave out the
/// default port of the scheme. The scheme does not matter: a proxy in front may end TLS.
fn is_of_host(origin: &[u8], host: &[u8]) -> bool {
    let after = |scheme: &[u8]| origin.strip_prefix(scheme);
    let authority = after(b"http://").or_else(|| after(b"https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn served(uri: &str, headers: &[(&str, &str)]) -> bool {
        let request = Request::post(uri);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        check(&parts).is_ok()
    }

    #[test]
    fn a_request_without_the_headers_of_a_browser_is_served() {
        for headers in [&[][..], &[("host", "127.0.0.1:8082")], &[("user-agent", "Mozilla/5.0")]] {
            assert!(served("/drain", headers), "{headers:?}");
        }
    }

    #[test]
    fn the_origin_of_a_browser_is_the_host() {
        for (origin, host, is_served) in [
            ("http://127.0.0.1:8082", "127.0.0.1:8082", true),
            ("https://tidegate.example", "tidegate.example", true),
            ("http://Node-1:8082", "node-1:8082", true),
            ("http://[::1]:8082", "[::1]:8082", true),
            ("http://evil.example", "127.0.0.1:8082", false),
            // Another port is another program.
            ("http://127.0.0.1:3000", "127.0.0.1:8082", false),
            ("http://127.0.0.1", "127.0.0.1:8082", false),
            ("http://localhost:8082", "127.0.0.1:8082", false),
            ("http://127.0.0.1:8082.evil.example", "127.0.0.1:8082", false),
            // A page in a frame without an origin of its own, and a file.
            ("null", "127.0.0.1:8082", false),
            ("", "127.0.0.1:8082", false),
            ("file://127.0.0.1:8082", "127.0.0.1:8082", false),
        ] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(served("/drain", &headers), is_served, "{origin:?} to {host}");
        }
        assert!(!served("/drain", &[("origin", "http://127.0.0.1:8082")]), "no host");
        let two = [("host", "a"), ("origin", "http://a"), ("origin", "http://b")];
        assert!(!served("/drain", &two), "two origins");
    }

    #[test]
    fn the_host_of_http2_is_in_its_uri() {
        let uri = "http://127.0.0.1:8082/drain";
        assert!(served(uri, &[("origin", "http://127.0.0.1:8082")]));
        assert!(!served(uri, &[("origin", "http://evil.example"), ("host", "evil.example")]));
    }

    #[test]
    fn a_page_of_another_site_is_refused_without_an_origin_too() {
        for (site, is_served) in
            [("cross-site", false), ("same-origin", true), ("same-site", true), ("none", true)]
        {
            assert_eq!(served("/json", &[("sec-fetch-site", site)]), is_served, "{site}");
        }
    }
}
