//! Arbitrary bytes as rule files separated by zero bytes, with and without `merge_domains`.
//! Invariants: no panic; an error has a message; accepted files parse to the same rules again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_limiter::descriptor::Entry;
use tidegate_rules::book::Book;
use tidegate_rules::load::{self, Options, Source};

fuzz_target!(|bytes: &[u8]| {
    let files = bytes.split(|byte| *byte == 0).enumerate();
    let sources: Vec<Source> = files
        .map(|(n, bytes)| Source { name: format!("rules-{n}.yaml"), bytes: bytes.to_vec() })
        .collect();
    for merge_domains in [false, true] {
        check(&sources, &Options { merge_domains, ..Options::default() });
    }
});

fn check(sources: &[Source], options: &Options) {
    let book = match load::parse(sources, options) {
        Ok(book) => book,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let again = load::parse(sources, options).expect("accepted before");
    assert_eq!(book.fingerprint(), again.fingerprint());
    for warning in book.warnings() {
        assert!(!warning.to_string().is_empty());
    }
    look_up_all(&book);
}

fn look_up_all(book: &Book) {
    for domain in book.domains() {
        assert!(book.has_domain(domain));
        for rule in book.rules() {
            // The last part of an id is a key, or a key and its value.
            let entry = Entry { key: rule.id.rsplit('.').next().unwrap_or_default(), value: "v" };
            book.find(domain, &[entry]);
            book.find(domain, &[entry, entry]);
        }
    }
}
