//! System calls by their numbers: a call's first attempt, its further ones, and whose it is.

use std::collections::{BTreeMap, BTreeSet};

use syscalls::{Errno, Sysno};

use super::arena::Memory;
use super::dice::Dice;
use super::objects::{Kind, Sleep, Table};
use super::poll::{millis, timespec};
use super::state::{Kernel, Limits, Outcome, Tid};
use super::user::{self, Places};

impl Kernel {
    /// A kernel without processes; all that is by chance comes from the seed.
    pub fn new(seed: u64) -> Kernel {
        Kernel {
            now: 1_000_000_000,
            limits: Limits::default(),
            faults: None,
            raised: Vec::new(),
            changes: 0,
            dice: Dice::new(seed),
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            files: Table::new(),
            tcps: Table::new(),
            unixes: Table::new(),
            inodes: Table::new(),
            paths: BTreeMap::new(),
            folders: BTreeSet::new(),
            names: BTreeMap::new(),
            wire: BTreeMap::new(),
            sent: 0,
            dropped: Vec::new(),
            memory: Memory::new(),
            futexes: Vec::new(),
            port: 0,
            numbers: 1000,
            looked: Vec::new(),
            unknown: BTreeMap::new(),
        }
    }

    /// Moves whenever anything has happened that may let a sleeping call go on.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// When the call that a thread sleeps in is to be tried again though nothing has moved: its
    /// time is over then, or something arrives that is on its way (of whatever socket).
    pub fn deadline(&self, tid: Tid) -> Option<u64> {
        let sleep = self.threads.get(&tid)?.sleep.as_ref()?;
        sleep.deadline.into_iter().chain(self.next_arrival()).min()
    }

    /// Whether a thread sleeps in a call, and in which.
    pub fn sleeps(&self, tid: Tid) -> Option<Sysno> {
        Some(self.threads.get(&tid)?.sleep.as_ref()?.number)
    }

    /// Whether a descriptor of a thread's process is a TCP socket.
    pub fn is_tcp(&mut self, tid: Tid, fd: i32) -> bool {
        self.file(tid, fd as usize).is_ok_and(|file| matches!(self.files[file].kind, Kind::Tcp(_)))
    }

    /// Calls that the model does not know, and how often they were made.
    pub fn unknown(&self) -> Vec<(String, u64)> {
        self.unknown.iter().map(|(name, &count)| (name.clone(), count)).collect()
    }

    /// A call as a thread makes it; also to go on with one that sleeps. Pointers in `args` are ones
    /// of this address space, as the real call takes them.
    pub fn call(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Outcome {
        assert!(self.threads.contains_key(&tid), "thread {tid} is one that was made before");
        self.settle();
        let goes_on = self.sleeps(tid) == Some(number);
        if !goes_on {
            self.cancel(tid);
            if let Some(faults) = &mut self.faults
                && let Some(errno) = faults(tid, number)
            {
                return Outcome::Done(Err(errno));
            }
            let (deadline, begun) = (None, false);
            let sleep = Sleep {
                number,
                args,
                deadline,
                begun,
                done: 0,
                waits: false,
                woken: false,
                held: Vec::new(),
            };
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.sleep = Some(sleep);
            }
        }
        loop {
            let before = self.changes;
            self.looked.clear();
            let outcome = self.attempt(tid, number, args).unwrap_or_else(|errno| Outcome::Done(Err(errno)));
            if !self.threads.contains_key(&tid) {
                return outcome;
            }
            if outcome == Outcome::Sleep {
                self.keep_files(tid);
                self.settle();
                if self.changes != before {
                    continue;
                }
                return Outcome::Sleep;
            }
            self.cancel(tid);
            self.settle();
            return outcome;
        }
    }

    /// A call that sleeps keeps the files that it has looked up.
    fn keep_files(&mut self, tid: Tid) {
        if !self.sleep(tid).held.is_empty() {
            return;
        }
        let looked = core::mem::take(&mut self.looked);
        for &(_, file) in &looked {
            self.hold(file);
        }
        self.sleep(tid).held = looked;
    }

