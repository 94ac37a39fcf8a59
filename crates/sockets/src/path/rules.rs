//! Whether a rule holds: in the library all of them do. In a simulated process (`--cfg sim`) the
//! host may switch one off.

pub(super) use super::rule::Rule;

/// Whether it is switched off.
#[inline(always)]
pub(super) fn off(rule: Rule) -> bool {
    #[cfg(sim)]
    return fabric::sim::off() == rule as u32 + 1;
    #[cfg(not(sim))]
    {
        let _ = rule;
        false
    }
}
