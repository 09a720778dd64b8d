//! The state of the screen, and what keys do to it.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::follow::{Lost, Told};
use super::rates::{Meter, Picture};
use super::tables::Kind;

/// Longest filter, in characters; further ones are not taken.
const FILTER_CHARS_MAX: usize = 64;
/// Lines that a page key scrolls.
const PAGE: usize = 10;

/// What is shown. Times are since the start of the command.
#[derive(Default)]
pub(super) struct Screen {
    pub(super) link: Link,
    meter: Meter,
    newest: Option<Picture>,
    /// The picture that stays, while paused.
    held: Option<Picture>,
    pub(super) view: View,
    /// The number of the order of each table.
    pub(super) orders: [usize; Kind::ALL.len()],
    /// The first row that is shown; drawing bounds it by the rows that there are.
    pub(super) scrolled: usize,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) is_filtering: bool,
    pub(super) has_help: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    #[default]
    Connecting,
    /// To the node at this URL.
    Live(String),
    Lost {
        last: Lost,
        /// Of the newest snapshot; none if there was none.
        since: Option<Duration>,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    All,
    One(Kind),
}

impl Screen {
    /// What was received, at `now`.
    pub(super) fn told(&mut self, told: Told, now: Duration) {
        match told {
            Told::Nothing => {}
            Told::Lost(last) => {
                let since = match self.link {
                    Link::Live(_) => Some(now),
                    Link::Lost { since, .. } => since,
                    Link::Connecting => None,
                };
                self.link = Link::Lost { last, since };
                self.meter.interrupted();
            }
            Told::Snapshot { url, snapshot } => {
                self.link = Link::Live(url);
                self.newest = Some(self.meter.add(*snapshot));
            }
        }
    }

    /// The picture of a command that ends after it.
    pub(super) fn of(url: String, picture: Picture) -> Self {
        Self { link: Link::Live(url), newest: Some(picture), ..Self::default() }
    }

    pub(super) fn picture(&self) -> Option<&Picture> {
        self.held.as_ref().or(self.newest.as_ref())
    }

    pub(super) fn is_paused(&self) -> bool {
        self.held.is_some()
    }

    /// Whether the key quits.
    pub(super) fn pressed(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        if self.is_filtering {
            self.typed(key.code);
            return false;
        }
        match key.code {
            // It takes back what is there first.
            KeyCode::Esc if self.has_help => self.has_help = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.has_help = !self.has_help,
            KeyCode::Char('0') => self.show(View::All),
            KeyCode::Char('1') => self.show(View::One(Kind::Members)),
            KeyCode::Char('2') => self.show(View::One(Kind::Rules)),
            KeyCode::Char('3') => self.show(View::One(Kind::Keys)),
            KeyCode::Tab => self.show(match self.view {
                View::All => View::One(Kind::Members),
                View::One(Kind::Members) => View::One(Kind::Rules),
                View::One(Kind::Rules) => View::One(Kind::Keys),
                View::One(Kind::Keys) => View::All,
            }),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.scrolled = 0,
            KeyCode::End | KeyCode::Char('G') => self.scrolled = usize::MAX,
            KeyCode::Char('s') => {
                let sorted = match self.view {
                    View::All => &mut self.orders[..],
                    View::One(kind) => &mut self.orders[kind as usize..=kind as usize],
                };
                for order in sorted {
                    *order = order.wrapping_add(1);
                }
            }
            KeyCode::Char('/') => {
                self.is_filtering = true;
                self.filter.clear();
            }
            KeyCode::Char('p' | ' ') => {
                self.held = if self.is_paused() { None } else { self.newest.clone() };
            }
            _ => {}
        }
        false
    }

    fn typed(&mut self, code: KeyCode) {
        self.scrolled = 0;
        match code {
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => {
                self.is_filtering = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        (self.view, self.scrolled) = (view, 0);
    }

    fn scroll(&mut self, lines: usize) {
        self.scrolled = self.scrolled.saturating_add(lines);
    }
}
