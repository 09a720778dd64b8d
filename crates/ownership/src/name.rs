//! Valid names of nodes, regions, zones and clusters.
//!
//! Node ids, regions and zones are lower-case DNS labels, because the same text is a certificate
//! name, a metric label and the input of the ring's hash.

/// Longest name of any kind: the limit of a DNS label.
pub const NAME_MAX: usize = 63;

/// Whether `name` can be a node id, a region or a zone: 1 to 63 of `a-z`, `0-9`, `-`, at least one
/// of them a letter (an all-digit name is not a valid certificate name), and no `-` at either end.
///
/// ```
/// use tidegate_ownership::name::is_label;
///
/// assert!(is_label("edge-7"));
/// assert!(!is_label("Edge_7"));
/// assert!(!is_label("-edge"));
/// ```
pub fn is_label(name: &str) -> bool {
    is_label_or_number(name) && name.bytes().any(|b| b.is_ascii_lowercase())
}

/// Like [`is_label`], and also true of names made of digits only.
pub(crate) fn is_label_or_number(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Whether `name` can be a cluster name: 1 to 63 of `A-Z`, `a-z`, `0-9`, `-`, `_`, `.`.
pub fn is_cluster_name(name: &str) -> bool {
    let fits = (1..=NAME_MAX).contains(&name.len());
    fits && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_dns_labels() {
        for good in ["a", "n1", "edge-7", "0x", &"a".repeat(63)] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "7", "A", "a_b", "a.b", "-a", "a-", "ä", "a b", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }

    #[test]
    fn cluster_names_may_have_dots_and_underscores() {
        assert!(is_cluster_name("Prod_eu.1"));
        assert!(!is_cluster_name("prod eu"));
        assert!(!is_cluster_name(""));
    }
}
