//! Paths in one normal form.
//!
//! `/login`, `//login`, `/x/../login` and `/%6Cogin` reach the same handler behind most proxies and
//! must be the same key, or a client evades the limit. The form is that of RFC 3986 (6.2.2) with
//! the `merge_slashes` of nginx: the query is cut, empty and dot segments are resolved, escapes of
//! unreserved characters are decoded and all others written in upper case. Reserved characters stay
//! escaped: `%2F` is not `/`. So the path is not decoded as a whole, as percent-encoding would do.

/// The path of a request target (`/a/b?c`, or the absolute form `http://host/a/b`), at most
/// `bytes_max` long.
///
/// A longer path is cut. Paths that differ only beyond the bound share a key, so that a client
/// cannot create keys without end.
///
/// ```
/// use tidegate::front::http::path::normal;
///
/// assert_eq!(normal("//shop/./cart/../%6Cogin?next=/", 1024), "/shop/login");
/// ```
pub fn normal(target: &str, bytes_max: usize) -> String {
    let target = target.split(['?', '#']).next().unwrap_or_default();
    let path = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("", |slash| &rest[slash..])
        }
        _ => target,
    };
    let unescaped = unescape(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for segment in unescaped.split('/') {
        is_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            name => segments.push(name),
        }
    }
    let mut normal = String::with_capacity(unescaped.len() + 1);
    for segment in &segments {
        normal.push('/');
        normal.push_str(segment);
    }
    if is_folder || segments.is_empty() {
        normal.push('/');
    }
    let end = (0..=bytes_max.min(normal.len())).rev().find(|&end| normal.is_char_boundary(end));
    normal.truncate(end.unwrap_or(0));
    normal
}

/// The first `segments` segments of a normal path: the first 2 of `/a/b/c` are `/a/b`.
pub fn prefix(normal: &str, segments: u8) -> &str {
    let mut slashes = normal.match_indices('/').map(|(index, _)| index);
    match slashes.nth(usize::from(segments)) {
        Some(0) | None => normal,
        Some(end) => &normal[..end],
    }
}

/// Decodes escapes of unreserved characters and writes the others in upper case.
fn unescape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let hex = after.get(..2).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let escaped = hex.and_then(|hex| Some((hex, u8::from_str_radix(hex, 16).ok()?)));
        match escaped {
            Some((_, byte)) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                out.push(char::from(byte));
                rest = &after[2..];
            }
            Some((hex, _)) => {
                out.push('%');
                out.push_str(&hex.to_ascii_uppercase());
                rest = &after[2..];
            }
            // A lone percent sign is escaped. Otherwise it could form an escape with what follows:
            // "%%34%31" would become "%41", which the next decoder reads as "A".
            None => {
                out.push_str("%25");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_a_path_are_one_key() {
        for (target, expected) in [
            ("/login", "/login"),
            ("/login?a=/b", "/login"),
            ("/login#x", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/x/../login", "/login"),
            ("/%2e%2E/login", "/login"),
            ("/%6cogin", "/login"),
            ("/%6Cogin", "/login"),
            ("login", "/login"),
            ("http://host:80/login?x", "/login"),
            ("http://host", "/"),
            ("/go?to=http://host/x", "/go"),
            ("/go/http://host/x", "/go/http:/host/x"),
            ("", "/"),
            ("?a", "/"),
            ("*", "/*"),
            ("/a/", "/a/"),
            ("/a/b/..", "/a/"),
            ("/../../..", "/"),
            ("/a%2fb", "/a%2Fb"),
            ("/100%", "/100%25"),
            ("/%zz%4", "/%25zz%254"),
            ("/%é%41", "/%25éA"),
            ("/%%34%31", "/%2541"),
            ("/%252e", "/%252e"),
        ] {
            assert_eq!(normal(target, 1024), expected, "{target}");
        }
    }

    #[test]
    fn a_long_path_is_cut_between_characters() {
        assert_eq!(normal("/éé", 4), "/é");
        assert_eq!(normal(&"/a".repeat(100_000), 7), "/a/a/a/");
    }

    #[test]
    fn the_normal_form_is_stable() {
        for target in ["/a/../b%2f%41", "//", "/a/./", "x://y/z"] {
            let once = normal(target, 1024);
            assert_eq!(normal(&once, 1024), once);
        }
    }

    #[test]
    fn a_prefix_ends_before_a_slash() {
        for (path, n, expected) in [
            ("/a/b/c", 1, "/a"),
            ("/a/b/c", 2, "/a/b"),
            ("/a/b/c", 3, "/a/b/c"),
            ("/a/b/c", 9, "/a/b/c"),
            ("/a/b/", 2, "/a/b"),
            ("/", 1, "/"),
        ] {
            assert_eq!(prefix(path, n), expected);
        }
    }
}
