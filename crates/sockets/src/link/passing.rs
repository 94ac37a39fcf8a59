//! What the ends of a link pass by its socket: descriptors, with the hand-shake, and later each of
//! a process's bells when somebody is first to be woken by it. A bell costs a descriptor here and
//! there, and most peers need but a few.

use fabric::bell;
use fabric::credentials::User;
use fabric::sync::{AtomicU32, Ordering};
use fabric::sys::{self, Errno};

use super::entry::Link;
use crate::bells;
use crate::descriptors::{self, Hidden};
use crate::layout::BELLS;
use crate::reason::Reason;
use crate::thread::{self, Place};

impl Link {
    /// Whether the peer can ring our bell with this number: it is passed to it now, if need be, or
    /// made, for one of another user. Who asks owns the bell: a set, or the thread that is going to
    /// sleep.
    #[inline]
    pub(crate) fn gives(&self, number: usize) -> bool {
        self.given.load(Ordering::Acquire) & 1 << number != 0 || self.gives_now(number)
    }

    #[cold]
    fn gives_now(&self, number: usize) -> bool {
        if self.rings_loud() {
            return bells::loud_fd(number).is_some();
        }
        self.rings() && self.serves() && self.pass(number) && {
            self.given.fetch_or(1 << number, Ordering::AcqRel);
            true
        }
    }

    /// One at a time is under way: the kernel limits how many descriptors of a user are, the
    /// program's among them.
    fn pass(&self, number: usize) -> bool {
        let Some(socket) = self.socket.get().filter(|&socket| descriptors::intact(socket)) else {
            return false;
        };
        let Some(bell) = bells::bell_fd(number) else { return false };
        sys::ioctl_int(socket, libc::TIOCOUTQ) == Ok(0)
            && sys::send_with(socket, &[number as u8], &[bell]).is_ok()
    }

    /// The peer's bell with this number.
    pub fn bell(&self, number: usize) -> Option<i32> {
        let place = self.bells.get(number)?;
        // Another user passes none, and is told by datagrams.
        if place.get().is_none() && self.loud[0].load(Ordering::Relaxed) == 0 {
            self.hear_bells();
        }
        place.get()
    }

    /// Takes the bells that the peer has passed since the hand-shake. One that is lost, as there is
    /// no number for it, is not rung: its owner is kicked.
    #[cold]
    fn hear_bells(&self) {
        let user = User::of(self.peer_uid.load(Ordering::Relaxed));
        let Some(user) = user.filter(|&user| User::own() == Some(user) && self.serves()) else { return };
        // A handler that has interrupted the one who has the lock does without.
        if !thread::try_lock(&self.lock, Place::Link) {
            return;
        }
        let socket = self.socket.get().filter(|&socket| descriptors::intact(socket));
        for socket in core::iter::repeat_n(socket, BELLS).flatten() {
            let mut number = [0];
            let passed = receive::<1>(socket, user, &mut number, 1, |_, fd| bell::is_bell(fd));
            let Ok(Passed { len: 1, fds: [bell], .. }) = passed else { break };
            if let (Some(bell), Some(place)) = (bell, self.bells.get(usize::from(number[0])))
                && place.get().is_none()
            {
                place.set(bell.keep());
            }
        }
        self.lock.unlock();
    }
}

/// A message that has come, and the descriptors that came with it.
pub(crate) struct Passed<const MOST: usize> {
    pub(crate) len: usize,
    /// Something was cut off.
    pub(crate) cut: bool,
    pub(crate) fds: [Option<Hidden>; MOST],
}

/// Receives a message with so many descriptors at `most`, each of which is to be what `is_right`
/// knows it for by its place; further ones are given no numbers. `Err(Linking)`: not there yet.
pub(crate) fn receive<const MOST: usize>(
    socket: i32,
    user: User,
    bytes: &mut [u8],
    most: usize,
    is_right: impl Fn(usize, i32) -> bool,
) -> Result<Passed<MOST>, Reason> {
    if !sys::readable(socket) {
        return Err(Reason::Linking);
    }
    let mut fds = [-1; MOST];
    // A descriptor that finds no number is lost: there must be room for them from the start.
    let raised = descriptors::Raised::new();
    let (len, cut) = match sys::receive_with(socket, bytes, &mut fds[..most.min(MOST)]) {
        Ok(got) => got,
        Err(Errno::EAGAIN | Errno::EINTR) => return Err(Reason::Linking),
        Err(_) => return Err(Reason::PeerGone),
    };
    let foreign = |(index, &fd): (usize, &i32)| fd >= 0 && !is_right(index, fd);
    if fds.iter().enumerate().any(foreign) {
        drop(raised);
        // The fuzzer sends its own again and again, and counts descriptors after each input.
        if !cfg!(fuzzing) {
            shut_out(user);
        }
        for (index, fd) in fds.into_iter().enumerate().filter(|&(_, fd)| fd >= 0) {
            if foreign((index, &fd)) && !cfg!(fuzzing) {
                // It may be of a file on which the program has locks, which would end if we closed
                // it. It stays, and is the last one from there.
                descriptors::hide_unclosed(fd);
            } else {
                sys::close(fd);
            }
        }
        return Err(Reason::Broken);
    }
    Ok(Passed { len, cut, fds: fds.map(|fd| (fd >= 0).then(|| Hidden::new(fd))) })
}

/// Users, +1, that have sent a descriptor of something else than memory and bells: from them none
/// is taken any more. With no place left, from nobody.
static SHUT_OUT: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

fn shut_out(user: User) {
    let mark = user.number().wrapping_add(1);
    let _ = SHUT_OUT.iter().any(|place| {
        let found = place.compare_exchange(0, mark, Ordering::AcqRel, Ordering::Acquire);
        found.is_ok() || found == Err(mark)
    });
}

pub(crate) fn is_shut_out(user: User) -> bool {
    let mark = user.number().wrapping_add(1);
    SHUT_OUT.iter().any(|place| place.load(Ordering::Acquire) == mark)
        || SHUT_OUT.iter().all(|place| place.load(Ordering::Acquire) != 0)
}
