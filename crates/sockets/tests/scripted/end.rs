//! The library's end. All that these tests know of the library's inside is here.

use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use fabric::sys::{self, Errno};
use options::{Options, Text};
use sockets::conn::{Conn, flag, path, state};
use sockets::io::{self, Outcome};
use sockets::peering::wire::Introduced;
use sockets::table::Entry;
use sockets::{close, demote, epoll, fork, handover, lifecycle, poll, process, rendezvous, seen, table};

pub use path::{BIG, LAST, RESEND, SMALL, TCP};
pub use sockets::reason::Reason;

/// What a call returns, or errno.
pub type Result<T> = std::result::Result<T, i32>;

const NOW: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Housekeeping of one connection serves all of the process, so one test runs at a time.
static TURN: Mutex<()> = Mutex::new(());
static LISTENER: LazyLock<TcpListener> = LazyLock::new(|| {
    let options = Options {
        // The script knows who we are, and is not looked for.
        board: Text::new(b"/dev/null").unwrap(),
        promote_after: Some(0),
        promote_rate: Some(0),
        spin_us: Some(0),
        ..Options::DEFAULT
    };
    process::set_options(|all| *all = options);
    process::start();
    TcpListener::bind("127.0.0.1:0").unwrap()
});

pub struct End {
    pub fd: i32,
    conn: &'static Conn,
    closed: AtomicBool,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl End {
    /// A connection that is posted, and the script's end of it.
    pub fn posted() -> (End, TcpStream) {
        End::with(Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Another one of the same test.
    pub fn beside(&self) -> (End, TcpStream) {
        End::with(None)
    }

    fn with(turn: Option<MutexGuard<'static, ()>>) -> (End, TcpStream) {
        let tcp = TcpStream::connect(LISTENER.local_addr().unwrap()).unwrap();
        let fd = LISTENER.accept().unwrap().0.into_raw_fd();
        lifecycle::track(fd, false, None, 0);
        let conn = table::conn(fd).expect("it is followed");
        seen::waited_for(conn);
        let end = End { fd, conn, closed: AtomicBool::new(false), _turn: turn };
        end.tick();
        (end, tcp)
    }

    /// Until this is dropped, who has slept for a while looks whether it is owed a wake-up.
    pub fn check_sleepers(&self) -> impl Drop + use<> {
        struct Checks;
        impl Drop for Checks {
            fn drop(&mut self) {
                process::set_options(|all| all.check_sleepers = false);
            }
        }
        process::set_options(|all| all.check_sleepers = true);
        Checks
    }

    /// Waits for a moment, as on a slot that is another connection's by now: an offer was taken
    /// back between the look and the arm.
    pub fn waits_on_the_slot_of(&self, other: &End) {
        let (slot, link) = (other.conn.slot.load(Ordering::Relaxed), other.conn.link.load(Ordering::Relaxed));
        self.conn.set_maps(other.conn.mine(), other.conn.theirs());
        self.conn.slot.store(slot, Ordering::Relaxed);
        self.conn.link.store(link, Ordering::Relaxed);
        self.conn.managed_is(true);
        // The second sleep is by a bell.
        self.poll_for(libc::POLLIN, Some(60_000_000));
        self.conn.managed_is(false);
        self.conn.slot.store(sockets::layout::SLOTS as u32, Ordering::Relaxed);
    }

    /// Housekeeping, as any call on a connection on tcp does it on the way.
    pub fn tick(&self) {
        self.conn.due.store(0, Ordering::Relaxed);
        rendezvous::tick(self.conn, self.fd);
    }

    /// Where the process is found, and where it has the connection: what a post on the board says.
    pub fn post(&self) -> (u64, u32, u64) {
        let index = self.conn.posted_index.load(Ordering::Relaxed) as u32 - 1;
        (rendezvous::own_token(), index, self.conn.cookie.load(Ordering::Relaxed))
    }

    pub fn is_managed(&self) -> bool {
        self.conn.is_managed()
    }

    /// On tcp, and to be promoted again.
    pub fn is_new(&self) -> bool {
        self.conn.state() == state::NEW
    }

    /// It has been proved to have this process's end as its other one.
    pub fn is_introduced_to(&self, token: u64, cookie: u64) {
        self.conn.set(flag::CLIENT);
        self.conn.remote.introduce(Introduced { token, cookie, index: 0, by_proof: true });
    }

    pub fn is_introduced(&self) -> bool {
        self.conn.remote.introduced().is_some()
    }

    /// The slot that it has offered, if the offer is out.
    pub fn offered(&self) -> Option<usize> {
        (self.conn.state() == state::OFFERED).then(|| self.conn.slot())
    }

    /// How often it has been put on a slot, by which who is about to sleep knows of it.
    pub fn settled(&self) -> u32 {
        self.conn.settled.load(Ordering::Relaxed)
    }

    /// Threads that sleep on it in the kernel.
    pub fn sleepers(&self) -> u32 {
        self.conn.sleepers.load(Ordering::Relaxed)
    }

    /// From now on its peer can ring no bell of ours: reads that sleep for long wait for kicks.
    pub fn has_no_bells(&self) {
        self.conn.set(flag::NO_BELLS);
    }

    /// As the progress thread finds it for a connection between hosts.
    pub fn link_is_over(&self) {
        self.conn.set(flag::CUT);
    }

    pub fn is_shared(&self) -> bool {
        self.conn.has(flag::SHARED)
    }

    /// Of the direction that is read, and of the one that is written.
    pub fn paths(&self) -> (u32, u32) {
        (self.conn.rx.path(), self.conn.tx.path())
    }

    pub fn is_because(&self, reason: Reason) -> bool {
        self.conn.reason.load(Ordering::Relaxed) == reason as u32
    }

    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.send_with(bytes, NOW)
    }

    pub fn send_with(&self, bytes: &[u8], flags: i32) -> Result<usize> {
        let iov = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        match io::send(self.conn, self.fd, &iov, flags) {
            Outcome::Kernel => sys::send(self.fd, bytes.as_ptr(), bytes.len(), flags),
            Outcome::Done(result) => result,
        }
        .map_err(Errno::into_raw)
    }

    pub fn recv(&self, most: usize) -> Result<Vec<u8>> {
        self.recv_with(most, NOW)
    }

    pub fn peek(&self, most: usize) -> Result<Vec<u8>> {
        self.recv_with(most, NOW | libc::MSG_PEEK)
    }

    pub fn recv_with(&self, most: usize, flags: i32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; most];
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most }];
        let got = match io::recv(self.conn, self.fd, &iov, flags) {
            Outcome::Kernel => sys::recv(self.fd, bytes.as_mut_ptr(), most, flags),
            Outcome::Done(result) => result,
        };
        bytes.truncate(got.map_err(Errno::into_raw)?);
        Ok(bytes)
    }

    /// FIONREAD.
    pub fn unread(&self) -> i32 {
        io::unread(self.conn, self.fd).unwrap_or_else(|| sys::ioctl_int(self.fd, libc::FIONREAD).unwrap())
    }

    /// poll(), which does not wait.
    pub fn poll(&self, events: i16) -> i16 {
        self.poll_for(events, Some(0))
    }

    pub fn poll_for(&self, events: i16, nanos: Option<u64>) -> i16 {
        let mut fds = [libc::pollfd { fd: self.fd, events, revents: 0 }];
        let view = fds;
        match poll::by_kernel(&view) {
            Ok(_in_kernel) => sys::ppoll(&mut fds, nanos),
            Err(handled) => poll::poll(&mut fds, nanos, std::ptr::null(), handled),
        }
        .unwrap();
        fds[0].revents
    }

    pub fn shutdown(&self, how: i32) {
        close::shut(self.conn, self.fd, how);
        sys::shutdown(self.fd, how).unwrap();
    }

    /// Goes back to tcp as an option of the program's does that only tcp has.
    pub fn demote(&self) {
        demote::now(self.conn, self.fd, Reason::Option);
    }

    /// Goes back to tcp with all that is unread, as splice() does. Whether it goes by tcp.
    pub fn recall(&self) -> bool {
        handover::go_back(self.conn, self.fd, Reason::Splice)
    }

    /// All that fork() does in the parent.
    pub fn fork(&self) {
        fork::prepare();
        fork::parent();
    }

    /// Closes the number, and makes it stand for the connection again, which has another meanwhile.
    pub fn renumber(&self, meanwhile: impl FnOnce()) {
        let other = duplicate(self.fd, None);
        self.has(other);
        closed(self.fd);
        meanwhile();
        duplicate(other, Some(self.fd));
        self.has(self.fd);
        closed(other);
    }

    /// A number has become the connection's.
    fn has(&self, number: i32) {
        self.conn.refs.fetch_add(1, Ordering::AcqRel);
        table::swap(number, Entry::Conn(self.conn));
    }

    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            closed(self.fd);
        }
    }
}

