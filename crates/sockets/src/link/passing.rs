//! What the ends of a link pass by its socket: descriptors, with the hand-shake, and later each of
//! a process's bells when somebody is first to be woken by it. A bell costs a descriptor here and
//! there, and most peers need but a few.

use fabric::bell;
use fabric::credentials::User;
use fabric::shm::Map;
use fabric::sync::{AtomicU32, Ordering};
use fabric::sys::{self, Errno, MOST_PASSED};

use super::entry::Link;
use crate::bells;
use crate::descriptors::{self, Hidden};
use crate::folder::{self, Spot};
use crate::layout::{BELLS, CALL_BELL};
use crate::peering;
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
        let by_speakers = self.rings_by_speakers();
        if self.rings_loud() && !by_speakers {
            return bells::loud_fd(number).is_some();
        }
        (self.rings() || by_speakers) && self.serves() && self.pass(number) && {
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
        if sys::ioctl_int(socket, libc::TIOCOUTQ) != Ok(0) {
            return false;
        }
        if self.rings_by_speakers() {
            // An event queue's is made where its set hears it.
            if number >= CALL_BELL {
                bells::make_far(number);
            }
            return bells::far(number).is_some_and(|(_, name)| {
                let mut told = [number as u8; TOLD];
                told[1..].copy_from_slice(&name.file.to_ne_bytes());
                sys::send_with_now(socket, &told, &[]).is_ok()
            });
        }
        bells::bell_fd(number).is_some_and(|bell| sys::send_with(socket, &[number as u8], &[bell]).is_ok())
    }

    /// The peer's bell with this number is in the folder: where its file was told of, a socket that
    /// is connected to it is made. Nothing else is taken from there.
    fn hear_far_bell(&self, socket: i32) -> bool {
        if is_shut_out(User::STRANGER) {
            return false;
        }
        let mut told = [0; TOLD];
        let come = receive::<1>(socket, User::STRANGER, &mut told, 0, |_, _| false).map(|come| come.len);
        let number = told[0];
        if let (Ok(TOLD), Some(place)) = (come, self.bells.get(usize::from(number)))
            && place.get().is_none()
            && let Some((speaker, _)) =
                folder::reach(self.folder.load(Ordering::Relaxed), Spot::Bell(number), |file| {
                    told[1..] == file.to_ne_bytes()
                })
        {
            place.set(speaker.keep());
        }
        matches!(come, Ok(1..))
    }

    /// Whether each end rings the other's bells by sockets of its own that are connected to them.
    fn rings_by_speakers(&self) -> bool {
        let facts = peering::facts(self);
        facts.shares_memory && !facts.shares_names
    }

    /// Rings a bell of the peer's, of [`Link::bell`]. False if it is no more.
    pub(crate) fn ring(&self, bell: i32) -> bool {
        if self.rings_by_speakers() {
            return bell::ring_connected(bell, self.loud[1].load(Ordering::Relaxed));
        }
        bell::ring(bell);
        true
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
        let far = self.rings_by_speakers() && self.serves();
        let user = User::of(self.peer_uid.load(Ordering::Relaxed));
        let user = user.filter(|&user| User::own() == Some(user) && self.serves());
        if !far && user.is_none() {
            return;
        }
        // A handler that has interrupted the one who has the lock does without.
        if !thread::try_lock(&self.lock, Place::Link) {
            return;
        }
        let socket = self.socket.get().filter(|&socket| descriptors::intact(socket));
        for socket in core::iter::repeat_n(socket, BELLS).flatten() {
            let Some(user) = user else {
                if self.hear_far_bell(socket) {
                    continue;
                }
                break;
            };
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

/// How long a message is that tells of a bell: its number, and the identity of its file.
const TOLD: usize = 9;

/// A message that has come, and the descriptors that came with it.
pub(crate) struct Passed<const MOST: usize> {
    pub(crate) len: usize,
    /// Something was cut off.
    pub(crate) cut: bool,
    pub(crate) fds: [Option<Hidden>; MOST],
}

/// Receives a message with so many descriptors at `most`, each of which is to be what `is_right`
/// knows it for by its place. Further ones are given no numbers, and closed by the kernel in this
/// call; but of a stranger all are taken, as the last close of one may take as long as it pleases
/// who has passed it. `Err(Linking)`: not there yet.
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
    let (mut fds, most) = ([-1; MOST_PASSED], most.min(MOST));
    let places = if user == User::STRANGER { MOST_PASSED } else { most };
    // A descriptor that finds no number is lost: there must be room for them from the start.
    let raised = descriptors::Raised::new();
    let (len, cut) = match sys::receive_with(socket, bytes, &mut fds[..places]) {
        Ok(got) => got,
        Err(Errno::EAGAIN | Errno::EINTR) => return Err(Reason::Linking),
        Err(_) => return Err(Reason::PeerGone),
    };
    let foreign = |(index, &fd): (usize, &i32)| fd >= 0 && !(index < most && is_right(index, fd));
    let wrong = fds.iter().enumerate().filter(|&place| foreign(place)).count();
    if wrong > 0 {
        drop(raised);
        // The fuzzer sends its own again and again, and counts descriptors after each input.
        if !cfg!(fuzzing) {
            shut_out(user, wrong as u32);
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
    let hidden = |index: usize| Some(fds[index]).filter(|&fd| fd >= 0).map(Hidden::new);
    Ok(Passed { len, cut, fds: core::array::from_fn(hidden) })
}

/// Closes a socket to a process of this user. What a stranger has sent and nobody has read is taken
/// before: the kernel would close the descriptors that came with it.
pub(crate) fn close(socket: Hidden, user: Option<User>) {
    if user != Some(User::STRANGER) || !descriptors::intact(socket.fd()) {
        return;
    }
    folder::keep_descriptors_out(socket.fd());
    let _raised = descriptors::Raised::new();
    for _ in 0..MOST_UNREAD {
        match sys::message_waits(socket.fd()) {
            Ok(false) => return,
            Ok(true) if is_shut_out(User::STRANGER) => break,
            Ok(true) => {}
            // The kernel tells a reset once, before what has come.
            Err(_) => continue,
        }
        let mut fds = [-1; MOST_PASSED];
        let _ = sys::receive_with(socket.fd(), &mut [0; 128], &mut fds);
        for fd in fds.into_iter().filter(|&fd| fd >= 0) {
            if Map::is_segment(fd) {
                sys::close(fd);
            } else {
                shut_out(User::STRANGER, 1);
                descriptors::hide_unclosed(fd);
            }
        }
    }
    // What it holds can neither be taken nor be closed.
    shut_out(User::STRANGER, 1);
    socket.keep();
}

/// More messages than a socket's queue has room for, on most machines.
const MOST_UNREAD: usize = 600;

/// Users, +1, that have sent a descriptor of something else than memory and bells: from them none
/// is taken any more. With no place left, from nobody.
static SHUT_OUT: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// How many such descriptors those have sent who are no users here: they stay open, so there are
/// few.
static WRONG_OF_STRANGERS: AtomicU32 = AtomicU32::new(0);
const MOST_WRONG: u32 = 16;

fn shut_out(user: User, wrong: u32) {
    if user == User::STRANGER {
        WRONG_OF_STRANGERS.fetch_add(wrong, Ordering::Relaxed);
        return;
    }
    let mark = user.number().wrapping_add(1);
    let _ = SHUT_OUT.iter().any(|place| {
        let found = place.compare_exchange(0, mark, Ordering::AcqRel, Ordering::Acquire);
        found.is_ok() || found == Err(mark)
    });
}

pub(crate) fn is_shut_out(user: User) -> bool {
    if user == User::STRANGER {
        return WRONG_OF_STRANGERS.load(Ordering::Relaxed) >= MOST_WRONG;
    }
    let mark = user.number().wrapping_add(1);
    SHUT_OUT.iter().any(|place| place.load(Ordering::Acquire) == mark)
        || SHUT_OUT.iter().all(|place| place.load(Ordering::Acquire) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind, Read, pipe};
    use std::os::fd::AsRawFd;

    fn pair() -> [i32; 2] {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: there is room for two.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
        ends
    }

    /// Sends a message with the writing end of a pipe so many times, which is then nobody's but the
    /// message's; whether it is still open.
    fn pass(socket: i32, times: usize) -> impl FnMut() -> bool {
        let (mut reader, writer) = pipe().unwrap();
        let fds = vec![writer.as_raw_fd(); times];
        sys::send_with(socket, b"message", &fds).unwrap();
        drop(writer);
        sys::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK as usize).unwrap();
        move || reader.read(&mut [0]).as_ref().err().map(Error::kind) == Some(ErrorKind::WouldBlock)
    }

    #[test]
    fn no_descriptor_of_a_strangers_is_closed_in_a_call_of_ours() {
        let [ours, theirs] = pair();
        let mut open = pass(theirs, 5);
        let got = receive::<1>(ours, User::STRANGER, &mut [0; 16], 1, |_, _| true);
        assert!(matches!(got, Err(Reason::Broken)));
        assert!(open(), "those beyond the first are kept");
        let mut unread = pass(theirs, 3);
        close(Hidden::of(ours), Some(User::STRANGER));
        assert!(unread(), "what nobody has read is kept, too");
        assert_eq!(sys::send_with(theirs, b"", &[]), Err(Errno::EPIPE), "the socket is closed");
        sys::close(theirs);
    }

    #[test]
    fn a_reset_hides_nothing_that_was_passed_before() {
        let [ours, theirs] = pair();
        sys::send_with(ours, b"unread by them", &[]).unwrap();
        let mut unread = pass(theirs, 1);
        // Who closes with something unread resets the connection.
        sys::close(theirs);
        close(Hidden::of(ours), Some(User::STRANGER));
        assert!(unread(), "it is kept");
        assert_eq!(sys::fcntl(ours, libc::F_GETFD, 0), Err(Errno::EBADF), "the socket is closed");
    }

    #[test]
    fn an_empty_message_is_no_end() {
        let [ours, theirs] = pair();
        sys::send_with(theirs, b"", &[]).unwrap();
        assert_eq!(sys::message_waits(ours), Ok(true));
        assert_eq!(sys::receive_with(ours, &mut [0; 8], &mut [-1; 1]), Ok((0, false)));
        assert_eq!(sys::message_waits(ours), Ok(false));
        sys::close(theirs);
        assert_eq!(sys::message_waits(ours), Ok(false), "that is the end");
        sys::close(ours);
    }
}
