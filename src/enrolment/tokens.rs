//! The tokens that a node has made: each is for one node, works once, and for a limited time.
//!
//! They are kept in memory alone: a restart voids them, and the operator makes another. Of the
//! secret only its SHA-256 is kept.
//!
//! A token that was used answers the same signing request again, so that a node whose answer was
//! lost may repeat it: it has no other key. A revocation of the node ends its tokens, also those
//! that were not used: who has the stolen one may have them.
//!
//! **Bound.** [`TOKENS_MAX`] that wait to be used; those whose time is over make room. At the bound
//! no token is made. Of those that were used, as many are remembered; then the one that ends first
//! is forgotten.

use std::collections::BTreeMap;

use tidegate_cluster::pki::{Bearer, Role};
use tidegate_limiter::units::Timestamp;

/// Most tokens at a time that wait to be used, and most that were used.
pub(super) const TOKENS_MAX: usize = 1_024;

pub(super) type Digest = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct Tokens(BTreeMap<Digest, Token>);

#[derive(Clone, Debug)]
struct Token {
    node: String,
    region: String,
    role: Role,
    term: Term,
    /// The SHA-256 of the signing request that it was used for.
    used_for: Option<Digest>,
}

/// From when until when a token is good.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// When it was made, by the clocks of most machines.
    pub(super) made: Timestamp,
    /// Until when it works, by that of this one.
    pub(super) until: Timestamp,
    /// Until when its node was revoked when it was made.
    pub(super) revoked: Option<Timestamp>,
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error(
        "this node has not made the token, or was restarted since, or it was used long ago; make one \
         with `tidegate ca token`"
    )]
    Unknown,
    #[error("the token has expired; make another with `tidegate ca token`")]
    Expired,
    #[error("the token was used already; make another with `tidegate ca token`")]
    Used,
    #[error("the node was revoked since the token was made; make another with `tidegate ca token`")]
    Revoked,
}

impl Tokens {
    /// Adds a token whose secret has this digest. False at the bound.
    pub(super) fn add(
        &mut self,
        secret: Digest,
        bearer: Bearer<'_>,
        term: Term,
        now: Timestamp,
    ) -> bool {
        if self.0.len() >= TOKENS_MAX {
            self.0.retain(|_, token| token.term.until > now);
        }
        if self.0.values().filter(|token| token.used_for.is_none()).count() >= TOKENS_MAX {
            return false;
        }
        let Bearer { node, region, role } = bearer;
        let (node, region) = (node.to_owned(), region.to_owned());
        self.0.insert(secret, Token { node, region, role, term, used_for: None });
        true
    }

    /// For whom the token is, if it is good for this signing request at `now`, when it was made,
    /// and until when that node is revoked, as `revoked` says.
    pub(super) fn check(
        &self,
        secret: &Digest,
        request: &Digest,
        revoked: impl FnOnce(&str) -> Option<Timestamp>,
        now: Timestamp,
    ) -> Result<(Bearer<'_>, Timestamp, Option<Timestamp>), Refused> {
        let token = self.0.get(secret).ok_or(Refused::Unknown)?;
        if token.used_for.is_some_and(|used_for| used_for != *request) {
            return Err(Refused::Used);
        }
        if token.term.until <= now {
            return Err(Refused::Expired);
        }
        if revoked(&token.node) != token.term.revoked {
            return Err(Refused::Revoked);
        }
        let bearer = Bearer { node: &token.node, region: &token.region, role: token.role };
        Ok((bearer, token.term.made, token.term.revoked))
    }

    /// The token is good for this signing request alone from now on.
    pub(super) fn used(&mut self, secret: &Digest, request: Digest) {
        if let Some(token) = self.0.get_mut(secret) {
            token.used_for = Some(request);
        }
        let used = self.0.iter().filter(|(_, token)| token.used_for.is_some());
        if used.clone().count() > TOKENS_MAX
            && let Some((first, _)) =
                used.min_by_key(|(secret, token)| (token.term.until, **secret))
        {
            let first = *first;
            self.0.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<'t>(
        tokens: &'t Tokens,
        secret: &Digest,
        request: &Digest,
        now: Timestamp,
    ) -> Result<Bearer<'t>, Refused> {
        tokens.check(secret, request, |_| None, now).map(|(bearer, ..)| bearer)
    }