    fn attempt(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Result<Outcome, Errno> {
        if let Some(outcome) = self.socket_call(tid, number, args) {
            return outcome;
        }
        if let Some(outcome) = self.waiting_call(tid, number, args) {
            return outcome;
        }
        let result = self.file_call(tid, number, args);
        let result = result.or_else(|| self.memory_call(tid, number, args));
        let result = result.or_else(|| self.process_call(tid, number, args));
        match result {
            Some(result) => result.map(|value| Outcome::Done(Ok(value))),
            None => {
                self.unlike(number.name());
                Err(Errno::ENOSYS)
            }
        }
    }

    fn socket_call(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Option<Result<Outcome, Errno>> {
        let [a, b, c, d, ..] = args;
        let result = match number {
            Sysno::socket => self.socket(tid, a as i32, b as i32, c as i32),
            Sysno::socketpair => self.socketpair(tid, args),
            Sysno::bind => self.bind(tid, a, b, c),
            Sysno::listen => self.listen(tid, a, b as i32),
            Sysno::shutdown => self.shutdown(tid, a, b as i32),
            Sysno::getsockname => self.name(tid, args, false),
            Sysno::getpeername => self.name(tid, args, true),
            Sysno::getsockopt => self.getsockopt(tid, args),
            Sysno::setsockopt => self.setsockopt(tid, args),
            Sysno::connect => return Some(self.connect(tid, a, b, c)),
            Sysno::accept => return Some(self.accept(tid, a, (b, c), 0)),
            Sysno::accept4 => return Some(self.accept(tid, a, (b, c), d as i32)),
            Sysno::sendto => return Some(self.sendto(tid, args)),
            Sysno::sendmsg => return Some(self.sendmsg(tid, a, b, c as i32)),
            Sysno::recvfrom => return Some(self.recvfrom(tid, args)),
            Sysno::recvmsg => return Some(self.recvmsg(tid, a, b, c as i32)),
            Sysno::sendmmsg => return Some(self.many(tid, args, true)),
            Sysno::recvmmsg => return Some(self.many(tid, args, false)),
            _ => return None,
        };
        Some(result.map(|value| Outcome::Done(Ok(value))))
    }

    /// Calls that may sleep, but those of sockets.
    fn waiting_call(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Option<Result<Outcome, Errno>> {
        let [a, b, c, d, e, f] = args;
        let waits = |kernel: &mut Kernel, timeout: Result<Option<u64>, Errno>| match timeout {
            Ok(timeout) => Ok(kernel.epoll_wait(tid, a, b, c as i32, timeout)),
            Err(errno) => Err(errno),
        };
        Some(match number {
            Sysno::read => self.read(tid, a, &Places::one(b, c), false),
            Sysno::write => self.write(tid, a, &Places::one(b, c), false),
            Sysno::readv | Sysno::writev => self.vectored(tid, number, args),
            Sysno::preadv2 | Sysno::pwritev2 => self.at_offset(tid, number, args),
            Sysno::futex => Ok(self.futex(tid, [a, b, c, d, e, f])),
            Sysno::ppoll => timespec(c).map(|timeout| self.poll(tid, a, b, timeout)),
            Sysno::pselect6 => timespec(e).map(|timeout| self.select(tid, a, [b, c, d], timeout)),
            Sysno::epoll_pwait => waits(self, Ok(millis(d as i32))),
            Sysno::epoll_pwait2 => waits(self, timespec(d)),
            Sysno::nanosleep => self.nap(tid, a, false),
            Sysno::clock_nanosleep => self.nap(tid, c, b as i32 & libc::TIMER_ABSTIME != 0),
            #[cfg(target_arch = "x86_64")]
            Sysno::epoll_wait => waits(self, Ok(millis(d as i32))),
            #[cfg(target_arch = "x86_64")]
            Sysno::poll => Ok(self.poll(tid, a, b, millis(c as i32))),
            #[cfg(target_arch = "x86_64")]
            Sysno::select => {
                let time = if e == 0 { Ok(None) } else { user::get::<[i64; 2]>(e).map(Some) };
                let nanos =
                    |[seconds, micros]: [i64; 2]| seconds as u64 * 1_000_000_000 + micros as u64 * 1000;
                time.map(|time| self.select(tid, a, [b, c, d], time.map(nanos)))
            }
            _ => return None,
        })
    }

    /// readv() and writev(): of nothing, they do nothing (vfs_readv, vfs_writev).
    fn vectored(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Result<Outcome, Errno> {
        let [fd, at, count, ..] = args;
        self.file(tid, fd)?;
        let places = Places::of(at, count)?;
        match number {
            _ if places.len() == 0 => Ok(Outcome::Done(Ok(0))),
            Sysno::readv => self.read(tid, fd, &places, false),
            _ => self.write(tid, fd, &places, false),
        }
    }

    fn nap(&mut self, tid: Tid, at: usize, until: bool) -> Result<Outcome, Errno> {
        let nanos = timespec(at)?.ok_or(Errno::EFAULT)?;
        let nanos = if until { nanos.saturating_sub(self.now) } else { nanos };
        Ok(if self.wait(tid, Some(nanos)) { Outcome::Sleep } else { Outcome::Done(Ok(0)) })
    }

    /// preadv2() and pwritev2(): with -1 for an offset, as readv() and writev().
    fn at_offset(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Result<Outcome, Errno> {
        let [fd, at, count, offset, _, flags] = args;
        let places = Places::of(at, count)?;
        let now = flags as i32 & libc::RWF_NOWAIT != 0;
        match (number, offset as i64) {
            (Sysno::preadv2, -1) => self.read(tid, fd, &places, now),
            (_, -1) => self.write(tid, fd, &places, now),
            (Sysno::preadv2, offset) => {
                self.pread(tid, fd, &places, offset as u64).map(|done| Outcome::Done(Ok(done)))
            }
            (_, offset) => self.pwrite(tid, fd, &places, offset as u64).map(|done| Outcome::Done(Ok(done))),
        }
    }

    fn file_call(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Option<Result<usize, Errno>> {
        let [a, b, c, d, ..] = args;
        Some(match number {
            Sysno::close => self.close(tid, a),
            Sysno::close_range => self.close_range(tid, a as u32, b as u32, c as u32),
            Sysno::dup => self.dup(tid, a, 0, false),
            #[cfg(target_arch = "x86_64")]
            Sysno::dup2 if a as i32 == b as i32 => self.file(tid, a).map(|_| b),
            #[cfg(target_arch = "x86_64")]
            Sysno::dup2 => self.dup_over(tid, a, b, false),
            Sysno::dup3 if a as i32 == b as i32 || c as i32 & !libc::O_CLOEXEC != 0 => Err(Errno::EINVAL),
            Sysno::dup3 => self.dup_over(tid, a, b, c != 0),
            Sysno::fcntl => self.fcntl(tid, a, b as i32, c),
            Sysno::ioctl => self.ioctl(tid, a, b as u32 as usize, c),
            Sysno::eventfd2 => self.eventfd(tid, u64::from(a as u32), b as i32),
            Sysno::epoll_create1 => self.epoll_create(tid, a as i32),
            Sysno::epoll_ctl => self.epoll_ctl(tid, a, b as i32, c, d),
            Sysno::memfd_create => self.memfd_create(tid, a, b as u32),
            Sysno::ftruncate => self.ftruncate(tid, a, b),
            Sysno::pread64 => self.pread(tid, a, &Places::one(b, c), d as u64),
            Sysno::pwrite64 => self.pwrite(tid, a, &Places::one(b, c), d as u64),
            Sysno::lseek => self.lseek(tid, a, b as i64, c as i32),
            Sysno::openat => self.openat(tid, b, c as i32, d as u32),
            Sysno::fstat => self.fstat(tid, a, b),
            Sysno::fstatfs => self.fstatfs(tid, a, b),
            Sysno::fchmod => self.fchmod(tid, a, b as u32),
            Sysno::fchmodat => self.fchmodat(tid, b, c as u32),
            Sysno::getdents64 => self.getdents(tid, a, b, c),
            Sysno::readlinkat => self.readlink(tid, b, c, d),
            Sysno::unlinkat => self.unlink(b),
            Sysno::pidfd_open => self.pidfd_open(tid, a as u32, b as i32),
            Sysno::pidfd_getfd => self.pidfd_getfd(tid, a, b),
            _ => return None,
        })
    }

    fn memory_call(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Option<Result<usize, Errno>> {
        let [a, b, c, ..] = args;
        Some(match number {
            Sysno::mmap => self.mmap(tid, args),
            Sysno::munmap => self.munmap(tid, a, b),
            Sysno::mremap => self.mremap(tid, args),
            Sysno::madvise => self.madvise(tid, a, b, c as i32),
            Sysno::mprotect => self.mprotect(tid, a, b, c as i32),
            Sysno::mincore => self.mincore(tid, a, b, c),
            Sysno::msync | Sysno::mlock | Sysno::mlock2 | Sysno::munlock => self.check_mapped(tid, a, b),
            Sysno::mlockall | Sysno::munlockall => Ok(0),
            Sysno::process_vm_readv => self.process_vm(tid, args, true),
            Sysno::process_vm_writev => self.process_vm(tid, args, false),
            _ => return None,
        })
    }

    fn process_call(&mut self, tid: Tid, number: Sysno, args: [usize; 6]) -> Option<Result<usize, Errno>> {
        let [a, b, c, d, ..] = args;
        Some(match number {
            Sysno::getpid => Ok(self.pid(tid) as usize),
            Sysno::gettid => Ok(tid as usize),
            Sysno::getppid => Ok(self.process(tid).parent as usize),
            Sysno::getuid => Ok(self.process(tid).uids[0] as usize),
            Sysno::geteuid => Ok(self.process(tid).uids[1] as usize),
            Sysno::getgid => Ok(self.process(tid).gids[0] as usize),
            Sysno::getegid => Ok(self.process(tid).gids[1] as usize),
            Sysno::getresuid => put_ids(self.process(tid).uids, [a, b, c]),
            Sysno::getresgid => put_ids(self.process(tid).gids, [a, b, c]),
            Sysno::kill => self.kill(tid, a as i32, b as i32),
            Sysno::tkill => self.tkill(tid, a as u32, b as i32),
            Sysno::tgkill => self.tkill(tid, b as u32, c as i32),
            Sysno::prlimit64 => self.prlimit(tid, args),
            Sysno::rt_sigprocmask => self.sigprocmask(tid, a as i32, b, c),
            Sysno::sigaltstack => {
                let none =
                    libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
                user::put_if(b, none).map(|()| 0)
            }
            Sysno::uname => self.uname(a),
            Sysno::sched_getaffinity => self.affinity(b, c),
            Sysno::sched_getscheduler => Ok(libc::SCHED_OTHER as usize),
            Sysno::sched_yield => Ok(0),
            Sysno::getcpu => user::put_if(a, tid % self.limits.cpus.max(1)).map(|()| 0),
            Sysno::prctl => self.prctl(tid, a as i32, b),
            Sysno::getrandom => {
                let bytes: Vec<u8> = (0..b).map(|_| self.dice.next() as u8).collect();
                user::put_bytes(a, &bytes).map(|()| b)
            }
            Sysno::clock_gettime => {
                let now = [self.now / 1_000_000_000, self.now % 1_000_000_000];
                user::put(b, now).map(|()| 0)
            }
            Sysno::clock_getres => user::put_if(b, [0u64, 1]).map(|()| 0),
            Sysno::gettimeofday => {
                user::put_if(a, [self.now / 1_000_000_000, self.now % 1_000_000_000 / 1000]).map(|()| 0)
            }
            Sysno::exit_group => {
                let pid = self.pid(tid);
                self.end(pid);
                Ok(0)
            }
            Sysno::rt_sigaction | Sysno::set_robust_list | Sysno::membarrier => {
                let _ = d;
                Ok(0)
            }
            _ => return None,
        })
    }
}

fn put_ids(ids: [u32; 3], places: [usize; 3]) -> Result<usize, Errno> {
    for (id, at) in ids.into_iter().zip(places) {
        user::put(at, id)?;
    }
    Ok(0)
}
