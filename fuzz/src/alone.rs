//! A node that stands alone, with a few rules of every kind that a request may meet.

use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use tidegate_ownership::identity::NodeId;
use tidegate::config::Config;
use tidegate::node::{self, Core, Setup};
use tidegate_rules::book::Book;
use tidegate_rules::load::{self, Options, Source};
use tokio::runtime::{Builder, Runtime};

/// Every algorithm, and what decides beside them; the domains and keys are those of the seeds.
const RULES: &str = include_str!("../seeds/alone.yaml");
/// Few, so that a request of some descriptors fills the store.
const KEYS_MAX: usize = 8;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime"));
static BOOK: LazyLock<Arc<ArcSwap<Book>>> = LazyLock::new(|| {
    let source = Source { name: "alone.yaml".into(), bytes: RULES.into() };
    let book = load::parse(&[source], &Options::default()).expect("valid rules");
    Arc::new(ArcSwap::from_pointee(book))
});

/// Runs `ask` against a node that has counted nothing yet.
pub fn with<F: Future<Output = ()>>(ask: impl FnOnce(Arc<Core>) -> F) {
    RUNTIME.block_on(async {
        let mut config = Config::standalone();
        config.limits.keys_max = KEYS_MAX;
        let node = NodeId::new("fuzz").expect("a valid id");
        let setup = Setup { config, node, identity: None, book: BOOK.clone(), http: None };
        let (environment, _) = node::system_environment();
        let (core, _) = Core::build(setup, environment).await.expect("a node");
        ask(core).await;
    });
}
