//! Who may use the admin listener.
//!
//! **Host.** A page of a stranger whose host name resolves to this listener is, to a browser, of
//! the same site (DNS rebinding). So only names that no stranger can have are served: addresses,
//! `localhost`, and those of `admin.hosts`. Others get a status and nothing else.
//!
//! **Token.** With `admin.token_file` everything needs `Authorization: Bearer TOKEN`, except the
//! health checks, which orchestrators send without, and the files of the dashboard, which say
//! nothing of the cluster: the page asks for the token, and sends it with each of its requests. It
//! is in no URL and in no cookie, so it is in no log, and no other site can make a browser send it.
//!
//! Source: RFC 9110, 7.2 and 15.5.20; RFC 6750.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use http::uri::Authority;
use subtle::ConstantTimeEq;

/// Whom the admin listener serves.
#[derive(Clone, Default)]
pub struct Access {
    hosts: Arc<[String]>,
    token: Option<Arc<str>>,
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Its host is no address, and no name of this listener.
    #[error("the host is none of this listener")]
    Host,
    #[error("send the token of admin.token_file as Authorization: Bearer TOKEN")]
    Token,
}

impl Access {
    /// `hosts` are names without a port; in `token` there is no space.
    pub fn new(hosts: impl IntoIterator<Item = String>, token: Option<&str>) -> Self {
        Self { hosts: hosts.into_iter().collect(), token: token.map(Into::into) }
    }

    /// Whether the request is for this listener.
    ///
    /// # Errors
    ///
    /// [`Denied::Host`].
    pub(super) fn check_host(&self, parts: &Parts) -> Result<(), Denied> {
        let mut named = parts.headers.get_all(HOST).iter();
        let header = named.next();
        if named.next().is_some() {
            return Err(Denied::Host);
        }
        // HTTP/2 has the host in the URI. HTTP/1.0 needs none: no browser speaks it.
        let host = match (parts.uri.authority(), header) {
            (Some(authority), _) => Some(authority.clone()),
            (None, Some(header)) => {
                let text = header.to_str().map_err(|_| Denied::Host)?;
                Some(text.parse::<Authority>().map_err(|_| Denied::Host)?)
            }
            (None, None) => None,
        };
        let is_served = host.is_none_or(|host| self.is_own(host.host()));
        if is_served { Ok(()) } else { Err(Denied::Host) }
    }

    fn is_own(&self, host: &str) -> bool {
        let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        host.parse::<Ipv4Addr>().is_ok()
            || v6.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
            || host.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
    }

    /// Whether the request has the token, if there is one.
    ///
    /// # Errors
    ///
    /// [`Denied::Token`].
    pub(super) fn check_token(&self, parts: &Parts) -> Result<(), Denied> {
        let Some(token) = &self.token else { return Ok(()) };
        let sent = parts.headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes);
        let sent = sent.and_then(|value| value.split_first_chunk::<7>());
        let is_it = sent.is_some_and(|(scheme, sent)| {
            scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(sent.ct_eq(token.as_bytes()))
        });
        if is_it { Ok(()) } else { Err(Denied::Token) }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(Request::get(uri), |it, (name, value)| it.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn addresses_localhost_and_configured_names_are_served_and_no_others() {
        let access = Access::new(["tide.example".to_owned()], None);
        for (host, is_served) in [
            ("127.0.0.1:8082", true),
            ("10.1.0.4", true),
            ("[::1]:8082", true),
            ("[2001:db8::1]", true),
            ("localhost:8082", true),
            ("LocalHost", true),
            ("tide.example:8082", true),
            ("Tide.Example", true),
            ("evil.example", false),
            ("evil.example:8082", false),
            ("a.tide.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("user@evil.example", false),
            ("1", false),
            ("0x7f.1", false),
            ("[v1.x]", false),
            ("", false),
        ] {
            let served = access.check_host(&parts("/", &[("host", host)])).is_ok();
            assert_eq!(served, is_served, "{host}");
        }
        assert_eq!(access.check_host(&parts("/", &[])), Ok(()));
        assert!(access.check_host(&parts("http://evil.example/", &[])).is_err());
        assert!(access.check_host(&parts("http://127.0.0.1/", &[])).is_ok());
        let two = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert!(access.check_host(&parts("/", &two)).is_err());
    }

    #[test]
    fn a_token_is_asked_for_only_where_there_is_one() {
        let access = Access::new([], Some("s3cret"));
        for (value, is_served) in [
            (Some("Bearer s3cret"), true),
            (Some("bearer s3cret"), true),
            (Some("Bearer s3cre"), false),
            (Some("Bearer s3cret2"), false),
            (Some("Bearer "), false),
            (Some("Basic s3cret"), false),
            (Some("s3cret"), false),
            (Some(""), false),
            (None, false),
        ] {
            let headers: Vec<_> = value.map(|value| ("authorization", value)).into_iter().collect();
            let served = access.check_token(&parts("/status", &headers)).is_ok();
            assert_eq!(served, is_served, "{value:?}");
        }
        assert_eq!(Access::default().check_token(&parts("/status", &[])), Ok(()));
    }
}
