//! A standalone node with rules of every kind.

use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use tidegate::config::Config;
use tidegate::front::Probes;
use tidegate::node::{self, Core, Setup};
use tidegate::traces::Traces;
use tidegate_ownership::identity::NodeId;
use tidegate_rules::book::Book;
use tidegate_rules::load::{self, Options, Source};

use crate::block_on;

/// Every algorithm and option. The seeds use these domains and keys.
const RULES: &str = include_str!("../seeds/standalone.yaml");
/// Small, so that a single request can fill the store.
const KEYS_MAX: usize = 8;

static BOOK: LazyLock<Arc<ArcSwap<Book>>> = LazyLock::new(|| {
    let source = Source { name: "standalone.yaml".into(), bytes: RULES.into() };
    let book = load::parse(&[source], &Options::default()).expect("valid rules");
    Arc::new(ArcSwap::from_pointee(book))
});

/// Probes of a node that is ready and has no metrics.
#[derive(Debug)]
pub struct Ready;

impl Probes for Ready {
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn metrics(&self) -> String {
        String::new()
    }
}

/// Runs `body` with a new node.
pub fn with_node<F: Future<Output = ()>>(body: impl FnOnce(Arc<Core>) -> F) {
    block_on(async {
        let mut config = Config::standalone();
        config.limits.keys_max = KEYS_MAX;
        let node = NodeId::new("fuzz").expect("a valid id");
        let (book, traces) = (BOOK.clone(), Traces::default());
        let setup = Setup { config, node, identity: None, book, http: None, traces };
        let (environment, _) = node::system_environment();
        let (core, _) = Core::build(setup, environment).await.expect("a node");
        body(core).await;
    });
}
