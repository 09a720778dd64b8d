//! From the resources of a response to a rule book.
//!
//! All or nothing: one invalid resource rejects the response, and the book in force stays.
//!
//! The server is trusted as much as the rule folder. No input makes a node panic; the memory to
//! compile a response is bounded by a multiple of `xds.max_message_bytes`: a descriptor of two
//! bytes takes some 200 in memory.

use prost::{DecodeError, Message};
use tidegate_proto::xds::rls_conf::RateLimitConfig;
use tidegate_proto::xds::{Any, TYPE_URL};
use tidegate_rules::book::Book;
use tidegate_rules::error::{Error as RuleError, Reason};
use tidegate_rules::load;

use super::tree::{self, DESCRIPTOR_DEPTH_MAX};

/// Most resources of a response, one per domain.
pub const RESOURCES_MAX: usize = 10_000;
/// Most bytes of a resource's name in a message; a longer one is cut.
const NAME_BYTES_MAX: usize = 256;

/// Why a response is rejected. The text is sent to the server; it is that of envoyproxy/ratelimit
/// where that rejects the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// More than [`RESOURCES_MAX`].
    #[error("the response has {0} resources; at most {RESOURCES_MAX} are accepted, send fewer")]
    TooMany(usize),
    #[error("mismatched message type: got {got:?}, want {TYPE_URL:?}")]
    Type { got: String },
    #[error("resource {position} is not a RateLimitConfig: {source}; send one")]
    Undecodable {
        /// Of the resource in the response, from 0.
        position: usize,
        source: DecodeError,
    },
    #[error(
        "{name}: descriptors are nested more than {DESCRIPTOR_DEPTH_MAX} deep; use fewer levels"
    )]
    TooDeep {
        /// Of the resource.
        name: String,
    },
    #[error("the loader failed: {0}")]
    Panicked(String),
    #[error("{}", as_in_envoyproxy_ratelimit(.0))]
    Rules(RuleError),
}

/// The book of `resources`, in their order.
///
/// # Errors
///
/// If any resource is not a valid set of rules.
pub fn read(resources: &[Any], options: &load::Options) -> Result<Book, Refusal> {
    if resources.len() > RESOURCES_MAX {
        return Err(Refusal::TooMany(resources.len()));
    }
    let mut trees = Vec::with_capacity(resources.len());
    for (position, Any { type_url, value }) in resources.iter().enumerate() {
        if full_name(type_url) != full_name(TYPE_URL) {
            return Err(Refusal::Type { got: cut(type_url).to_owned() });
        }
        let config = RateLimitConfig::decode(&**value)
            .map_err(|source| Refusal::Undecodable { position, source })?;
        let name = cut(&config.name).to_owned();
        match tree::of(&config) {
            Ok(root) => trees.push((name, root)),
            Err(tree::TooDeep) => return Err(Refusal::TooDeep { name }),
        }
    }
    load::assemble(&trees, options).map_err(Refusal::Rules)
}

impl Refusal {
    /// The text for the log of this node: with the key at fault and what to do about it.
    pub fn in_full(&self) -> String {
        match self {
            Self::Rules(error) => error.to_string(),
            other => other.to_string(),
        }
    }
}

/// `name: fact` as in envoyproxy/ratelimit, or our own text for what that accepts.
fn as_in_envoyproxy_ratelimit(error: &RuleError) -> String {
    match &error.reason {
        Reason::EmptyDomain
        | Reason::DuplicateDomain(_)
        | Reason::EmptyKey
        | Reason::DuplicateDescriptor(_)
        | Reason::Unit(_)
        | Reason::UnitWhenUnlimited
        | Reason::EmptyReplaces
        | Reason::ReplacesItself
        | Reason::Metadata(_) => format!("{}: {}", error.file, error.reason),
        _ => error.to_string(),
    }
}

/// What follows the last slash of a type's URL; the host before it has no meaning.
fn full_name(type_url: &str) -> &str {
    type_url.rsplit_once('/').map_or(type_url, |(_, name)| name)
}

