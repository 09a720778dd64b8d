//! Environment variables: which belong to tidegate, and how they spell a key.

/// Prefix of every tidegate variable.
pub(crate) const PREFIX: &str = "TIDEGATE_";

/// Variables that are options of the command line, not keys of the configuration.
pub(crate) const OPTION_VARIABLES: [&str; 10] = [
    "TIDEGATE_CONFIG",
    "TIDEGATE_LOG",
    "TIDEGATE_LOG_FORMAT",
    "TIDEGATE_URL",
    "TIDEGATE_ADMIN_URL",
    "TIDEGATE_CA",
    "TIDEGATE_CLIENT_CERT",
    "TIDEGATE_CLIENT_KEY",
    "TIDEGATE_ADMIN_TOKEN_FILE",
    "TIDEGATE_JOIN_TOKEN",
];

/// Whether a variable sets a key or is mistyped, as opposed to one made by Kubernetes.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX) && !is_service_link(name)
}

/// `http.listen` as a variable: `TIDEGATE_HTTP__LISTEN`. Two underscores separate section and key
/// because keys contain single ones.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

/// The path of a variable, `TIDEGATE_HTTP__LISTEN` as `["http", "listen"]`; `None` without a
/// section.
pub(super) fn path(variable: &str) -> Option<Vec<String>> {
    let parts: Vec<String> =
        variable.strip_prefix(PREFIX)?.split("__").map(str::to_ascii_lowercase).collect();
    (parts.len() > 1 && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// Joins the lines of a parser's message.
pub(super) fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Whether Kubernetes made this variable. Every pod receives the addresses of the services in its
/// namespace, and a service named `tidegate` or `tidegate-admin` shares the prefix:
/// `TIDEGATE_PORT=tcp://10.0.0.1:80`, `TIDEGATE_ADMIN_SERVICE_HOST=10.0.0.2`.
fn is_service_link(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX).filter(|rest| !rest.contains("__")) else {
        return false;
    };
    let words: Vec<&str> = rest.split('_').collect();
    match words.iter().rposition(|word| matches!(*word, "PORT" | "SERVICE")) {
        None => false,
        Some(at) => match (words[at], &words[at + 1..]) {
            ("SERVICE", [last]) => *last == "HOST",
            ("PORT", []) => true,
            // TIDEGATE_SERVICE_PORT_HTTP: the name of the port follows.
            ("PORT", _) if at > 0 && words[at - 1] == "SERVICE" => true,
            // TIDEGATE_PORT_8080_TCP and TIDEGATE_PORT_8080_TCP_ADDR.
            ("PORT", [number, protocol, ..]) => {
                number.parse::<u16>().is_ok() && matches!(*protocol, "TCP" | "UDP" | "SCTP")
            }
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_variable_convert_into_each_other() {
        assert_eq!(variable("limits.keys_max"), "TIDEGATE_LIMITS__KEYS_MAX");
        assert_eq!(
            path("TIDEGATE_LIMITS__KEYS_MAX"),
            Some(vec!["limits".to_owned(), "keys_max".to_owned()])
        );
    }

    #[test]
    fn a_variable_without_a_section_has_no_path() {
        for name in ["TIDEGATE_LIMITS", "TIDEGATE___X", "TIDEGATE_LIMITS__", "HOME"] {
            assert_eq!(path(name), None, "{name}");
        }
    }

    #[test]
    fn variables_made_by_kubernetes_are_skipped() {
        for link in [
            "TIDEGATE_PORT",
            "TIDEGATE_SERVICE_HOST",
            "TIDEGATE_SERVICE_PORT",
            "TIDEGATE_SERVICE_PORT_HTTP",
            "TIDEGATE_PORT_8080_TCP",
            "TIDEGATE_PORT_8080_TCP_ADDR",
            "TIDEGATE_ADMIN_SERVICE_HOST",
            "TIDEGATE_ADMIN_PORT_8082_TCP_PROTO",
        ] {
            assert!(!is_ours(link), "{link}");
        }
        for ours in ["TIDEGATE_HTTP_LISTEN", "TIDEGATE_HTTP__LISTEN", "TIDEGATE_PORT__X"] {
            assert!(is_ours(ours), "{ours}");
        }
        assert!(!is_ours("PORT"));
    }
}
