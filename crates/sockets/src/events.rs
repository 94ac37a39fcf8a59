//! Events of poll() and epoll, which have the same bits.

pub(crate) const IN: u32 = libc::EPOLLIN as u32;

pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;

pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
