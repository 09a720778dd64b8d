//! Environment variables that shorten or lengthen a test.

/// The number in the variable `name`.
pub fn number(name: &str, default: u32) -> u32 {
    let set = std::env::var_os(name);
    set.map_or(default, |set| set.to_str().and_then(|set| set.parse().ok()).expect("a number"))
}
