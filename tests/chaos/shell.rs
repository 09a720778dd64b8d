//! Runs programs of the system to completion.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Where Debian installs `ip`, `nft` and `nsenter`. The caller's `PATH` is ignored.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command with an empty environment except `PATH`.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH);
    command
}

/// Runs `line`, split at spaces, and returns its standard output.
pub(crate) fn run(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("an empty command")?;
    let output = command(program).args(words).stdin(Stdio::null()).output();
    result(line, &output.map_err(|error| format!("failed to start `{line}`: {error}"))?)
}

/// Runs `line` with `input` as its standard input.
pub(crate) fn run_with_input(line: &str, input: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("an empty command")?;
    let started = command(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| format!("failed to start `{line}`: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .map_err(|error| format!("run_with_input `{line}`: {error}"))?;
    }
    let output = child
        .wait_with_output()
        .map_err(|error| format!("failed to wait for `{line}`: {error}"))?;
    result(line, &output)
}

fn result(line: &str, output: &Output) -> Result<String, String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{line}` ended with {}: {}", output.status, stderr.trim()))
}
