//! The rules a node runs on when it was given none: no configuration file and no `rules` folder.
//! They are the shipped folder's, compiled in.

/// File name and content, in the order a folder would give them.
pub const FILES: &[(&str, &str)] = &[
    ("algorithms.yaml", include_str!("../../rules/algorithms.yaml")),
    ("basic.yaml", include_str!("../../rules/basic.yaml")),
    ("bytes.yaml", include_str!("../../rules/bytes.yaml")),
    ("demo.yaml", include_str!("../../rules/demo.yaml")),
    ("modes.yaml", include_str!("../../rules/modes.yaml")),
    ("several-limits.yaml", include_str!("../../rules/several-limits.yaml")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compiled_in_is_the_shipped_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/rules");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
