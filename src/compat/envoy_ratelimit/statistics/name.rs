//! Sanitises the name of a tally for use in the name of a counter.
//!
//! `:` and `|` separate name, value and type in statsd's protocol, and a dot separates the levels
//! of a name, so an IPv4 address would be four levels: `remote_address_10.0.0.1` becomes
//! `remote_address_10_0_0_1`. Control characters become `_` as well, unlike in
//! envoyproxy/ratelimit, where a line break in a client's value begins a new line.
//!
//! Source: envoyproxy/ratelimit, `SanitizeStatName` in `src/utils/utilities.go`, whose pattern is
//! `\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`, found anywhere, leftmost first.

/// `name` without the characters that have a meaning in statsd's protocol.
pub fn sanitized(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(char) = rest.chars().next() {
        let length = if let Some(length) = address(rest.as_bytes()) {
            out.push_str(&rest[..length].replace('.', "_"));
            length
        } else {
            let has_meaning = matches!(char, ':' | '|') || char.is_control();
            out.push(if has_meaning { '_' } else { char });
            char.len_utf8()
        };
        rest = &rest[length..];
    }
    out
}

/// Length of the IPv4 address at the start of `bytes`, by the pattern above: at most three digits
/// of the last number belong to it, whatever follows.
fn address(bytes: &[u8]) -> Option<usize> {
    let mut length = 0;
    for part in 0..4 {
        if part > 0 {
            if bytes.get(length) != Some(&b'.') {
                return None;
            }
            length += 1;
        }
        let digits =
            bytes.get(length..)?.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        length += digits;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_the_protocol_are_replaced() {
        for (name, expected) in [
            ("mongo_cps.database_users", "mongo_cps.database_users"),
            ("d.path_/a:b|c", "d.path_/a_b_c"),
            ("d.remote_address_10.0.0.1", "d.remote_address_10_0_0_1"),
            ("10.0.0.1.20.0.0.2", "10_0_0_1.20_0_0_2"),
            // Leftmost first: not an address from its first digit on, but from its second.
            ("1234.5.6.7", "1234_5_6_7"),
            ("1.2.3.4567", "1_2_3_4567"),
            ("1.2.3", "1.2.3"),
            ("1.2.3.x", "1.2.3.x"),
            ("1.2222.3.4.5.6", "1.2222_3_4_5.6"),
            ("é.ü_1.1.1.1", "é.ü_1_1_1_1"),
            ("d.k_v\nfake:1|c", "d.k_v_fake_1_c"),
            ("", ""),
        ] {
            assert_eq!(sanitized(name), expected, "{name}");
        }
    }
}
