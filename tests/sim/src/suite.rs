//! Runs many seeds, each in its own process, several at once. Prints a table and a summary.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::coverage::{RARE, SITUATIONS};
use crate::options::Options;
use crate::report::Report;

/// Reports of the seeds that have finished.
#[derive(Default)]
struct Tally {
    reports: BTreeMap<u64, Report>,
}

/// A run takes some seconds, and many times as long at the lowest priority beside other work. After
/// this time it is treated as hung.
const CHILD_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a child's exit status is polled.
const POLL: Duration = Duration::from_millis(5);
/// Progress is printed every this many seeds.
const PROGRESS_EVERY: usize = 20;

/// Runs the seeds of `options`. Returns whether all of them passed and every required situation was
/// reached.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    std::fs::create_dir_all(&options.logs)?;
    let program = std::env::current_exe()?;
    let started = uptime()?;
    let next = AtomicU64::new(0);
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs)
            .map(|_| scope.spawn(|| work(options, &program, &next, &tally)))
            .collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => Err(io::Error::other("a worker panicked")),
        })
    })?;
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(tally.print_summary(options, uptime()?.saturating_sub(started)))
}

/// Path of the log of `seed`.
pub(crate) fn log_path(logs: &Path, seed: u64) -> PathBuf {
    logs.join(format!("{seed}.log"))
}

/// Runs seeds until none are left.
fn work(
    options: &Options,
    program: &Path,
    next: &AtomicU64,
    tally: &Mutex<Tally>,
) -> io::Result<()> {
    loop {
        let offset = next.fetch_add(1, Ordering::Relaxed);
        let has_failed = || tally.lock().unwrap_or_else(PoisonError::into_inner).failed() > 0;
        if offset >= options.seeds || options.ends_at_failure && has_failed() {
            return Ok(());
        }
        let seed = options.seed(offset);
        let report = run_child(program, options, seed)?;
        if report.has_passed() && options.seeds > 1 {
            std::fs::remove_file(log_path(&options.logs, seed))?;
        }
        tally.lock().unwrap_or_else(PoisonError::into_inner).add(seed, report, options);
    }
}

fn run_child(program: &Path, options: &Options, seed: u64) -> io::Result<Report> {
    let mut command = Command::new(program);
    command.args(["--child", "--seed", &seed.to_string(), "--logs"]).arg(&options.logs);
    let child = command.stdout(Stdio::piped()).spawn()?;
    let (output, in_time) = wait(child)?;
    let mut report = Report::parse(&String::from_utf8_lossy(&output));
    if !in_time {
        report.violation(format!("the run did not end within {CHILD_TIMEOUT:?}"));
    } else if !report.is_complete {
        report.violation("the process ended without a report");
    }
    Ok(report)
}

/// Waits for a child and kills it after [`CHILD_TIMEOUT`]. Its output fits into a pipe, so it need
/// not be read meanwhile.
fn wait(mut child: Child) -> io::Result<(Vec<u8>, bool)> {
    let started = uptime()?;
    while child.try_wait()?.is_none() {
        if uptime()?.saturating_sub(started) > CHILD_TIMEOUT {
            child.kill()?;
            return Ok((child.wait_with_output()?.stdout, false));
        }
        thread::sleep(POLL);
    }
    Ok((child.wait_with_output()?.stdout, true))
}

/// Uptime of the machine. `mad-turmoil` interposes this process's clocks as well and they do not
/// advance, so the time comes from `/proc`.
fn uptime() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| io::Error::other("/proc/uptime is malformed"))
}

// === impl Tally ===

impl Tally {
    fn add(&mut self, seed: u64, report: Report, options: &Options) {
        if !report.has_passed() {
            println!("seed {seed} FAILED:");
            for violation in &report.violations {
                println!("  {violation}");
            }
            println!("  log: {}", log_path(&options.logs, seed).display());
            println!("  repeat with: scripts/sim --seed {seed}");
        }
        self.reports.insert(seed, report);
        let done = self.reports.len();
        if done.is_multiple_of(PROGRESS_EVERY) {
            println!("{done} of {} seeds, {} failed", options.seeds, self.failed());
        }
        // Failing to print progress does not end the run.
        let _ = io::stdout().flush();
    }

    fn failed(&self) -> usize {
        self.reports.values().filter(|report| !report.has_passed()).count()
    }

    /// Prints how many seeds it took to find a failure. Returns whether there is none.
    fn print_first_failure(&self) -> bool {
        let mut failed = self.reports.iter().filter(|(_, report)| !report.has_passed());
        let Some((seed, report)) = failed.next() else {
            println!("NOT FOUND in {} seeds", self.reports.len());
            return true;
        };
        let message = report.violations.first().map_or("", String::as_str);
        let tried = self.reports.range(..=seed).count();
        println!("found after {tried} seeds (seed {seed}: {message})");
        false
    }

    /// Prints the table and the summary. Returns whether the suite passed.
    fn print_summary(&self, options: &Options, elapsed: Duration) -> bool {
        if options.ends_at_failure {
            return self.print_first_failure();
        }
        println!("\nsituation                              seeds");
        let mut missing = Vec::new();
        for (situation, name) in SITUATIONS {
            let seeds =
                self.reports.values().filter(|report| report.reached.contains(&situation)).count();
            let is_missing = seeds == 0 && options.needs_coverage && !RARE.contains(&situation);
            let mark = if is_missing { "  NOT REACHED" } else { "" };
            println!("{name:<37} {seeds:>6}{mark}");
            if is_missing {
                missing.push(name);
            }
        }
        let sum = |field: fn(&Report) -> u64| self.reports.values().map(field).sum::<u64>();
        let failed = self.failed();
        let has_passed = failed == 0 && missing.is_empty();
        println!(
            "\n{} requests, {} fallback answers, {} ms with two owners of a token, {} ms more after a \
             stopped machine went on",
            sum(|report| report.requests),
            sum(|report| report.fallbacks),
            sum(|report| report.two_owners_ms),
            sum(|report| report.unaware_owners_ms),
        );
        if !missing.is_empty() {
            println!("situations not reached: {}", missing.join(", "));
        }
        println!(
            "sim: {} seeds from {}: {} passed, {failed} failed, in {:.0} s",
            self.reports.len(),
            options.from,
            self.reports.len() - failed,
            elapsed.as_secs_f64(),
        );
        has_passed
    }
}
