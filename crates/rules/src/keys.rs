//! Every key that a rule file may use, and where.

use std::fmt;

/// A mapping of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The file itself.
    File,
    /// An element of `descriptors`.
    Descriptor,
    /// `rate_limit`, or an element of it when it is a list.
    RateLimit,
    /// An element of `replaces`.
    Replaces,
}

/// A key and where it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub name: &'static str,
    /// The mappings that accept it.
    pub sections: &'static [Section],
    /// Whether envoyproxy/ratelimit accepts it: there it is allowed anywhere and ignored where it
    /// has no meaning, so here that is a warning. A misplaced key of our own is an error.
    pub is_envoy: bool,
}

/// Every key.
pub const ALL: &[Key] = &[
    envoy("domain", &[Section::File]),
    envoy("descriptors", &[Section::File, Section::Descriptor]),
    envoy("key", &[Section::Descriptor]),
    envoy("value", &[Section::Descriptor]),
    envoy("rate_limit", &[Section::Descriptor]),
    envoy("shadow_mode", &[Section::Descriptor]),
    envoy("quota_mode", &[Section::Descriptor]),
    envoy("detailed_metric", &[Section::Descriptor]),
    envoy("value_to_metric", &[Section::Descriptor]),
    envoy("share_threshold", &[Section::Descriptor]),
    envoy("metadata", &[Section::Descriptor]),
    envoy("unit", &[Section::RateLimit]),
    envoy("requests_per_unit", &[Section::RateLimit]),
    envoy("unlimited", &[Section::RateLimit]),
    envoy("name", &[Section::RateLimit, Section::Replaces]),
    envoy("replaces", &[Section::RateLimit]),
    ours("algorithm", &[Section::RateLimit]),
    ours("window", &[Section::RateLimit]),
    // envoyproxy/ratelimit has no release with it yet.
    ours("unit_multiplier", &[Section::RateLimit]),
    ours("soft_limit", &[Section::RateLimit]),
    ours("burst", &[Section::RateLimit]),
    ours("sub_windows", &[Section::RateLimit]),
    ours("queue", &[Section::RateLimit]),
    ours("mode", &[Section::Descriptor, Section::RateLimit]),
    ours("scope", &[Section::Descriptor, Section::RateLimit]),
    ours("on_unavailable", &[Section::Descriptor, Section::RateLimit]),
    ours("durability", &[Section::Descriptor, Section::RateLimit]),
    ours("concurrency", &[Section::Descriptor]),
    ours("node_concurrency", &[Section::Descriptor]),
];

/// The key of this name.
pub fn find(name: &str) -> Option<&'static Key> {
    ALL.iter().find(|key| key.name == name)
}

/// A suggestion for an unknown key.
pub fn suggestion(written: &str, section: Option<Section>) -> String {
    let fits = |key: &&Key| section.is_none_or(|section| key.sections.contains(&section));
    let near = |key: &&Key| distance(written, key.name) <= 1 + key.name.len() / 5;
    let closest = |keys: &mut dyn Iterator<Item = &'static Key>| {
        keys.filter(near).min_by_key(|key| distance(written, key.name))
    };
    if let Some(key) = closest(&mut ALL.iter().filter(fits)).or_else(|| closest(&mut ALL.iter())) {
        let belongs = match section {
            Some(section) if !key.sections.contains(&section) => {
                format!(" (which belongs in {})", sections(key))
            }
            _ => String::new(),
        };
        return format!("did you mean '{}'{belongs}?", key.name);
    }
    let names: Vec<_> = ALL.iter().filter(fits).map(|key| key.name).collect();
    format!("known here: {}", names.join(", "))
}

/// The mappings that accept a key, in words.
pub fn sections(key: &Key) -> String {
    let sections: Vec<_> = key.sections.iter().map(Section::to_string).collect();
    sections.join(" or ")
}

impl Section {
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

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "the top of the file",
            Self::Descriptor => "a descriptor",
            Self::RateLimit => "rate_limit",
            Self::Replaces => "replaces",
        })
    }
}

const fn envoy(name: &'static str, sections: &'static [Section]) -> Key {
    Key { name, sections, is_envoy: true }
}

const fn ours(name: &'static str, sections: &'static [Section]) -> Key {
    Key { name, sections, is_envoy: false }
}

/// Levenshtein distance, ignoring case. Long words are distant from every key.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    strsim::levenshtein(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_answered_with_the_key_that_was_meant() {
        for (written, section, expected) in [
            ("reqests_per_unit", Section::RateLimit, "did you mean 'requests_per_unit'?"),
            ("Domain", Section::File, "did you mean 'domain'?"),
            ("descriptor", Section::File, "did you mean 'descriptors'?"),
            ("vlaue", Section::Descriptor, "did you mean 'value'?"),
            (
                "shadow_mod",
                Section::RateLimit,
                "did you mean 'shadow_mode' (which belongs in a descriptor)?",
            ),
            ("foo", Section::File, "known here: domain, descriptors"),
        ] {
            let got = suggestion(written, Some(section));
            assert_eq!(got, expected, "{written}");
        }
    }

    #[test]
    fn a_word_of_any_length_is_answered() {
        assert!(suggestion(&"x".repeat(1 << 20), None).starts_with("known here"));
        assert!(suggestion("ключ", Some(Section::File)).starts_with("known here"));
    }
}
