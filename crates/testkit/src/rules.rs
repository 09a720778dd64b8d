//! Rule books from text.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_rules::book::Book;
use tidegate_rules::load;

/// A book of one file, as a node holds it.
pub fn book(yaml: &str) -> Arc<ArcSwap<Book>> {
    let source = load::Source { name: "test.yaml".into(), bytes: yaml.as_bytes().into() };
    let book = load::parse(&[source], &load::Options::default()).expect("valid rules");
    Arc::new(ArcSwap::from_pointee(book))
}
