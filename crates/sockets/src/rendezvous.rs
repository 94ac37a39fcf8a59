//! How a connection finds its other half: posting, linking, offering and taking a slot. All of it is *housekeeping* that calls on
//! a connection do on the way while it is still on tcp; nothing waits, and each step may fail and be taken up again later.

use fabric::lock::Lock;
use fabric::queue::MESSAGE;
use fabric::sync::{AtomicI32, AtomicU64, Ordering};
use fabric::{Local, Remote, sys, trip};
use options::{LogLevel, Role};
use stream::ring::{Consumer, Producer};
use stream::spin::{nanos_of, ticks, ticks_of};

use crate::board::{self, Post};
use crate::conn::{Addr, Conn, Held, Tx, flag, path, state};
use crate::layout::{self, ACCEPTED, CANCELLED, REFUSED, STATE, note};
use crate::link::{self, Link};
use crate::reason::Reason;
use crate::table::{self, Entry};
use crate::{descriptors, diag, log, narrow, process, report, rules, wait};

/// Between two looks for links and offers, in ns; and the longest pause of one connection.
const SERVE_NS: u64 = 200_000;
const PAUSE_MAX_NS: u64 = 50_000_000;
/// The longest pause of one whose other end is nowhere on the board: most likely it never will be. Each look holds its caller up for
/// a few us, which can cost a stream on tcp far more: a reader that is late once may stay awake, and in its writer's way, for 4 ms.
const UNPAIRED_MAX_NS: u64 = 1_000_000_000;

/// Connections posted by this process, by the index that the board and offers name.
const POSTED: usize = 1 << 16;
static POSTED_AT: AtomicU64 = AtomicU64::new(0);
static POSTED_NEXT: AtomicU64 = AtomicU64::new(0);
static LISTENER: AtomicI32 = AtomicI32::new(0);
static TOKEN: AtomicU64 = AtomicU64::new(0);
static SERVE_DUE: AtomicU64 = AtomicU64::new(0);

/// HELLOs that are answered at a time, as others wait meanwhile: whoever likes may connect and say nothing.
const ANSWERS: usize = 16;

const OFFER: u32 = 1;

/// Guards every change of a connection's state up to PROMOTED, and the end of a connection: any thread's housekeeping may take an
/// offer for a connection that another thread is closing.
static STATES: Lock = Lock::unlocked();

/// The lock on states, held.
pub struct States(bool);

/// Keeps fork() out while the table of descriptors and the counts of who refers to a connection change together: a child that had an
/// entry which is not counted, or the other way round, would let go of a connection that others hold.
pub fn steady() -> States {
    States::lock()
}

impl States {
    fn lock() -> States {
        // Taken again in a signal handler that interrupted the holder: the handler's call goes on without.
        States(STATES.lock(crate::thread::tid()))
    }
}

impl Drop for States {
    fn drop(&mut self) {
        if self.0 {
            STATES.unlock();
        }
    }
}

/// Begins to follow a connection that the program has just made (`client`) or accepted. `family`: of the peer's address, if it is
/// known; what need not be asked for makes short connections cheaper.
pub fn track(fd: i32, client: bool, family: Option<i32>) {
    if !process::active() {
        return;
    }
    let family = family.or_else(|| sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok());
    // What accept() gives is nearly always TCP, and asked about before it is posted; connect() is much used for datagrams.
    if !matches!(family, Some(libc::AF_INET | libc::AF_INET6)) || client && !is_tcp(fd) {
        return;
    }
    let _steady = steady();
    let Some(conn) = crate::home::take() else {
        report::count_reason(Reason::TableFull);
        return;
    };
    conn.reset();
    conn.refs.store(1, Ordering::Relaxed);
    conn.fd.store(fd as u32, Ordering::Relaxed);
    conn.pid.store(process::pid(), Ordering::Relaxed);
    conn.flags.store(if client { flag::CLIENT } else { 0 }, Ordering::Relaxed);
    conn.set_reason(Reason::Young);
    conn.state.store(state::NEW, Ordering::Release);
    report::add(report::at::TRACKED, 1);
    match table::swap(fd, Entry::Conn(conn)) {
        Some(Entry::None) => {}
        // A descriptor that was closed behind our back (by a call that we do not see) and given out again.
        Some(Entry::Conn(old)) => crate::close::abandon(old),
        Some(_) => {}
        None => {
            report::count_reason(Reason::TableFull);
            crate::home::give(conn);
        }
    }
}

