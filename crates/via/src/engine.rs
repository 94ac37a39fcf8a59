//! The length from which on messages go by DMA. It is measured, as the two engines differ from
//! machine to machine.
//!
//! The kernel's copy (process_vm_writev) takes a call, and finds and pins the receiver's pages;
//! through the buffer that both ends map, bytes are copied twice, from one processor's cache to the
//! other's. Where the first costs 2 us and 38 ps a byte, and the second 78 ps a byte (an Intel
//! Xeon), DMA is faster from 32 KB on. Where they cost 55 ps and 28 ps a byte (an AMD EPYC), it
//! never is.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use fabric::sys;

use crate::segment::EAGER;

/// Lengths for which the kernel's copy is timed.
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 10;
/// How often it is timed; the fastest counts.
const TURNS: usize = 16;
/// Two copies between the caches of two processors take so many times as long as one copy within a
/// cache (measured on both machines above: 3 to 4).
const APART: f64 = 3.0;

/// Messages up to so many bytes go by programmed I/O: the value of `VIPL_PIO_BYTES`, or the length
/// up to which it is faster here. That is measured once, in a fifth of a millisecond.
pub fn pio_most() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let said = std::env::var("VIPL_PIO_BYTES").ok().and_then(|text| text.parse().ok());
        said.unwrap_or_else(measured)
    })
}

fn measured() -> usize {
    let (from, mut to) = (vec![1u8; LARGE], vec![0u8; LARGE]);
    let copy = fastest(|| {
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        true
    });
    let mut by_kernel = |len| {
        fastest(|| {
            let local = [libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: len }];
            let remote = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: len }];
            // SAFETY: both are buffers of ours, at least as long, and the first is only read.
            unsafe { sys::process_vm_writev(std::process::id(), &local, &remote) == Ok(len) }
        })
    };
    match (copy, by_kernel(SMALL), by_kernel(LARGE)) {
        (Some(copy), Some(small), Some(large)) => crossing(copy, small, large),
        // The kernel does not allow it.
        _ => EAGER,
    }
}

/// The fastest of some turns, in ns; `None` if one fails.
fn fastest(mut turn: impl FnMut() -> bool) -> Option<f64> {
    let mut best = f64::MAX;
    for _ in 0..TURNS {
        let start = Instant::now();
        if !turn() {
            return None;
        }
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    Some(best)
}

/// The length at which the kernel's copy becomes faster than two copies between processors. The
/// kernel's takes `small` and `large` ns for [`SMALL`] and [`LARGE`] bytes; one copy of [`LARGE`]
/// bytes within a cache takes `copy`.
fn crossing(copy: f64, small: f64, large: f64) -> usize {
    let a_byte = (large - small) / (LARGE - SMALL) as f64;
    let call = small - a_byte * SMALL as f64;
    let gained = APART * copy / LARGE as f64 - a_byte;
    if gained <= 0.0 { EAGER } else { ((call / gained) as usize).clamp(SMALL, EAGER) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_that_were_measured() {
        // ns: a copy of 64 KB within a cache, and the kernel's of 4 and 64 KB.
        assert!((24 << 10..40 << 10).contains(&crossing(1700.0, 1350.0, 3700.0)));
        assert_eq!(crossing(600.0, 1900.0, 5200.0), EAGER);
        assert_eq!(crossing(60_000.0, 300.0, 1000.0), SMALL);
    }

    #[test]
    fn here_it_is_a_length_that_can_be() {
        assert!((SMALL..=EAGER).contains(&measured()));
    }
}
