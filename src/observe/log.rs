//! The log: lines on standard error, as text or JSON.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

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

/// Sets up the log of this process.
///
/// # Errors
///
/// [`Error::Filter`] for an invalid filter, [`Error::Twice`] for a second call.
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
    fn the_error_for_an_invalid_filter_includes_the_fix() {
        let options =
            Options { filter: "tidegate=loud".to_owned(), format: Format::Text, colour: false };
        let text = init(&options).unwrap_err().to_string();
        assert!(text.starts_with("log filter \"tidegate=loud\": "), "{text}");
        assert!(text.ends_with("; write it as a level or as module=level, ..."), "{text}");
    }
}
