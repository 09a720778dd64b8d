//! The result of one run, and the text format in which a child process reports it.

use std::collections::BTreeSet;
use std::fmt;

use crate::coverage::Situation;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Failed checks; empty when the seed passed.
    pub(crate) violations: Vec<String>,
    pub(crate) reached: BTreeSet<Situation>,
    pub(crate) requests: u64,
    /// Requests answered by `on_unavailable`.
    pub(crate) fallbacks: u64,
    /// Milliseconds during which two nodes owned the same tokens, summed over pairs of nodes.
    pub(crate) two_owners_ms: u64,
    /// The same after a stopped machine went on, before it had read a peer's clock. Not in
    /// `two_owners_ms`.
    pub(crate) unaware_owners_ms: u64,
    /// Whether the child completed; unset after a crash or a hang.
    pub(crate) is_complete: bool,
}

const VIOLATION: &str = "violation";
const REACHED: &str = "reached";
const REQUESTS: &str = "requests";
const FALLBACKS: &str = "fallbacks";
const TWO_OWNERS_MS: &str = "two_owners_ms";
const UNAWARE_OWNERS_MS: &str = "unaware_owners_ms";
const COMPLETE: &str = "complete";

impl Report {
    pub(crate) fn violation(&mut self, what: impl Into<String>) {
        // One line each: error texts may have several.
        self.violations.push(what.into().replace('\n', "; "));
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.is_complete && self.violations.is_empty()
    }

    /// Parses the output of `Display`. Unknown lines are skipped.
    pub(crate) fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                VIOLATION => report.violations.push(rest.to_owned()),
                REACHED => report.reached.extend(Situation::parse(rest)),
                REQUESTS => report.requests = rest.parse().unwrap_or(0),
                FALLBACKS => report.fallbacks = rest.parse().unwrap_or(0),
                TWO_OWNERS_MS => report.two_owners_ms = rest.parse().unwrap_or(0),
                UNAWARE_OWNERS_MS => report.unaware_owners_ms = rest.parse().unwrap_or(0),
                COMPLETE => report.is_complete = true,
                _ => {}
            }
        }
        report
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{VIOLATION} {violation}")?;
        }
        for situation in &self.reached {
            writeln!(f, "{REACHED} {situation}")?;
        }
        writeln!(f, "{REQUESTS} {}", self.requests)?;
        writeln!(f, "{FALLBACKS} {}", self.fallbacks)?;
        writeln!(f, "{TWO_OWNERS_MS} {}", self.two_owners_ms)?;
        writeln!(f, "{UNAWARE_OWNERS_MS} {}", self.unaware_owners_ms)?;
        if self.is_complete {
            writeln!(f, "{COMPLETE}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let mut report = Report {
            requests: 7,
            fallbacks: 2,
            two_owners_ms: 3,
            unaware_owners_ms: 4,
            ..Report::default()
        };
        report.violation("one line\nand another");
        report.reached.extend(crate::coverage::SITUATIONS.map(|(situation, _)| situation));
        report.is_complete = true;
        assert_eq!(Report::parse(&report.to_string()), report);
        assert!(!report.has_passed());
        assert!(!Report::parse("requests 7").has_passed(), "a child that died has not passed");
    }
}
