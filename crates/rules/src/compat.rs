//! Whether rule files say nothing that envoyproxy/ratelimit would not take: for folders that both
//! have to read while one takes the other's section.
//!
//! Everything that it refuses is refused here anyway. What remains are the keys of ours
//! ([`keys::Key::is_envoy`] is false) and a list where it knows one limit alone.

use super::error::{Error, Reason};
use super::keys;
use super::load::Source;
use super::yaml::{self, Bounds, Kind, Node};

/// The first thing that envoyproxy/ratelimit would not take, by file and line.
///
/// ```
/// use tidegate_rules::{compat, load::Source};
///
/// let bytes = b"domain: d\ndescriptors:\n- key: k\n  mode: eventual\n".to_vec();
/// let error = compat::check(&[Source { name: "d.yaml".into(), bytes }]).unwrap_err();
/// assert!(error.to_string().starts_with("d.yaml:4:3: mode: "));
/// ```
pub fn check(sources: &[Source]) -> Result<(), Error> {
    for Source { name, bytes } in sources {
        // What is no YAML is the loader's matter.
        if let Ok(Some(root)) = yaml::parse(bytes, Bounds::RULE_FILE) {
            check_node(name, &root)?;
        }
    }
    Ok(())
}

/// Recursion is bounded by the depth that the YAML reader allows.
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
        // Metadata is the author's own.
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

    fn says(text: &str) -> Option<String> {
        let source = Source { name: "a.yaml".into(), bytes: text.as_bytes().to_vec() };
        check(&[source]).err().map(|error| error.to_string())
    }

    #[test]
    fn what_only_we_know_is_named_with_its_place() {
        for (text, section) in [
            ("domain: d\ndescriptors:\n- key: k\n  on_unavailable: deny\n", "4:3: on_unavailable:"),
            (
                "domain: d\ndescriptors:\n- key: k\n  descriptors:\n  - key: l\n    \
                 rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra}\n",
                "6:51: algorithm:",
            ),
            (
                "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n  - {unit: day}\n",
                "5:5: rate_limit:",
            ),
        ] {
            let error = says(text).expect(text);
            assert!(error.starts_with(&format!("a.yaml:{section}")), "{error}");
        }
    }

    #[test]
    fn what_both_know_passes_and_metadata_is_the_authors_own() {
        let text = "domain: d\ndescriptors:\n- key: k\n  shadow_mode: true\n  \
                    metadata: {mode: x, queue: [1]}\n  rate_limit: {unit: week, \
                    requests_per_unit: 1, name: n, replaces: [{name: m}]}\n";
        assert_eq!(says(text), None);
        assert_eq!(says("{"), None, "what is no YAML is told by the loader");
    }
}
