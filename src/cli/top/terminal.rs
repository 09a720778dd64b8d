//! The terminal: its events, and that it is what it was at the end.
//!
//! It is restored by a guard, so on every way out of [`show`]: a key, a signal, an error, a panic.
//! ratatui's hook restores it before the message of a panic is printed.

use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::draw;
use super::follow::{Nodes, Told};
use super::screen::Screen;

/// How often the age of what is shown is drawn.
const TICK: Duration = Duration::from_secs(1);

/// Shows what the nodes send until a key quits or `signal` is there.
///
/// # Errors
///
/// The terminal cannot be read or written.
pub(super) async fn show(
    nodes: Nodes,
    has_colour: bool,
    signal: impl Future<Output = &'static str>,
) -> io::Result<()> {
    let (teller, mut told) = watch::channel(Told::Nothing);
    let mut guard = Guard::new()?;
    let start = Instant::now();
    let mut screen = Screen::default();
    let mut keys = EventStream::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let followed = nodes.follow(&teller);
    tokio::pin!(followed, signal);
    loop {
        guard.0.draw(|frame| {
            let area = frame.area();
            draw::draw(&mut screen, start.elapsed(), has_colour, frame.buffer_mut(), area);
        })?;
        // All are cancel-safe, or kept from one turn to the next.
        tokio::select! {
            // Does not end while this side listens.
            () = &mut followed => return Ok(()),
            Ok(()) = told.changed() => {
                let newest = told.borrow_and_update().clone();
                screen.told(newest, start.elapsed());
            }
            event = keys.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if screen.pressed(key) {
                        return Ok(());
                    }
                }
                // Others, such as a new size, are a reason to draw.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            _ = ticks.tick() => {}
            _ = &mut signal => return Ok(()),
        }
    }
}

/// A terminal in raw mode with another screen, until it is dropped.
///
/// ratatui's own drop reports a failure on standard error, which panics if that is the terminal
/// that is gone.
struct Guard(ManuallyDrop<DefaultTerminal>);

impl Guard {
    fn new() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| drop(ratatui::try_restore()))?;
        Ok(Self(ManuallyDrop::new(terminal)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = ratatui::try_restore();
        let _ = self.0.show_cursor();
    }
}
