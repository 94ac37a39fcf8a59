//! The process at the other end of a UNIX socket. Memory goes to processes of one's own user only.
//! The kernel says who they are ([`fabric::credentials`]): the user who connected, or listened, at
//! that moment. Nobody is exempt, not even root.

use std::os::fd::{AsFd, AsRawFd as _};

use fabric::credentials::{self, User};

/// Whether it belongs to this process's user.
pub(crate) fn is_own(socket: impl AsFd) -> bool {
    let own = User::own();
    at(socket).is_some_and(|(peer, _)| own == Some(peer))
}

/// Whether it belongs to this process's user, or to root: this host's agent, as far as that can be
/// known.
pub(crate) fn is_kin(socket: impl AsFd) -> bool {
    credentials::is_kin(socket.as_fd().as_raw_fd())
}

/// Its process id, if its user is known.
pub(crate) fn process(socket: impl AsFd) -> Option<u32> {
    at(socket).map(|(_, pid)| pid)
}

fn at(socket: impl AsFd) -> Option<(User, u32)> {
    User::at(socket.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_pair_is_ones_own_and_nobody_elses() {
        let (one, _other) = UnixStream::pair().unwrap();
        let known = User::own().is_some();
        assert_eq!((is_own(&one), is_kin(&one)), (known, known));
        assert_eq!(process(&one), known.then(std::process::id));
    }
}
