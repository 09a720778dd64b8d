//! The log: lines on standard error, for people on a terminal or for machines as JSON.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

/// How much is logged and in which form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A level, or levels by module: `info`, `tidegate=debug,quinn=warn`.
    pub filter: String,
    /// The form of a line.
    pub format: Format,
    /// Whether levels are coloured; only text is.
    pub colour: bool,
}

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The filter cannot be read.
    #[error("log filter {filter:?}: {problem}; write it as a level or as module=level, ...")]
    Filter {
        /// As it was given.
        filter: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A log was set up before in this process.
    #[error("the log is set up already; do it once a process")]
    Twice,
}

/// Sets up the log of this process.
pub fn init(options: &Options) -> Result<(), Error> {
    let filter = EnvFilter::try_new(&options.filter).map_err(|error| Error::Filter {
        filter: options.filter.clone(),
        problem: error.to_string(),
    })?;
    let lines: SubscriberBuilder<_, _, _, _> = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(options.colour)
        .with_env_filter(filter);
    match options.format {
        Format::Text => lines.try_init(),
        Format::Json => lines.json().flatten_event(true).try_init(),
    }
    .map_err(|_| Error::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_says_what_to_write() {
        let options =
            Options { filter: "tidegate=loud".to_owned(), format: Format::Text, colour: false };
        let text = init(&options).unwrap_err().to_string();
        assert!(text.starts_with("log filter \"tidegate=loud\": "), "{text}");
        assert!(text.ends_with("; write it as a level or as module=level, ..."), "{text}");
    }
}
