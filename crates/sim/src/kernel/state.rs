//! All that the kernel keeps, and what every part of it needs: descriptors, sleeping, and telling
//! of changes.

use std::collections::{BTreeMap, BTreeSet};

use syscalls::{Errno, Sysno};

use super::dice::Dice;
use super::objects::{
    Common, Descriptor, File, Inode, Kind, Parcel, Process, Sleep, Table, Tcp, Thread, Unix,
};

pub type Pid = u32;
pub type Tid = u32;

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done(Result<usize, Errno>),
    /// It would block: to be tried again when [`Kernel::changes`] has moved, or `now` has reached
    /// [`Kernel::deadline`].
    Sleep,
}

/// Asked before each call: an error that it is to end with instead.
pub type Fault = Box<dyn FnMut(Tid, Sysno) -> Option<Errno>>;

/// Sizes and delays.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes that a TCP socket takes without their being acknowledged, and keeps without their
    /// being read.
    pub sndbuf: usize,
    pub rcvbuf: usize,
    /// Whether writes to TCP may be cut short by chance, as if the room had ended.
    pub partial: bool,
    /// The longest time that a segment takes to arrive, in nanoseconds.
    pub delay: u64,
    /// Bytes in a UNIX socket, and messages in a datagram one.
    pub unix: usize,
    pub datagrams: usize,
    /// Connections that listen() may let wait.
    pub somaxconn: usize,
    pub nofile: (u64, u64),
    pub cpus: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sndbuf: 1 << 18,
            rcvbuf: 1 << 17,
            partial: false,
            delay: 0,
            unix: 212_992,
            datagrams: 10,
            somaxconn: 4096,
            nofile: (1024, 1 << 20),
            cpus: 4,
        }
    }
}

/// The kernel.
pub struct Kernel {
    /// Nanoseconds since boot; moved by whoever schedules.
    pub now: u64,
    pub limits: Limits,
    pub faults: Option<Fault>,
    /// Signals that were sent, in order, until they are taken out: thread and number. Of a process:
    /// to its first thread.
    pub raised: Vec<(Tid, i32)>,
    pub(super) changes: u64,
    pub(super) dice: Dice,
    pub(super) processes: BTreeMap<Pid, Process>,
    pub(super) threads: BTreeMap<Tid, Thread>,
    pub(super) files: Table<File>,
    pub(super) tcps: Table<Tcp>,
    pub(super) unixes: Table<Unix>,
    pub(super) inodes: Table<Inode>,
    pub(super) paths: BTreeMap<Vec<u8>, u64>,
    pub(super) folders: BTreeSet<Vec<u8>>,
    /// UNIX sockets by their names ([`super::objects::key`]).
    pub(super) names: BTreeMap<super::objects::Name, u64>,
    /// What is on its way, by its time of arrival.
    pub(super) wire: BTreeMap<(u64, u64), Parcel>,
    pub(super) sent: u64,
    /// Files that nobody uses any more, to be released.
    pub(super) dropped: Vec<u64>,
    pub(super) memory: super::arena::Memory,
    /// Those who sleep in futex(), first come first, with the low bits of what they wait for.
    pub(super) futexes: Vec<((u64, usize), Tid, u32)>,
    pub(super) port: u16,
    pub(super) numbers: u64,
    pub(super) looked: Vec<(i32, u64)>,
    pub(super) unknown: BTreeMap<String, u64>,
}

/// What poll() and epoll report.
pub(super) mod ready {
    pub(in crate::kernel) const IN: u32 = 0x1;
    pub(in crate::kernel) const PRI: u32 = 0x2;
    pub(in crate::kernel) const OUT: u32 = 0x4;
    pub(in crate::kernel) const ERR: u32 = 0x8;
    pub(in crate::kernel) const HUP: u32 = 0x10;
    pub(in crate::kernel) const NVAL: u32 = 0x20;
    pub(in crate::kernel) const RDNORM: u32 = 0x40;
    pub(in crate::kernel) const RDBAND: u32 = 0x80;
    pub(in crate::kernel) const WRNORM: u32 = 0x100;
    pub(in crate::kernel) const WRBAND: u32 = 0x200;
    pub(in crate::kernel) const RDHUP: u32 = 0x2000;
    /// sock_def_readable() and sk_stream_write_space().
    pub(in crate::kernel) const READABLE: u32 = IN | PRI | RDNORM | RDBAND;
    pub(in crate::kernel) const WRITABLE: u32 = OUT | WRNORM | WRBAND;
    /// Wakes whatever is waited for (sock_def_wakeup()).
    pub(in crate::kernel) const ALL: u32 = 0;
}

