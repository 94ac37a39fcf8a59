//! pidfd_getfd(): a process takes a connection from another one, its *owner*, which may be in no
//! call of ours, and may never be again. From then on both have the kernel's socket, so the
//! connection goes back to tcp before the taker's call returns, without the owner.
//!
//! The taker may trace the owner, or the call would have failed; if it may trace the peer as well,
//! it can do all that the owner would have to. It finds both ends in their homes, locks their
//! directions as a child of the owner's could, and then:
//!
//! * what the owner has not read it sends by tcp in the peer's stead, from a copy of the peer's
//!   socket, after it has taken the kicks out of the owner's. What finds no room there the peer
//!   sends later, as after any recall;
//! * the owner's end is on tcp at once; its sleepers are woken by a byte that is taken out again;
//! * the peer is told by a mark in its end ([`crate::path::steps::TAKEN`]) what the owner would
//!   have told it: where tcp begins, and how many kicks come before. A kick wakes it. Whatever it
//!   has not read it still reads in the ring.
//!
//! Nothing is written into the segments of the link. Where any of this cannot be (the peer is
//! another user's, or on another host, or is back on tcp already, so that unread bytes of the ring
//! come before others that the kernel has), the taker does not get the connection (EPERM), and that
//! is counted.

use fabric::sync::{Ordering, fence};
use fabric::sys::{self, Errno};

use crate::conn::{Conn, Held, Rx, Tx, flag, path, state};
use crate::demote::unsent;
use crate::home::{self, Foreign};
use crate::layout;
use crate::path::steps;
use crate::path::writing::Piece;
use crate::proc::{self, Path};
use crate::reason::Reason;
use crate::small_buffers::Recalled;
use crate::socket::SO_COOKIE;
use crate::wake::fire;
use crate::{descriptors, peering, report, signals};

/// What has become of a descriptor that was taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is the kernel's alone: whoever has it may use it.
    Kernel,
    /// It is this process's own, by another number.
    Own,
    /// It cannot be had.
    Refused,
}

/// How long owner and peer get to come to an end of what they are changing.
const PATIENCE_NS: u64 = 300_000_000;
/// A kick that has been counted comes within this time.
const KICK_NS: u64 = 200_000_000;
/// So long a sleeper gets to wake up.
const NUDGE_NS: u64 = 20_000_000;
const POLL_NS: u64 = 100_000;

/// The program has taken descriptor `theirs` of the process behind `pidfd`, as `fd`.
pub fn taken(pidfd: i32, theirs: i32, fd: i32) -> Taken {
    if !crate::socket::is_tcp(fd) {
        return Taken::Kernel;
    }
    let Ok(cookie) = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, SO_COOKIE) else { return Taken::Kernel };
    let Some(owner) = process_of(pidfd) else { return Taken::Kernel };
    if owner == crate::process::pid() && sys::getsockopt(theirs, libc::SOL_SOCKET, SO_COOKIE) == Ok(cookie) {
        return Taken::Own;
    }
    let mut refused = false;
    each_home(pidfd, owner, |home| {
        for conn in home.conns() {
            if conn.state() != state::FREE && is_of(conn, cookie, pidfd) {
                refused |= !leave(conn, fd, owner);
                return true;
            }
        }
        false
    });
    if refused {
        report::count_reason(Reason::Taken);
        return Taken::Refused;
    }
    Taken::Kernel
}

/// Whether it is the connection with this cookie, which is not known of one that has not been
/// posted yet.
fn is_of(conn: &Conn, cookie: u64, pidfd: i32) -> bool {
    let known = conn.cookie.load(Ordering::Relaxed);
    if known != 0 || !conn.may_be_promoted() {
        return known == cookie;
    }
    copy(pidfd, conn.descriptor()).is_some_and(|copy| copy.is(cookie))
}

