//! Who may use the admin listener.
//!
//! **Host.** A page of a stranger whose host name resolves to this listener is, to a browser, of
//! the same site (DNS rebinding). So only names that no stranger can have are served: addresses,
//! `localhost`, and those of `admin.hosts`. Others get a status and nothing else.
//!
//! **Token.** With `admin.token_file` or `admin.read_token_file` everything needs `Authorization:
//! Bearer TOKEN`, except the health checks, which orchestrators send without, and the files of the
//! dashboard, which say nothing of the cluster: the page asks for the token, and sends it with each
//! of its requests. It is in no URL and in no cookie, so it is in no log, and no other site can
//! make a browser send it.
//!
//! **Role.** The token of `admin.token_file` reads and writes, that of `admin.read_token_file` only
//! reads. Without the first, and with the second, nothing writes.
//!
//! | tokens of the node | none sent, or a wrong one | read token | write token |
//! |---|---|---|---|
//! | none | reads, writes | | |
//! | write | 401 | | reads, writes |
//! | read and write | 401 | reads, 403 | reads, writes |
//! | read | 401 | reads, 403 | |
//!
//! **Replaced tokens.** New ones apply to the next request, also of an open connection, and end the
//! responses that go on ([`Streamed`](crate::front::serve::Streamed)).
//!
//! Source: RFC 9110, 7.2, 11.6.1, 15.5.2, 15.5.4 and 15.5.20; RFC 6750, 3.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use http::uri::Authority;
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

/// Whom the admin listener serves; clones share their tokens.
#[derive(Clone, Default)]
pub struct Access {
    hosts: Arc<[String]>,
    tokens: Arc<ArcSwap<Tokens>>,
    /// Cancelled when the tokens are replaced.
    replaced: Arc<ArcSwap<CancellationToken>>,
}

/// The tokens of the listener: two different ones, of visible characters.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// May read and write.
    pub write: Option<String>,
    /// May only read.
    pub read: Option<String>,
}

/// What a request may do; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Read,
    Write,
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Its host is no address, and no name of this listener.
    #[error("the host is none of this listener")]
    Host,
    #[error("{SEND}")]
    NoToken,
    #[error("this is no token of the node; {SEND}")]
    WrongToken,
    #[error("the token of admin.read_token_file only reads; send that of admin.token_file")]
    OnlyReads,
    #[error(
        "the node has admin.read_token_file alone, so nothing writes; set admin.token_file too"
    )]
    NothingWrites,
}

const SEND: &str = "send the token of admin.token_file, or to read that of admin.read_token_file, \
                    as Authorization: Bearer TOKEN";

impl Access {
    /// `hosts` are names without a port.
    pub fn new(hosts: impl IntoIterator<Item = String>, tokens: Tokens) -> Self {
        let tokens = Arc::new(ArcSwap::from_pointee(tokens));
        Self { hosts: hosts.into_iter().collect(), tokens, replaced: Arc::default() }
    }

    /// From now on these are the tokens, and no others.
    pub(super) fn replace_tokens(&self, tokens: Tokens) {
        self.tokens.store(Arc::new(tokens));
        self.replaced.swap(Arc::default()).cancel();
    }

    /// Cancelled when the present tokens are replaced. To be taken before a request is checked.
    pub(super) fn until_replaced(&self) -> CancellationToken {
        CancellationToken::clone(&self.replaced.load())
    }

    #[cfg(test)]
    pub(super) fn has(&self, tokens: &Tokens) -> bool {
        **self.tokens.load() == *tokens
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

    /// Whether the request may do what needs `role`.
    ///
    /// # Errors
    ///
    /// Any but [`Denied::Host`].
    pub(super) fn check_role(&self, parts: &Parts, role: Role) -> Result<(), Denied> {
        let tokens = self.tokens.load();
        if **tokens == Tokens::default() {
            return Ok(());
        }
        let sent = parts.headers.get(AUTHORIZATION).ok_or(Denied::NoToken)?;
        let sent = sent.as_bytes().split_first_chunk::<7>();
        let (_, sent) = sent
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
            .ok_or(Denied::NoToken)?;
        // Both are compared, whichever it is.
        let [writes, reads] = [&tokens.write, &tokens.read].map(|token| {
            token.as_ref().is_some_and(|token| bool::from(sent.ct_eq(token.as_bytes())))
        });
        match role {
            _ if writes => Ok(()),
            Role::Read if reads => Ok(()),
            Role::Write if reads && tokens.write.is_none() => Err(Denied::NothingWrites),
            Role::Write if reads => Err(Denied::OnlyReads),
            Role::Read | Role::Write => Err(Denied::WrongToken),
        }
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
        let access = Access::new(["tide.example".to_owned()], Tokens::default());
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
    fn a_token_does_what_its_role_allows_and_is_wanted_only_where_there_is_one() {
        let some = |token: &str| Some(token.to_owned());
        let (write, read) = (some("s3cret"), some("r3ader"));
        let both = Tokens { write: write.clone(), read: read.clone() };
        let (ok, none, wrong) = (Ok(()), Err(Denied::NoToken), Err(Denied::WrongToken));
        let (only_reads, nothing_writes) = (Err(Denied::OnlyReads), Err(Denied::NothingWrites));
        for (tokens, value, reads, writes) in [
            (Tokens::default(), None, ok, ok),
            (Tokens::default(), Some("Bearer any"), ok, ok),
            (both.clone(), Some("Bearer s3cret"), ok, ok),
            (both.clone(), Some("bearer s3cret"), ok, ok),
            (both.clone(), Some("Bearer r3ader"), ok, only_reads),
            (both.clone(), Some("Bearer s3cre"), wrong, wrong),
            (both.clone(), Some("Bearer s3cret2"), wrong, wrong),
            (both.clone(), Some("Bearer S3cret"), wrong, wrong),
            (both.clone(), Some("Bearer "), wrong, wrong),
            (both.clone(), Some("Basic s3cret"), none, none),
            (both.clone(), Some("s3cret"), none, none),
            (both.clone(), Some(""), none, none),
            (both.clone(), None, none, none),
            (Tokens { write, read: None }, Some("Bearer r3ader"), wrong, wrong),
            (Tokens { write: None, read: read.clone() }, Some("Bearer r3ader"), ok, nothing_writes),
            (Tokens { write: None, read: read.clone() }, Some("Bearer "), wrong, wrong),
            (Tokens { write: None, read }, None, none, none),
        ] {
            let access = Access::new([], tokens);
            let headers: Vec<_> = value.map(|value| ("authorization", value)).into_iter().collect();
            let parts = parts("/status", &headers);
            let outcome = [Role::Read, Role::Write].map(|role| access.check_role(&parts, role));
            assert_eq!(outcome, [reads, writes], "{value:?}");
        }
    }
}
