//! How files are read again while a node runs: every [`RELOAD_INTERVAL`], on a thread that may
//! block.
//!
//! A file system that hangs, as one on a network may, holds up that thread and nothing else: what
//! was read before stays in use. The log says so, because nothing else would.

use std::path::Path;
use std::time::Duration;

/// How often files are read that have no watch of the file system, and so how long a change takes.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Far above what a disk takes to answer.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// What `read` returns. `path` is for the log: what it reads, or one of several.
///
/// # Errors
///
/// The text of the panic.
pub async fn read_again<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    read_again_within(HANGS_AFTER, path, read).await
}

async fn read_again_within<T: Send + 'static>(
    usual: Duration,
    path: &Path,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let mut reading = tokio::task::spawn_blocking(read);
    let read = if let Ok(read) = tokio::time::timeout(usual, &mut reading).await {
        read
    } else {
        tracing::error!(
            path = %path.display(),
            after = ?usual,
            "reading takes too long: what was read before stays in use until the file system \
             answers"
        );
        let read = reading.await;
        tracing::info!(path = %path.display(), "the file system has answered");
        read
    };
    read.map_err(|panicked| format!("the loader failed: {panicked}"))
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_is_in_the_log_once_and_that_it_answers() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let _guard = tracing::subscriber::set_default(log.finish());

        let (answer, answers) = mpsc::channel();
        let reading = tokio::spawn(async move {
            let usual = Duration::from_millis(1);
            read_again_within(usual, Path::new("rules"), move || answers.recv()).await
        });
        while !lines.text().contains("takes too long") {
            tokio::task::yield_now().await;
        }
        answer.send(7).unwrap();
        assert_eq!(reading.await.unwrap(), Ok(Ok(7)));
        let text = lines.text();
        let counts =
            ["takes too long", "path=rules", "has answered"].map(|part| text.matches(part).count());
        assert_eq!(counts, [1, 2, 1], "{text}");
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let read = read_again(Path::new("rules"), || -> u8 { panic!("on purpose") }).await;
        assert!(read.unwrap_err().contains("on purpose"));
    }
}
