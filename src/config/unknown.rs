//! Keys that do not exist, and what was probably meant.

use super::error::{Error, Origin};
use super::schema::fields;
use super::similar::nearest;
use super::text::{PREFIX, variable};

/// Refuses a path that leads to no key. `at` is asked where it stands.
pub(super) fn refuse(path: &[String], at: impl FnOnce(&str) -> Origin) -> Result<(), Error> {
    let steps: Vec<&str> = path.iter().map(String::as_str).collect();
    for depth in 0..steps.len() {
        let (parent, name) = (&steps[..depth], steps[depth]);
        let known = fields(parent);
        // A value, or a type with no fixed fields: serde judges what is inside.
        if known.is_empty() {
            return Ok(());
        }
        if !known.contains(&name) {
            let key = steps[..=depth].join(".");
            let origin = at(&key);
            let fix = remedy(parent, name, known, matches!(origin, Origin::Variable(_)));
            let key = if depth == 0 { format!("section [{name}]") } else { format!("key {key}") };
            return Err(Error::Unknown { at: origin, key, fix });
        }
    }
    Ok(())
}

/// The error for a variable of ours that names no section.
pub(super) fn no_section(name: &str) -> Error {
    let known: Vec<String> = keys().iter().map(|key| variable(key)).collect();
    let routing_attempts = known.iter().map(String::as_str).chain(super::load::OPTION_VARIABLES);
    // What all of them begin with would make any two look alike.
    let fix = nearest(
        name.trim_start_matches(PREFIX),
        routing_attempts.map(|candidate| candidate.trim_start_matches(PREFIX)),
    )
    .map_or_else(
        || "write TIDEGATE_SECTION__KEY, with two underscores between section and key".to_owned(),
        |near| format!("did you mean {PREFIX}{near}?"),
    );
    Error::Unknown { at: Origin::Variable(name.to_owned()), key: "variable".to_owned(), fix }
}

/// Whether Kubernetes made this variable. It gives every pod the addresses of the services in its
/// namespace, and a service named `tidegate` or `tidegate-admin` begins like our own variables:
/// `TIDEGATE_PORT=tcp://10.0.0.1:80`, `TIDEGATE_ADMIN_SERVICE_HOST=10.0.0.2`.
pub(super) fn is_service_link(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX).filter(|rest| !rest.contains("__")) else {
        return false;
    };
    let words: Vec<&str> = rest.split('_').collect();
    match words.iter().rposition(|word| matches!(*word, "PORT" | "SERVICE")) {
        None => false,
        Some(at) => match (words[at], &words[at + 1..]) {
            ("SERVICE", [last]) => *last == "HOST",
            ("PORT", []) => true,
            // TIDEGATE_SERVICE_PORT_HTTP: the port's own name follows.
            ("PORT", _) if at > 0 && words[at - 1] == "SERVICE" => true,
            // TIDEGATE_PORT_8080_TCP and TIDEGATE_PORT_8080_TCP_ADDR.
            ("PORT", [number, protocol, ..]) => {
                number.parse::<u16>().is_ok() && matches!(*protocol, "TCP" | "UDP" | "SCTP")
            }
            _ => false,
        },
    }
}

/// What was probably meant, else what there is.
fn remedy(parent: &[&str], name: &str, known: &[&str], as_variable: bool) -> String {
    let spell = |path: &str| if as_variable { variable(path) } else { path.to_owned() };
    let Some(section) = parent.first() else {
        return match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean [{near}]?"),
            None => format!("sections are {}", known.join(", ")),
        };
    };
    let here = parent.join(".");
    if let Some(near) = nearest(name, known.iter().copied()) {
        return format!("did you mean {}?", spell(&format!("{here}.{near}")));
    }
    if let Some((elsewhere, key)) = all_keys().find(|(other, key)| other != section && *key == name)
    {
        return format!("did you mean {}?", spell(&format!("{elsewhere}.{key}")));
    }
    format!("[{here}] has {}", known.join(", "))
}

/// Every key as `section.key`, in the order of `cluster.toml`.
pub fn keys() -> Vec<String> {
    all_keys().map(|(section, key)| format!("{section}.{key}")).collect()
}

/// Every section with every key of it.
fn all_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    fields(&[]).iter().flat_map(|section| fields(&[section]).iter().map(|key| (*section, *key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_kubernetes_makes_are_not_ours() {
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
            assert!(is_service_link(link), "{link}");
        }
        for ours in ["TIDEGATE_HTTP_LISTEN", "TIDEGATE_HTTP__LISTEN", "TIDEGATE_PORT__X", "PORT"] {
            assert!(!is_service_link(ours), "{ours}");
        }
    }
}
