//! Whose process is at the other end of a UNIX socket. Memory goes to processes of one's own user only, and the kernel says who they are: `SO_PEERCRED`
//! tells the effective user of who connected, and of who listens, at that moment. Nobody is exempt, root neither.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use fabric::sys;

/// What the kernel says of every user that has no number in this user namespace: many may be that one.
const OVERFLOW: u32 = 65534;

/// Whether it is this process's user.
pub(crate) fn is_own(socket: impl AsFd) -> bool {
    is(socket, sys::geteuid())
}

/// Whether it is user number `uid`.
pub(crate) fn is(socket: impl AsFd, uid: u32) -> bool {
    number(socket).is_some_and(|theirs| may_be(theirs, uid))
}

/// Its number, if the kernel tells it.
pub(crate) fn number(socket: impl AsFd) -> Option<u32> {
    rustix::net::sockopt::socket_peercred(socket).ok().map(|peer| peer.uid.as_raw())
}

fn may_be(theirs: u32, uid: u32) -> bool {
    theirs == uid && ![OVERFLOW, overflow()].contains(&theirs)
}

fn overflow() -> u32 {
    static KNOWN: OnceLock<u32> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let told = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        told.and_then(|told| told.trim().parse().ok()).unwrap_or(OVERFLOW)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_ones_own_user_is_and_nobody_is_none() {
        assert!(may_be(0, 0) && may_be(1000, 1000));
        assert!(!may_be(0, 1000) && !may_be(1000, 0) && !may_be(1000, 1001));
        assert!(!may_be(OVERFLOW, OVERFLOW) && !may_be(overflow(), overflow()));
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(is_own(&one) || sys::geteuid() == OVERFLOW);
        assert!(!is(&one, sys::geteuid() + 1));
    }
}
