//! Programs of the system, run to their end.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Where Debian keeps `ip`, `nft`, `nsenter` and the rest; what is set around a run must not
/// matter.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command of the system, with nothing of the caller's environment.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH);
    command
}

/// Runs `line`, split at spaces; what it printed.
pub(crate) fn run(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("an empty command")?;
    let output = command(program).args(words).stdin(Stdio::null()).output();
    outcome(line, &output.map_err(|error| format!("start `{line}`: {error}"))?)
}

/// Runs `line` with `input` as its standard input.
pub(crate) fn feed(line: &str, input: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("an empty command")?;
    let started = command(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| format!("start `{line}`: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|error| format!("feed `{line}`: {error}"))?;
    }
    let output = child.wait_with_output().map_err(|error| format!("wait for `{line}`: {error}"))?;
    outcome(line, &output)
}

fn outcome(line: &str, output: &Output) -> Result<String, String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{line}` ended with {}: {}", output.status, stderr.trim()))
}
