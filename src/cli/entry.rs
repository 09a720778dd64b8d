//! Entries of a descriptor on the command line.

/// `KEY=VALUE`; the value may contain `=`.
pub(super) fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}
