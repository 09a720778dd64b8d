//! Keys that do not exist: the error, with the key that was probably meant.

use super::error::{Error, Origin};
use super::schema::{all_keys, fields, keys};
use super::text::{OPTION_VARIABLES, PREFIX, variable};

/// Checks that `path` leads to a key. `value` is its text, if known, for the suggested fix.
///
/// # Errors
///
/// [`Error::Unknown`] names the nearest existing key.
pub(super) fn check(path: &[&str], value: Option<&str>, at: &Origin) -> Result<(), Error> {
    for depth in 0..path.len() {
        let (parent, name) = (&path[..depth], path[depth]);
        let known = fields(parent);
        // A value, or a type without fixed fields: serde checks what is inside.
        if known.is_empty() {
            return Ok(());
        }
        if !known.contains(&name) {
            let key = path[..=depth].join(".");
            let key = if depth == 0 { format!("section [{name}]") } else { format!("key {key}") };
            let fix = fix(parent, name, value, known, at);
            return Err(Error::Unknown { at: at.clone(), key, fix });
        }
    }
    Ok(())
}

/// The error for a variable without a section.
pub(super) fn no_section(name: &str) -> Error {
    let known: Vec<String> = keys().iter().map(|key| variable(key)).collect();
    let candidates = known.iter().map(String::as_str).chain(OPTION_VARIABLES);
    // The common prefix would make any two names similar.
    let bare = |name| str::strip_prefix(name, PREFIX).unwrap_or(name);
    let fix = nearest(bare(name), candidates.map(bare)).map_or_else(
        || "write TIDEGATE_SECTION__KEY, with two underscores between section and key".to_owned(),
        |near| format!("did you mean {PREFIX}{near}?"),
    );
    Error::Unknown { at: Origin::Variable(name.to_owned()), key: "variable".to_owned(), fix }
}

/// The key that was probably meant, or the list of existing keys.
fn fix(parent: &[&str], name: &str, value: Option<&str>, known: &[&str], at: &Origin) -> String {
    let Some(section) = parent.first() else {
        return match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean [{near}]?"),
            None => format!("sections are {}", known.join(", ")),
        };
    };
    let here = parent.join(".");
    let spell = |key: &str| match at {
        Origin::Variable(_) => variable(key),
        _ => key.to_owned(),
    };
    // Keys of 0.1 pre-releases held milliseconds; the same key without the suffix is a duration.
    if let Some(stem) = name.strip_suffix("_ms").filter(|stem| known.contains(stem)) {
        let millis = value.and_then(|text| text.parse::<u64>().ok()).unwrap_or(10);
        let key = spell(&format!("{here}.{stem}"));
        return match at {
            Origin::File { .. } => format!("did you mean {key} = \"{millis}ms\"?"),
            _ => format!("did you mean {key}={millis}ms?"),
        };
    }
    if let Some(near) = nearest(name, known.iter().copied()) {
        return format!("did you mean {}?", spell(&format!("{here}.{near}")));
    }
    if let Some((other, key)) = all_keys().find(|(other, key)| other != section && *key == name) {
        return format!("did you mean {}?", spell(&format!("{other}.{key}")));
    }
    format!("[{here}] has {}", known.join(", "))
}

/// The candidate with the smallest edit distance to `word`: at most a third of the word, and at
/// least one edit.
fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let edits_max = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::levenshtein(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_word_is_suggested() {
        assert_eq!(nearest("lisen", ["name", "listen"]), Some("listen"));
        assert_eq!(nearest("idd", ["id", "zone"]), Some("id"));
        assert_eq!(nearest("colour", ["id", "zone"]), None);
    }
}
