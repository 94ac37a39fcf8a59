//! What is left of a connection when it crosses into a process that knows nothing of rings, and its
//! writer can send nothing more: bytes unread in the ring, which no kernel call brings into a
//! socket's queue. So the descriptor is changed for another connection of the kernel's, and a small
//! process at the other end of it, the *relay*, writes what was unread, and then carries bytes both
//! ways between it and the companion, halves and resets with them, until both have ended.
//!
//! The new connection has the addresses of the old one: it is made in a network namespace of its
//! own, where they are free. Where the kernel allows no namespace, its ports are others, but
//! programs under Shunt are told the old ones ([`crate::names`]).

use fabric::sync::{AtomicU32, Ordering};
use fabric::sys::{self, Errno};

use crate::conn::{Conn, Held, Rx, path};
use crate::demote::{finish, flush};
use crate::handover::{ALWAYS_ROOM, Handed, claims, each_number, hand_over_with, shared};
use crate::layout::{self, KICKS, TCP_AT};
use crate::names::Ports;
use crate::path::reader::{self, unread_at_death};
use crate::reason::Reason;
use crate::socket::SO_COOKIE;
use crate::{close, descriptors, low_water, names, process, report};
use host::addr::Addr;
use host::diag;

/// What a reader would get next, in this order; then what the companion brings, until its end.
#[derive(Clone, Copy)]
struct Unread {
    /// Bytes of tcp that come before the ring's.
    before: u64,
    /// A copy of what is unread in the ring.
    ring: *mut u8,
    len: usize,
    /// Kicks that are still in the companion.
    kicks: u64,
    /// The peer was killed: whether it left bytes of ours unread, which with tcp would make the end
    /// a reset. The kernel, that knows of kicks instead, is not asked then.
    died_unread: Option<bool>,
}

/// Takes what is unread out of the ring, up to where it ends: under the lock, when its writer
/// writes there no more.
fn take(conn: &Conn, rx: &mut Held<'_, Rx>, died_unread: Option<bool>) -> Option<Unread> {
    let ring = sys::mmap_private(layout::UNDER_WAY).ok()?;
    let end = conn.word(TCP_AT).checked_sub(1).map_or(u64::MAX, |at| at.saturating_sub(rx.ring.position()));
    let most = end.min(layout::UNDER_WAY as u64) as usize;
    let mut path = if conn.rx.path() == path::TCP { path::SMALL } else { conn.rx.path() };
    let (mut len, mut reader) = (0, rx.ring);
    reader::walk(conn, &mut reader, &mut path, |reader, ready| {
        let piece = ready.min(most - len);
        // SAFETY: `ready` vouched for so many bytes of the ring; the target has room for them
        // behind the first `len`.
        unsafe { reader.peek(&conn.ends(), 0, ring.add(len), piece) };
        len += piece;
        piece
    });
    rx.ring = reader;
    let kicks = conn.word(KICKS).wrapping_sub(rx.kicks_drained);
    let before = if conn.rx.path() == path::TCP { rx.tcp_left.unwrap_or(0) } else { 0 };
    Some(Unread { before, ring, len, kicks: if kicks > 1 << 20 { 0 } else { kicks }, died_unread })
}

/// Takes the connection back so that a process that knows nothing of rings can go on with it, or
/// `leaves` this process ([`crate::handover`]). What can go by tcp no more goes by a relay. True if
/// the connection itself carries all of it.
pub fn hand_over(conn: &'static Conn, fd: i32, reason: Reason, leaves: bool) -> bool {
    // What is unread stays in the ring, and is ours, where splice() can take it from there, and
    // where nothing can be made; where an epoll set tells of it; and where it may be a child that
    // only happens to hold the connection, which ends us.
    let may_stay = || {
        matches!(reason, Reason::Duplicated | Reason::Forked | Reason::Splice | Reason::NoDescriptors)
            || !leaves && conn.epolls.load(Ordering::Acquire) != 0
            || reason != Reason::Passed && fd > libc::STDERR_FILENO && shared(conn)
    };
    match hand_over_with(conn, fd, reason, may_stay) {
        Handed::Whole => {
            // Nobody behind us would take them out.
            if conn.again.load(Ordering::Relaxed) != 0 && !may_stay() {
                conn.break_off(fd);
            }
            return true;
        }
        Handed::Left => {}
        Handed::Unsendable(rx, ended) => {
            rest(conn, fd, rx, ended);
            flush(conn, fd);
        }
    }
    false
}

