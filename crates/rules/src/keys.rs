//! Every key that a rule file may use, and where.

use std::fmt;

/// A mapping of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file itself.
    File,
    /// An element of `descriptors`.
    Descriptor,
    /// `rate_limit`, or an element of it when it is a list.
    RateLimit,
    /// An element of `replaces`.
    Replaces,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// The mappings that it belongs into.
    pub places: &'static [Place],
    /// Whether envoyproxy/ratelimit knows it: there it may stand anywhere and is ignored where it
    /// means nothing, so here that is a warning. A misplaced key of ours is an error.
    pub is_envoy: bool,
}

const ALL: &[Key] = &[
    envoy("domain", &[Place::File]),
    envoy("descriptors", &[Place::File, Place::Descriptor]),
    envoy("key", &[Place::Descriptor]),
    envoy("value", &[Place::Descriptor]),
    envoy("rate_limit", &[Place::Descriptor]),
    envoy("shadow_mode", &[Place::Descriptor]),
    envoy("quota_mode", &[Place::Descriptor]),
    envoy("detailed_metric", &[Place::Descriptor]),
    envoy("value_to_metric", &[Place::Descriptor]),
    envoy("share_threshold", &[Place::Descriptor]),
    envoy("metadata", &[Place::Descriptor]),
    envoy("unit", &[Place::RateLimit]),
    envoy("requests_per_unit", &[Place::RateLimit]),
    envoy("unlimited", &[Place::RateLimit]),
    envoy("name", &[Place::RateLimit, Place::Replaces]),
    envoy("replaces", &[Place::RateLimit]),
    ours("algorithm", &[Place::RateLimit]),
    ours("window", &[Place::RateLimit]),
    ours("burst", &[Place::RateLimit]),
    ours("sub_windows", &[Place::RateLimit]),
    ours("queue", &[Place::RateLimit]),
    ours("mode", &[Place::Descriptor, Place::RateLimit]),
    ours("scope", &[Place::Descriptor, Place::RateLimit]),
    ours("on_unavailable", &[Place::Descriptor, Place::RateLimit]),
    ours("durability", &[Place::Descriptor, Place::RateLimit]),
];

/// The key of this name.
pub fn find(name: &str) -> Option<&'static Key> {
    ALL.iter().find(|key| key.name == name)
}

/// What the author of an unknown key may have meant.
pub fn suggestion(written: &str, place: Option<Place>) -> String {
    let fits = |key: &&Key| place.is_none_or(|place| key.places.contains(&place));
    let near = |key: &&Key| distance(written, key.name) <= 1 + key.name.len() / 5;
    let closest = |keys: &mut dyn Iterator<Item = &'static Key>| {
        keys.filter(near).min_by_key(|key| distance(written, key.name))
    };
    if let Some(key) = closest(&mut ALL.iter().filter(fits)).or_else(|| closest(&mut ALL.iter())) {
        let belongs = match place {
            Some(place) if !key.places.contains(&place) => {
                format!(" (which belongs in {})", places(key))
            }
            _ => String::new(),
        };
        return format!("did you mean '{}'{belongs}?", key.name);
    }
    let names: Vec<_> = ALL.iter().filter(fits).map(|key| key.name).collect();
    format!("known here: {}", names.join(", "))
}

/// The mappings that a key belongs into, in words.
pub fn places(key: &Key) -> String {
    let places: Vec<_> = key.places.iter().map(Place::to_string).collect();
    places.join(" or ")
}

impl Place {
    /// The key that leads to it.
    pub fn key(self) -> Option<&'static str> {
        match self {
            Self::File => None,
            Self::Descriptor => Some("descriptors"),
            Self::RateLimit => Some("rate_limit"),
            Self::Replaces => Some("replaces"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "the top of the file",
            Self::Descriptor => "a descriptor",
            Self::RateLimit => "rate_limit",
            Self::Replaces => "replaces",
        })
    }
}

const fn envoy(name: &'static str, places: &'static [Place]) -> Key {
    Key { name, places, is_envoy: true }
}

const fn ours(name: &'static str, places: &'static [Place]) -> Key {
    Key { name, places, is_envoy: false }
}

/// Levenshtein distance in bytes, one row at a time. Long words are far from every key.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_answered_with_the_key_that_was_meant() {
        for (written, place, expected) in [
            ("reqests_per_unit", Place::RateLimit, "did you mean 'requests_per_unit'?"),
            ("Domain", Place::File, "did you mean 'domain'?"),
            ("descriptor", Place::File, "did you mean 'descriptors'?"),
            ("vlaue", Place::Descriptor, "did you mean 'value'?"),
            (
                "shadow_mod",
                Place::RateLimit,
                "did you mean 'shadow_mode' (which belongs in a descriptor)?",
            ),
            ("foo", Place::File, "known here: domain, descriptors"),
        ] {
            let got = suggestion(written, Some(place));
            assert_eq!(got, expected, "{written}");
        }
    }

    #[test]
    fn a_word_of_any_length_is_answered() {
        assert!(suggestion(&"x".repeat(1 << 20), None).starts_with("known here"));
        assert!(suggestion("ключ", Some(Place::File)).starts_with("known here"));
    }
}
