//! Calls that sleep and are interrupted by a handler: which begin anew with SA_RESTART, in the real
//! kernel and in the model.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use syscalls::{Errno, Sysno};

use super::world::{Answer, Model, Real, World};

static HANDLED: AtomicU32 = AtomicU32::new(0);

/// A call that sleeps; on a UNIX socket or an epoll set, in which nothing comes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Read,
    Recv,
    RecvLimited,
    RecvMsg,
    Accept,
    Poll,
    Epoll,
    Futex,
    FutexLimited,
    Nap,
}

pub const KINDS: [Kind; 10] = [
    Kind::Read,
    Kind::Recv,
    Kind::RecvLimited,
    Kind::RecvMsg,
    Kind::Accept,
    Kind::Poll,
    Kind::Epoll,
    Kind::Futex,
    Kind::FutexLimited,
    Kind::Nap,
];

/// What such a call uses, in one world.
struct Places {
    pair: [i32; 2],
    listener: usize,
    set: usize,
    word: Box<u32>,
    buffer: Vec<u8>,
    iov: Box<libc::iovec>,
    message: Box<libc::msghdr>,
    poll: Box<libc::pollfd>,
    events: Vec<libc::epoll_event>,
    time: Box<[u64; 2]>,
}

fn places(world: &mut dyn World, name: &str) -> Places {
    let mut pair = [0i32; 2];
    let (unix, kind) = (libc::AF_UNIX as usize, (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize);
    world.call(Sysno::socketpair, [unix, kind, 0, pair.as_mut_ptr() as usize, 0, 0]).expect("a pair");
    let listener = world.call(Sysno::socket, [unix, kind, 0, 0, 0, 0]).expect("a socket");
    let mut address = vec![libc::AF_UNIX as u8, 0, 0];
    address.extend(format!("sim-{}-{name}", std::process::id()).bytes());
    world
        .call(Sysno::bind, [listener, address.as_ptr() as usize, address.len(), 0, 0, 0])
        .expect("a name that nobody has");
    world.call(Sysno::listen, [listener, 1, 0, 0, 0, 0]).expect("a listener");
    let set = world.call(Sysno::epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]).expect("a set");
    let mut buffer = vec![0u8; 8];
    let mut iov = Box::new(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 8 });
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: Box<libc::msghdr> = Box::new(unsafe { core::mem::zeroed() });
    (message.msg_iov, message.msg_iovlen) = (&raw mut *iov, 1);
    let poll = Box::new(libc::pollfd { fd: pair[0], events: libc::POLLIN, revents: 0 });
    let events = vec![libc::epoll_event { events: 0, u64: 0 }; 1];
    Places {
        pair,
        listener,
        set,
        word: Box::new(0),
        buffer,
        iov,
        message,
        poll,
        events,
        time: Box::new([1, 0]),
    }
}

impl Places {
    fn call(&mut self, world: &mut dyn World, kind: Kind) -> (Sysno, [usize; 6]) {
        let (fd, at) = (self.pair[0] as usize, self.buffer.as_mut_ptr() as usize);
        let (word, time) = (&raw mut *self.word as usize, &raw mut *self.time as usize);
        debug_assert_eq!(self.iov.iov_len, self.buffer.len());
        match kind {
            Kind::Read => (Sysno::read, [fd, at, 8, 0, 0, 0]),
            Kind::Recv => (Sysno::recvfrom, [fd, at, 8, 0, 0, 0]),
            Kind::RecvLimited => {
                let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_RCVTIMEO as usize);
                world.call(Sysno::setsockopt, [fd, level, name, time, 16, 0]).expect("a time limit");
                (Sysno::recvfrom, [fd, at, 8, 0, 0, 0])
            }
            Kind::RecvMsg => (Sysno::recvmsg, [fd, &raw mut *self.message as usize, 0, 0, 0, 0]),
            Kind::Accept => (Sysno::accept4, [self.listener, 0, 0, 0, 0, 0]),
            Kind::Poll => (Sysno::ppoll, [&raw mut *self.poll as usize, 1, time, 0, 8, 0]),
            Kind::Epoll => (Sysno::epoll_pwait, [self.set, self.events.as_mut_ptr() as usize, 1, 1000, 0, 8]),
            Kind::Futex => (Sysno::futex, [word, libc::FUTEX_WAIT as usize, 0, 0, 0, 0]),
            Kind::FutexLimited => (Sysno::futex, [word, libc::FUTEX_WAIT as usize, 0, time, 0, 0]),
            Kind::Nap => (Sysno::nanosleep, [time, 0, 0, 0, 0, 0]),
        }
    }

    fn close(self, world: &mut dyn World) {
        for fd in [self.pair[0] as usize, self.pair[1] as usize, self.listener, self.set] {
            let _ = world.call(Sysno::close, [fd, 0, 0, 0, 0, 0]);
        }
    }
}

