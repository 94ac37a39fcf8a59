//! Rules of the pure parts of this folder, by name, so that the model can switch one off and show that it is needed. Here all of them hold.

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// A ring is left only when no kick is on the way that the peer has not counted.
    Quiet,
    /// Nor while one that it has counted is still in the companion.
    KicksTaken,
    /// Nor, while its writer says nothing, with bytes unread.
    NothingUnread,
}

/// Whether it is switched off.
#[inline(always)]
pub(super) const fn off(_: Rule) -> bool {
    false
}