    const fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    const fn term(until: Timestamp) -> Term {
        Term { made: at(0), until, revoked: None }
    }

    #[test]
    fn a_token_works_once_for_its_node_and_not_after_its_time() {
        let mut tokens = Tokens::default();
        let bearer = Bearer::core("n4", "eu");
        assert!(tokens.add([1; 32], bearer, term(at(100)), at(0)));
        assert_eq!(check(&tokens, &[2; 32], &[7; 32], at(0)), Err(Refused::Unknown));
        assert_eq!(check(&tokens, &[1; 32], &[7; 32], at(99)), Ok(bearer));
        assert_eq!(check(&tokens, &[1; 32], &[8; 32], at(100)), Err(Refused::Expired));
        tokens.used(&[1; 32], [7; 32]);
        assert_eq!(check(&tokens, &[1; 32], &[8; 32], at(99)), Err(Refused::Used));
        // The answer was lost.
        assert_eq!(check(&tokens, &[1; 32], &[7; 32], at(99)), Ok(bearer));
        assert_eq!(check(&tokens, &[1; 32], &[7; 32], at(100)), Err(Refused::Expired));
    }

    #[test]
    fn a_revocation_ends_the_tokens_of_its_node() {
        let mut tokens = Tokens::default();
        let (bearer, until) = (Bearer::core("n4", "eu"), at(1_000));
        let of = |tokens: &Tokens, number: u8, revoked: Option<u64>| {
            let revoked = |node: &str| revoked.filter(|_| node == "n4").map(at);
            tokens.check(&[number; 32], &[7; 32], revoked, at(50)).map(|_| ())
        };
        assert!(tokens.add([1; 32], bearer, term(until), at(0)));
        assert!(tokens.add([2; 32], bearer, term(until), at(0)));
        assert!(tokens.add([3; 32], Bearer::core("n5", "eu"), term(until), at(0)));
        tokens.used(&[1; 32], [7; 32]);
        assert_eq!([of(&tokens, 1, None), of(&tokens, 2, None)], [Ok(()); 2]);
        assert_eq!(
            [of(&tokens, 1, Some(40)), of(&tokens, 2, Some(40))],
            [Err(Refused::Revoked); 2]
        );
        assert_eq!(of(&tokens, 3, Some(40)), Ok(()), "another node");
        // The operator lets it join again, and then not.
        let after = Term { made: at(45), revoked: Some(at(40)), until };
        assert!(tokens.add([4; 32], bearer, after, at(45)));
        assert_eq!(of(&tokens, 4, Some(40)), Ok(()));
        assert_eq!(of(&tokens, 4, Some(48)), Err(Refused::Revoked));
    }

    fn digest(number: usize) -> Digest {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_le_bytes());
        digest
    }

    #[test]
    fn tokens_that_were_used_leave_room_for_others_and_are_bounded() {
        let mut tokens = Tokens::default();
        let bearer = Bearer::core("n4", "eu");
        for number in 0..2 * TOKENS_MAX {
            let until = at(100 + number as u64);
            assert!(tokens.add(digest(number), bearer, term(until), at(0)), "{number}");
            tokens.used(&digest(number), [7; 32]);
        }
        assert_eq!(tokens.0.len(), TOKENS_MAX);
        let first = check(&tokens, &digest(0), &[7; 32], at(0));
        assert_eq!(first, Err(Refused::Unknown), "the one that ends first is forgotten");
        let last = check(&tokens, &digest(2 * TOKENS_MAX - 1), &[8; 32], at(0));
        assert_eq!(last, Err(Refused::Used));
    }

    #[test]
    fn at_the_bound_tokens_whose_time_is_over_make_room() {
        let mut tokens = Tokens::default();
        let bearer = Bearer::core("n4", "eu");
        for number in 0..TOKENS_MAX {
            let until = if number == 0 { at(10) } else { at(100) };
            assert!(tokens.add(digest(number), bearer, term(until), at(0)));
        }
        assert!(!tokens.add(digest(TOKENS_MAX), bearer, term(at(100)), at(9)));
        assert!(tokens.add(digest(TOKENS_MAX), bearer, term(at(100)), at(10)));
        assert!(!tokens.add(digest(TOKENS_MAX + 1), bearer, term(at(100)), at(10)));
    }
}