/// Begins to follow a socket that gets a second number, or becomes a member of an epoll set, before it is connected: by connect() only
/// one number would be known, and no set.
pub fn track_unconnected(fd: i32) {
    let fresh = process::active()
        && is_tcp(fd)
        && matches!(sys::getpeername(fd), Err(sys::Errno::ENOTCONN))
        && sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(0);
    if fresh {
        track(fd, true, None);
    }
}

fn is_tcp(fd: i32) -> bool {
    sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

/// Housekeeping, on the way into a call on a connection that is still on tcp.
#[inline]
pub fn tick(conn: &'static Conn, fd: i32) {
    match conn.state() {
        state::NEW if worthwhile(conn) => {
            let states = States::lock();
            if states.0 && conn.state() == state::NEW {
                post(conn, fd);
            }
        }
        state::POSTED if ticks() >= conn.due.load(Ordering::Relaxed) || arming_it(conn) => {
            let states = States::lock();
            if states.0 && conn.state() == state::POSTED {
                check(conn);
            }
        }
        _ => {}
    }
}

/// Counts a call on a connection in state NEW: whether it has been used enough, and not too seldom, to gain by memory.
fn worthwhile(conn: &Conn) -> bool {
    let (after, rate) = (process::options().promote_after, process::options().calls_per_second());
    let calls = conn.ops.fetch_add(1, Ordering::Relaxed);
    if calls == 0 {
        // Not in use before it is posted: when the count began.
        conn.due.store(ticks(), Ordering::Relaxed);
    }
    if calls < after {
        return false;
    }
    if rate == 0 || process::busy() {
        return true;
    }
    let most = after.max(RATE_CALLS);
    if calls < most {
        return false;
    }
    let time = nanos_of(ticks().saturating_sub(conn.due.load(Ordering::Relaxed)));
    if u128::from(time) * u128::from(rate) <= u128::from(most) * 1_000_000_000 {
        return true;
    }
    if conn.reason.load(Ordering::Relaxed) != Reason::Rare as u32 {
        conn.set_reason(Reason::Rare);
        report::count_reason(Reason::Rare);
    }
    conn.ops.store(0, Ordering::Relaxed);
    false
}

/// So many calls make a rate: in fewer, one request and its answer may look like many.
const RATE_CALLS: u32 = 16;

/// Whether this is the moment that a one-shot member waited for (see [`crate::epoll::untimely`]).
fn arming_it(conn: &Conn) -> bool {
    conn.arming.load(Ordering::Relaxed) != 0 && conn.reason.load(Ordering::Relaxed) == Reason::Busy as u32
}

/// The answer to our offer, if it has come: from any call on a connection in state OFFERED. Does not wait for the lock on states:
/// whoever calls may hold an epoll set's, which a thread that holds the states may be waiting for. False: it has come, but another
/// thread has the lock; to be called again.
#[cold]
pub fn answered(conn: &'static Conn) -> bool {
    if conn.word(STATE) & (ACCEPTED | REFUSED) == 0 {
        return true;
    }
    if !STATES.try_lock(crate::thread::tid()) {
        return conn.state() != state::OFFERED;
    }
    let _states = States(true);
    if conn.state() == state::OFFERED {
        look_for_answer(conn);
    }
    true
}

fn look_for_answer(conn: &'static Conn) {
    let answer = conn.word(STATE);
    if answer & ACCEPTED != 0 {
        // Several threads may see it; each step is idempotent but for the count.
        if conn
            .state
            .compare_exchange(state::OFFERED, state::PROMOTED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            promoted(conn);
        }
    } else if answer & REFUSED != 0
        && conn
            .state
            .compare_exchange(state::OFFERED, state::POSTED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    {
        link::link(conn.link.load(Ordering::Relaxed)).leave_slot(conn.slot.load(Ordering::Relaxed) as usize);
        conn.unmanage();
        wait_longer(conn, Reason::Refused);
    }
}

/// Answers what waits at our listener and in control queues, now and then: from calls on a connection whose offer is out. Not from
/// where an epoll set is locked: connections of the set may be promoted on the way.
#[cold]
pub fn serve_offered() {
    if ticks() >= SERVE_DUE.load(Ordering::Relaxed) {
        let states = States::lock();
        if states.0 {
            serve();
        }
    }
}

/// Halves of a connection (SHUT_RD, SHUT_WR) are about to be shut: it is not promoted any more. True if it is already, and the halves
/// are for the caller to note.
pub fn shut(conn: &'static Conn, halves: u32) -> bool {
    let _states = States::lock();
    if !agreed(conn) {
        conn.set(halves);
        return false;
    }
    true
}

/// Whether it is in memory. If not, an offer of ours that is out is taken back. Under the lock on states.
fn agreed(conn: &'static Conn) -> bool {
    if conn.state() == state::OFFERED && !take_back(conn) {
        look_for_answer(conn);
    }
    conn.state() == state::PROMOTED
}

/// The end of a connection: it is not promoted any more. Says whether it has a slot (it was, or is, promoted).
pub fn close(conn: &'static Conn) -> bool {
    let _states = States::lock();
    unpost(conn);
    if conn.state() == state::OFFERED && !take_back(conn) {
        conn.state.store(state::PROMOTED, Ordering::Release);
    }
    for from in [state::NEW, state::POSTED] {
        conn.plain(from);
    }
    conn.slot_taken()
}

/// Cancels an offer of ours. False if it has been accepted: then that stays so, and whoever looks meanwhile sees nothing else.
fn take_back(conn: &'static Conn) -> bool {
    let mut answer = conn.word(STATE);
    // A peer answers once; one that does not keep to that must not keep us here (rule F2).
    for _ in 0..8 {
        if answer & ACCEPTED != 0 {
            return false;
        }
        // A refusal stays, too: by it the slot is known to be free again.
        match conn.mine().replace_word(conn.at(STATE), answer, answer | CANCELLED) {
            Ok(()) => break,
            Err(now) => answer = now,
        }
    }
    if conn.plain(state::OFFERED) {
        link::link(conn.link.load(Ordering::Relaxed)).leave_slot(conn.slot.load(Ordering::Relaxed) as usize);
        conn.unmanage();
    }
    true
}

/// Stops following: the connection stays on tcp. False if it is in memory already.
pub fn give_up(conn: &'static Conn, reason: Reason) -> bool {
    let _states = States::lock();
    if agreed(conn) {
        return false;
    }
    stop(conn, reason);
    true
}

fn stop(conn: &'static Conn, reason: Reason) {
    if !conn.has(flag::NEVER) {
        conn.set(flag::NEVER);
        conn.set_reason(reason);
        report::count_reason(reason);
        log::on_tcp(conn, reason);
    }
    unpost(conn);
    for from in [state::NEW, state::POSTED] {
        conn.plain(from);
    }
}

/// Answers an offer that could not be taken yet: it is not going to be.
fn refuse_pending(conn: &'static Conn) {
    if let Some((link, slot)) = pending(conn) {
        link.refuse(slot);
        link.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Takes note no longer of an offer that could not be taken yet. It counts among what is on its link, which stays as long.
fn pending(conn: &'static Conn) -> Option<(&'static Link, usize)> {
    let pending = conn.pending.swap(0, Ordering::AcqRel);
    (pending != 0).then(|| (link::link((pending >> 32) as u32), (pending & 0xffff_ffff) as usize - 1))
}

/// Takes the connection's post down.
fn unpost(conn: &'static Conn) {
    refuse_pending(conn);
    let place = conn.posted_at.swap(0, Ordering::AcqRel);
    if place != 0 {
        let (own, peer) = conn.addresses();
        board::remove(place - 1, board::key(own, peer));
    }
    let index = conn.posted_index.swap(0, Ordering::AcqRel);
    if index != 0
        && let Some(cell) = posted(index as usize - 1)
    {
        let _ =
            cell.compare_exchange(core::ptr::from_ref(conn) as u64, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Before fork(): offers are taken back, and no state changes until [`thaw`]. False if the lock is this thread's already.
pub fn freeze() -> bool {
    let frozen = STATES.lock(crate::thread::tid());
    table::for_each(|_, entry| {
        if let Entry::Conn(conn) = entry {
            agreed(conn);
            // The link is this process's alone.
            refuse_pending(conn);
        }
    });
    frozen
}

/// After fork(), in the parent.
pub fn thaw() {
    STATES.unlock();
}

/// In the child of fork(): a rendezvous socket of its own when it needs one.
pub fn forked() {
    STATES.reset();
    let listener = LISTENER.swap(0, Ordering::AcqRel);
    if listener > 0 {
        descriptors::unhide(listener - 1);
    }
    TOKEN.store(0, Ordering::Relaxed);
    let at = POSTED_AT.load(Ordering::Acquire);
    if at != 0 {
        sys::madvise(at as *mut u8, POSTED * 8, libc::MADV_DONTNEED);
    }
}

/// The address of the rendezvous socket named by `token`: in the abstract namespace, it goes when its process goes.
pub fn address(token: u64) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (place, &byte) in address.sun_path[1..].iter_mut().zip(b"shunt/") {
        *place = byte as _;
    }
    for digit in 0..16 {
        address.sun_path[7 + digit] = b"0123456789abcdef"[(token >> (60 - 4 * digit)) as usize & 15] as _;
    }
    (address, 2 + 7 + 16)
}

fn post(conn: &'static Conn, fd: i32) {
    process::look_for_rings();
    let barred = process::barred();
    if barred != 0 {
        conn.set(flag::NEVER);
        conn.reason.store(barred, Ordering::Relaxed);
        report::add(report::at::REASONS + barred as usize, 1);
        conn.plain(state::NEW);
        return;
    }
    let done = try_post(conn, fd);
    match done {
        Ok(()) => {}
        Err(Reason::Busy) => conn.ops.store(0, Ordering::Relaxed),
        Err(reason) => stop(conn, reason),
    }
}

fn try_post(conn: &'static Conn, fd: i32) -> Result<(), Reason> {
    if conn.has(flag::SHARED) && !owned(conn) {
        return Err(Reason::Shared);
    }
    if conn.has(flag::SHUT_WR | flag::SHUT_RD) {
        return Err(Reason::Half);
    }
    if fd <= libc::STDERR_FILENO {
        // perror(), abort() and others in libc write past us.
        return Err(Reason::Stdio);
    }
    if !conn.has(flag::CLIENT) && !is_tcp(fd) {
        return Err(Reason::NotTcp);
    }
    let own = parse(&sys::getsockname(fd).map_err(|_| Reason::NotTcp)?).ok_or(Reason::NotTcp)?;
    let peer = match sys::getpeername(fd) {
        Ok(address) => parse(&address).ok_or(Reason::NotTcp)?,
        // Not connected yet, or no longer.
        Err(_) => return Err(Reason::Busy),
    };
    let role = if conn.has(flag::CLIENT) { Role::Client } else { Role::Server };
    if rules::keep_on_tcp(role, own, peer) {
        return Err(Reason::Rule);
    }
    let cookie: u64 = sys::getsockopt(fd, libc::SOL_SOCKET, SO_COOKIE).map_err(|_| Reason::NotTcp)?;
    let token = listen()?;
    // One poster at a time: the others find the state changed.
    if conn.state.compare_exchange(state::NEW, state::POSTED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Ok(());
    }
    conn.due.store(u64::MAX, Ordering::Relaxed);
    conn.set_addresses(own, peer);
    conn.cookie.store(cookie, Ordering::Relaxed);
    conn.set_reason(Reason::Unpaired);
    let index = register(conn).ok_or(Reason::TableFull)?;
    let post = Post::new(board::key(own, peer), token, cookie, index);
    let (place, other) = board::post(&post, board::key(peer, own))?;
    conn.posted_at.store(place + 1, Ordering::Release);
    conn.pause.store(ticks_of(SERVE_NS), Ordering::Relaxed);
    if let Some(other) = other {
        approach(conn, &other);
    }
    conn.due.store(ticks() + conn.pause.load(Ordering::Relaxed), Ordering::Release);
    Ok(())
}

/// Periodic look at a posted connection.
fn check(conn: &'static Conn) {
    conn.due.store(u64::MAX, Ordering::Relaxed);
    if serve() {
        wait_no_longer(conn);
    }
    if conn.state() == state::POSTED {
        let index = (conn.pending.load(Ordering::Acquire) >> 32) as u32;
        if let Some((link, slot)) = pending(conn) {
            take(conn, index, slot);
            link.live.fetch_sub(1, Ordering::AcqRel);
        } else {
            let (own, peer) = conn.addresses();
            match board::look(board::key(own, peer), board::key(peer, own)) {
                Ok(Some(other)) => approach(conn, &other),
                Ok(None) => wait_longer(conn, Reason::Unpaired),
                Err(reason) => return stop(conn, reason),
            }
        }
    }
    conn.due.store(ticks() + conn.pause.load(Ordering::Relaxed), Ordering::Release);
}

fn wait_longer(conn: &'static Conn, reason: Reason) {
    conn.set_reason(reason);
    let (times, most) = match reason {
        Reason::Unpaired => (4, UNPAIRED_MAX_NS),
        _ => (2, PAUSE_MAX_NS),
    };
    let pause = conn.pause.load(Ordering::Relaxed) * times;
    pause_for(conn, pause.clamp(ticks_of(SERVE_NS), ticks_of(most)));
}

/// The peer is there: from now on the next step is not far.
fn wait_no_longer(conn: &'static Conn) {
    pause_for(conn, ticks_of(SERVE_NS));
}

fn pause_for(conn: &'static Conn, pause: u64) {
    conn.pause.store(pause, Ordering::Relaxed);
    conn.due.store(ticks() + pause, Ordering::Release);
}

/// The other end is known: link to its process, or offer a slot.
fn approach(conn: &'static Conn, other: &Post) {
    let own_token = TOKEN.load(Ordering::Acquire);
    if other.cookie == conn.cookie.load(Ordering::Relaxed) {
        return wait_longer(conn, Reason::Unpaired);
    }
    match link::find(other.token, |link| link.is_full()) {
        Some((index, link::state::READY)) => offer(conn, index, other),
        Some((index, link::state::ASKED)) => match link::progress(index) {
            Ok(true) => offer(conn, index, other),
            Ok(false) => wait_longer(conn, Reason::Linking),
            Err(reason) => wait_longer(conn, reason),
        },
        Some(_) => wait_longer(conn, Reason::Unpaired),
        None => {
            link::sweep();
            match link::open(other.token, own_token) {
                Ok(_) => {
                    conn.set_reason(Reason::Linking);
                    wait_no_longer(conn);
                }
                Err(reason) => {
                    report::count_reason(reason);
                    log::on_tcp(conn, reason);
                    wait_longer(conn, reason);
                }
            }
        }
    }
}

fn offer(conn: &'static Conn, index: u32, other: &Post) {
    let link = link::link(index);
    if conn.has(flag::SHUT_WR | flag::SHUT_RD | flag::NEVER) {
        return stop(conn, Reason::Half);
    }
    if !proved(conn, link, other.cookie) {
        return wait_longer(conn, Reason::Unproved);
    }
    if conn.has(flag::SHARED) && !owned(conn) {
        return wait_longer(conn, Reason::Shared);
    }
    let read = match begin(conn) {
        Ok(read) => read,
        Err(Reason::Busy) => return conn.set_reason(Reason::Busy),
        Err(reason) => return stop(conn, reason),
    };
    let Some(slot) = link.take_slot(conn) else {
        link.full.store(1, Ordering::Relaxed);
        conn.managed_is(false);
        conn.set_reason(Reason::LinkLimit);
        return;
    };
    settle(conn, link, index, slot, read);
    conn.pending_cookie.store(other.cookie, Ordering::Relaxed);
    conn.state.store(state::OFFERED, Ordering::Release);
    conn.managed_is(true);
    // The peer may use the ring as soon as it has the offer: epoll sets must know before.
    crate::epoll::adopt(conn);
    if conn.state() != state::OFFERED {
        // A set had no place for it, and has taken the offer back. The peer never hears of it: the slot is free again.
        link.mine().set_word(layout::slot(slot) + STATE, CANCELLED | REFUSED);
        return;
    }
    let mut message = [0; MESSAGE];
    message[0..4].copy_from_slice(&OFFER.to_ne_bytes());
    message[4..8].copy_from_slice(&(slot as u32).to_ne_bytes());
    message[8..12].copy_from_slice(&other.index.to_ne_bytes());
    message[12..16].copy_from_slice(&u32::from(narrow::reader(conn)).to_ne_bytes());
    message[16..24].copy_from_slice(&other.cookie.to_ne_bytes());
    message[24..32].copy_from_slice(&conn.cookie.load(Ordering::Relaxed).to_ne_bytes());
    conn.set_reason(Reason::Offered);
    if !link.tell(&message) {
        conn.state.store(state::POSTED, Ordering::Release);
        // The peer has not heard of it, so it will not answer: the slot is free again.
        conn.mine().set_word(conn.at(STATE), CANCELLED | REFUSED);
        link.leave_slot(slot);
        conn.unmanage();
        wait_longer(conn, Reason::Busy);
    }
}

/// Answers HELLOs that wait at our listener, and messages that wait in control queues. True if there were any.
fn serve() -> bool {
    let mut served = false;
    SERVE_DUE.store(ticks() + ticks_of(SERVE_NS), Ordering::Relaxed);
    let token = TOKEN.load(Ordering::Acquire);
    let listener = LISTENER.load(Ordering::Acquire);
    if listener > 0 && token != 0 {
        for _ in 0..ANSWERS {
            let Ok(socket) = accept(listener - 1) else { break };
            served = true;
            let socket = descriptors::hide(socket);
            if let Err(reason) = link::answer(socket, token) {
                report::count_reason(reason);
                descriptors::unhide(socket);
                // It may have cost its whole time.
                break;
            }
        }
    }
    for index in link::all() {
        // The other process may have got ready on this link, and offer on it, while all our connections wait on another one.
        if link::link(index).is_asked()
            && let Err(reason) = link::progress(index)
        {
            report::count_reason(reason);
        }
        for _ in 0..layout::SLOTS {
            let Some(message) = link::link(index).hear() else { break };
            served = true;
            hear(index, &message);
        }
    }
    served
}

fn accept(listener: i32) -> Result<i32, sys::Errno> {
    let accept = || sys::accept(listener, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    match accept() {
        // The kernel says so whether or not somebody waits.
        Err(sys::Errno::EMFILE) if sys::readable(listener) => descriptors::made(accept),
        result => result,
    }
}

/// Carries out a message from a peer. Every field is checked: the peer may be hostile (rule F2).
fn hear(index: u32, message: &[u8; MESSAGE]) {
    let half = |at: usize| u32::from_ne_bytes(core::array::from_fn(|i| message[at + i]));
    let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| message[at + i]));
    let (slot, link) = (half(4) as usize, link::link(index));
    if half(0) != OFFER || !link.is_peers_slot(slot) || link.conn(slot).is_some() {
        return;
    }
    if !link.has_room_for(slot) {
        return link.refuse(slot);
    }
    let conn = posted(half(8) as usize).map_or(0, |cell| cell.load(Ordering::Acquire));
    // SAFETY: only `register` stores there, from a &'static Conn.
    let conn = if conn == 0 { None } else { Some(unsafe { &*(conn as *const Conn) }) };
    match conn {
        Some(conn) if conn.cookie.load(Ordering::Relaxed) == word(16) => {
            // One that came before has been taken back by now.
            refuse_pending(conn);
            conn.pending_cookie.store(word(24), Ordering::Relaxed);
            if half(12) != 0 {
                conn.set(flag::PEER_NARROW)
            } else {
                conn.clear(flag::PEER_NARROW)
            }
            if conn.state() == state::OFFERED {
                // Both have offered: the offer of the end with the smaller cookie stands.
                if word(24) > conn.cookie.load(Ordering::Relaxed) || !take_back(conn) {
                    return link.refuse(slot);
                }
                conn.state.store(state::POSTED, Ordering::Release);
            }
            wait_no_longer(conn);
            take(conn, index, slot);
        }
        _ => link.refuse(slot),
    }
}

/// Takes the slot that the peer has offered, now or, if a call is in the kernel, later.
fn take(conn: &'static Conn, index: u32, slot: usize) {
    let link = link::link(index);
    if conn.state() != state::POSTED
        || conn.has(flag::NEVER | flag::SHUT_WR | flag::SHUT_RD)
        || (conn.has(flag::SHARED) && !owned(conn))
        || link.conn(slot).is_some()
    {
        return link.refuse(slot);
    }
    if !proved(conn, link, conn.pending_cookie.load(Ordering::Relaxed)) {
        conn.set_reason(Reason::Unproved);
        report::count_reason(Reason::Unproved);
        return link.refuse(slot);
    }
    let read = match begin(conn) {
        Ok(read) => read,
        Err(Reason::Busy) => {
            conn.set_reason(Reason::Busy);
            link.live.fetch_add(1, Ordering::AcqRel);
            return conn.pending.store(u64::from(index) << 32 | (slot as u64 + 1), Ordering::Release);
        }
        Err(reason) => {
            link.refuse(slot);
            return stop(conn, reason);
        }
    };
    link.use_slot(slot, conn);
    settle(conn, link, index, slot, read);
    if conn.waiters.load(Ordering::SeqCst) != 0 {
        // Asleep since an offer of ours, armed on the slot that we gave up.
        wait::arm(conn, trip::RX | trip::TX, trip::KICK, 0);
    }
    conn.managed_is(true);
    crate::epoll::adopt(conn);
    if conn.has(flag::NEVER) {
        // An epoll set had no place for it.
        link.unuse_slot(slot);
        link.refuse(slot);
        return conn.unmanage();
    }
    if narrow::reader(conn) {
        conn.tell(note::NARROW);
    }
    // Other threads may be in calls on it: none may write to the ring before it is known that the offer stands, and none may read
    // there what the peer writes once it has our answer, and not be able to wake it.
    let Some(tx) = writing(conn) else {
        link.unuse_slot(slot);
        link.refuse(slot);
        conn.unmanage();
        return wait_longer(conn, Reason::Busy);
    };
    let stands = conn.theirs().or_word(conn.at(STATE), ACCEPTED) & CANCELLED == 0;
    if stands {
        conn.state.store(state::PROMOTED, Ordering::Release);
    }
    drop(tx);
    if stands {
        return promoted(conn);
    }
    link.leave_slot(slot);
    conn.unmanage();
}

/// Locks the writing direction, but does not wait for ever: a signal handler may have interrupted the one who has it, and wait for the
/// lock on states, which is ours.
fn writing(conn: &'static Conn) -> Option<Held<'static, Tx>> {
    for _ in 0..WRITING_TRIES {
        if conn.tx.lock.try_lock(crate::thread::tid()) {
            return Some(conn.tx.held());
        }
        sys::yield_now();
    }
    None
}

const WRITING_TRIES: usize = 1000;

/// Begins to make calls on the connection ours ([`Conn::manage`]); how many bytes the program has read so far.
fn begin(conn: &'static Conn) -> Result<u64, Reason> {
    if crate::epoll::untimely(conn) || !conn.manage() {
        return Err(Reason::Busy);
    }
    // A call that began when an earlier offer had made it managed may still be reading. From here on none begins.
    let (Some(_tx), Some(_rx)) = (conn.tx.lock(), conn.rx.lock()) else {
        conn.managed_is(false);
        return Err(Reason::Busy);
    };
    diag::read(conn.descriptor()).map_err(|_| {
        conn.managed_is(false);
        Reason::Half
    })
}

/// Puts the connection's state for a slot in place, on tcp in both directions.
fn settle(conn: &'static Conn, link: &Link, index: u32, slot: usize, read: u64) {
    let fd = conn.descriptor();
    if sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) & libc::O_NONBLOCK != 0 {
        conn.set(flag::NONBLOCK);
    } else {
        conn.clear(flag::NONBLOCK);
    }
    conn.keep_options(fd);
    let Some((mine, theirs)) = link.maps() else { return };
    conn.set_maps(mine, theirs);
    conn.slot.store(slot as u32, Ordering::Relaxed);
    conn.link.store(index, Ordering::Relaxed);
    conn.arms.store(0, Ordering::Relaxed);
    if let Some(mut rx) = conn.rx.lock() {
        *rx = Default::default();
        rx.tcp_read = read;
        rx.ring = Consumer::new(layout::small(slot), layout::SMALL);
        conn.rx.set_path(path::TCP);
    }
    if let Some(mut tx) = conn.tx.lock() {
        *tx = Default::default();
        tx.ring = Producer::new(layout::small(slot), layout::SMALL);
        conn.tx.set_path(path::TCP);
    }
}

/// Both ends agree: from now on each writer changes over when it next writes.
fn promoted(conn: &'static Conn) {
    conn.set_reason(Reason::None);
    log::connection(LogLevel::Info, conn, "in memory");
    conn.put(layout::FD, conn.descriptor() as u64 + 1);
    unpost(conn);
    report::add(report::at::PROMOTED, 1);
}

/// Whether the kernel's record of the other end agrees with what the peer says and with who it is.
fn proved(conn: &Conn, link: &Link, cookie: u64) -> bool {
    let (own, peer) = conn.addresses();
    let uid = link.peer_uid.load(Ordering::Relaxed);
    diag::lookup(peer, own).is_ok_and(|record| record.cookie == cookie && (record.uid == uid || uid == 0))
}

/// Whether all descriptors of a connection that was shared by fork() are this process's now.
pub(crate) fn owned(conn: &'static Conn) -> bool {
    let mut own = 0;
    table::for_each(|_, entry| {
        if matches!(entry, Entry::Conn(other) if core::ptr::eq(other, conn)) {
            own += 1;
        }
    });
    if own != conn.refs.load(Ordering::Acquire) {
        return false;
    }
    conn.pid.store(process::pid(), Ordering::Relaxed);
    conn.clear(flag::SHARED);
    true
}

/// Our rendezvous socket, made when first needed; its token.
fn listen() -> Result<u64, Reason> {
    if LISTENER.load(Ordering::Acquire) > 0 {
        return Ok(TOKEN.load(Ordering::Acquire));
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket =
        descriptors::made(|| sys::socket(libc::AF_UNIX, kind, 0)).map_err(|_| Reason::NoDescriptors)?;
    let token = sys::random() | 1;
    let (name, len) = address(token);
    if sys::bind(socket, (&raw const name).cast(), len).and_then(|()| sys::listen(socket, 512)).is_err() {
        sys::close(socket);
        return Err(Reason::NoListener);
    }
    let socket = descriptors::hide(socket);
    // Two threads may get here at once: the token is the winner's.
    match LISTENER.compare_exchange(0, socket + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => TOKEN.store(token, Ordering::Release),
        Err(_) => descriptors::unhide(socket),
    }
    match TOKEN.load(Ordering::Acquire) {
        0 => Err(Reason::Busy),
        token => Ok(token),
    }
}

fn register(conn: &'static Conn) -> Option<u32> {
    if POSTED_AT.load(Ordering::Acquire) == 0 {
        let at = sys::mmap_private(POSTED * 8).ok()? as u64;
        if POSTED_AT.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::munmap(at as *mut u8, POSTED * 8);
        }
    }
    for _ in 0..POSTED {
        let index = POSTED_NEXT.fetch_add(1, Ordering::Relaxed) as usize % POSTED;
        let at = core::ptr::from_ref(conn) as u64;
        if posted(index)?.compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            conn.posted_index.store(index as u64 + 1, Ordering::Release);
            return Some(index as u32);
        }
    }
    None
}

fn posted(index: usize) -> Option<&'static AtomicU64> {
    let at = POSTED_AT.load(Ordering::Acquire);
    // SAFETY: the array has POSTED words and is never unmapped.
    (at != 0 && index < POSTED).then(|| unsafe { &*(at as *const AtomicU64).add(index) })
}

fn parse(address: &libc::sockaddr_storage) -> Option<Addr> {
    match i32::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, which is smaller.
            let v4 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in>() };
            let mut ip = [0; 16];
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
            Some(Addr { ip, port: u16::from_be(v4.sin_port) })
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6, which is smaller.
            let v6 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in6>() };
            Some(Addr { ip: v6.sin6_addr.s6_addr, port: u16::from_be(v6.sin6_port) })
        }
        _ => None,
    }
}

pub const SO_COOKIE: i32 = 57;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_for_an_end_that_never_comes_get_rare() {
        let conn = crate::home::take().unwrap();
        let pause = |reason| {
            wait_longer(conn, reason);
            conn.pause.load(Ordering::Relaxed)
        };
        conn.pause.store(ticks_of(SERVE_NS), Ordering::Relaxed);
        let second = ticks_of(1_000_000_000);
        let (mut looks, mut time) = (0, 0);
        while time < second {
            time += pause(Reason::Unpaired);
            looks += 1;
        }
        assert!(looks <= 8, "{looks} in the first second");
        assert_eq!(pause(Reason::Unpaired), second);
        assert!(
            pause(Reason::Refused) <= ticks_of(PAUSE_MAX_NS),
            "the other end is there: it is not far any more"
        );
        wait_no_longer(conn);
        assert_eq!(conn.pause.load(Ordering::Relaxed), ticks_of(SERVE_NS));
    }
}
