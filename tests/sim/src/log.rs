//! The log of a run: one line an event, simulated time first.
//!
//! It is what a failure is understood from, and what two runs of one seed are compared by: line by
//! line, so that the first thing that differs is seen.

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
    /// Who is running: a node, or the simulation itself.
    who: String,
    out: BufWriter<File>,
}

/// Writes what the product logs, behind time and node.
pub(crate) struct Lines<'a>(MutexGuard<'a, Inner>);

/// Who speaks when no node runs.
const WORLD: &str = "world";

impl Log {
    pub(crate) fn create(path: &Path, time: Time) -> io::Result<Self> {
        let inner = Inner { who: WORLD.to_owned(), out: BufWriter::new(File::create(path)?) };
        Ok(Self { time, inner: Arc::new(Mutex::new(inner)) })
    }

    pub(crate) fn time(&self) -> &Time {
        &self.time
    }

    /// Takes in what the product logs from now on.
    pub(crate) fn listen(&self) {
        let wanted = Targets::new()
            .with_target("tidegate", LevelFilter::DEBUG)
            .with_target("chitchat", LevelFilter::WARN);
        let lines = tracing_subscriber::fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_writer(self.clone())
            .with_filter(wanted);
        tracing_subscriber::registry().with(lines).init();
    }

    /// Names who runs from now on; `None` is the simulation itself.
    pub(crate) fn running(&self, who: Option<&str>) {
        who.unwrap_or(WORLD).clone_into(&mut self.lock().who);
    }

    pub(crate) fn say(&self, what: fmt::Arguments<'_>) {
        let time = self.time.millis();
        let mut inner = self.lock();
        let Inner { who, out } = &mut *inner;
        // A full disk shows in the comparison of the logs; it must not change the run.
        let _ = writeln!(out, "{time:>6} {who} {what}");
    }

    pub(crate) fn flush(&self) {
        let _ = self.lock().out.flush();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        let time = self.time.millis();
        let mut inner = self.lock();
        let Inner { who, out } = &mut *inner;
        let _ = write!(out, "{time:>6} {who} ");
        Lines(inner)
    }
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.out.flush()
    }
}