/// Takes the owner's end to tcp, if it is not there for good. False if that cannot be.
fn leave(conn: &Conn, fd: i32, owner: u32) -> bool {
    conn.set(flag::NEVER | flag::OWN_WISH);
    fence(Ordering::SeqCst);
    let start = sys::now();
    loop {
        match conn.state() {
            state::FREE | state::PLAIN | state::NEW => return true,
            state::POSTED if is_left_alone(conn) => return true,
            state::OFFERED | state::PROMOTED if both_to_tcp(conn, fd, owner) == Some(()) => return true,
            _ => {}
        }
        if sys::now() - start > PATIENCE_NS {
            return false;
        }
        let _ = sys::ppoll(&mut [], Some(POLL_NS));
    }
}

/// Whether an end that is not to be promoted any more never will be: who takes an offer makes it
/// managed first, and then looks at the flag.
fn is_left_alone(conn: &Conn) -> bool {
    match conn.state() {
        state::POSTED => conn.managed.load(Ordering::SeqCst) == 0,
        state::OFFERED => true,
        _ => false,
    }
}

/// One try; `None` if it cannot be, now.
fn both_to_tcp(owners: &Conn, fd: i32, owner: u32) -> Option<()> {
    let peer = owners.peer_pid.load(Ordering::Relaxed);
    let cookie = owners.pending_cookie.load(Ordering::Relaxed);
    if peer == 0 || cookie == 0 || !peering::facts(owners).reaches_process {
        return None;
    }
    let process = Copy(sys::pidfd(peer).ok()?);
    let mut done = None;
    each_home(process.0, peer, |home| {
        let found = home.conns().find(|conn| {
            matches!(conn.state(), state::POSTED | state::OFFERED | state::PROMOTED)
                && conn.cookie.load(Ordering::Relaxed) == cookie
        });
        let Some(peers) = found else { return false };
        peers.set(flag::NEVER);
        fence(Ordering::SeqCst);
        if is_left_alone(owners) && is_left_alone(peers) {
            done = Some(());
            return true;
        }
        let socket = copy(process.0, peers.descriptor()).filter(|socket| socket.is(cookie));
        done = socket.and_then(|socket| Ends { owners, peers, fd, peers_fd: socket.0, owner }.to_tcp());
        true
    });
    done
}

/// Both ends of a connection, and both its sockets.
struct Ends<'a> {
    owners: &'a Conn,
    peers: &'a Conn,
    fd: i32,
    peers_fd: i32,
    owner: u32,
}

