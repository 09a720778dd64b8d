//! How close the modes of a rule come to their limit, and what they cost in messages: three real
//! nodes on the loopback, under load from one thread. `scripts/modes` builds and runs it.
//!
//! ```text
//! burst, steady, full   admitted hits of fresh keys by limit and load    admitted
//! windows               sixty windows in a row, by spread of the load    windows
//! messages, bytes       calls of hot keys, bytes of synchronisation      traffic
//! ```
//!
//! Every figure is printed, and the bounds beside it. Exit codes: 0 when all bounds are met, 1 when
//! one is not, 2 when an option is wrong.

#![allow(clippy::unwrap_used, reason = "a failed run panics")]
#![allow(clippy::print_stdout, reason = "prints its results")]
#![allow(clippy::print_stderr, reason = "prints progress")]
#![allow(clippy::disallowed_methods, reason = "clocks of the machine that is measured")]
#![allow(clippy::cast_precision_loss, reason = "figures of a report")]

mod admitted;
mod delay;
mod metrics;
mod nodes;
mod options;
mod row;
mod rules;
mod traffic;
mod windows;

use std::process::ExitCode;

use clap::Parser;
use nodes::Nodes;
use options::Options;
use row::Report;

fn main() -> ExitCode {
    let options = Options::parse();
    let mut report = Report::new(options.json);
    let nodes = Nodes::start(&options);
    admitted::measure(&nodes, &options, &mut report);
    windows::measure(&nodes, &options, &mut report);
    traffic::measure(nodes, &options, &mut report);
    report.end()
}