extern "C" fn handler(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// The letter of /proc that says what a thread does.
fn state(tid: i32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    text.rsplit(')').next()?.trim_start().chars().next()
}

fn await_sleep(tid: i32, answers: &mpsc::Receiver<Answer>) -> Option<Answer> {
    let (start, mut seen) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(10) && seen < 3 {
        if let Ok(answer) = answers.recv_timeout(Duration::from_millis(5)) {
            return Some(answer);
        }
        seen = if state(tid) == Some('S') { seen + 1 } else { 0 };
    }
    None
}

/// Whether the real call begins anew after a handler: it is still there when that has run.
pub fn begins_anew(kind: Kind, restart: bool) -> bool {
    // SAFETY: zeroes are a valid sigaction, and the handler only counts.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        libc::sigaction(libc::SIGUSR2, &raw const action, core::ptr::null_mut());
    }
    let mut places = places(&mut Real, &format!("real-{kind:?}-{restart}"));
    let (number, args) = places.call(&mut Real, kind);
    let (send, answers) = mpsc::channel();
    let (tell, tid) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: the call asks for nothing.
        let _ = tell.send(unsafe { libc::gettid() });
        let _ = send.send(Real.call(number, args));
    });
    let tid = tid.recv().expect("a thread");
    assert_eq!(await_sleep(tid, &answers), None, "{kind:?} sleeps");
    let before = HANDLED.load(Ordering::SeqCst);
    // SAFETY: the thread is one of this process's.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR2) };
    while HANDLED.load(Ordering::SeqCst) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    let answer = await_sleep(tid, &answers);
    if answer.is_none() {
        // It goes on sleeping: whatever it waits for comes.
        let (one, unix) = ([1u8; 8], places.pair[1] as usize);
        let _ = Real.call(Sysno::write, [unix, one.as_ptr() as usize, 8, 0, 0, 0]);
        let _ = Real.call(Sysno::shutdown, [places.listener, libc::SHUT_RDWR as usize, 0, 0, 0, 0]);
        let word = &raw mut *places.word as usize;
        let _ = Real.call(Sysno::futex, [word, libc::FUTEX_WAKE as usize, 1, 0, 0, 0]);
    }
    let _ = thread.join();
    places.close(&mut Real);
    if let Some(answer) = answer {
        assert_eq!(answer, Err(Errno::EINTR), "{kind:?}");
    }
    answer.is_none()
}

/// Likewise in the model.
pub fn model_begins_anew(kind: Kind, restart: bool) -> bool {
    let mut model = Model::new(1, 0);
    let mut places = places(&mut model, "model");
    let (number, args) = places.call(&mut model, kind);
    let tid = std::process::id();
    assert_eq!(model.kernel.call(tid, number, args), sim::kernel::Outcome::Sleep, "{kind:?}");
    let restarts = model.kernel.restarts(tid);
    assert_eq!(model.kernel.interrupt(tid), Err(Errno::EINTR), "{kind:?}");
    restart && restarts
}
