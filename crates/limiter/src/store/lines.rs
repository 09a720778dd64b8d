//! What the keys of a shard are in line for: to be told to peers, and to be written to disk.
//!
//! Two kinds of keys wait in lines of their own, because they go to other peers at another pace:
//! eventual ones as columns, strict ones as whole states. A slot has one flag for both, since its
//! state says which kind it is; an absent state has nothing to tell and belongs to neither.
//!
//! Strict keys stand in line only in a store whose changes somebody drains, and the flag for the
//! disk is raised only in one that is written to disk: both are switches, and off costs one test.

use super::dirty::Dirty;
use super::key::KeyHash;
use super::slot::{News, Slot, Stamp};
use super::table::Table;
use crate::engine::{Columns, State};

/// The lines of one shard.
///
/// Made when a key first stands in one: every check reads the shard around them, and most stores
/// use one kind or none.
#[derive(Debug, Default)]
pub(super) struct Lines {
    columns: Option<Box<Dirty>>,
    strict: Option<Box<Dirty>>,
    keeps_changed: bool,
    keeps_unsaved: bool,
}

impl Lines {
    /// An eventual key has news for its peers.
    pub(super) fn mark_columns(&mut self, slot: &mut Slot, news: News) {
        self.columns.get_or_insert_default().mark(slot, news);
    }

    /// A strict key has news for its replicas. A node's own share concerns nobody.
    pub(super) fn mark_strict(&mut self, slot: &mut Slot) {
        if self.keeps_changed && slot.key.is_owned() {
            self.strict.get_or_insert_default().mark(slot, News::Calm);
        }
    }

    /// A key holds something that the disk does not.
    pub(super) fn mark_unsaved(&self, slot: &mut Slot) {
        if self.keeps_unsaved && slot.key.is_long() {
            slot.stamp.raise(Stamp::UNSAVED);
        }
    }

    /// Switches the line of strict keys. Keys that stood in it when it was switched off are found
    /// again; what changed in between is not.
    pub(super) fn keep_changed(&mut self, keeps: bool) {
        if self.keeps_changed != keeps {
            self.strict = None;
            self.keeps_changed = keeps;
        }
        if keeps {
            self.strict.get_or_insert_default().search();
        }
    }

    /// Switches the flag for the disk.
    pub(super) fn keep_unsaved(&mut self, keeps: bool) {
        self.keeps_unsaved = keeps;
    }

    /// See [`Dirty::drain`].
    pub(super) fn drain_columns(
        &mut self,
        table: &mut Table,
        urgent_only: bool,
        max: usize,
        mut send: impl FnMut(KeyHash, &Columns),
    ) -> (usize, bool) {
        let Some(line) = &mut self.columns else { return (0, false) };
        line.drain(table, urgent_only, max, |slot| take_columns(slot, News::Calm, &mut send))
    }

    /// See [`Dirty::drain`].
    pub(super) fn drain_strict(
        &mut self,
        table: &mut Table,
        max: usize,
        mut send: impl FnMut(KeyHash),
    ) -> (usize, bool) {
        let Some(line) = &mut self.strict else { return (0, false) };
        line.drain(table, false, max, |slot| {
            let is_sent =
                leaves_line(slot, News::Calm, |state| !matches!(state, State::Columns(_)));
            if is_sent {
                send(slot.key);
            }
            is_sent
        })
    }

    /// Eventual keys in line.
    pub(super) fn columns_len(&self) -> usize {
        self.columns.as_ref().map_or(0, |line| line.len())
    }

    /// Strict keys in line.
    pub(super) fn strict_len(&self) -> usize {
        self.strict.as_ref().map_or(0, |line| line.len())
    }

    pub(super) fn bytes(&self) -> usize {
        [&self.columns, &self.strict].into_iter().flatten().map(|line| line.bytes()).sum()
    }
}

/// Hands over an eventual key whose news are due at least as soon as `least`; whether it did.
pub(super) fn take_columns(
    slot: &mut Slot,
    least: News,
    send: &mut impl FnMut(KeyHash, &Columns),
) -> bool {
    let is_sent = leaves_line(slot, least, |state| matches!(state, State::Columns(_)));
    if let (true, State::Columns(columns)) = (is_sent, &slot.state) {
        send(slot.key, columns);
    }
    is_sent
}

/// Takes a key out of line and says whether it is to be sent. One that was sent from the other line
/// of its kind already is not, nor is one whose news are less than `least` since; one of the other
/// kind goes on standing in that kind's lines.
fn leaves_line(slot: &mut Slot, least: News, is_of_kind: impl FnOnce(&State) -> bool) -> bool {
    let is_absent = matches!(slot.state, State::Absent);
    if !is_absent && !is_of_kind(&slot.state) {
        return false;
    }
    let is_due = slot.stamp.news() >= least;
    if is_due || is_absent {
        slot.stamp.set_news(News::Nothing);
    }
    is_due && !is_absent
}
