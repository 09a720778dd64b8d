//! Asking for memory before it is needed: the only `unsafe` of the crate.
//!
//! A check of one of a million keys waits some 150 ns for one line of memory that no cache holds.
//! A thread that has several checks to make can have their lines fetched at the same time, if it
//! says early which they are. An ordinary read does not say so: the lock behind it waits until the
//! read is done. The instruction for it has no safe form in `core`.
//!
//! **Measured** (`benches/store.rs`, a million keys, batches of 64): a check took 130 ns with this
//! and 270 to 300 ns without.

#![allow(unsafe_code, reason = "the instruction has no safe form; see the module's documentation")]

/// Bytes that a processor reads at once.
const LINE: usize = 64;

/// Has the first `bytes` of memory from `address` on brought near, and waits for nothing.
///
/// What lies there is not read: any address may be asked for.
#[inline]
pub(super) fn prefetch(address: usize, bytes: usize) {
    // The nearest line is asked for last. Measured, not understood: perhaps the first ask brings
    // the page's translation and no more.
    for offset in (0..bytes).step_by(LINE).rev() {
        line(core::ptr::without_provenance(address.wrapping_add(offset)));
    }
}

#[cfg(target_arch = "x86_64")]
fn line(at: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 processor has the instruction, and it is a hint: it changes nothing that
    // a program can see, and does not fault whatever the address is.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
}

/// Other processors are left to find out by themselves.
#[cfg(not(target_arch = "x86_64"))]
fn line(_: *const i8) {}
