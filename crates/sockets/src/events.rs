//! Events of poll() and epoll, which have the same bits.

pub(crate) const IN: u32 = libc::EPOLLIN as u32;

pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;

/// The same as [`OUT`] for a socket, by another name.
pub(crate) const WRNORM: u32 = libc::EPOLLWRNORM as u32;

/// Whether who asks for these events waits for room to write.
pub(crate) fn ask_for_room(events: u32) -> bool {
    events & (OUT | WRNORM) != 0
}

pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