impl Ends<'_> {
    fn to_tcp(&self) -> Option<()> {
        let _undisturbed = signals::undisturbed();
        let mut owners_tx = self.owners.tx.try_lock_mapped()?;
        let mut owners_rx = self.owners.rx.try_lock_mapped()?;
        let mut peers_tx = self.peers.tx.try_lock_mapped()?;
        let mut peers_rx = self.peers.rx.try_lock_mapped()?;
        // What a holder who has died left undone is for the processes that can.
        if owners_tx.step | owners_rx.step | peers_tx.step | peers_rx.step != 0 {
            return None;
        }
        // Who has offered may not know yet that it was accepted.
        let agreed = |one: &Conn, other: &Conn| {
            one.state() == state::PROMOTED && matches!(other.state(), state::PROMOTED | state::OFFERED)
        };
        if !agreed(self.owners, self.peers) && !agreed(self.peers, self.owners) {
            return None;
        }
        let (to_owner, to_peer) = self.on_rings(&peers_tx)?;
        let never_on_ring = self.owners.tx.path() == path::TCP;
        let unread = peers_tx.ring.position().checked_sub(owners_rx.ring.position())?;
        let messages = self.owners.manner.load(Ordering::Relaxed) != 0;
        if to_owner && unread > 0 && (messages || unread > layout::UNDER_WAY as u64) {
            return None;
        }
        if to_owner {
            self.take_kicks(&mut owners_rx, &peers_tx)?;
        }
        // From here on there is no way back.
        if to_peer {
            self.tell_peer(&mut owners_tx, &mut peers_rx);
        }
        if to_owner {
            self.send_for_peer(&owners_rx, &mut peers_tx);
        }
        for (conn, from, to) in [(self.owners, self.peers_fd, self.fd), (self.peers, self.fd, self.peers_fd)]
        {
            // A kick has woken the peer.
            if !(to_peer && core::ptr::eq(conn, self.peers)) {
                nudge(conn, from, to);
            }
        }
        self.owners.set(flag::NEVER);
        self.peers.set(flag::NEVER);
        self.peers.set_reason(Reason::PeerAsked);
        if self.peers.tx.path() == path::TCP {
            self.peers.tx.set_path(path::LAST);
        }
        if never_on_ring {
            self.peers.rx.set_path(path::LAST);
        }
        if to_owner {
            // It goes on from there, if only to find that nothing is left.
            self.peers.tx.set_path(path::RESEND);
            // It may still have to send from the owner's memory.
            self.owners.set(flag::RECALLED);
        }
        self.owners.tx.set_path(path::LAST);
        self.owners.rx.set_path(path::LAST);
        self.owners.set_reason(Reason::Taken);
        report::count_reason(Reason::Taken);
        report::add(report::at::DEMOTED, 1);
        if self.owners.plain(state::PROMOTED) {
            self.owners.give_options_back(self.fd);
            self.owners.managed_is(false);
        }
        Some(())
    }

    /// Whether bytes to the owner, and to the peer, go by a ring; `None` where it cannot be told
    /// what is unread.
    fn on_rings(&self, peers_tx: &Held<'_, Tx>) -> Option<(bool, bool)> {
        let on_ring = |path| matches!(path, path::SMALL | path::BIG);
        let to_owner = match (self.peers.tx.path(), self.owners.rx.path()) {
            (path::TCP, path::TCP) | (path::LAST, path::LAST) => false,
            (tx, rx) if on_ring(tx) && on_ring(rx) => true,
            // Behind what is unread of tcp: a kick would stand between.
            (tx, path::TCP) if on_ring(tx) && peers_tx.kicks_sent == 0 => true,
            _ => return None,
        };
        let to_peer = match (self.owners.tx.path(), self.peers.rx.path()) {
            (path::TCP, path::TCP) | (path::LAST, _) => false,
            (tx, path::TCP | path::SMALL | path::BIG) if on_ring(tx) => true,
            _ => return None,
        };
        Some((to_owner, to_peer))
    }

    /// Takes the kicks that were sent to the owner out of its socket, where nothing else is.
    fn take_kicks(&self, owners: &mut Held<'_, Rx>, peers: &Held<'_, Tx>) -> Option<()> {
        let sent = peers.kicks_sent.checked_sub(peers.debt)?;
        let start = sys::now();
        loop {
            let left = sent.checked_sub(owners.kicks_drained)?;
            if left == 0 {
                return Some(());
            }
            let mut bytes = [0; 256];
            let most = left.min(bytes.len() as u64) as usize;
            match sys::recv(self.fd, bytes.as_mut_ptr(), most, libc::MSG_DONTWAIT) {
                Ok(1..) if sys::now() - start > KICK_NS => return None,
                Ok(taken @ 1..) => owners.kicks_drained += taken as u64,
                Err(Errno::EAGAIN | Errno::EINTR) if sys::now() - start < KICK_NS => {
                    let _ = sys::ppoll(&mut [], Some(POLL_NS));
                }
                _ => return None,
            }
        }
    }

    /// Leaves for the peer what the owner would tell it, and wakes it.
    fn tell_peer(&self, owners: &mut Held<'_, Tx>, peers: &mut Held<'_, Rx>) {
        (owners.kicks_sent, owners.debt) = (owners.kicks_sent + 1, owners.debt + 1);
        let all = owners.kicks_sent;
        fire::send_owed(self.fd, owners, all);
        // Nothing comes of the rest: there is no room, so nobody sleeps there.
        owners.kicks_sent -= core::mem::take(&mut owners.debt);
        peers.taken = (owners.ring.position() + 1, owners.kicks_sent);
        peers.step |= steps::TAKEN;
    }

    /// Sends what the owner has not read, on a copy of the peer's socket.
    fn send_for_peer(&self, owners: &Held<'_, Rx>, peers: &mut Held<'_, Tx>) {
        let slot = self.peers.slot.load(Ordering::Relaxed) as usize;
        let base = self.owners.mine().base().addr();
        let from = owners.ring.position();
        peers.tcp_at = from + 1;
        (peers.resend, peers.sent_from, peers.debt) = (from, 0, 0);
        let mut bytes = [0u8; 4096];
        let mut recalled = Recalled::new(self.peers_fd, peers.ring.position().saturating_sub(from));
        while peers.resend < peers.ring.position() {
            let Piece { in_big, at, len, .. } = unsent(peers).piece(layout::SMALL, layout::BIG, bytes.len());
            let data = if in_big { layout::big(peers.big) } else { layout::small(slot) };
            let local = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len }];
            let place = core::ptr::without_provenance_mut(base + data + at);
            let remote = [libc::iovec { iov_base: place, iov_len: len }];
            // Nothing that stands in a home is believed: its process may be a lesser one.
            // SAFETY: `bytes` has room for so many. What is read is another process's, and any
            // bytes will do.
            if len == 0 || unsafe { sys::process_vm_readv(self.owner, &local, &remote) } != Ok(len) {
                return;
            }
            match recalled.send(&bytes[..len]) {
                Ok(sent) => peers.resend += sent as u64,
                Err(_) => return,
            }
        }
    }
}

