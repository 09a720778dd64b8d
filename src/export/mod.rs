//! `tidegate export nftables`: sources that nodes name as far over their limits are dropped by the
//! kernel.
//!
//! The exporter is a process of its own, so that nodes need no rights, and needs `CAP_NET_ADMIN`
//! alone. It follows the stream of each node it is given
//! ([`admin::blocked`](crate::admin::blocked)), and keeps one table, `inet tidegate`:
//!
//! ```text
//! node ─ events ─▶ node_stream ─▶ blocklist ─▶ ruleset ─▶ nft ─▶ kernel
//!                                 (pure)       (pure)
//! ```
//!
//! Each node knows the requests that it received itself, so a source is blocked that any of them
//! names. What is in the kernel has a timeout of at most `--timeout`, and is renewed at half of it
//! while a node names the source: whatever ends, the exporter, the nodes, or the network between
//! them, the entries end by themselves.

mod blocklist;
mod nft;
mod node_stream;
mod ruleset;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use backon::BackoffBuilder;
use http::Uri;
use ipnet::IpNet;
use serde_json::Value;
use tidegate_cluster::backoff::exponential;
use tidegate_limiter::units::{Monotonic, Span};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::blocklist::{Blocklist, Transaction};
pub use self::nft::Error as NftError;
use self::node_stream::Update;
use crate::admin::{Listener, Reach};
use crate::config::Secret;

/// Most nodes to follow.
pub const NODES_MAX: usize = 64;
/// Most networks that are never blocked.
pub const ALLOW_MAX: usize = 1_024;
/// Delays between attempts after the kernel, or `nft`, refused a transaction.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What is exported, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Admin listeners of the nodes: `http://HOST:PORT`, or `https`.
    pub nodes: Vec<Uri>,
    /// Whom it trusts there, and what it shows.
    pub reach: Reach,
    /// The token of the listeners, if they ask for one.
    pub token: Option<Secret>,
    /// Networks that are never blocked, besides loopback, link-local and the nodes themselves.
    pub allow: Vec<IpNet>,
    /// Length of the prefix by which IPv6 sources are blocked, 1 to 128.
    pub ipv6_prefix: u8,
    /// Longest timeout of an entry.
    pub timeout: Span,
    /// Whether the table is removed at the end.
    pub flush_at_exit: bool,
    /// Whether transactions are printed and not carried out.
    pub dry_run: bool,
    /// The program.
    pub nft: PathBuf,
}

/// Why the export ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Nft(#[from] NftError),
    #[error("failed to write a transaction: {0}; check standard output")]
    Output(#[from] io::Error),
}

/// Keeps the table until `stop`. `out` takes the transactions of a dry run, one a line.
///
/// # Errors
///
/// The first transaction failed, or the table could not be removed at the end. Transactions that
/// fail later are logged, and the whole table is written again.
pub async fn run(
    options: &Options,
    stop: CancellationToken,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (sender, updates) = mpsc::channel(1);
    // Dropped at the end, and the streams with it.
    let mut streams = JoinSet::new();
    for (node, url) in options.nodes.iter().enumerate() {
        let listener = Listener {
            url: url.clone(),
            reach: options.reach.clone(),
            token: options.token.clone(),
        };
        streams.spawn(node_stream::follow(node, listener, sender.clone()));
    }
    let mut table = Table { options, out };
    let kept = stop.run_until_cancelled(keep(&mut table, updates)).await;
    kept.unwrap_or(Ok(()))?;
    if options.flush_at_exit {
        table.write(&ruleset::removal()).await?;
        tracing::info!("removed the table");
    }
    Ok(())
}

/// Removes the table, if there is one.
///
/// # Errors
///
/// `nft` could not be run, or refused it.
pub async fn remove_table(nft: &std::path::Path) -> Result<(), NftError> {
    nft::apply(nft, &ruleset::removal()).await
}

/// Follows the pictures of the nodes. Returns when a transaction failed and none has succeeded.
async fn keep(table: &mut Table<'_>, mut updates: mpsc::Receiver<Update>) -> Result<(), Error> {
    let start = Instant::now();
    let now = || Monotonic::from_nanos(Span::from(start.elapsed()).as_nanos());
    let Options { nodes, allow, ipv6_prefix, timeout, .. } = table.options;
    let mut blocklist = Blocklist::new(nodes.len(), allow.clone(), *ipv6_prefix, *timeout);
    let retries = || exponential(RETRY_MIN, RETRY_MAX).build();
    let mut delays = retries();
    let mut is_first = true;
    loop {
        while let Some(transaction) = blocklist.next(now()) {
            let began = now();
            match table.carry_out(&transaction).await {
                Ok(()) => {
                    blocklist.applied(&transaction, now());
                    report(&transaction, &blocklist, now().since(began));
                    (is_first, delays) = (false, retries());
                }
                Err(error) if is_first => return Err(error),
                Err(Error::Nft(error)) => {
                    blocklist.failed();
                    let delay = delays.next().unwrap_or(RETRY_MAX);
                    tracing::error!(?delay, "{error}; the table is written again");
                    tokio::time::sleep(delay).await;
                }
                Err(error) => return Err(error),
            }
        }
        let until = blocklist.wakes_at(now()).map(|at| at.since(now()).to_std());
        let wakes = async {
            match until {
                Some(until) => tokio::time::sleep(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            update = updates.recv() => match update {
                Some(Update { node, report, addr }) => blocklist.take(node, report, addr, now()),
                None => return Ok(()),
            },
            () = wakes => {}
        }
    }
}

fn report(transaction: &Transaction, blocklist: &Blocklist, took: Span) {
    let Transaction { takes_over, added, renewed, removed } = transaction;
    if *takes_over {
        tracing::info!("took over the table inet {}", ruleset::TABLE);
    }
    tracing::info!(
        added = added.len(),
        renewed = renewed.len(),
        removed = removed.len(),
        entries = blocklist.len(),
        took_ms = took.as_millis_ceil(),
        "wrote the sets"
    );
    let left_out = blocklist.left_out();
    if left_out > 0 {
        tracing::warn!(left_out, "the sets are full: these sources are not blocked");
    }
}

/// Where transactions go.
struct Table<'a> {
    options: &'a Options,
    out: &'a mut dyn Write,
}

impl Table<'_> {
    async fn carry_out(&mut self, transaction: &Transaction) -> Result<(), Error> {
        self.write(&ruleset::document(transaction, self.options.ipv6_prefix)).await
    }

    async fn write(&mut self, document: &Value) -> Result<(), Error> {
        if self.options.dry_run {
            // In one piece: a reader beside it finds whole lines.
            self.out.write_all(format!("{document}\n").as_bytes())?;
            return Ok(self.out.flush()?);
        }
        Ok(nft::apply(&self.options.nft, document).await?)
    }
}
