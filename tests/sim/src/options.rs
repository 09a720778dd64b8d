//! The command line.

use std::path::PathBuf;

use crate::scenario::{
    EDGES_DIGIT, LEASED_DIGIT, MEMBERSHIP_DIGIT, REGIONS_DIGIT, RESERVED_DIGIT, seed_ending_in,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Run seeds, each in a process of its own.
    Suite,
    /// Run one seed in this process.
    Child { seed: u64 },
    /// Print the scenario of a seed.
    Show { seed: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) job: Job,
    /// The first seed of a suite.
    pub(crate) from: u64,
    pub(crate) seeds: u64,
    /// Run only seeds that end in this digit: those of one kind of scenarios.
    pub(crate) digit: Option<u64>,
    /// End the suite with the first seed that fails.
    pub(crate) ends_at_failure: bool,
    /// Number of concurrent processes.
    pub(crate) jobs: usize,
    /// Whether a situation that no seed reached fails the suite.
    pub(crate) needs_coverage: bool,
    /// Directory of the logs.
    pub(crate) logs: PathBuf,
}

pub(crate) const USAGE: &str = "usage: sim [--seeds N] [--from S] [--seed S] [--show] \
    [--membership | --regions | --leased | --reserved | --edges] [--until-failure] [--jobs N] \
    [--logs DIR]";
const SEEDS: u64 = 200;
/// With fewer seeds, an unreached situation is no failure.
const COVERAGE_SEEDS_MIN: u64 = 100;
const JOBS: usize = 2;
const LOGS: &str = "target/sim-logs";

impl Options {
    /// The seed that the suite runs after `offset` others.
    pub(crate) fn seed(&self, offset: u64) -> u64 {
        match self.digit {
            Some(digit) => seed_ending_in(digit, self.from, offset),
            None => self.from + offset,
        }
    }

    /// Parses `args`, without the program's name.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut from, mut seeds, mut jobs, mut logs) =
            (0, SEEDS, JOBS as u64, PathBuf::from(LOGS));
        let (mut digit, mut ends_at_failure) = (None, false);
        let (mut seed, mut is_child, mut is_show) = (None, false, false);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--seeds" => seeds = number(&arg, &value()?)?,
                "--from" => from = number(&arg, &value()?)?,
                "--seed" => seed = Some(number(&arg, &value()?)?),
                "--jobs" => jobs = number(&arg, &value()?)?,
                "--logs" => logs = value()?.into(),
                "--membership" => digit = Some(MEMBERSHIP_DIGIT),
                "--regions" => digit = Some(REGIONS_DIGIT),
                "--leased" => digit = Some(LEASED_DIGIT),
                "--reserved" => digit = Some(RESERVED_DIGIT),
                "--edges" => digit = Some(EDGES_DIGIT),
                "--until-failure" => ends_at_failure = true,
                "--child" => is_child = true,
                "--show" => is_show = true,
                _ => return Err(format!("unknown option {arg}")),
            }
        }
        if let Some(one) = seed {
            (from, seeds) = (one, 1);
        }
        let job = match (seed, is_child, is_show) {
            (Some(seed), true, _) => Job::Child { seed },
            (Some(seed), _, true) => Job::Show { seed },
            (None, true, _) | (None, _, true) => {
                return Err("--child and --show need --seed".to_owned());
            }
            (_, false, false) => Job::Suite,
        };
        let needs_coverage = seeds >= COVERAGE_SEEDS_MIN && digit.is_none();
        let jobs = usize::try_from(jobs).unwrap_or(JOBS).max(1);
        Ok(Self { job, from, seeds, digit, ends_at_failure, jobs, needs_coverage, logs })
    }
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name} {value}: not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_command_line_is_read() {
        let all = parse("").expect("valid");
        assert_eq!((all.job, all.from, all.seeds), (Job::Suite, 0, SEEDS));
        assert!(all.needs_coverage);
        let one = parse("--seed 17").expect("valid");
        assert_eq!((one.job, one.from, one.seeds), (Job::Suite, 17, 1));
        assert!(!one.needs_coverage);
        assert_eq!(parse("--seed 3 --child").map(|it| it.job), Ok(Job::Child { seed: 3 }));
        let from = |line| parse(line).map(|it| [it.seed(0), it.seed(1)]);
        assert_eq!(from("--membership"), Ok([5, 15]));
        assert_eq!(from("--membership --from 15"), Ok([15, 25]));
        assert_eq!(from("--membership --from 16"), Ok([25, 35]));
        assert_eq!(from("--regions --from 16"), Ok([17, 27]));
        assert_eq!(from("--leased"), Ok([4, 14]));
        assert_eq!(from("--reserved"), Ok([9, 19]));
        assert_eq!(from("--edges"), Ok([6, 16]));
        for wrong in ["--seeds", "--seeds x", "--show", "--unknown"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
