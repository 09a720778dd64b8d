//! The time that most machines show: those of this node and of the cores that it is connected to.
//!
//! Dates of certificates and of revocations are of this time. A machine whose clock is ahead signs
//! no certificate that its peers refuse, and revokes nothing that is issued later; one whose clock
//! is behind does not take what others have revoked for something of the future.
//!
//! *Example*: this machine's clock is two hours behind those of its two peers. Their offsets and
//! its own, 0, have the median of two hours: it takes the time of the peers.

use tidegate_limiter::units::Timestamp;
use tidegate_ownership::clock_offsets;
use tidegate_ownership::identity::NodeId;

use crate::environment::Clock;
use crate::mesh::Mesh;
use crate::pki::Role;

/// The median of the system clocks. Of two machines each takes its own.
pub fn agreed_time(mesh: &Mesh) -> Timestamp {
    agreed_time_by(&*mesh.clock, mesh)
}

/// The same without the clock of this core, if it is connected.
pub fn agreed_time_without(mesh: &Mesh, except: &NodeId) -> Timestamp {
    at(&*mesh.clock, agreed(&offsets(mesh, Some(except))))
}

/// The median by a clock of this machine, from which that of others is as far as from the mesh's.
pub fn agreed_time_by(clock: &dyn Clock, mesh: &Mesh) -> Timestamp {
    at(clock, agreed(&offsets(mesh, None)))
}

/// The two middle times, the earlier one first, without that of `except`. Where the number of
/// clocks is even they may differ, and nothing says which of them is right.
pub fn middle_times(mesh: &Mesh, except: Option<&NodeId>) -> [Timestamp; 2] {
    let (below, above) = clock_offsets::middle(&offsets(mesh, except));
    [below, above].map(|offset| at(&*mesh.clock, offset))
}

fn offsets(mesh: &Mesh, except: Option<&NodeId>) -> Vec<i64> {
    let peers = mesh.peers();
    let cores = peers.iter().filter(|peer| peer.role == Role::Core && Some(&peer.id) != except);
    cores.map(|peer| peer.offset_ns(&*mesh.clock)).collect()
}

fn at(clock: &dyn Clock, offset: i64) -> Timestamp {
    Timestamp::from_nanos(clock.system().as_nanos().saturating_add_signed(offset))
}

/// Of two middle offsets that which is nearer to our own: a single peer does not decide.
fn agreed(offsets: &[i64]) -> i64 {
    let (below, above) = clock_offsets::middle(offsets);
    if below.unsigned_abs() <= above.unsigned_abs() { below } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_clocks_are_right_and_a_single_peer_decides_nothing() {
        for (peers, expected) in [
            (vec![], 0),
            (vec![9], 0),
            (vec![-9], 0),
            (vec![7, 7], 7),
            (vec![-7, -6], -6),
            (vec![i64::MAX, 1], 1),
            (vec![i64::MIN, i64::MAX], 0),
            (vec![5, 6, i64::MAX], 5),
            (vec![-5, -6, i64::MIN], -5),
        ] {
            assert_eq!(agreed(&peers), expected, "{peers:?}");
        }
    }
}