/// Of a member of an epoll set: how it is told of, not what (EP_PRIVATE_BITS).
pub(super) const PRIVATE: u32 =
    (libc::EPOLLWAKEUP | libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;

/// How a call on a socket may sleep.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) flags: i32,
    /// At most so long; 0: not at all.
    pub(super) timeout: Option<u64>,
}

impl Kernel {
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ---- processes and descriptors ----

    pub(super) fn pid(&self, tid: Tid) -> Pid {
        self.threads[&tid].pid
    }

    pub(super) fn process(&mut self, tid: Tid) -> &mut Process {
        let pid = self.pid(tid);
        self.processes.get_mut(&pid).expect("threads end with their process")
    }

    /// What a path leads to, which may be a process's open file.
    pub(super) fn inode_at(&mut self, tid: Tid, path: &[u8]) -> Result<u64, Errno> {
        let Some(number) = path.strip_prefix(b"/proc/self/fd/") else {
            return self.paths.get(path).copied().ok_or(Errno::ENOENT);
        };
        let number = core::str::from_utf8(number).ok().and_then(|number| number.parse::<usize>().ok());
        let file = self.file(tid, number.ok_or(Errno::ENOENT)?).map_err(|_| Errno::ENOENT)?;
        match self.files[file].kind {
            Kind::Disk(inode) => Ok(inode),
            _ => Err(Errno::ECONNREFUSED),
        }
    }

    /// The file of a descriptor. While a call sleeps, the one that it began with.
    pub(super) fn file(&mut self, tid: Tid, fd: usize) -> Result<u64, Errno> {
        let fd = fd as i32;
        let held = self.threads[&tid]
            .sleep
            .as_ref()
            .and_then(|sleep| sleep.held.iter().find(|&&(number, _)| number == fd).map(|&(_, file)| file));
        let file = match held {
            Some(file) => file,
            None => self.descriptor(tid, fd)?.file,
        };
        self.looked.push((fd, file));
        Ok(file)
    }

    pub(super) fn descriptor(&mut self, tid: Tid, fd: i32) -> Result<&mut Descriptor, Errno> {
        let place = usize::try_from(fd).ok().and_then(|fd| self.process(tid).descriptors.get_mut(fd));
        place.and_then(Option::as_mut).ok_or(Errno::EBADF)
    }

    /// The lowest number from `from` on that is free.
    pub(super) fn free_number(&mut self, tid: Tid, from: usize) -> Result<usize, Errno> {
        let process = self.process(tid);
        let free = (from..).find(|&fd| process.descriptors.get(fd).is_none_or(Option::is_none));
        free.filter(|&fd| (fd as u64) < process.limits[libc::RLIMIT_NOFILE as usize].0).ok_or(Errno::EMFILE)
    }

    /// Gives a file a number; whoever calls has counted this use of it.
    pub(super) fn install(&mut self, tid: Tid, number: usize, file: u64, cloexec: bool) -> usize {
        let descriptors = &mut self.process(tid).descriptors;
        if descriptors.len() <= number {
            descriptors.resize(number + 1, None);
        }
        if let Some(before) = descriptors[number].replace(Descriptor { file, cloexec }) {
            self.put(before.file);
        }
        number
    }

    /// A new file, not used yet.
    pub(super) fn new_file(&mut self, kind: Kind, flags: i32) -> u64 {
        let inode = self.number();
        self.files.add(File { refs: 0, flags, position: 0, kind, members: Vec::new(), inode })
    }

    /// A new file with a descriptor: the number is looked for before `make` is called.
    pub(super) fn make(
        &mut self,
        tid: Tid,
        flags: i32,
        cloexec: bool,
        make: impl FnOnce(&mut Kernel) -> Kind,
    ) -> Result<usize, Errno> {
        let number = self.free_number(tid, 0)?;
        let kind = make(self);
        let file = self.new_file(kind, flags);
        match self.files[file].kind {
            Kind::Tcp(id) => {
                self.files[file].inode = self.tcps[id].common.inode;
                self.tcps[id].common.file = Some(file);
            }
            Kind::Unix(id) => {
                self.files[file].inode = self.unixes[id].common.inode;
                self.unixes[id].common.file = Some(file);
            }
            _ => {}
        }
        self.hold(file);
        Ok(self.install(tid, number, file, cloexec))
    }

