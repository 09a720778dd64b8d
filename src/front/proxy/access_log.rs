//! The access log: one line of JSON for each request, when its response has ended.
//!
//! ```json
//! {"time":1764140000.123,"client":"203.0.113.7","method":"GET","target":"/a?b","host":"shop",
//!  "protocol":"HTTP/1.1","status":429,"verdict":"refused","rule":"http.remote_address",
//!  "bytes":161,"head_ms":0.211,"duration_ms":0.324}
//! ```
//!
//! A thread of its own writes, so that a slow disk holds no request up. At most `LINES_MAX` lines
//! wait for it; further ones are left out and counted. A file that was renamed or removed
//! (`logrotate`) is opened anew.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tidegate_cluster::environment::Clock;
use tokio::time::Instant;

use crate::config::UserError;
use crate::front::stats::Counter;

/// Lines that wait to be written.
const LINES_MAX: usize = 8_192;
/// Longest part of a line that a client chooses, in bytes.
const TEXT_BYTES_MAX: usize = 2_048;
/// The status of a request whose client left before there was one, as in nginx.
const CLIENT_LEFT: u16 = 499;
/// How often a quiet log looks whether its file was renamed.
const QUIET: Duration = Duration::from_secs(1);

/// Writes lines to a file or to standard output; clones share it.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: SyncSender<String>,
    /// Gives the time of a line.
    clock: Arc<dyn Clock>,
    /// Lines that were left out.
    pub dropped: Arc<Counter>,
}

/// One request.
#[derive(Debug, Default, Serialize)]
pub(super) struct Entry {
    /// Seconds since 1970 at its beginning.
    pub(super) time: f64,
    pub(super) client: String,
    pub(super) method: String,
    pub(super) target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    pub(super) protocol: String,
    pub(super) status: u16,
    pub(super) verdict: &'static str,
    /// Whether it passed above a soft limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) soft_limited: bool,
    /// The rule of the most restrictive limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<String>,
    /// Why there is no response of the application, though no limit of a rule refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<&'static str>,
    /// Of the body of the response, as far as it was passed on.
    pub(super) bytes: u64,
    /// Until the head of the response was ready.
    pub(super) head_ms: f64,
    pub(super) duration_ms: f64,
}

impl AccessLog {
    /// Opens the file at `path`; `-` is standard output.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, or the thread not started.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, UserError> {
        let target = Target::open(path).map_err(|error| {
            let problem = format!("proxy.access_log {}: {error}", path.display());
            UserError::new(problem, "name a file that can be written, or - for standard output")
        })?;
        let (sender, receiver) = sync_channel(LINES_MAX);
        let thread = thread::Builder::new().name("access-log".to_owned());
        let what = "failed to start the thread of the access log";
        thread
            .spawn(move || write(target, &receiver))
            .map_err(UserError::context(what, "raise `ulimit -u`"))?;
        Ok(Self { lines: sender, clock, dropped: Arc::default() })
    }

    /// The record of a request that begins now.
    pub(super) fn begin(&self, entry: Entry) -> Box<Record> {
        let time = self.clock.system().as_nanos() / 1_000_000;
        // The milliseconds of a date are exact in this type.
        #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
        let time = time as f64 / 1e3;
        let entry = Entry { time, status: CLIENT_LEFT, ..entry };
        Box::new(Record { log: self.clone(), start: Instant::now(), entry })
    }

    fn write(&self, mut entry: Entry) {
        for text in [&mut entry.target, &mut entry.method] {
            shorten(text);
        }
        if let Some(host) = &mut entry.host {
            shorten(host);
        }
        // All values have a form in JSON.
        let mut line = serde_json::to_string(&entry).unwrap_or_default();
        line.push('\n');
        if self.lines.try_send(line).is_err() {
            self.dropped.add(1);
        }
    }
}

/// A request until its response has ended; its line is written when this is dropped.
#[derive(Debug)]
pub(super) struct Record {
    log: AccessLog,
    start: Instant,
    pub(super) entry: Entry,
}

impl Record {
    /// The head of the response is ready.
    pub(super) fn responds(&mut self, status: u16) {
        self.entry.status = status;
        self.entry.head_ms = self.elapsed_ms();
    }

    /// Bytes of the body of the response have passed.
    pub(super) fn passed(&mut self, bytes: usize) {
        self.entry.bytes += bytes as u64;
    }

    fn elapsed_ms(&self) -> f64 {
        let micros = u32::try_from(self.start.elapsed().as_micros()).unwrap_or(u32::MAX);
        f64::from(micros) / 1e3
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.entry.duration_ms = self.elapsed_ms();
        self.log.write(std::mem::take(&mut self.entry));
    }
}

/// Where lines go.
enum Target {
    Stdout,
    File { path: PathBuf, file: BufWriter<File>, inode: u64 },
}

impl Target {
    fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Self::File { path: path.to_owned(), file: BufWriter::new(file), inode })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().lock().write_all(line.as_bytes()),
            Self::File { file, .. } => file.write_all(line.as_bytes()),
        }
    }

    /// Writes out what is buffered, and opens the file anew if it is not the one at its path.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().lock().flush(),
            Self::File { path, file, inode } => {
                file.flush()?;
                if fs::metadata(&*path).map_or(0, |metadata| metadata.ino()) != *inode {
                    *self = Self::open(&path.clone())?;
                }
                Ok(())
            }
        }
    }
}

/// Writes until all senders are gone.
fn write(mut target: Target, lines: &Receiver<String>) {
    let mut is_failing = false;
    loop {
        let mut next = match lines.recv_timeout(QUIET) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut written = Ok(());
        while let Some(line) = next {
            written = written.and_then(|()| target.write(&line));
            next = lines.try_recv().ok();
        }
        let outcome = written.and_then(|()| target.flush());
        if let Err(error) = &outcome
            && !is_failing
        {
            tracing::error!(%error, "failed to write the access log; lines are lost until it works");
        }
        is_failing = outcome.is_err();
    }
}

fn shorten(text: &mut String) {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
}