/// The first [`NAME_BYTES_MAX`] bytes, or a few less, so that no character is cut in two.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(NAME_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_proto::xds::rls_conf::{
        RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
    };

    use super::*;

    #[test]
    fn resources_become_the_domains_of_the_book() {
        let resources = [one("a", "basic", minute(50)), one("b", "another", minute(20))];
        let book = book(&resources).unwrap();
        assert_eq!(book.domains().collect::<Vec<_>>(), ["another", "basic"]);
        let rule = book.rules().find(|rule| &*rule.id == "basic.k").unwrap();
        assert_eq!(rule.limits[0].limit(), 50);
        assert!(book.warnings().is_empty(), "{:?}", book.warnings());
    }

    #[test]
    fn no_resources_are_a_book_without_rules() {
        assert_eq!(book(&[]).unwrap().domains().count(), 0);
    }

    #[test]
    fn errors_of_envoyproxy_ratelimit_keep_their_text() {
        let unit = |unit: RateLimitUnit| RateLimitPolicy { unit: unit.into(), ..minute(1) };
        let named = |name: &str, replaced: &str| RateLimitPolicy {
            name: name.into(),
            replaces: vec![RateLimitReplace { name: replaced.into() }],
            ..minute(1)
        };
        let unlimited = RateLimitPolicy { unlimited: true, ..minute(1) };
        let keyless = RateLimitConfig {
            descriptors: vec![RateLimitDescriptor::default()],
            ..one("a", "d", minute(1))
        };
        let mut twice = one("a", "d", minute(1));
        twice.descriptors.push(twice.descriptors[0].clone());
        for (resources, expected) in [
            (vec![one("a", "", minute(1))], "a: config file cannot have empty domain"),
            (
                vec![one("a", "d", minute(1)), one("b", "d", minute(1))],
                "b: duplicate domain 'd' in config file",
            ),
            (vec![keyless], "a: descriptor has empty key"),
            (vec![twice], "a: duplicate descriptor composite key 'd.k'"),
            (
                vec![one("a", "d", unit(RateLimitUnit::Unknown))],
                "a: invalid rate limit unit 'UNKNOWN'",
            ),
            (
                vec![one("a", "d", RateLimitPolicy { unit: 9, ..minute(1) })],
                "a: invalid rate limit unit '9'",
            ),
            (
                vec![one("a", "d", unlimited)],
                "a: should not specify rate limit unit when unlimited",
            ),
            (vec![one("a", "d", named("x", ""))], "a: should not have an empty replaces entry"),
            (
                vec![one("a", "d", named("x", "x"))],
                "a: replaces should not contain name of same descriptor",
            ),
        ] {
            let refusal = book(&resources).unwrap_err();
            assert_eq!(refusal.to_string(), expected);
        }
    }

    #[test]
    fn the_log_has_the_key_and_what_to_do() {
        let resource = one("a", "d", RateLimitPolicy { unit: 0, ..minute(1) });
        let refusal = book(&[resource]).unwrap_err();
        let text = refusal.in_full();
        assert!(text.starts_with("a: unit: invalid rate limit unit 'UNKNOWN'; use "), "{text}");
    }

    #[test]
    fn foreign_types_broken_bytes_and_too_many_are_refused() {
        let foreign = Any { type_url: "type.googleapis.com/x.Y".into(), value: Vec::new() };
        let refusal = read(&[foreign], &load::Options::default()).unwrap_err();
        assert!(refusal.to_string().starts_with("mismatched message type: got"), "{refusal}");

        let broken = Any { type_url: TYPE_URL.into(), value: vec![0x0A, 200] };
        let refusal = read(&[broken], &load::Options::default()).unwrap_err();
        assert!(
            refusal.to_string().starts_with("resource 0 is not a RateLimitConfig"),
            "{refusal}"
        );

        let many = vec![Any::default(); RESOURCES_MAX + 1];
        let refusal = read(&many, &load::Options::default()).unwrap_err();
        assert_eq!(refusal, Refusal::TooMany(RESOURCES_MAX + 1));
    }

    #[test]
    fn a_long_name_is_cut_at_a_character() {
        let name = format!("x{}", "é".repeat(1_000));
        let refusal = book(&[one(&name, "", minute(1))]).unwrap_err();
        let text = refusal.to_string();
        assert!(text.len() < 400 && text.starts_with("xé"), "{text}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn any_bytes_are_accepted_or_refused(value in prop::collection::vec(any::<u8>(), 0..200)) {
            let resource = Any { type_url: TYPE_URL.into(), value };
            let _ = read(&[resource], &load::Options::default());
        }

        #[test]
        fn a_resource_with_a_wrong_byte_is_accepted_or_refused(at in 0_usize..40, byte: u8) {
            let mut value = one("a", "d", minute(5)).encode_to_vec();
            let at = at % value.len();
            value[at] = byte;
            let resource = Any { type_url: TYPE_URL.into(), value };
            let _ = read(&[resource], &load::Options::default());
        }
    }

    #[test]
    fn bytes_nested_without_end_are_refused() {
        // Each descriptor contains the next: the recursion of the decoder is bounded.
        let value = (0..1_000).fold(Vec::new(), |inner, _| {
            let nested = Nested { descriptors: vec![inner] };
            nested.encode_to_vec()
        });
        let root = RootOfNested { descriptors: vec![value] };
        let resource = Any { type_url: TYPE_URL.into(), value: root.encode_to_vec() };
        let refusal = read(&[resource], &load::Options::default()).unwrap_err();
        assert!(refusal.to_string().contains("recursion limit"), "{refusal}");
    }

    /// A descriptor whose descriptors are bytes, so that it can be nested without recursion.
    #[derive(Clone, PartialEq, Eq, Message)]
    struct Nested {
        #[prost(bytes = "vec", repeated, tag = "4")]
        descriptors: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    struct RootOfNested {
        #[prost(bytes = "vec", repeated, tag = "3")]
        descriptors: Vec<Vec<u8>>,
    }

    fn minute(requests_per_unit: u32) -> RateLimitPolicy {
        let unit = RateLimitUnit::Minute.into();
        RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() }
    }

    fn one(name: &str, domain: &str, policy: RateLimitPolicy) -> RateLimitConfig {
        let descriptor = RateLimitDescriptor {
            key: "k".into(),
            rate_limit: Some(policy),
            ..RateLimitDescriptor::default()
        };
        RateLimitConfig { name: name.into(), domain: domain.into(), descriptors: vec![descriptor] }
    }

    fn book(configs: &[RateLimitConfig]) -> Result<Book, Refusal> {
        let any = |config: &RateLimitConfig| Any {
            type_url: TYPE_URL.into(),
            value: config.encode_to_vec(),
        };
        read(&configs.iter().map(any).collect::<Vec<_>>(), &load::Options::default())
    }
}
