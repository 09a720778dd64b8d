//! The patches of `tests/mutants` change with the code that they change.

use std::process::Command;

use crate::source::root;

#[test]
fn every_mutant_applies() {
    let folder = root().join("tests/mutants");
    let described = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let mut names = Vec::new();
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        let mut git = Command::new("git");
        let checked = git.args(["apply", "--check"]).arg(&path).current_dir(root()).output();
        let applied = checked.expect("git is installed");
        let text = String::from_utf8_lossy(&applied.stderr);
        assert!(applied.status.success(), "{}: {text}", path.display());
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(described.contains(&format!("`{name}`")), "{name} is not in its README.md");
        names.push(name);
    }
    assert!(!names.is_empty(), "{}", folder.display());
}
