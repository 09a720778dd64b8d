//! The configuration that the demo writes for its nodes is accepted.

use tidegate::config;

#[test]
fn a_nodes_configuration_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("rules")).unwrap();
    let file = folder.path().join("eu-1.toml");
    let text = tidegate_demo::node_configuration(
        "eu-1",
        "eu",
        &["eu-1", "eu-2"],
        &["eu", "us"],
        "127.0.0.1:7600".parse().ok(),
    );
    std::fs::write(&file, text).unwrap();
    let config = config::load(Some(&file), &[]).unwrap();
    assert_eq!(config.node.region, "eu");
    assert_eq!(config.auth.descriptors.len(), 7);
    assert_eq!(config.tls.key, Some(folder.path().join("pki/eu-1.key")));
}