/// Changes every number that stands for the connection here for one of a relay's, which begins with
/// `rest`. False if none can be made: then `rest` is lost.
fn begin(conn: &'static Conn, fd: i32, rest: Unread) -> bool {
    let made = start(conn, fd, rest);
    if let Some(new) = made {
        keep_settings(fd, new);
        if let Some(mark) = low_water::get(conn) {
            // The old one's is the kernel's share of it.
            let _ = sys::setsockopt(new, libc::SOL_SOCKET, libc::SO_RCVLOWAT, mark);
        }
        each_number(conn, |number| {
            let cloexec =
                sys::fcntl(number, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0);
            if !process::borrowed() {
                close::closing(number);
            }
            let _ = sys::dup_over(new, number, cloexec);
        });
        sys::close(new);
        await_rest(fd, rest.len);
    }
    sys::munmap(rest.ring, layout::UNDER_WAY);
    made.is_some()
}

/// Waits, not for long, until the relay has written what is unread, at least so much as always
/// finds room: it was readable before, so it is to be readable now.
fn await_rest(fd: i32, unread: usize) {
    let start = sys::now();
    while sys::ioctl_int(fd, libc::FIONREAD)
        .is_ok_and(|there| (there as u64) < (unread as u64).min(ALWAYS_ROOM))
    {
        if sys::now() - start > AWAITED_NS {
            return;
        }
        let _ = sys::ppoll(&mut [], Some(100_000));
    }
}

const AWAITED_NS: u64 = 100_000_000;

/// What the program has set on the old socket.
fn keep_settings(old: i32, new: i32) {
    let flags = sys::fcntl(old, libc::F_GETFL, 0).unwrap_or(0) & libc::O_NONBLOCK;
    let _ = sys::fcntl(new, libc::F_SETFL, flags as usize);
    for name in [libc::SO_KEEPALIVE, libc::SO_OOBINLINE, libc::SO_RCVLOWAT] {
        if let Ok(value) = sys::getsockopt::<i32>(old, libc::SOL_SOCKET, name) {
            let _ = sys::setsockopt(new, libc::SOL_SOCKET, name, value);
        }
    }
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        if let Ok(value) = sys::getsockopt::<libc::timeval>(old, libc::SOL_SOCKET, name) {
            let _ = sys::setsockopt(new, libc::SOL_SOCKET, name, value);
        }
    }
    if let Ok(value) = sys::getsockopt::<libc::linger>(old, libc::SOL_SOCKET, libc::SO_LINGER) {
        let _ = sys::setsockopt(new, libc::SOL_SOCKET, libc::SO_LINGER, value);
    }
    if let Ok(value) = sys::getsockopt::<i32>(old, libc::IPPROTO_TCP, libc::TCP_NODELAY) {
        let _ = sys::setsockopt(new, libc::IPPROTO_TCP, libc::TCP_NODELAY, value);
    }
}

