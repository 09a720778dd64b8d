//! What ends a command that runs on.

use std::io;
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first SIGTERM or Ctrl-C: the node then drains in order. Whoever
/// asks a second time does not want to wait: the second signal ends the process at once, with the
/// code that shells give a process that Ctrl-C ended.
///
/// Needs to be called inside the runtime. The task it starts ends with the process.
pub(super) fn on_signal() -> io::Result<CancellationToken> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let shutdown = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            // Both are cancel-safe.
            tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let first = next().await;
        tracing::info!(signal = first, "draining; a second signal ends at once");
        shutdown.cancel();
        let second = next().await;
        tracing::warn!(signal = second, "ending at once");
        std::process::exit(130);
    });
    Ok(token)
}

/// Cancels `token` when standard input ends. Whoever started this process holds the other end of a
/// pipe and needs to do nothing: it closes with the process that held it, however that ends.
///
/// A thread of its own, and not the runtime's reader of standard input: a runtime does not end
/// before its reader does, and this one may wait for ever.
pub(super) fn when_stdin_closes(token: CancellationToken) -> io::Result<()> {
    thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        tracing::info!("draining; standard input has ended");
        token.cancel();
    })?;
    Ok(())
}

/// The name of the first signal that asks to end: Ctrl-C, SIGTERM, or the terminal that goes away.
/// They are caught from now on; those after the first change nothing.
///
/// Needs to be called inside the runtime.
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
