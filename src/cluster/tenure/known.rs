//! Whom this node knows: the members that are there, and those that were lost without leaving.
//!
//! They are who counts for a quorum and whom limits are shared among. A member that drains does not
//! count any more: it has said that it goes. One that was lost counts until it comes back, or for
//! `cluster.forget_after`; nodes tell each other in gossip whom they miss, so that one which joins
//! the smaller side of a split does not take that side for the whole.

use std::collections::BTreeMap;

use super::Roll;
use crate::cluster::identity::NodeId;
use crate::cluster::membership::{Known, MEMBERS_MAX, View};
use crate::units::{Span, Timestamp};

/// Members that were lost without leaving, as gossip tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Id, region, and when it was lost by the wall clock of whoever lost it.
    pub members: Vec<(NodeId, String, Timestamp)>,
}

/// Everybody this node knows.
#[derive(Debug, Default)]
pub(super) struct Acquaintance {
    members: BTreeMap<NodeId, Past>,
}

#[derive(Debug)]
struct Past {
    region: String,
    /// It has said that it goes.
    is_leaving: bool,
    lost: Option<Timestamp>,
}

impl Acquaintance {
    /// Follows the roll and what others miss.
    pub(super) fn follow(&mut self, roll: &Roll, view: &View, now: Timestamp, forget: Span) {
        for (id, seat) in roll.seats() {
            let Some(member) = view.get(id) else { continue };
            let past = Past { region: member.region.clone(), is_leaving: !seat.is_up, lost: None };
            self.members.insert(id.clone(), past);
        }
        for (id, region, lost) in view.members().iter().flat_map(|member| &member.missed.members) {
            if !self.members.contains_key(id) && self.members.len() < MEMBERS_MAX {
                let (region, lost) = (region.clone(), Some(*lost));
                self.members.insert(id.clone(), Past { region, is_leaving: false, lost });
            }
        }
        for (id, past) in &mut self.members {
            if !roll.seats().contains_key(id) && past.lost.is_none() {
                past.lost = Some(now);
            }
        }
        self.members.retain(|_, past| match past.lost {
            Some(lost) => !past.is_leaving && now < lost.plus(forget),
            None => true,
        });
    }

    /// Whom this node misses.
    pub(super) fn missed(&self) -> Missed {
        let lost =
            |(id, past): (&NodeId, &Past)| Some((id.clone(), past.region.clone(), past.lost?));
        Missed { members: self.members.iter().filter_map(lost).collect() }
    }

    /// Who counts, with their regions, sorted by id.
    pub(super) fn who_counts(&self) -> Known {
        let counts = self.members.iter().filter(|(_, past)| !past.is_leaving);
        Known::new(counts.map(|(id, past)| (id.clone(), past.region.clone())))
    }
}