/// Starts a relay; gives the program's end of the new connection.
fn start(conn: &Conn, companion: i32, rest: Unread) -> Option<i32> {
    let (own, peer) = conn.addresses();
    let family = sys::getsockopt::<i32>(companion, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    let page = sys::mmap_common(4096).ok()?;
    // SAFETY: a mapping of at least so many bytes, aligned, all zeroes, and not unmapped before the
    // last use.
    let answer = unsafe { &*page.cast::<AtomicU32>() };
    // The relay is nobody's to interrupt, and must not run the program's handlers.
    let signals = sys::block_signals(u64::MAX);
    let room = descriptors::Raised::new();
    for apart in [true, false] {
        // A process between, which shares our descriptors: it may enter a namespace, as it has one
        // thread, and the relay, its child, is not ours to wait for.
        match sys::clone_process(libc::CLONE_FILES) {
            Ok(None) => {
                if let Some((inner, outer)) = pair(family, own, peer, apart) {
                    if let Ok(None) = sys::clone_process(0) {
                        relay(companion, outer, rest);
                    }
                    sys::close(outer);
                    answer.store(inner as u32 + 1, Ordering::Release);
                }
                sys::exit(0);
            }
            Ok(Some(child)) => sys::wait_for(child),
            Err(_) => {}
        }
        let inner = answer.load(Ordering::Acquire);
        if inner != 0 {
            if !apart && let Ok(cookie) = sys::getsockopt(inner as i32 - 1, libc::SOL_SOCKET, SO_COOKIE) {
                report::count_reason(Reason::OtherPorts);
                names::note(cookie, Ports { own: own.port, peer: peer.port });
            }
            break;
        }
    }
    // Before: it puts back what was blocked when it was made.
    drop(room);
    sys::block_signals(signals);
    let inner = answer.load(Ordering::Acquire);
    sys::munmap(page, 4096);
    inner.checked_sub(1).map(|fd| fd as i32)
}

/// The two ends of a new connection: the program's, from `own` to `peer`, and the other one.
/// `apart`: in a namespace of its own.
fn pair(family: i32, own: Addr, peer: Addr, apart: bool) -> Option<(i32, i32)> {
    let (mut own, mut peer) = (own, peer);
    if apart {
        sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)
            .or_else(|_| sys::unshare(libc::CLONE_NEWNET))
            .ok()?;
        let v4 = sys::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()?;
        let up =
            switch_on(v4) && [&own, &peer].into_iter().enumerate().all(|(n, address)| has(v4, n, address));
        sys::close(v4);
        if !up {
            return None;
        }
    } else {
        (own.port, peer.port) = (0, 0);
    }
    let socket = || sys::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    let listener = socket().ok()?;
    let until = sys::now() + if apart { GIVEN_NS } else { 0 };
    let made = (|| {
        once_given(until, || bind(listener, family, own))?;
        sys::listen(listener, 1)?;
        let to = sys::getsockname(listener)?;
        let outer = socket()?;
        let inner = once_given(until, || bind(outer, family, peer))
            .and_then(|()| once_given(until, || sys::connect(outer, (&raw const to).cast(), length(family))))
            .and_then(|()| sys::accept(listener, libc::SOCK_CLOEXEC));
        inner.map(|inner| (inner, outer)).inspect_err(|_| sys::close(outer))
    })();
    sys::close(listener);
    made.ok()
}

fn length(family: i32) -> u32 {
    (if family == libc::AF_INET { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() })
        as u32
}

fn bind(fd: i32, family: i32, address: Addr) -> Result<(), Errno> {
    sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1i32)?;
    if family == libc::AF_INET {
        let address = v4(address);
        sys::bind(fd, (&raw const address).cast(), length(family))
    } else {
        // SAFETY: all zeroes is a valid sockaddr_in6.
        let mut in6: libc::sockaddr_in6 = unsafe { core::mem::zeroed() };
        in6.sin6_family = libc::AF_INET6 as u16;
        in6.sin6_port = address.port.to_be();
        in6.sin6_addr.s6_addr = address.ip;
        sys::bind(fd, (&raw const in6).cast(), length(family))
    }
}

/// Calls again while the kernel does not know an address that it has been given: it makes one of
/// IPv6 usable, and its route, in work of its own, which waits for whoever changes the network
/// elsewhere.
fn once_given(until: u64, call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::EADDRNOTAVAIL | Errno::ENETUNREACH) if sys::now() < until => {}
            done => return done,
        }
        let _ = sys::ppoll(&mut [], Some(1_000_000));
    }
}

/// How long: the other way out is a reset.
const GIVEN_NS: u64 = 5_000_000_000;

fn v4(address: Addr) -> libc::sockaddr_in {
    // SAFETY: all zeroes is a valid sockaddr_in.
    let mut in4: libc::sockaddr_in = unsafe { core::mem::zeroed() };
    in4.sin_family = libc::AF_INET as u16;
    in4.sin_port = address.port.to_be();
    in4.sin_addr.s_addr = u32::from_ne_bytes(core::array::from_fn(|i| address.ip[12 + i]));
    in4
}

/// The new namespace's loopback interface.
const LOOPBACK: i32 = 1;

/// Switches the loopback interface on, which brings 127.0.0.0/8 and ::1.
fn switch_on(control: i32) -> bool {
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    request.ifr_name = interface(b"lo");
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    sys::ioctl(control, libc::SIOCSIFFLAGS, &mut request).is_ok()
}

