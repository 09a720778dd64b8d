//! Programs that `scripts/envoy-tools` fetches.

use std::path::{Path, PathBuf};

/// The path of one of them.
pub fn program(name: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/envoy/bin").join(name);
    assert!(path.exists(), "no {}: run scripts/envoy-tools (scripts/test does)", path.display());
    path
}
