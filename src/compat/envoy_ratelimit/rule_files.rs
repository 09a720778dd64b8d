//! Strict compatibility of rule files, `tidegate rules validate --strict-compat`: for folders that
//! both limiters read during a migration.
//!
//! Nearly all that envoyproxy/ratelimit rejects is rejected by tidegate as well. What remains are
//! the keys of tidegate ([`keys::Key::is_envoy`] is false), lists of limits, and descriptors
//! that are one there: it joins key and value by an underscore, so that `a` with the value `b_c`
//! is `a_b` with the value `c`.

use std::collections::BTreeMap;

use tidegate_rules::error::{Error, Reason};
use tidegate_rules::keys;
use tidegate_rules::load::Source;
use tidegate_rules::yaml::{self, Bounds, Kind, Node};

/// Checks that envoyproxy/ratelimit accepts the files.
///
/// # Errors
///
/// The first key or value that it rejects, with file and line.
///
/// ```
/// use tidegate::compat::envoy_ratelimit::rule_files;
/// use tidegate_rules::load::Source;
///
/// let bytes = b"domain: d\ndescriptors:\n- key: k\n  mode: eventual\n".to_vec();
/// let error = rule_files::check(&[Source { name: "d.yaml".into(), bytes }]).unwrap_err();
/// assert!(error.to_string().starts_with("d.yaml:4:3: mode: "));
/// ```
pub fn check(sources: &[Source]) -> Result<(), Error> {
    // A domain may be in several files.
    let mut seen = Seen::new();
    for Source { name, bytes } in sources {
        // The loader reports what is not YAML.
        if let Ok(Some(root)) = yaml::parse(bytes, Bounds::RULE_FILE) {
            check_node(name, &root)?;
            let domain = text_of(&root, "domain").unwrap_or_default();
            check_names(name, domain, &root, &mut seen)?;
        }
    }
    Ok(())
}

/// Descriptors by their composite keys and those above, with key, value and line.
type Seen = BTreeMap<String, (String, String, u32)>;

/// The depth limit of the YAML reader bounds the recursion.
fn check_names(file: &str, above: &str, node: &Node, seen: &mut Seen) -> Result<(), Error> {
    let Some(Kind::List(descriptors)) = value_of(node, "descriptors").map(|node| &node.kind) else {
        return Ok(());
    };
    for descriptor in &**descriptors {
        let Some(key) = text_of(descriptor, "key") else { continue };
        let value = text_of(descriptor, "value").unwrap_or_default();
        let name = if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") };
        // What no key has is between them: `a.b` is no `b` below `a`.
        let path = format!("{above}\0{name}");
        let line = descriptor.at.line;
        let own = (key.to_owned(), value.to_owned(), line);
        let first = seen.entry(path.clone()).or_insert(own);
        // The loader reports those that are one here.
        if (first.0.as_str(), first.1.as_str()) != (key, value) {
            let reason = Reason::CompositeKey(path.replace('\0', ".").into(), first.2);
            let at = Some(descriptor.at);
            return Err(Error { file: file.into(), at, key: Some("key"), reason });
        }
        check_names(file, &path, descriptor, seen)?;
    }
    Ok(())
}

fn value_of<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    let Kind::Map(pairs) = &node.kind else { return None };
    let is_it = |name: &Node| name.as_scalar().is_some_and(|scalar| &*scalar.text == key);
    pairs.iter().find(|(name, _)| is_it(name)).map(|(_, value)| value)
}

fn text_of<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    value_of(node, key).filter(|node| !node.is_null())?.as_scalar().map(|scalar| &*scalar.text)
}

/// The depth limit of the YAML reader bounds the recursion.
fn check_node(file: &str, node: &Node) -> Result<(), Error> {
    match &node.kind {
        Kind::Scalar(_) => Ok(()),
        Kind::List(elements) => elements.iter().try_for_each(|element| check_node(file, element)),
        Kind::Map(pairs) => pairs.iter().try_for_each(|(key, value)| check_pair(file, key, value)),
    }
}

fn check_pair(file: &str, key: &Node, value: &Node) -> Result<(), Error> {
    let known = key.as_scalar().and_then(|scalar| keys::find(&scalar.text));
    let fault = |at, key: &keys::Key, reason| Error {
        file: file.into(),
        at: Some(at),
        key: Some(key.name),
        reason,
    };
    match known {
        Some(known) if !known.is_envoy => Err(fault(key.at, known, Reason::OnlyOurs)),
        // Metadata may contain any key.
        Some(known) if known.name == "metadata" => Ok(()),
        Some(known) if known.name == "rate_limit" && matches!(value.kind, Kind::List(_)) => {
            Err(fault(value.at, known, Reason::OnlyOneLimit))
        }
        _ => check_node(file, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> Option<String> {
        let source = Source { name: "a.yaml".into(), bytes: text.as_bytes().to_vec() };
        check(&[source]).err().map(|error| error.to_string())
    }

    #[test]
    fn keys_of_tidegate_are_rejected_with_their_position() {
        for (text, position) in [
            ("domain: d\ndescriptors:\n- key: k\n  on_unavailable: deny\n", "4:3: on_unavailable:"),
            (
                "domain: d\ndescriptors:\n- key: k\n  descriptors:\n  - key: l\n    \
                 rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra}\n",
                "6:51: algorithm:",
            ),
            (
                "domain: d\ndescriptors:\n- key: k\n  \
                 rate_limit: {unit: day, unit_multiplier: 2, requests_per_unit: 1}\n",
                "4:27: unit_multiplier:",
            ),
            (
                "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n  - {unit: day}\n",
                "5:5: rate_limit:",
            ),
        ] {
            let error = error_of(text).expect(text);
            assert!(error.starts_with(&format!("a.yaml:{position}")), "{error}");
        }
    }

    #[test]
    fn descriptors_that_are_one_there_are_rejected_with_both_lines() {
        let text = "domain: d\ndescriptors:\n- key: top\n  descriptors:\n  \
                    - {key: a, value: b_c}\n  - {key: a_b, value: c}\n";
        let error = error_of(text).expect("a_b_c twice");
        assert!(error.starts_with("a.yaml:6:5: key: "), "{error}");
        assert!(error.contains("'d.top.a_b_c'") && error.contains("line 5"), "{error}");
        // On different levels they are two, and equal ones are for the loader.
        let text = "domain: d\ndescriptors:\n- {key: a, value: b_c}\n- key: a_b\n  descriptors:\n  \
                    - {key: a_b, value: c}\n- {key: a_b.a_b, value: c}\n- {key: a, value: b_c}\n";
        assert_eq!(error_of(text), None);
    }

    #[test]
    fn common_keys_and_any_metadata_are_accepted() {
        let text = "domain: d\ndescriptors:\n- key: k\n  shadow_mode: true\n  \
                    metadata: {mode: x, queue: [1]}\n  rate_limit: {unit: week, \
                    requests_per_unit: 1, name: n, replaces: [{name: m}]}\n";
        assert_eq!(error_of(text), None);
        assert_eq!(error_of("{"), None, "the loader reports what is not YAML");
    }
}