/// Wakes who sleeps on a connection that has no other sign of the change: by a byte that is taken
/// out again. Only where nothing else waits there, which would have woken it.
fn nudge(conn: &Conn, from: i32, to: i32) {
    let sleeps = || conn.sleepers.load(Ordering::SeqCst) > 0;
    let in_set = conn.epolls.load(Ordering::Acquire) > 0;
    if !(sleeps() || in_set) || sys::ioctl_int(to, libc::FIONREAD) != Ok(0) {
        return;
    }
    let byte = 0u8;
    if sys::send(from, &raw const byte, 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != Ok(1) {
        return;
    }
    let start = sys::now();
    while (sleeps() || in_set) && sys::now() - start < NUDGE_NS {
        let _ = sys::ppoll(&mut [], Some(POLL_NS));
    }
    let mut byte = 0u8;
    while sys::recv(to, &raw mut byte, 1, libc::MSG_DONTWAIT) == Err(Errno::EAGAIN)
        && sys::now() - start < KICK_NS
    {
        let _ = sys::ppoll(&mut [], Some(POLL_NS));
    }
}

/// A descriptor that is closed behind its use.
struct Copy(i32);

impl Copy {
    fn is(&self, cookie: u64) -> bool {
        sys::getsockopt(self.0, libc::SOL_SOCKET, SO_COOKIE) == Ok(cookie)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

fn copy(pidfd: i32, fd: i32) -> Option<Copy> {
    descriptors::made(|| sys::copy_of(pidfd, fd)).ok().map(Copy)
}

/// Which process a handle stands for, by its number here.
fn process_of(pidfd: i32) -> Option<u32> {
    let path = Path::of(format_args!("/proc/self/fdinfo/{pidfd}"));
    let file = Copy(sys::open(path.as_c(), libc::O_RDONLY, 0).ok()?);
    let mut text = [0; 512];
    let len = sys::read(file.0, &mut text).ok()?;
    let mut lines = text[..len].split(|&byte| byte == b'\n');
    let number = lines.find_map(|line| line.strip_prefix(b"Pid:\t"))?;
    core::str::from_utf8(number).ok()?.parse().ok().filter(|&pid| pid != 0)
}

/// Maps the homes that a process has, one after the other, until `found`.
fn each_home(pidfd: i32, pid: u32, mut found: impl FnMut(&Foreign) -> bool) {
    proc::each_descriptor(pid, |fd| {
        let of = |name: &[u8]| {
            name.strip_prefix(b"/memfd:").is_some_and(|name| name.starts_with(home::NAME.to_bytes()))
        };
        of(proc::target(pid, fd, &mut [0; 64]))
            && copy(pidfd, fd).and_then(|copy| home::open(copy.0)).is_some_and(|home| found(&home))
    });
}
