//! Which files of a folder are rule files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tidegate_rules::load::read;

#[test]
fn yaml_files_are_read_sorted_and_dot_names_are_not() {
    let folder = tempfile::tempdir().unwrap();
    for name in
        ["b.yaml", "a.yml", "c.json", ".hidden.yaml", "README", "team/z.yaml", ".git/x.yaml"]
    {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    assert_eq!(names(folder.path()), ["a.yml", "b.yaml", "team/z.yaml"]);
    assert_eq!(read(&folder.path().join("b.yaml")).unwrap()[0].bytes, b"b.yaml");
}

#[test]
fn a_mounted_configmap_shows_each_file_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("..2024_05")).unwrap();
    fs::write(folder.path().join("..2024_05/a.yaml"), "x").unwrap();
    symlink("..2024_05", folder.path().join("..data")).unwrap();
    symlink("..data/a.yaml", folder.path().join("a.yaml")).unwrap();
    assert_eq!(names(folder.path()), ["a.yaml"]);
}

#[test]
fn a_link_to_a_folder_is_followed_and_a_loop_ends() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(elsewhere.path().join("a.yaml"), "x").unwrap();
    symlink(elsewhere.path(), folder.path().join("linked")).unwrap();
    symlink(folder.path(), folder.path().join("loop")).unwrap();
    symlink(folder.path(), elsewhere.path().join("back")).unwrap();
    assert_eq!(names(folder.path()), ["linked/a.yaml"]);
}

#[test]
fn a_dangling_link_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    symlink("nowhere", folder.path().join("a.yaml")).unwrap();
    let text = read(folder.path()).unwrap_err().to_string();
    assert!(text.contains("a.yaml: cannot be read: "), "{text}");
}

#[test]
fn files_and_depth_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..=1_000 {
        fs::write(folder.path().join(format!("{number}.yaml")), "").unwrap();
    }
    let text = read(folder.path()).unwrap_err().to_string();
    assert!(
        text.ends_with(": it holds more than 1,000 rule files; use fewer or shorter rules"),
        "{text}"
    );

    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("d/".repeat(17))).unwrap();
    let text = read(folder.path()).unwrap_err().to_string();
    assert!(text.contains("nested more than 16 deep"), "{text}");
}

fn names(folder: &Path) -> Vec<String> {
    let prefix = format!("{}/", folder.display());
    let sources = read(folder).unwrap();
    sources.iter().map(|source| source.name.replacen(&prefix, "", 1)).collect()
}
