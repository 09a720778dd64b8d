//! Tells systemd, or another service supervisor that speaks its protocol, what `/readyz` says.
//!
//! A unit with `Type=notify` counts as started when the node is ready for the first time, so
//! `systemctl restart` of one node after the other waits as a rolling restart has to. Afterwards
//! the reasons of `/readyz` are the status line of `systemctl status`. With `WatchdogSec` the
//! runtime of the core sends a sign of life twice in that time: a node that hangs is restarted.
//!
//! Nothing is sent where no supervisor has set `NOTIFY_SOCKET`. Source: `sd_notify(3)`.

use std::env;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use crate::observe::Health;

/// How often the node looks for news: the 50 ms of readiness, and as many.
const INTERVAL: Duration = Duration::from_millis(100);

/// Sends messages until `stop`. `drain` is cancelled when the node begins to drain.
pub(super) async fn report(health: Health, drain: CancellationToken, stop: CancellationToken) {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return stop.cancelled().await;
    }
    let sign_of_life = sd_notify::watchdog_enabled().map(|most| most / 2);
    let mut due = Instant::now();
    let mut sent = Sent::default();
    let mut ticks = interval(INTERVAL);
    loop {
        // A node without peers drains between two ticks.
        let is_last = stop.is_cancelled();
        let is_stopping = is_last || drain.is_cancelled();
        let mut news = sent.news(health.ready().err().as_deref(), is_stopping);
        if let Some(every) = sign_of_life.filter(|_| due <= Instant::now()) {
            due = Instant::now() + every;
            news.push(NotifyState::Watchdog.to_string());
        }
        if !news.is_empty() {
            let sent = send(news.join("\n"));
            let given_up = async {
                stop.cancelled().await;
                tokio::time::sleep(PATIENCE).await;
            };
            tokio::select! {
                () = sent => {}
                () = given_up => return,
            }
        }
        if is_last {
            return;
        }
        stop.run_until_cancelled(ticks.tick()).await;
    }
}

/// The socket blocks while the supervisor is busy, which must stop no task.
async fn send(text: String) {
    let sending = move || sd_notify::notify(&[NotifyState::Custom(&text)]);
    if let Ok(Err(error)) = tokio::task::spawn_blocking(sending).await {
        tracing::warn!(%error, "failed to report to the socket in NOTIFY_SOCKET");
    }
}

/// For the last message: a supervisor that does not read must not keep the node from ending.
const PATIENCE: Duration = Duration::from_secs(1);

/// What was sent so far.
#[derive(Debug, Default)]
struct Sent {
    ready: bool,
    stopping: bool,
    status: Option<String>,
}

impl Sent {
    /// The lines of the next message. `lacks` is why the node is not ready.
    fn news(&mut self, lacks: Option<&str>, is_stopping: bool) -> Vec<String> {
        let mut news = Vec::new();
        let status = lacks.unwrap_or("ready");
        if self.status.as_deref() != Some(status) {
            news.push(NotifyState::Status(status).to_string());
            self.status = Some(status.to_owned());
        }
        if lacks.is_none() && !self.ready {
            news.push(NotifyState::Ready.to_string());
            self.ready = true;
        }
        if is_stopping && !self.stopping {
            news.push(NotifyState::Stopping.to_string());
            self.stopping = true;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_started_once_and_its_status_follows_readyz() {
        let mut sent = Sent::default();
        assert_eq!(sent.news(Some("join: starting"), false), ["STATUS=join: starting"]);
        assert!(sent.news(Some("join: starting"), false).is_empty());
        assert_eq!(sent.news(None, false), ["STATUS=ready", "READY=1"]);
        assert_eq!(sent.news(Some("quorum: none"), false), ["STATUS=quorum: none"]);
        assert_eq!(sent.news(None, false), ["STATUS=ready"]);
        assert_eq!(sent.news(Some("drain: now"), true), ["STATUS=drain: now", "STOPPING=1"]);
        assert!(sent.news(Some("drain: now"), true).is_empty());
    }
}
