//! The options of a run.

use std::time::Duration;

use clap::Parser;

use crate::faults::{Budget, Fault};

/// Chaos on real processes: nodes in network namespaces of their own, under load, and faults.
#[derive(Clone, Debug, Parser)]
#[command(name = "scripts/chaos", bin_name = "scripts/chaos")]
pub(crate) struct Options {
    /// How long all faults together may take, in seconds; what they last is stretched to it
    /// [default: their budgets, some four minutes for all]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// What is left to chance is drawn from it [default: the process id]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Only this fault; may be given more than once [default: all]
    #[arg(long = "fault", value_name = "NAME")]
    pub(crate) faults: Vec<Fault>,
    /// Keys of the flood
    #[arg(long, default_value_t = 200_000)]
    pub(crate) junk: u64,
    /// One JSON object a fault instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// The process whose network this is; set by the program itself
    #[arg(long, hide = true)]
    pub(crate) inside: Option<u32>,
}

impl Options {
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| self.inside.unwrap_or_else(std::process::id).into())
    }

    pub(crate) fn faults(&self) -> Vec<Fault> {
        if self.faults.is_empty() {
            <Fault as clap::ValueEnum>::value_variants().to_vec()
        } else {
            self.faults.clone()
        }
    }

    /// How long `fault` lasts: its share of `--seconds`, after what all need anyhow.
    pub(crate) fn hold(&self, fault: Fault) -> Duration {
        let budgets = || self.faults().into_iter().map(Fault::budget);
        let fixed: u64 = budgets().map(|budget| budget.fixed_s).sum();
        let hold: u64 = budgets().map(|budget| budget.hold_s).sum();
        let Budget { hold_s, .. } = fault.budget();
        match self.seconds {
            None => Duration::from_secs(hold_s),
            Some(seconds) => {
                let shared = seconds.saturating_sub(fixed).max(hold / 2);
                Duration::from_millis(shared * 1_000 * hold_s / hold.max(1))
            }
        }
    }

    /// A run that takes longer hangs.
    pub(crate) fn ends_within(&self) -> Duration {
        let faults = self.faults();
        faults.iter().map(|fault| self.fault_ends_within(*fault)).sum::<Duration>()
            + Duration::from_secs(30)
    }

    /// A fault that takes longer hangs. Three times its budget, for a machine that is busy, and
    /// what waiting for the next window may take.
    pub(crate) fn fault_ends_within(&self, fault: Fault) -> Duration {
        let budget = Duration::from_secs(fault.budget().fixed_s) + self.hold(fault);
        let junk = Duration::from_millis(if fault == Fault::Flood { self.junk / 5 } else { 0 });
        budget * 3 + junk + Duration::from_secs(90)
    }
}
