//! The command blocks of the documents run as they are printed, or say why they do not.

use std::path::Path;
use std::process::Command;

use tidegate_testkit::exclusive;

use crate::TIDEGATE;

/// Each page has a network of its own, so the ports that it names are free.
#[test]
fn the_commands_of_the_documents_run() {
    let _share = exclusive::blocking_share();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-commands");
    let run = Command::new(script).env("TIDEGATE_BIN", TIDEGATE).output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{}", run.status);
}
