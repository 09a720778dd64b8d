//! Prefetching of memory: the only `unsafe` code of the crate.
//!
//! A check of one of a million keys waits some 150 ns for one uncached line of memory. A thread
//! with several checks can have their lines fetched in parallel if it requests them early. An
//! ordinary read cannot do that: the lock operation behind it waits until the read has finished.
//! The instruction has no safe form in `core`.
//!
//! **Measured** (`benches/store.rs`, a million keys, batches of 64): a check took 130 ns with this
//! and 270 to 300 ns without.

#![allow(unsafe_code, reason = "the instruction has no safe form; see the module documentation")]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches `bytes` bytes of memory from `address` on into the cache. Does not block.
///
/// The memory is not accessed, so any address is valid.
#[inline]
pub(super) fn prefetch(address: usize, bytes: usize) {
    // The first line is requested last, which was faster in measurements: the first request may
    // only load the address translation of the page.
    for offset in (0..bytes).step_by(LINE).rev() {
        prefetch_line(core::ptr::without_provenance(address.wrapping_add(offset)));
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch_line(at: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 processor has the instruction. It is a hint without visible effect, and
    // it does not fault at any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
}

/// Does nothing on other architectures.
#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_: *const i8) {}
