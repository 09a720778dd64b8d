//! The command line.

use clap::Parser;

/// Measures strict, leased and eventual limits on three nodes under load.
#[derive(Clone, Debug, Parser)]
#[command(name = "scripts/modes", bin_name = "scripts/modes")]
pub(crate) struct Options {
    /// Runs of each row of `burst`, `steady` and `full`, each with a fresh key
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) runs: u32,
    /// Windows of each row of `windows`
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) windows: u32,
    /// Measure only rows with these parts of a name, as in `leased/100`; may be repeated
    #[arg(long = "only", value_name = "ROW")]
    pub(crate) only: Vec<String>,
    /// Print one JSON object per row
    #[arg(long)]
    pub(crate) json: bool,
    /// `node.threads` of each node; three nodes share the machine
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: u32,
    /// The nodes run this program [default: the one that was built with this]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<String>,
}

impl Options {
    /// Whether this row is measured.
    pub(crate) fn has(&self, row: &str) -> bool {
        let row = format!("/{row}/");
        self.only.is_empty() || self.only.iter().any(|only| row.contains(&format!("/{only}/")))
    }
}
