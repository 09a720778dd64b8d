//! Shutdown by signals and by the end of standard input.

use std::io::{self, IsTerminal};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::observe::log;

/// A token that is cancelled by the first SIGTERM or Ctrl-C, or when the terminal closes: the node
/// then drains. The second signal ends the process at once, with the exit code of a process ended
/// by Ctrl-C.
///
/// Without a terminal a SIGHUP is from an operator who wants files to be read again, which a node
/// does by itself.
///
/// Must be called inside the runtime. Its task runs until the process ends.
pub(super) fn on_signal() -> io::Result<CancellationToken> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let has_terminal = io::stdin().is_terminal();
    let token = CancellationToken::new();
    let shutdown = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            loop {
                // All are cancel-safe.
                tokio::select! {
                    _ = term.recv() => return "SIGTERM",
                    _ = interrupt.recv() => return "SIGINT",
                    _ = hangup.recv() => {}
                }
                if has_terminal {
                    return "SIGHUP";
                }
                tracing::info!(
                    signal = "SIGHUP",
                    "nothing to do: rules, certificates and tokens are read when their files change"
                );
            }
        };
        let first = next().await;
        tracing::info!(signal = first, "draining; a second signal exits at once");
        shutdown.cancel();
        let second = next().await;
        tracing::warn!(signal = second, "exiting at once");
        log::flush();
        std::process::exit(130);
    });
    Ok(token)
}

/// Cancels `token` when standard input ends. The parent process holds the other end of a pipe,
/// which closes when the parent ends for whatever reason.
///
/// Uses a thread of its own instead of the runtime's reader of standard input: a runtime does not
/// shut down before its reader returns, and this one may block forever.
pub(super) fn when_stdin_closes(token: CancellationToken) -> io::Result<()> {
    thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        tracing::info!("standard input has ended; draining");
        token.cancel();
    })?;
    Ok(())
}

/// The name of the first shutdown signal: Ctrl-C, SIGTERM, or a closed terminal. Signals are caught
/// from now on; those after the first have no effect.
///
/// Must be called inside the runtime.
pub(super) fn first_signal() -> io::Result<impl Future<Output = &'static str>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        // All are cancel-safe.
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = interrupt.recv() => "Ctrl-C",
            _ = hangup.recv() => "SIGHUP",
        }
    })
}
