//! System calls in std's terms, and those that neither std nor `fabric::sys` has: waiting for
//! several descriptors, signals.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use fabric::sys;

/// The result of a call, in std's form.
pub fn checked(result: isize) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// An errno of `fabric::sys`, in std's form.
pub fn error(errno: sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.into_raw())
}

/// Takes a descriptor that a call has just made.
fn owned(fd: isize) -> io::Result<OwnedFd> {
    let fd = checked(fd)? as RawFd;
    // SAFETY: the kernel has just given it to us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An eventfd by which one thread, or one process, wakes another.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new one.
    pub fn new() -> io::Result<Bell> {
        let fd = fabric::bell::create().map_err(error)?;
        // SAFETY: the kernel has just given it to us.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// A bell that a peer has passed; None if it could block us.
    pub fn of(fd: OwnedFd) -> Option<Bell> {
        fabric::bell::is_bell(fd.as_raw_fd()).then_some(Bell(fd))
    }

    /// Rings it.
    pub fn ring(&self) {
        fabric::bell::ring(self.fd());
    }

    /// Silences it.
    pub fn silence(&self) {
        fabric::bell::silence(self.fd());
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until one of the descriptors is readable, or `millis` have passed (for ever if None).
/// Returns which are.
pub fn wait(fds: &[RawFd], millis: Option<u64>) -> Vec<bool> {
    let fds: Vec<(RawFd, i16)> = fds.iter().map(|&fd| (fd, libc::POLLIN)).collect();
    wait_for(&fds, millis)
}

/// As [`wait`], for the events beside each descriptor: POLLIN, POLLOUT.
pub fn wait_for(fds: &[(RawFd, i16)], millis: Option<u64>) -> Vec<bool> {
    let mut set: Vec<libc::pollfd> =
        fds.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let _ = sys::ppoll(&mut set, millis.map(|millis| millis * 1_000_000)); // interrupted: nothing is ready
    set.iter().map(|entry| entry.revents != 0).collect()
}

/// A UNIX socket that keeps the bounds of messages, at `path`: listening there if `listen`, else
/// connected to the listener.
pub fn seqpacket(path: &Path, listen: bool) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt as _;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let socket = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) } as isize)?;
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let (at, len) = ((&raw const address).cast::<libc::sockaddr>(), size_of_val(&address) as u32);
    // SAFETY: the address is valid, and as long as said.
    unsafe {
        if listen {
            checked(libc::bind(socket.as_raw_fd(), at, len) as isize)?;
            checked(libc::listen(socket.as_raw_fd(), 64) as isize)?;
        } else {
            checked(libc::connect(socket.as_raw_fd(), at, len) as isize)?;
        }
    }
    Ok(socket)
}

/// Accepts a connection of a listening socket.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the address of the other end is not asked for.
    owned(unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) }
        as isize)
}

/// Whether the process at the other end of a UNIX socket is of this user, or root.
pub fn trusted(socket: RawFd) -> bool {
    fabric::credentials::is_kin(socket)
}

/// Descriptors that are passed with a message.
const FDS: usize = 2;

/// Sends a message with two descriptors.
pub fn send_with(socket: &OwnedFd, bytes: &[u8], fds: [RawFd; FDS]) -> io::Result<()> {
    sys::send_with(socket.as_raw_fd(), bytes, &fds).map(drop).map_err(error)
}

/// Receives a message with its descriptors, of which there may be fewer than two; 0 bytes are the
/// end.
pub fn receive_with(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut fds = [-1; FDS];
    let (got, _) = sys::receive_with(socket.as_raw_fd(), bytes, &mut fds).map_err(error)?;
    let fds = fds.into_iter().filter(|&fd| fd >= 0);
    // SAFETY: they have just been received.
    Ok((got, fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()))
}

/// Blocks these signals in this thread and those that it starts, and returns a descriptor that is
/// readable when one comes.
pub fn signals(which: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in which {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        owned(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as isize)
    }
}

/// The signal that waits at such a descriptor.
pub fn signal(fd: &OwnedFd) -> Option<i32> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    match sys::read(fd.as_raw_fd(), &mut info) {
        Ok(len) if len == info.len() => info.first_chunk().map(|number| i32::from_ne_bytes(*number)),
        _ => None,
    }
}