/// Gives the interface an address, if that is not one of loopback's own: the host's, say.
fn has(control: i32, index: usize, address: &Addr) -> bool {
    #[repr(C)]
    struct In6Request {
        address: [u8; 16],
        prefix: u32,
        index: i32,
    }
    const V6_LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    if diag::is_mapped(&address.ip) {
        if address.ip[12] == 127 {
            return true;
        }
        // SAFETY: all zeroes is a valid ifreq.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        request.ifr_name = interface(if index == 0 { b"lo:0" } else { b"lo:1" });
        let given = v4(*address);
        // SAFETY: a sockaddr_in has the size of a sockaddr, and any bytes are one.
        let given = unsafe { core::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(given) };
        request.ifr_ifru.ifru_addr = given;
        return matches!(sys::ioctl(control, libc::SIOCSIFADDR, &mut request), Ok(()) | Err(Errno::EEXIST));
    }
    if address.ip == V6_LOOPBACK {
        return true;
    }
    let Ok(v6) = sys::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) else { return false };
    let mut request = In6Request { address: address.ip, prefix: 128, index: LOOPBACK };
    let done = sys::ioctl(v6, libc::SIOCSIFADDR, &mut request);
    sys::close(v6);
    matches!(done, Ok(()) | Err(Errno::EEXIST))
}

fn interface(name: &[u8]) -> [libc::c_char; libc::IFNAMSIZ] {
    let mut padded = [0; libc::IFNAMSIZ];
    for (place, &byte) in padded.iter_mut().zip(name) {
        *place = byte as libc::c_char;
    }
    padded
}

/// Bytes under way in one direction.
struct Pipe {
    bytes: [u8; 16 << 10],
    from: usize,
    to: usize,
    ended: bool,
    told: bool,
}

impl Pipe {
    const NEW: Pipe = Pipe { bytes: [0; 16 << 10], from: 0, to: 0, ended: false, told: false };

    fn empty(&self) -> bool {
        self.from == self.to
    }

