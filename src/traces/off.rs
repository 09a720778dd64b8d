//! A build without the feature `otel`: nothing is ever recorded, and the compiler knows it.

#![allow(clippy::unused_self, reason = "as the methods of a build that records")]

use std::sync::Arc;

use http::HeaderMap;
use tidegate_cluster::mesh::wire::TraceContext;

use super::{Counters, Kind};

/// Records nothing.
#[derive(Clone, Debug, Default)]
pub struct Traces(());

/// There is none.
#[derive(Debug)]
pub enum Span {}

impl Traces {
    #[inline]
    pub fn is_on(&self) -> bool {
        false
    }

    #[inline]
    pub fn request(&self, _: impl FnOnce() -> String, _: &HeaderMap) -> Option<Span> {
        None
    }

    #[inline]
    pub fn below(&self, _: &TraceContext, _: &'static str, _: Kind) -> Option<Span> {
        None
    }

    #[inline]
    pub fn current(&self) -> Option<Arc<Span>> {
        None
    }

    #[inline]
    pub fn counters(&self) -> Option<&Counters> {
        None
    }
}

impl Span {
    pub fn context(&self) -> &Arc<TraceContext> {
        match *self {}
    }

    pub fn set_text(&self, _: &'static str, _: impl Into<String>) {
        match *self {}
    }

    pub fn set_number(&self, _: &'static str, _: usize) {
        match *self {}
    }

    pub fn set_texts(&self, _: &'static str, _: impl IntoIterator<Item = String>) {
        match *self {}
    }

    pub fn has(&self, _: &'static str) -> bool {
        match *self {}
    }

    pub fn fails(&self) {
        match *self {}
    }
}

#[inline]
pub fn within<T>(_: Option<&Arc<Span>>, run: impl FnOnce() -> T) -> T {
    run()
}
