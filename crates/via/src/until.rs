//! How long a call may wait.

use fabric::sys;

/// A time limit, as programs give it: milliseconds, `VIP_INFINITE` in either width.
#[derive(Debug, Clone, Copy)]
pub struct Until(Option<u64>);

impl Until {
    /// So many milliseconds from now.
    pub fn after(millis: u64) -> Until {
        if millis >= u64::from(u32::MAX) { Until(None) } else { Until(Some(sys::now() + millis * 1_000_000)) }
    }

    /// Nanoseconds that are left; none if it is over.
    pub fn left(&self) -> Option<u64> {
        match self.0 {
            None => Some(3_600_000_000_000),
            Some(end) => end.checked_sub(sys::now()).filter(|&left| left > 0),
        }
    }
}
