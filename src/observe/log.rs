//! The log: lines on standard error, as text or JSON.

use std::borrow::Cow;
use std::io;
use std::sync::OnceLock;

use parking_lot::Mutex;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, fmt};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A level, or a level for each module: `info`, `tidegate=debug,quinn=warn`.
    pub filter: String,
    pub format: Format,
    /// Whether levels are coloured, in text only.
    pub colour: bool,
}

/// The format of the log. JSON is one object a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("log filter {filter:?}: {problem}; write it as a level or as module=level, ...")]
    Filter { filter: String, problem: String },
    #[error("the log was set up before in this process")]
    Twice,
}

/// Lines that wait to be written. Beyond it they are dropped: a reader that stalls, such as a
/// collector whose pipe is full, must not stop a node.
const LINES_MAX: usize = 8_192;

/// Keep it until the process ends: dropped, it is a [`flush`].
#[derive(Debug)]
pub struct Guard(());

static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

impl Drop for Guard {
    fn drop(&mut self) {
        flush();
    }
}

/// Waits until all lines are written, for a second at most. No line is written afterwards: call it
/// before the process ends.
pub fn flush() {
    drop(WRITER.lock().take());
}

/// Lines that were dropped since the start, because [`LINES_MAX`] waited.
pub fn lines_dropped() -> u64 {
    DROPPED.get().map_or(0, |counter| counter.dropped_lines() as u64)
}

/// Sets up the log of this process, whose lines a thread of its own writes to standard error.
///
/// # Errors
///
/// [`Error::Filter`] for an invalid filter, [`Error::Twice`] for a second call.
pub fn init(options: &Options) -> Result<Guard, Error> {
    let filter: Targets = options.filter.parse().map_err(|error: ParseError| Error::Filter {
        filter: options.filter.clone(),
        problem: error.to_string(),
    })?;
    let writer = NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).lossy(true);
    let (writer, guard) = writer.thread_name("log").finish(io::stderr());
    let dropped = writer.error_counter();
    let lines = fmt::layer().with_writer(writer).with_ansi(options.colour);
    let lines = match options.format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(lines).with(filter);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| Error::Twice)?;
    DROPPED.get_or_init(|| dropped);
    *WRITER.lock() = Some(guard);
    Ok(Guard(()))
}

/// A text of a client, or of an operator, as a part of a line: with line breaks and other control
/// characters escaped, so that it cannot pass for another line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    let breaks = |char: char| char.is_control() || matches!(char, '\u{2028}' | '\u{2029}');
    if !text.contains(breaks) {
        return Cow::Borrowed(text);
    }
    let escape = |char: char| -> String {
        if breaks(char) { char.escape_default().collect() } else { char.into() }
    };
    Cow::Owned(text.chars().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_line_breaks_stays_on_one_line() {
        assert_eq!(one_line("user=zoë \\n"), "user=zoë \\n");
        let forged = "ann\r\n2026-01-01 INFO audit: done\u{1b}[0m\u{85}\u{2028}";
        let line = one_line(forged);
        assert_eq!(line, "ann\\r\\n2026-01-01 INFO audit: done\\u{1b}[0m\\u{85}\\u{2028}");
    }

    #[test]
    fn the_error_for_an_invalid_filter_includes_the_fix() {
        let options =
            Options { filter: "tidegate=loud".to_owned(), format: Format::Text, colour: false };
        let text = init(&options).unwrap_err().to_string();
        assert!(text.starts_with("log filter \"tidegate=loud\": "), "{text}");
        assert!(text.ends_with("; write it as a level or as module=level, ..."), "{text}");
    }
}
