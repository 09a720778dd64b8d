//! Pages for people and scrapers (metrics, status, rules), in memory that clients cannot multiply.
//!
//! A page may have megabytes, and a client that opens many HTTP/2 streams and reads none keeps each
//! rendering that was made for it. So at most [`RENDERED_MAX`] renderings of a page exist at once.
//! Further requests get the newest of them, which is at most as old as the time that a client may
//! take to read a response ([`Bounds::send_timeout`](super::bounds::Bounds::send_timeout)).

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

/// Most renderings of a page that are not sent yet: more than scrapers ask for at once.
pub const RENDERED_MAX: usize = 16;

/// The renderings of one page; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Those that some response still holds, the newest last.
    rendered: Arc<Mutex<Vec<Weak<String>>>>,
}

/// A rendering, which lives until the last response with it was sent or dropped.
struct Rendering(Arc<String>);

impl Page {
    /// The page as `render` returns it, or the newest rendering if too many wait to be sent.
    pub fn get(&self, render: impl FnOnce() -> String) -> Bytes {
        let mut rendered = self.rendered.lock();
        rendered.retain(|rendering| rendering.strong_count() > 0);
        let is_full = rendered.len() >= RENDERED_MAX;
        let newest = rendered.last().filter(|_| is_full).and_then(Weak::upgrade);
        let page = newest.unwrap_or_else(|| {
            let page = Arc::new(render());
            rendered.push(Arc::downgrade(&page));
            page
        });
        Bytes::from_owner(Rendering(page))
    }
}

impl AsRef<[u8]> for Rendering {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renderings_are_shared_while_too_many_are_unsent() {
        let page = Page::default();
        let mut number = 0;
        let mut next = || {
            page.get(|| {
                number += 1;
                number.to_string()
            })
        };
        let mut unsent: Vec<Bytes> = (0..2 * RENDERED_MAX).map(|_| next()).collect();
        assert_eq!(unsent[0], "1");
        assert!(unsent[RENDERED_MAX - 1..].iter().all(|page| page == "16"));
        unsent.remove(0);
        assert_eq!(next(), "17");
        drop(unsent);
        assert_eq!(next(), "18");
    }
}