    /// Reads, when nothing is left of what was read before.
    fn fill(&mut self, fd: i32, most: usize) -> Result<(), Errno> {
        match sys::recv(fd, self.bytes.as_mut_ptr(), most.min(self.bytes.len()), libc::MSG_DONTWAIT) {
            Ok(0) => self.ended = true,
            Ok(got) => (self.from, self.to) = (0, got),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn give(&mut self, fd: i32) -> Result<(), Errno> {
        self.from += sent(fd, &self.bytes[self.from..self.to])?;
        Ok(())
    }

    /// Tells of the end, once all before it has gone.
    fn pass_end(&mut self, fd: i32) {
        if self.ended && self.empty() && !self.told {
            self.told = true;
            let _ = sys::shutdown(fd, libc::SHUT_WR);
        }
    }
}

fn sent(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    match sys::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
        result => result,
    }
}

/// The relay's whole life.
fn relay(companion: i32, outer: i32, rest: Unread) -> ! {
    sys::set_name(c"shunt-relay");
    let (low, high) = (companion.min(outer) as u32, companion.max(outer) as u32);
    sys::close_range(high + 1, u32::MAX);
    sys::close_range(low + 1, high - 1);
    if low > 0 {
        sys::close_range(0, low - 1);
    }
    // SAFETY: the copy that `take` made, which this process has a copy of.
    let ring = unsafe { core::slice::from_raw_parts(rest.ring, rest.len) };
    match carry(companion, outer, rest, ring) {
        Ok(()) => {}
        Err(Side::Program) => reset(companion),
        Err(Side::Peer) => {
            // What has come is the program's to read before it is told of the reset.
            while sys::ioctl_int(outer, libc::TIOCOUTQ).is_ok_and(|unread| unread > 0)
                && sys::ppoll(&mut [libc::pollfd { fd: outer, events: 0, revents: 0 }], Some(1_000_000))
                    == Ok(0)
            {}
            reset(outer);
        }
    }
    sys::exit(0)
}

/// Which end has failed.
enum Side {
    Program,
    Peer,
}

fn reset(fd: i32) {
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
}

fn carry(companion: i32, outer: i32, rest: Unread, mut ring: &[u8]) -> Result<(), Side> {
    let Unread { mut before, mut kicks, died_unread, .. } = rest;
    let (mut down, mut up) = (Pipe::NEW, Pipe::NEW);
    loop {
        let from_ring = down.empty() && before == 0 && !ring.is_empty();
        let reads = down.empty() && !from_ring && !down.ended;
        let mut polls = [
            libc::pollfd { fd: companion, events: 0, revents: 0 },
            libc::pollfd { fd: outer, events: 0, revents: 0 },
        ];
        if reads {
            polls[0].events |= libc::POLLIN;
        }
        if !up.empty() {
            polls[0].events |= libc::POLLOUT;
        }
        if up.empty() && !up.ended {
            polls[1].events |= libc::POLLIN;
        }
        if from_ring || !down.empty() {
            polls[1].events |= libc::POLLOUT;
        }
        // What has hung up tells so again and again: a side of which nothing is wanted now is not
        // asked.
        if polls[0].events == 0 && (!down.ended || died_unread.is_some()) {
            polls[0].fd = -1;
        }
        if polls[1].events == 0 && down.told {
            polls[1].fd = -1;
        }
        let _ = sys::ppoll(&mut polls, None);
        let [peer, program] = polls.map(|poll| poll.revents);
        let broken = libc::POLLERR | libc::POLLHUP;
        if program & (libc::POLLOUT | broken) != 0 {
            if from_ring {
                ring = &ring[sent(outer, ring).map_err(|_| Side::Program)?..];
            } else if !down.empty() {
                down.give(outer).map_err(|_| Side::Program)?;
            }
        }
        if program & (libc::POLLIN | broken) != 0 && up.empty() && !up.ended {
            up.fill(outer, usize::MAX).map_err(|_| Side::Program)?;
        } else if program & broken != 0 && !down.told {
            return Err(Side::Program);
        }
        if peer & (libc::POLLOUT | broken) != 0 && !up.empty() {
            up.give(companion).map_err(|_| Side::Peer)?;
        }
        if reads && peer & (libc::POLLIN | broken) != 0 {
            let most = [before, kicks].into_iter().find(|&count| count > 0).unwrap_or(u64::MAX);
            let filled = down.fill(companion, most as usize);
            match died_unread {
                None => filled.map_err(|_| Side::Peer)?,
                Some(_) => down.ended |= filled.is_err(),
            }
            if down.ended && died_unread == Some(true) {
                return Err(Side::Peer);
            }
            if before > 0 {
                before -= (down.to - down.from) as u64;
            } else if kicks > 0 {
                kicks -= (down.to - down.from) as u64;
                down.from = down.to;
            }
        } else if peer & broken != 0 && down.ended {
            return if up.told { Ok(()) } else { Err(Side::Peer) };
        }
        if ring.is_empty() || before > 0 {
            down.pass_end(outer);
        }
        up.pass_end(companion);
        if down.told && up.told {
            return Ok(());
        }
    }
}

/// Lets a relay have what is unread. If the writer may still come to send it, it is told not to.
fn rest(conn: &'static Conn, fd: i32, mut rx: Held<'_, Rx>, ended: bool) {
    if conn.again.load(Ordering::Relaxed) != 0 {
        drop(rx);
        return lose(fd);
    }
    let claimed = claims(conn);
    let died_unread = if ended { unread_at_death(conn) } else { None };
    if claimed || ended || conn.word(TCP_AT) != 0 {
        let Some(rest) = take(conn, &mut rx, died_unread) else {
            drop(rx);
            return lose(fd);
        };
        if claimed {
            conn.put(layout::RESENT_TO, rx.ring.position() + 1);
        }
        conn.rx.set_path(path::LAST);
        drop(rx);
        flush(conn, fd);
        // Whoever else has the connection goes on with the kernel's.
        finish(conn);
        if begin(conn, fd, rest) {
            return;
        }
        // Kicks would be taken for bytes.
        if rest.len > 0 || rest.kicks > 0 {
            return lose(fd);
        }
    }
    report::count_reason(Reason::PeerGone);
}

/// Bytes are lost: whoever goes on with the connection finds it reset, and so does the peer. An end
/// would hide that.
fn lose(fd: i32) {
    report::count_reason(Reason::Broken);
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    let _ = sys::connect(fd, &raw const nowhere, size_of_val(&nowhere) as u32);
}
