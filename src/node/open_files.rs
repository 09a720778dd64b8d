//! The limit of open files of the process, and what the listeners may use of it.
//!
//! Each connection is an open file. The usual soft limit is 1,024, so it is raised to the hard
//! limit at the start. If that does not suffice for `limits.connections_max` at every listener,
//! each one accepts fewer: clients of one listener must not keep the others from accepting, nor the
//! node from reading its rules or reaching its peers.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files for everything but the connections of clients: event loops, the sockets of the mesh,
/// statistics, rule files, snapshots. A quarter of a limit that is very low.
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

/// The connections that each of `listeners` may accept under a limit of `files`, at most
/// `configured`; says so if that is fewer. The proxy may have `upstreams` connections to servers.
pub(super) fn connections_max(
    configured: usize,
    files: u64,
    listeners: usize,
    upstreams: usize,
) -> usize {
    // Of a low limit half is for what is accepted.
    let reserved = RESERVED.min(files / 4) + (upstreams as u64).min(files / 4);
    let share = (files - reserved) / listeners.max(1) as u64;
    let allowed = usize::try_from(share).unwrap_or(usize::MAX).max(1);
    if allowed < configured {
        let needed = (configured as u64).saturating_mul(listeners as u64);
        let needed = needed.saturating_add(RESERVED).saturating_add(upstreams as u64);
        let text = format!(
            "the process may open {files} files, but limits.connections_max = {configured} at \
             {listeners} listeners needs {needed}: each listener accepts {allowed} connections. \
             Raise the hard limit (LimitNOFILE= in systemd, ulimit -Hn), or lower \
             limits.connections_max"
        );
        if allowed < FEW {
            tracing::warn!("{text}");
        } else {
            tracing::info!("{text}");
        }
    }
    allowed.min(configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_what_is_left_of_a_low_limit() {
        assert_eq!(connections_max(10_000, 1_000_000, 5, 0), 10_000);
        assert_eq!(connections_max(10_000, 20_256, 2, 0), 10_000);
        assert_eq!(connections_max(10_000, 4_256, 4, 0), 1_000);
        assert_eq!(connections_max(10_000, 5_256, 4, 1_000), 1_000);
        assert_eq!(connections_max(10_000, 1_024, 4, 1_024), 128);
        assert_eq!(connections_max(10_000, 128, 4, 0), 24);
        assert_eq!(connections_max(10_000, u64::MAX, 1, 1_024), 10_000);
        assert_eq!(connections_max(10_000, 0, 0, 0), 1);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let files = raise_limit();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert_eq!(files, current.unwrap_or(u64::MAX));
    }
}
