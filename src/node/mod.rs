//! A whole node: builds all components, owns their tasks and stops them in order.
//!
//! Shutdown on a signal: readiness turns red and peers are notified ([`Core::leave`]) while the
//! listeners still answer, so that neither load balancers nor peers send new requests; then the
//! listeners finish requests in flight; then the last counters are sent to peers; then the mesh
//! closes.

mod blocked;
mod carried_keys;
mod clock;
mod clock_sync;
mod core;
mod durable;
mod edge;
mod error;
mod handover;
mod inspect;
mod issued;
mod join;
mod keys;
mod listeners;
mod malformed;
mod measured;
mod members;
mod open_files;
mod operate;
mod overview;
mod own_report;
mod per_topology;
mod probes;
mod readiness;
mod rulebook;
mod seen_elsewhere;
mod service;
mod skew;
mod system;
mod systemd;
mod traces;
mod udp;
mod unreached;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use tidegate_cluster::pki::{self, Bearer};
use tidegate_ownership::identity::NodeId;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::blocked::BlockedView;
pub use self::core::{Core, Setup};
pub use self::edge::Edge;
pub use self::error::{Error, Failed};
pub use self::handover::{GivenUp, Left};
use self::inspect::View;
pub use self::join::Joined;
use self::listeners::{Behind, Bound, Closing, ListenerTls, Listeners, serve_prometheus};
use self::overview::ClusterOverview;
use self::per_topology::PerTopology;
use self::probes::{NodeProbes, Stats};
use self::readiness::{DRAIN, GOSSIP, JOIN, Readiness};
use self::rulebook::RuleBook;
pub use self::skew::Skew;
pub use self::system::{SystemClock, system_environment};
use crate::admin::{Access, DrainReport};
use crate::compat::envoy_ratelimit::statistics::statsd::StatsdExporter;
use crate::config::{self, Config, UserError};
use crate::enrolment::renewal::Renewal;
use crate::enrolment::revocation_file;
use crate::enrolment::signer_watch::SignerWatch;
use crate::front::proxy::{AccessLog, ServerTls};
use crate::front::rls;
use crate::front::tls::Tls;
use crate::observe::Health;
use crate::reload::certificates;
use crate::storage::map_file::MapFile;

