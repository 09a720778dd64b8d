//! Wildcards: a value or a key in which `*` matches any text, including none.
//!
//! A pattern is split at its stars when it is loaded. `ab*ba` becomes `ab` and `ba`: the text must
//! begin with the first part, end with the last and contain the others in order, without overlap,
//! so `aba` does not match. envoyproxy/ratelimit matches the same way, but over the joined text
//! `key_value`. Here key and value are matched separately, except where the key itself has a star:
//! then the pattern also runs over `key_value`.

use tidegate_limiter::descriptor::Entry;

/// A key/value pair with at least one star in it.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// The exact key, when only the value has stars; the parts then are the value's.
    key: Option<Box<str>>,
    parts: Box<[Box<str>]>,
}

impl Pattern {
    /// The pattern of a rule's key and value; `None` when neither has a star.
    pub(super) fn new(key: &str, value: &str) -> Option<Self> {
        let split = |text: &str| text.split('*').map(Box::from).collect();
        if key.contains('*') {
            let joined = if value.is_empty() { key.into() } else { format!("{key}_{value}") };
            return Some(Self { key: None, parts: split(&joined) });
        }
        value.contains('*').then(|| Self { key: Some(key.into()), parts: split(value) })
    }

    /// Whether an entry of a request matches. Allocates only where the rule's key has a star.
    pub(super) fn matches(&self, entry: &Entry<'_>) -> bool {
        match &self.key {
            Some(key) => **key == *entry.key && self.fits(entry.value),
            None => self.fits(&format!("{}_{}", entry.key, entry.value)),
        }
    }

    /// The ends first, then each inner part at its first occurrence: if any choice of positions
    /// matches, that one does. Linear in the text.
    fn fits(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.parts else { return false };
        let inner = text.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
        inner
            .and_then(|inner| {
                middle
                    .iter()
                    .try_fold(inner, |rest, part| rest.split_once(&**part).map(|(_, after)| after))
            })
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text_and_no_character_serves_twice() {
        for (pattern, value, expected) in [
            ("f*", "foo", true),
            ("f*", "f", true),
            ("f*", "xf", false),
            ("*.png", "a.png", true),
            ("*.png", ".png", true),
            ("*.png", "a.jpg", false),
            ("*", "", true),
            ("ab*ba", "abba", true),
            ("ab*ba", "aba", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*bb*b", "abb", false),
            ("a*bb*b", "abbb", true),
            ("/*/x/*", "/é/x/", true),
            ("a**b", "ab", true),
        ] {
            let entry = Entry { key: "k", value };
            let matched = Pattern::new("k", pattern).is_some_and(|p| p.matches(&entry));
            assert_eq!(matched, expected, "{pattern} on {value}");
        }
    }

    #[test]
    fn a_star_in_the_key_runs_over_key_and_value() {
        let pattern = Pattern::new("a*", "x").unwrap();
        assert!(pattern.matches(&Entry { key: "abc", value: "x" }));
        assert!(!pattern.matches(&Entry { key: "abc", value: "y" }));
        assert!(Pattern::new("a*", "").unwrap().matches(&Entry { key: "a", value: "" }));
    }

    #[test]
    fn a_star_in_the_value_never_reaches_into_the_key() {
        let pattern = Pattern::new("a", "b_*").unwrap();
        assert!(pattern.matches(&Entry { key: "a", value: "b_c" }));
        assert!(!pattern.matches(&Entry { key: "a_b", value: "c" }));
        assert!(Pattern::new("a", "b").is_none());
    }
}