fn closed(number: i32) {
    close::closing(number);
    sys::close(number);
}

fn duplicate(from: i32, to: Option<i32>) -> i32 {
    // SAFETY: both are numbers of this test's.
    let got = unsafe { to.map_or_else(|| libc::dup(from), |to| libc::dup2(from, to)) };
    assert!(got >= 0);
    got
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}

/// An epoll set.
pub struct Set(i32);

impl Set {
    pub fn of(end: &End, events: i32) -> Set {
        let fd = sys::epoll_create().unwrap();
        epoll::created(fd);
        let set = Set(fd);
        set.control(libc::EPOLL_CTL_ADD, end, events);
        set
    }

    pub fn control(&self, op: i32, end: &End, events: i32) {
        let event = libc::epoll_event { events: events as u32, u64: end.fd as u64 };
        match epoll::control(self.0, op, end.fd, Some(event)) {
            Some(done) => done,
            None => sys::epoll_ctl(self.0, op, end.fd, event.events, event.u64),
        }
        .unwrap();
    }

    /// Events of the one member, 0 for none; does not wait.
    pub fn told(&self) -> i32 {
        self.wait(Some(0))
    }

    pub fn wait(&self, nanos: Option<u64>) -> i32 {
        match self.all(nanos)[..] {
            [] => 0,
            [(_, events)] => events,
            ref more => panic!("{} events of one member", more.len()),
        }
    }

    /// What is told of all members, in its order: descriptors and events.
    pub fn all(&self, nanos: Option<u64>) -> Vec<(i32, i32)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: there is room for so many events.
        let got = unsafe { epoll::wait(self.0, events.as_mut_ptr(), 4, nanos, std::ptr::null()) };
        let got = got.expect("it is ours").unwrap();
        events[..got].iter().map(|event| (event.u64 as i32, event.events as i32)).collect()
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        close::closing(self.0);
        sys::close(self.0);
    }
}