    pub(super) fn hold(&mut self, file: u64) {
        self.files[file].refs += 1;
    }

    /// One use less. With the last one the file is released, at the end of this call.
    pub(super) fn put(&mut self, file: u64) {
        let refs = &mut self.files[file].refs;
        *refs -= 1;
        if *refs == 0 {
            self.dropped.push(file);
        }
    }

    pub(super) fn nonblocking(&self, file: u64) -> bool {
        self.files[file].flags & libc::O_NONBLOCK != 0
    }

    /// What a new socket has.
    pub(super) fn common(&mut self, (uid, space): (u32, u32), sndbuf: usize, rcvbuf: usize) -> Common {
        Common {
            file: None,
            error: None,
            shut: 0,
            cookie: self.number(),
            uid,
            space,
            inode: self.number(),
            rcvtimeo: None,
            sndtimeo: None,
            sndbuf,
            rcvbuf,
            lowat: 1,
            inline: false,
            linger: None,
            peek_at: None,
            options: BTreeMap::new(),
        }
    }

    /// Something that the real kernel does and the model does not.
    pub(super) fn unlike(&mut self, what: &str) {
        *self.unknown.entry(what.to_owned()).or_default() += 1;
    }

    /// Who the calling process is: process, user, group.
    pub(super) fn credentials(&mut self, tid: Tid) -> (u32, u32, u32) {
        let pid = self.pid(tid);
        let process = self.process(tid);
        (pid, process.uids[1], process.gids[1])
    }

    /// Whether a process may look into another: the same user, or root.
    pub(super) fn may_trace(&mut self, tid: Tid, pid: Pid) -> Result<(), Errno> {
        let (_, uid, _) = self.credentials(tid);
        let theirs = self.processes.get(&pid).ok_or(Errno::ESRCH)?.uids;
        if uid == 0 || theirs == [uid; 3] { Ok(()) } else { Err(Errno::EPERM) }
    }

    // ---- sleeping ----

    /// The call of `tid` would block, for `timeout` at most (`None`: for ever). Whether it may
    /// sleep on: if not, the time is over.
    pub(super) fn wait(&mut self, tid: Tid, timeout: Option<u64>) -> bool {
        let now = self.now;
        let sleep = self.sleep(tid);
        if !sleep.begun {
            sleep.begun = true;
            sleep.deadline = timeout.map(|nanos| now.saturating_add(nanos));
        }
        sleep.deadline.is_none_or(|deadline| now < deadline)
    }

    /// The call that `tid` is in.
    pub(super) fn sleep(&mut self, tid: Tid) -> &mut Sleep {
        let thread = self.threads.get_mut(&tid).expect("the thread that calls is there");
        thread.sleep.as_mut().expect("within a call")
    }

    /// What a call ends with that would block: it sleeps, or its time is over.
    pub(super) fn block(&mut self, tid: Tid, timeout: Option<u64>, late: Errno) -> Outcome {
        if self.wait(tid, timeout) { Outcome::Sleep } else { Outcome::Done(Err(late)) }
    }

    // ---- telling of changes ----

    /// Something about a file has changed: sleepers look again, and epoll sets put it on their
    /// lists (`ep_poll_callback`).
    pub(super) fn wake(&mut self, file: Option<u64>, mask: u32) {
        self.changes += 1;
        let Some(file) = file else { return };
        let Some(members) = self.files.find(file).map(|file| file.members.clone()) else { return };
        for (set, fd) in members {
            let key = (file, fd);
            let Kind::Set(entry) = &mut self.files[set].kind else { continue };
            let Some(item) = entry.items.get(&key).copied() else { continue };
            if item.events & !PRIVATE == 0 || mask != 0 && mask & item.events == 0 {
                continue;
            }
            if !entry.ready.contains(&key) {
                entry.ready.push_back(key);
            }
            // It counts as woken: who sleeps there looks, whatever comes next.
            let woken = entry.sleepers.pop_first().is_some();
            self.wake(Some(set), ready::IN);
            if woken && item.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                let both = ready::IN | ready::OUT;
                if mask & both == 0 || mask & both & item.events == mask & both {
                    break;
                }
            }
        }
    }

    /// Raises a signal for a thread.
    pub(super) fn raise(&mut self, tid: Tid, signal: i32) {
        self.raised.push((tid, signal));
    }
}
