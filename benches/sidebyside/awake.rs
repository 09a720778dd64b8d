//! Cores that do not halt.
//!
//! A core without work halts. On a virtual machine it is the host that wakes it, when it gets to
//! it, and that can take milliseconds, whatever the server. Whoever has work for all cores does not
//! see it; an open loop at a tenth of what the machine can do sees little else. So while one runs,
//! the kernel is asked to poll in place of halting, as `cyclictest` asks it. What it is without
//! that is measured beside it where a bound is held.

use std::fs::File;
use std::io::{self, Write};

/// The kernel polls while somebody holds this open who wrote a zero to it.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// No core halts while it lives.
#[derive(Debug)]
pub struct Awake(#[allow(dead_code, reason = "held open")] File);

/// Keeps all cores awake. Takes the right to, and a kernel that can.
pub fn keep() -> io::Result<Awake> {
    let refused = |error| io::Error::other(format!("{DEVICE}: {error}"));
    let mut device = File::options().write(true).open(DEVICE).map_err(refused)?;
    device.write_all(&0_i32.to_ne_bytes()).map_err(refused)?;
    Ok(Awake(device))
}

/// Whether they are kept awake, for people.
pub fn describe() -> String {
    match keep() {
        Ok(_) => "kept from halting".into(),
        Err(why) => format!("may halt ({why})"),
    }
}

/// What a table says whose rows were measured so.
pub fn about() -> String {
    format!("Cores while it runs: {}. It takes a zero in `{DEVICE}`.", describe())
}
