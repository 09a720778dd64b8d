//! The names under which the binary behaves like those of other rate limiters: `ratelimit` and
//! `gubernator` are a node configured by the environment of envoyproxy/ratelimit or of Gubernator,
//! and `ratelimit_config_check` validates rule files. A link or a copy with that name is enough.

use std::ffi::OsString;
use std::path::Path;

/// Names of binaries, and the sub-commands they stand for.
const NAMES: [(&str, &str); 3] = [
    ("ratelimit", "ratelimit"),
    ("ratelimit_config_check", "ratelimit-config-check"),
    ("gubernator", "gubernator"),
];

/// Inserts the sub-command that the name of the program, the first argument, stands for.
pub fn arguments(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.into_iter().collect();
    let program = args.first().and_then(|first| Path::new(first).file_name());
    let command = NAMES.iter().find(|(name, _)| program.is_some_and(|program| program == *name));
    if let Some((_, command)) = command {
        args.insert(1, command.into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_of_other_rate_limiters_become_sub_commands() {
        let of = |args: &[&str]| arguments(args.iter().map(OsString::from));
        assert_eq!(of(&["/bin/ratelimit"]), ["/bin/ratelimit", "ratelimit"]);
        assert_eq!(of(&["gubernator"]), ["gubernator", "gubernator"]);
        assert_eq!(
            of(&["ratelimit_config_check", "-config_dir", "x"]),
            ["ratelimit_config_check", "ratelimit-config-check", "-config_dir", "x"]
        );
        assert_eq!(of(&["/ratelimit/tidegate", "serve"]), ["/ratelimit/tidegate", "serve"]);
        assert!(of(&[]).is_empty());
    }
}
