//! The log of a run: one line per event, starting with the simulated time.
//!
//! Two runs of one seed are compared by their logs, line by line.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

use crate::clock::Time;

/// The log of a run; cheap to clone.
#[derive(Clone)]
pub(crate) struct Log {
    time: Time,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    /// Where the next lines come from: a node, or the simulation itself.
    source: String,
    out: BufWriter<File>,
}

/// Writes the product's log lines, prefixed with time and node.
pub(crate) struct LogWriter<'a>(MutexGuard<'a, Inner>);

/// The source while no node is being stepped.
const WORLD: &str = "world";

impl Log {
    pub(crate) fn create(path: &Path, time: Time) -> io::Result<Self> {
        let inner = Inner { source: WORLD.to_owned(), out: BufWriter::new(File::create(path)?) };
        Ok(Self { time, inner: Arc::new(Mutex::new(inner)) })
    }

    pub(crate) fn time(&self) -> &Time {
        &self.time
    }

    /// Installs a subscriber that writes the product's log to this one.
    pub(crate) fn capture_tracing(&self) {
        let targets = Targets::new()
            .with_target("tidegate", LevelFilter::DEBUG)
            .with_target("chitchat", LevelFilter::WARN);
        let layer = tracing_subscriber::fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_writer(self.clone())
            .with_filter(targets);
        tracing_subscriber::registry().with(layer).init();
    }

    /// Sets the source of the following lines; `None` is the simulation itself.
    pub(crate) fn set_source(&self, source: Option<&str>) {
        source.unwrap_or(WORLD).clone_into(&mut self.lock().source);
    }

    pub(crate) fn event(&self, event: fmt::Arguments<'_>) {
        let time = self.time.millis();
        let mut inner = self.lock();
        let Inner { source, out } = &mut *inner;
        // A write error must not change the run; it shows when logs are compared.
        let _ = writeln!(out, "{time:>6} {source} {event}");
    }

    pub(crate) fn flush(&self) {
        let _ = self.lock().out.flush();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = LogWriter<'a>;

    fn make_writer(&'a self) -> LogWriter<'a> {
        let time = self.time.millis();
        let mut inner = self.lock();
        let Inner { source, out } = &mut *inner;
        let _ = write!(out, "{time:>6} {source} ");
        LogWriter(inner)
    }
}

impl Write for LogWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.out.flush()
    }
}
