//! How it stands with the file, for status, metrics and the log.

use std::path::PathBuf;

use tidegate_limiter::units::Timestamp;

/// How it stands with the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Where it lies.
    pub path: PathBuf,
    /// Why counts are not written; none while they are.
    pub problem: Option<String>,
    /// When the last round began that is on the disk, by the decision clock.
    pub written_at: Option<Timestamp>,
    /// Counters in the file.
    pub keys: u64,
    /// Counters read at the start and joined.
    pub loaded: u64,
    /// Counters of the file that were not believed, or found no room.
    pub skipped: u64,
    /// Counters written since the start.
    pub written: u64,
    /// Rounds after which the file was up to date.
    pub rounds: u64,
    /// Rounds that could not be written.
    pub failed: u64,
}

impl Status {
    /// Takes down that counts are, or are not, written, and says it in the log when it changed: a
    /// full disk is one line, not one a round.
    pub(super) fn turn(&mut self, problem: Option<String>) {
        let path = self.path.display();
        match (&self.problem, &problem) {
            (None, Some(problem)) => tracing::error!(
                "counts of long windows are not written to {path}: {problem}; they stay in memory \
                 and are written as soon as that is put right"
            ),
            (Some(_), None) => tracing::info!("counts of long windows are written to {path} again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.problem = problem;
    }
}
