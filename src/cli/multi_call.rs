//! The names that the binary is called by. Under those of envoyproxy/ratelimit's binaries it is
//! what they are: `/bin/ratelimit` serves by its environment, `ratelimit_config_check` looks at
//! rule files. A link or a copy of that name is enough.

use std::ffi::OsString;
use std::path::Path;

/// The name of a binary, and the sub-command that it stands for.
const NAMES: [(&str, &str); 2] =
    [("ratelimit", "ratelimit"), ("ratelimit_config_check", "ratelimit-config-check")];

/// The arguments with the sub-command that the first of them, the program's name, stands for.
pub(super) fn arguments(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<_> = args.into_iter().collect();
    let called = args.first().and_then(|first| Path::new(first).file_name());
    let command = NAMES.iter().find(|(name, _)| called.is_some_and(|called| called == *name));
    if let Some((_, command)) = command {
        args.insert(1, command.into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_theirs_is_a_sub_command_and_any_other_is_none() {
        let of = |args: &[&str]| arguments(args.iter().map(OsString::from));
        assert_eq!(of(&["/bin/ratelimit"]), ["/bin/ratelimit", "ratelimit"]);
        assert_eq!(
            of(&["ratelimit_config_check", "-config_dir", "x"]),
            ["ratelimit_config_check", "ratelimit-config-check", "-config_dir", "x"]
        );
        assert_eq!(of(&["/ratelimit/tidegate", "serve"]), ["/ratelimit/tidegate", "serve"]);
        assert!(of(&[]).is_empty());
    }
}
