//! What the name of a tally becomes inside the name of a counter.
//!
//! `:` and `|` part name, value and type on statsd's wire, and a dot parts the levels of a name, so
//! that an IPv4 address would be four: `remote_address_10.0.0.1` becomes `remote_address_10_0_0_1`.
//! Control characters become `_` too, which they do not in envoyproxy/ratelimit: a line break that
//! a client put into a value would begin a line of its own there.
//!
//! Source: envoyproxy/ratelimit, `SanitizeStatName` in `src/utils/utilities.go`, whose pattern is
//! `\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`, found anywhere, leftmost first.

/// `name` as it stands in the name of a counter.
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

/// Length of the IPv4 address that `bytes` begin with, as the pattern sees it: of the last number
/// at most three digits belong to it, whatever follows.
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
    fn what_means_something_on_the_wire_is_replaced() {
        for (name, expected) in [
            ("mongo_cps.database_users", "mongo_cps.database_users"),
            ("d.path_/a:b|c", "d.path_/a_b_c"),
            ("d.remote_address_10.0.0.1", "d.remote_address_10_0_0_1"),
            ("10.0.0.1.20.0.0.2", "10_0_0_1.20_0_0_2"),
            // Leftmost first: what is no address from its first digit on is one from its second.
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
