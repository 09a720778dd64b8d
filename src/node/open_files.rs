//! The limit of open files of the process, and what the listeners may use of it.
//!
//! Each connection is an open file. The usual soft limit is 1,024, so it is raised to the hard
//! limit at the start. If that does not suffice for `limits.connections_max` at every listener,
//! each one accepts fewer, and the proxy sends fewer requests at a time: clients of one listener
//! must not keep the others from accepting, nor the node from reading its rules or reaching its
//! peers.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files for everything but the connections of clients: event loops, the sockets of the mesh,
/// statistics, rule files, snapshots. Half of a limit that is very low: an idle node of three has
/// some 25 open.
const RESERVED: u64 = 256;

/// Fewer connections than this at a listener are a warning.
const FEW: usize = 1_000;

/// Raises the soft limit to the hard one, and returns what is in force.
pub(super) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Refused in some sandboxes; what was in force stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many of the files are for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// That each listener may accept.
    pub(super) connections_max: usize,
    /// Of the proxy to the servers of the application.
    pub(super) in_flight_max: usize,
}

impl Share {
    /// What each of `listeners` and the proxy may use under a limit of `files`, at most what is
    /// `configured`; says so if that is less.
    pub(super) fn of(files: u64, listeners: usize, configured: Self) -> Self {
        let quarter = usize::try_from(files / 4).unwrap_or(usize::MAX);
        let in_flight_max = configured.in_flight_max.min(quarter.max(1));
        let reserved = RESERVED.min(files / 2) + in_flight_max as u64;
        let share = files.saturating_sub(reserved) / listeners.max(1) as u64;
        let allowed = usize::try_from(share).unwrap_or(usize::MAX).max(1);
        let connections_max = allowed.min(configured.connections_max);
        let share = Self { connections_max, in_flight_max };
        if share != configured {
            share.report(files, listeners, configured);
        }
        share
    }

    fn report(self, files: u64, listeners: usize, configured: Self) {
        let needed = (configured.connections_max as u64).saturating_mul(listeners as u64);
        let needed = needed.saturating_add(RESERVED + configured.in_flight_max as u64);
        let proxy = if self.in_flight_max < configured.in_flight_max {
            format!(", the proxy has {} requests in flight at most", self.in_flight_max)
        } else {
            String::new()
        };
        let text = format!(
            "the process may open {files} files, but limits.connections_max = {} at {listeners} \
             listeners and connections to servers need {needed}: each listener accepts {} \
             connections{proxy}. Raise the hard limit (LimitNOFILE= in systemd, ulimit -Hn), or \
             lower limits.connections_max",
            configured.connections_max, self.connections_max
        );
        if self.connections_max < FEW {
            tracing::warn!("{text}");
        } else {
            tracing::info!("{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_and_the_proxy_share_what_is_left_of_a_low_limit() {
        for (files, listeners, in_flight_max, expected) in [
            (1_000_000, 5, 0, (10_000, 0)),
            (20_256, 2, 0, (10_000, 0)),
            (4_256, 4, 0, (1_000, 0)),
            (5_256, 4, 1_000, (1_000, 1_000)),
            (1_024, 4, 1_024, (128, 256)),
            (128, 4, 0, (16, 0)),
            (128, 4, 1_024, (8, 32)),
            (u64::MAX, 1, 1_024, (10_000, 1_024)),
            (0, 0, 0, (1, 0)),
            (0, 1, 1_024, (1, 1)),
        ] {
            let configured = Share { connections_max: 10_000, in_flight_max };
            let share = Share::of(files, listeners, configured);
            let share = (share.connections_max, share.in_flight_max);
            assert_eq!(share, expected, "{files} files, {listeners} listeners");
        }
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let files = raise_limit();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert_eq!(files, current.unwrap_or(u64::MAX));
    }
}
