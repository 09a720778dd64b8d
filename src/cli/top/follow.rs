//! The snapshots of a cluster, from the event stream of one of its nodes; of the next one when that
//! ends.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::rates::{Meter, Picture};
use crate::admin::events::EVENT;
use crate::admin::snapshot::ClusterSnapshot;
use crate::admin::{EventStream, Listener};

/// How long a node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A node sends a snapshot each second; one that is silent for longer is asked no more.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Pause before the next node is asked, and after all of them were.
const PAUSE: Duration = Duration::from_millis(100);
const ROUND_PAUSE: Duration = Duration::from_secs(1);
/// How long [`Nodes::picture`] waits for the rates. The reports of a cluster of 512 nodes arrive
/// within eight seconds.
const RATES_TIMEOUT: Duration = Duration::from_secs(12);

/// The nodes that may be asked, in this order.
pub(super) struct Nodes {
    pub(super) listeners: Vec<Listener>,
}

/// What is known now.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Nothing,
    Snapshot {
        /// Of the node that was asked.
        url: String,
        snapshot: Box<ClusterSnapshot>,
    },
    Lost(Lost),
}

/// Why there are no snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) url: String,
    pub(super) why: String,
}

impl Nodes {
    /// One picture, with rates if they can be had in time, and the URL of its node.
    ///
    /// # Errors
    ///
    /// No node has sent a snapshot; what happened with the last one.
    pub(super) async fn picture(&self) -> Result<(String, Picture), Lost> {
        let mut without_rates = None;
        let mut lost = Lost { url: String::new(), why: "no node to ask".to_owned() };
        for listener in &self.listeners {
            let url = url(listener);
            match picture(listener).await {
                Ok(picture) if picture.rates.is_some() => return Ok((url, picture)),
                // It went away after its first snapshot; another one may have rates.
                Ok(picture) => without_rates = Some((url, picture)),
                Err(why) => lost = Lost { url, why },
            }
        }
        without_rates.ok_or(lost)
    }

    /// Tells each snapshot until nobody listens.
    pub(super) async fn follow(&self, teller: &watch::Sender<Told>) {
        let mut in_vain = 0;
        for listener in self.listeners.iter().cycle() {
            let url = url(listener);
            let (has_told, why) = follow_once(listener, &url, teller).await;
            if teller.send(Told::Lost(Lost { url, why })).is_err() {
                return;
            }
            in_vain = if has_told { 1 } else { in_vain + 1 };
            sleep(if in_vain % self.listeners.len() == 0 { ROUND_PAUSE } else { PAUSE }).await;
        }
    }
}

fn url(listener: &Listener) -> String {
    listener.url.to_string().trim_end_matches('/').to_owned()
}

async fn open(listener: &Listener) -> Result<EventStream, String> {
    listener.open("/events", EVENT, ANSWER_TIMEOUT).await
}

/// Follows one stream to its end: whether it had a snapshot, and why it has ended.
async fn follow_once(
    listener: &Listener,
    url: &str,
    teller: &watch::Sender<Told>,
) -> (bool, String) {
    let mut has_told = false;
    let followed = async {
        let mut stream = open(listener).await?;
        loop {
            let snapshot = Box::new(stream.next(SILENCE_MAX).await?);
            has_told = true;
            if teller.send(Told::Snapshot { url: url.to_owned(), snapshot }).is_err() {
                return Ok::<(), String>(());
            }
        }
    };
    let why = followed.await.err().unwrap_or_default();
    (has_told, why)
}

/// The first picture with rates, or the newest one without if they cannot be had in time.
async fn picture(listener: &Listener) -> Result<Picture, String> {
    let mut stream = open(listener).await?;
    let mut newest = None;
    let rated = async {
        let mut meter = Meter::default();
        loop {
            let picture = meter.add(stream.next(SILENCE_MAX).await?);
            let is_rated = picture.rates.is_some();
            newest = Some(picture);
            if is_rated {
                return Ok::<(), String>(());
            }
        }
    };
    let ended = timeout(RATES_TIMEOUT, rated).await;
    let why = ended.ok().and_then(Result::err);
    newest.ok_or_else(|| why.unwrap_or_else(|| "no snapshot".to_owned()))
}