/// Runs a node until `shutdown`, then drains it: its listeners on `front`, everything else on the
/// runtime of the caller. `config` must be validated.
///
/// # Errors
///
/// The node could not start, or a task failed.
pub async fn run(config: Config, front: &Handle, shutdown: CancellationToken) -> Result<(), Error> {
    let (mut environment, clock) = system_environment();
    if let (Some(folder), Some(_)) = (&config.node.data_dir, config.cluster.listen) {
        let file = MapFile::open(folder).map_err(|error| {
            let problem = format!("node.data_dir {}: {error}", folder.display());
            UserError::new(
                problem,
                "give every node a folder of its own, on a disk with room that works",
            )
        })?;
        environment.disk = Arc::new(file);
    }
    let node = NodeId::new(&config.node.id)
        .map_err(|error| UserError::new(format!("node.id: {error}"), "set TIDEGATE_NODE__ID"))?;
    let config::Node { region, role, .. } = &config.node;
    let bearer = Bearer { node: node.as_str(), region, role: *role };
    let identity = match config.cluster.listen {
        Some(_) => {
            let (cert, key) = (config.tls.cert.clone(), config.tls.key.clone());
            if let Some((cert, key)) = cert.zip(key) {
                // In a folder that cannot be written the key is read from where it is.
                let _ = pki::IssuedFiles { cert, key }.complete();
            }
            Some(pki::load(&config.tls, bearer, environment.clock.system())?)
        }
        None => None,
    };
    let (book, source) = RuleBook::load(&config, environment.entropy.clone())?;
    let mut reloaders = Vec::new();
    let mut tls_of = |files| -> Result<Option<Tls>, UserError> {
        let (tls, reloader) = Tls::of(files)?.unzip();
        reloaders.extend(reloader);
        Ok(tls)
    };
    let tls = ListenerTls {
        http: tls_of(config.http.tls())?,
        grpc: tls_of(config.grpc.tls())?,
        resp: tls_of(config.resp.tls())?,
        gubernator: tls_of(config.gubernator.tls())?,
        proxy: tls_of(config.proxy.tls())?,
        admin: tls_of(config.admin.tls())?,
        servers: ServerTls::of(&config.proxy)?,
    };
    let access_log = config.proxy.access_log.as_deref();
    let access_log =
        access_log.map(|path| AccessLog::open(path, environment.clock.clone())).transpose()?;
    let access_log_dropped = access_log.as_ref().map(|log| log.dropped.clone());
    let stats = Stats { access_log_dropped, ..Stats::default() };
    let (access, tokens) = Access::of(&config.admin)?;
    let listeners = Listeners::bind(&config, tls, access_log, &stats)?;
    let (key, addr) = ("stats.prometheus_listen", config.stats.prometheus_listen);
    let prometheus = Bound::bind(key, addr, &Arc::default())?;
    let (recorder, export) = traces::start(&config, environment.clock.clone())?;
    let setup = Setup {
        config: config.clone(),
        node,
        identity,
        book: book.handle.cell(),
        http: listeners.http_addr(),
        traces: recorder,
    };
    // Boxed: the configuration makes its state large.
    let (core, core_tasks) = Box::pin(Core::build(setup, environment)).await?;

    if let (Some(folder), Some(mesh)) = (&config.node.data_dir, core.mesh()) {
        revocation_file::load(folder, &mesh.revocations)?;
    }
    let certificates = certificates::Handle::default();
    let health = Health::starting(&[GOSSIP, JOIN]);
    let probes = Arc::new(NodeProbes::new(
        core.clone(),
        book.clone(),
        certificates.clone(),
        health.clone(),
        stats,
        clock.clone(),
        &config,
    ));
    let statistics = probes.statistics.clone();
    let view = Arc::new(View {
        core: core.clone(),
        book: book.clone(),
        certificates: certificates.clone(),
        health: health.clone(),
        config: config.clone(),
        start: Instant::now(),
        ring_shares: PerTopology::default(),
    });
    let reported = Arc::downgrade(&view);
    core.own_report.begin(move || {
        reported.upgrade().map_or_else(Vec::new, |view| overview::render(view.snapshot()))
    });
    let cluster_overview = Arc::new(ClusterOverview::new(view.clone()));
    let grpc_health = rls::Health::new().await;

    // The clock, the rules and the core keep running while the listeners drain.
    let (closing, stop_node) = (Closing::default(), CancellationToken::new());
    let joined = CancellationToken::new();
    let mut tasks: JoinSet<Result<(), Failed>> = JoinSet::new();
    tasks.spawn(clock.run(stop_node.clone()).map(Ok));
    tasks.spawn(source.watch(stop_node.clone()).map(Ok));
    for reloader in reloaders {
        tasks.spawn(reloader.run(stop_node.clone()).map(Ok));
    }
    if let Some(tokens) = tokens {
        tasks.spawn(tokens.run(stop_node.clone()).map(Ok));
    }
    if let Some(mesh) = core.mesh() {
        let watcher = certificates::Watcher {
            tls: config.tls.clone(),
            mesh: mesh.clone(),
            clock: core.clock.clone(),
            secret: core.hasher.fingerprint(),
            handle: certificates,
        };
        tasks.spawn(watcher.run(stop_node.clone()).map(Ok));
        let renewal = Renewal {
            tls: config.tls.clone(),
            mesh: mesh.clone(),
            clock: core.clock.clone(),
            issuer: core.issuer.clone(),
        };
        tasks.spawn(renewal.run(stop_node.clone()).map(Ok));
        if let Some(issuer) = core.issuer.clone() {
            let watch = SignerWatch { issuer, clock: core.clock.clone() };
            tasks.spawn(watch.run(stop_node.clone()).map(Ok));
        }
        if let Some(folder) = config.node.data_dir.clone() {
            let revocations = mesh.revocations.clone();
            tasks.spawn(revocation_file::keep(folder, revocations, stop_node.clone()).map(Ok));
        }
    }
    tasks.spawn(cluster_overview.clone().run(stop_node.clone()).map(Ok));
    tasks.spawn(publish_rule_book(core.clone(), book.clone(), stop_node.clone()).map(Ok));
    tasks.spawn(core.clone().run(core_tasks, stop_node.clone()));
    let statsd = StatsdExporter::new(config.stats.clone(), statistics.clone());
    tasks.spawn(statsd.run(stop_node.clone()).map(Ok));
    tasks.spawn(export.run(stop_node.clone()).map(Ok));
    tasks.spawn(serve_prometheus(prometheus, &config, statistics, stop_node.clone()));
    let readiness = Readiness {
        core: core.clone(),
        rules: book,
        health: health.clone(),
        grpc: grpc_health.clone(),
        joined: joined.clone(),
        opens: listeners.describe(),
        skew_unready: config.cluster.skew_unready,
    };
    tasks.spawn(readiness.keep(stop_node.clone()).map(Ok));
    tasks.spawn(systemd::report(health.clone(), shutdown.clone(), stop_node.clone()).map(Ok));
    tracing::info!(node = %config.node.id, region = %config.node.region, "starting");
    let (has_drained, drained) = watch::channel(None);
    let grpc_health = &grpc_health;
    let blocked = BlockedView::of(&core, &config);
    let behind = Behind {
        core: &core,
        probes,
        view,
        overview: cluster_overview,
        access,
        blocked,
        grpc_health,
        drain: &shutdown,
        drained,
    };
    let mut serving = front.spawn(listeners.serve(&config, behind, joined, closing.clone()));

    let outcome = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        failed = first_end(&mut tasks) => Err(failed.into()),
        () = core.displaced() => Err(UserError::new(
            format!("node.id: another node runs as {}", config.node.id),
            "give every node an id of its own, in its certificate too",
        ).into()),
        served = &mut serving => Err(match served {
            Ok(Err(error)) => error.into(),
            Ok(Ok(())) => Failed::new("the listeners closed").into(),
            Err(error) => Failed::new(error.to_string()).into(),
        }),
    };
    health.red(DRAIN, "this node is draining");
    if outcome.is_ok() {
        let delay = config.limits.drain_delay;
        if core.mesh().is_some() && !delay.is_zero() {
            tracing::info!(for_ms = delay.as_millis_ceil(), "not ready; goes on before it drains");
            tokio::time::sleep(delay.to_std()).await;
        }
        let left = core.leave().await;
        has_drained.send_replace(Some(DrainReport {
            handed_over: left.is_ok(),
            leaves_majority: left != Ok(Left::NoMajority),
            reason: left.err().map(|given_up| given_up.to_string()),
            generation: core.incarnation.generation().0,
        }));
    }
    closing.drain.cancel();
    if !serving.is_finished() {
        tokio::select! {
            () = closing.have_closed.cancelled() => {}
            _ = &mut serving => {}
        }
    }
    core.decider.have_given_back().await;
    stop_node.cancel();
    while tasks.join_next().await.is_some() {}
    // Who waits for the end of the node waits for its admin listener.
    closing.admin.cancel();
    if !serving.is_finished() {
        let _ = serving.await;
    }
    tracing::info!("stopped");
    outcome
}

/// No task ends by itself: the first one that does stops the node.
async fn first_end(tasks: &mut JoinSet<Result<(), Failed>>) -> Failed {
    match tasks.join_next().await {
        Some(Ok(Err(failed))) => failed,
        Some(Err(error)) => Failed::new(error.to_string()),
        Some(Ok(Ok(()))) | None => Failed::new("a task ended unexpectedly"),
    }
}

/// Publishes the fingerprint of the rules in gossip, and the results of loading them in the
/// statistics.
async fn publish_rule_book(core: Arc<Core>, book: RuleBook, stop: CancellationToken) {
    loop {
        // Read before the book, so that no load in between is missed.
        let seen = book.handle.status();
        let fingerprint = book.handle.book().fingerprint();
        if let Some(joined) = &core.joined {
            joined.gossip.publish(|own| own.rule_book = fingerprint);
        }
        let service = &core.tallies.service;
        service.config_load_success.store(seen.loads_ok, Ordering::Relaxed);
        service.config_load_error.store(seen.loads_failed, Ordering::Relaxed);
        if stop.run_until_cancelled(book.handle.changed_since(&seen)).await.is_none() {
            return;
        }
    }
}
