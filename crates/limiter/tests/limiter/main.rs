//! Tests of the limiter through its public interface, one binary.

mod engine_laws;
mod engine_traps;
mod eventual_merge;
mod fine_windows;
mod first_hit_window;
mod folded_starts;
mod grants;
mod reservations;
mod rests;
mod store_bounds;
mod store_changes;
mod store_lazy_sync;
mod store_model;
mod store_sync;
mod store_threads;
mod store_unsettled_clock;
