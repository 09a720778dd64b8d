//! How a key of the configuration is spelled as an environment variable.

/// What every variable of ours begins with.
pub(super) const PREFIX: &str = "TIDEGATE_";

/// `http.listen` as a variable: `TIDEGATE_HTTP__LISTEN`. Two underscores part section and key,
/// because keys have single ones.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

/// The path that a variable names, `TIDEGATE_HTTP__LISTEN` as `["http", "listen"]`; none when it
/// names no section.
pub(super) fn path(variable: &str) -> Option<Vec<String>> {
    let parts: Vec<String> =
        variable.strip_prefix(PREFIX)?.split("__").map(str::to_ascii_lowercase).collect();
    (parts.len() > 1 && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// `text` on one line, for messages that parsers spread over several.
pub(super) fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_variable_name_each_other() {
        assert_eq!(variable("limits.keys_max"), "TIDEGATE_LIMITS__KEYS_MAX");
        assert_eq!(
            path("TIDEGATE_LIMITS__KEYS_MAX"),
            Some(vec!["limits".to_owned(), "keys_max".to_owned()])
        );
    }

    #[test]
    fn a_variable_without_a_section_names_no_key() {
        for name in ["TIDEGATE_LIMITS", "TIDEGATE___X", "TIDEGATE_LIMITS__", "HOME"] {
            assert_eq!(path(name), None, "{name}");
        }
    }
}
