//! The command line.

use std::time::Duration;

use clap::Parser;

use crate::faults::{Budget, Fault};

/// Injects faults into real nodes in network namespaces, under load, and checks the guarantees.
#[derive(Clone, Debug, Parser)]
#[command(name = "scripts/chaos", bin_name = "scripts/chaos")]
pub(crate) struct Options {
    /// Target duration of the run in seconds; each fault that lasts is lengthened or shortened
    /// [default: about six minutes for all faults]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// Seed of all random choices [default: the process id]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Run only this fault; may be repeated [default: all]
    #[arg(long = "fault", value_name = "NAME")]
    pub(crate) faults: Vec<Fault>,
    /// Number of keys of the flood
    #[arg(long, default_value_t = 200_000)]
    pub(crate) junk: u64,
    /// Print one JSON object per fault instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Process id of the supervisor; set by the program itself
    #[arg(long, hide = true)]
    pub(crate) supervisor: Option<u32>,
}

impl Options {
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| self.supervisor.unwrap_or_else(std::process::id).into())
    }

    pub(crate) fn faults(&self) -> Vec<Fault> {
        if self.faults.is_empty() {
            <Fault as clap::ValueEnum>::value_variants().to_vec()
        } else {
            self.faults.clone()
        }
    }

    /// Duration of `fault`: its share of `--seconds` after the overhead of all faults.
    pub(crate) fn duration(&self, fault: Fault) -> Duration {
        let budgets = || self.faults().into_iter().map(Fault::budget);
        let overhead: u64 = budgets().map(|budget| budget.overhead_s).sum();
        let duration: u64 = budgets().map(|budget| budget.duration_s).sum();
        let Budget { duration_s, .. } = fault.budget();
        match self.seconds {
            None => Duration::from_secs(duration_s),
            Some(seconds) => {
                let shared = seconds.saturating_sub(overhead).max(duration / 2);
                Duration::from_millis(shared * 1_000 * duration_s / duration.max(1))
            }
        }
    }

    /// Time limit of the run.
    pub(crate) fn time_limit(&self) -> Duration {
        let faults = self.faults();
        faults.iter().map(|fault| self.fault_time_limit(*fault)).sum::<Duration>()
            + Duration::from_secs(30)
    }

    /// Time limit of a fault: three times its budget, for a busy machine, and the wait for the next
    /// window.
    pub(crate) fn fault_time_limit(&self, fault: Fault) -> Duration {
        let budget = Duration::from_secs(fault.budget().overhead_s) + self.duration(fault);
        let junk = Duration::from_millis(if fault == Fault::Flood { self.junk / 5 } else { 0 });
        budget * 3 + junk + Duration::from_secs(90)
    }
}
