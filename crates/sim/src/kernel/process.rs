//! Processes and threads: making and ending them, who they are, what /proc says of them.

use syscalls::{Errno, Sysno};

use super::objects::{Descriptor, File, Kind, Process, Thread};
use super::state::{Kernel, Pid, Tid};
use super::user;

impl Kernel {
    /// A new process, without threads: descriptors 0, 1 and 2 lead to /dev/null.
    pub fn spawn(&mut self, pid: Pid, uid: u32) {
        let null = self.files.add(File {
            refs: 3,
            flags: libc::O_RDWR,
            position: 0,
            kind: Kind::Null,
            members: Vec::new(),
            inode: 0,
        });
        let mut limits = [(u64::MAX, u64::MAX); 16];
        limits[libc::RLIMIT_NOFILE as usize] = self.limits.nofile;
        limits[libc::RLIMIT_MEMLOCK as usize] = (8 << 20, 8 << 20);
        let descriptors = vec![Some(Descriptor { file: null, cloexec: false }); 3];
        let (uids, gids) = ([uid; 3], [uid; 3]);
        let name = b"sim".to_vec();
        self.processes.insert(pid, Process { parent: 1, uids, gids, descriptors, limits, name, space: 0 });
    }

    /// A process, which has made no sockets yet, gets a network namespace of its own.
    pub fn unshare(&mut self, pid: Pid, space: u32) {
        self.processes.get_mut(&pid).expect("a process that was made before").space = space;
    }

    /// A thread of a process.
    pub fn thread(&mut self, pid: Pid, tid: Tid) {
        assert!(self.processes.contains_key(&pid), "a thread of a process that was made before");
        self.threads.insert(tid, Thread { pid, blocked: 0, sleep: None });
    }

    /// A thread ends, its process does not.
    pub fn end_thread(&mut self, tid: Tid) {
        self.cancel(tid);
        self.threads.remove(&tid);
        self.changes += 1;
    }

    /// fork(): the child has the parent's descriptors and mappings, and no thread yet.
    pub fn fork(&mut self, parent: Pid, child: Pid) {
        let process = &self.processes[&parent];
        let copy = Process {
            parent,
            uids: process.uids,
            gids: process.gids,
            descriptors: process.descriptors.clone(),
            limits: process.limits,
            name: process.name.clone(),
            space: process.space,
        };
        for descriptor in copy.descriptors.iter().flatten() {
            self.files[descriptor.file].refs += 1;
        }
        self.processes.insert(child, copy);
        self.fork_memory(parent, child);
    }

    /// Whether a process exists.
    pub fn lives(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Where private memory lies that a process has in common with others since a fork(): each has
    /// its own contents.
    pub fn shared_by_fork(&self, pid: Pid) -> Vec<(usize, usize)> {
        let maps = self.memory.maps.iter();
        let common =
            maps.filter(|(_, map)| !map.shared && map.holders.len() > 1 && map.holders.contains(&pid));
        common.map(|(&at, map)| (at, map.len)).collect()
    }

    /// execve(): descriptors that are close-on-exec are closed, and nothing is mapped any more.
    pub fn exec(&mut self, pid: Pid) {
        self.close_all(pid, true);
        self.end_memory(pid);
        self.changes += 1;
        self.settle();
    }

    /// The process has ended, or was killed.
    pub fn end(&mut self, pid: Pid) {
        let threads: Vec<Tid> =
            self.threads.iter().filter(|(_, thread)| thread.pid == pid).map(|(&tid, _)| tid).collect();
        for tid in threads {
            self.end_thread(tid);
        }
        self.close_all(pid, false);
        self.end_memory(pid);
        self.processes.remove(&pid);
        // Whoever has a pidfd of it hears of that.
        let watching: Vec<u64> = self
            .files
            .iter()
            .filter(|(_, file)| matches!(file.kind, Kind::Process(of) if of == pid))
            .map(|(id, _)| id)
            .collect();
        for file in watching {
            self.wake(Some(file), super::state::ready::ALL);
        }
        self.changes += 1;
        self.settle();
    }

    /// Changes the user of a process, as setuid() of a privileged one does.
    pub fn set_user(&mut self, pid: Pid, uid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            (process.uids, process.gids) = ([uid; 3], [uid; 3]);
        }
    }

    /// Does what is left to do after a call, and what has become due: releases files, lets arrive
    /// what arrives now.
    pub fn settle(&mut self) {
        loop {
            let before = (self.changes, self.dropped.len());
            self.release_dropped();
            self.arrive();
            if (self.changes, self.dropped.len()) == before {
                return;
            }
        }
    }

    /// The call that a thread sleeps in is given up.
    pub fn cancel(&mut self, tid: Tid) {
        self.interrupt(tid).unwrap_or_default();
    }

    /// As [`Kernel::cancel`]; what the call ends with: EINTR, or what it had moved by then.
    pub fn interrupt(&mut self, tid: Tid) -> Result<usize, Errno> {
        let Some(sleep) = self.threads.get_mut(&tid).and_then(|thread| thread.sleep.take()) else {
            return Err(Errno::EINTR);
        };
        self.leave_futex(tid);
        self.leave_sleepers(tid, &sleep.held);
        for &(_, file) in &sleep.held {
            self.put(file);
        }
        self.settle();
        let moves = !matches!(sleep.number, Sysno::connect | Sysno::futex);
        if sleep.done > 0 && moves { Ok(sleep.done) } else { Err(Errno::EINTR) }
    }

    // ---- calls ----

    /// kill(), of a process.
    pub(super) fn kill(&mut self, tid: Tid, pid: i32, signal: i32) -> Result<usize, Errno> {
        let pid = pid as Pid;
        if !self.processes.contains_key(&pid) {
            return Err(Errno::ESRCH);
        }
        self.may_signal(tid, pid)?;
        let first = self.threads.iter().find(|(_, thread)| thread.pid == pid).map(|(&tid, _)| tid);
        if let Some(first) = first.filter(|_| signal != 0) {
            self.raise(first, signal);
        }
        Ok(0)
    }

    /// tkill() and tgkill().
    pub(super) fn tkill(&mut self, tid: Tid, to: Tid, signal: i32) -> Result<usize, Errno> {
        let pid = self.threads.get(&to).ok_or(Errno::ESRCH)?.pid;
        self.may_signal(tid, pid)?;
        if signal != 0 {
            self.raise(to, signal);
        }
        Ok(0)
    }

    fn may_signal(&mut self, tid: Tid, pid: Pid) -> Result<(), Errno> {
        let own = self.process(tid).uids;
        let theirs = self.processes[&pid].uids;
        let may = own[1] == 0 || own[..2].iter().any(|uid| *uid == theirs[0] || *uid == theirs[2]);
        if may { Ok(()) } else { Err(Errno::EPERM) }
    }

    pub(super) fn prlimit(&mut self, tid: Tid, args: [usize; 6]) -> Result<usize, Errno> {
        let [pid, which, new, old, ..] = args;
        if pid != 0 && pid as Pid != self.pid(tid) {
            return Err(Errno::EPERM);
        }
        let wanted = if new == 0 { None } else { Some(user::get::<[u64; 2]>(new)?) };
        let place = self.process(tid).limits.get_mut(which).ok_or(Errno::EINVAL)?;
        let was = *place;
        if let Some([soft, hard]) = wanted {
            if soft > hard {
                return Err(Errno::EINVAL);
            }
            if hard > was.1 {
                return Err(Errno::EPERM);
            }
            *place = (soft, hard);
        }
        user::put_if(old, [was.0, was.1])?;
        Ok(0)
    }

    pub(super) fn sigprocmask(&mut self, tid: Tid, how: i32, new: usize, old: usize) -> Result<usize, Errno> {
        let set = if new == 0 { None } else { Some(user::get::<u64>(new)?) };
        let Some(thread) = self.threads.get_mut(&tid) else { return Err(Errno::ESRCH) };
        let was = thread.blocked;
        if let Some(set) = set {
            let never = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
            thread.blocked = !never
                & match how {
                    libc::SIG_BLOCK => was | set,
                    libc::SIG_UNBLOCK => was & !set,
                    libc::SIG_SETMASK => set,
                    _ => return Err(Errno::EINVAL),
                };
        }
        user::put_if(old, was)?;
        Ok(0)
    }

    /// Whether the call that a thread sleeps in begins anew after a handler with SA_RESTART
    /// (signal(7)): not one that has a time limit, be it the socket's, nor one that waits for
    /// several things.
    pub fn restarts(&self, tid: Tid) -> bool {
        let Some(sleep) = self.threads.get(&tid).and_then(|thread| thread.sleep.as_ref()) else {
            return false;
        };
        let again = matches!(
            sleep.number,
            Sysno::read
                | Sysno::write
                | Sysno::readv
                | Sysno::writev
                | Sysno::preadv2
                | Sysno::pwritev2
                | Sysno::sendto
                | Sysno::sendmsg
                | Sysno::recvfrom
                | Sysno::recvmsg
                | Sysno::accept
                | Sysno::accept4
                | Sysno::connect
                | Sysno::futex
        );
        again && sleep.deadline.is_none()
    }

    /// Changes the signals that a thread blocks, as a handler does while it runs; those before.
    pub fn mask(&mut self, tid: Tid, mask: u64) -> u64 {
        self.threads.get_mut(&tid).map_or(0, |thread| core::mem::replace(&mut thread.blocked, mask))
    }

    /// The signals that a thread blocks.
    pub fn blocked(&self, tid: Tid) -> u64 {
        self.threads.get(&tid).map_or(0, |thread| thread.blocked)
    }

    pub(super) fn uname(&mut self, at: usize) -> Result<usize, Errno> {
        // SAFETY: all zeroes is a valid utsname.
        let mut names: libc::utsname = unsafe { core::mem::zeroed() };
        let fields =
            [(&mut names.sysname, "Linux"), (&mut names.release, "6.18.0"), (&mut names.machine, "sim")];
        for (place, text) in fields {
            for (to, byte) in place.iter_mut().zip(text.bytes()) {
                *to = byte as _;
            }
        }
        user::put(at, names)?;
        Ok(0)
    }

    pub(super) fn affinity(&mut self, len: usize, at: usize) -> Result<usize, Errno> {
        if !len.is_multiple_of(8) || len == 0 {
            return Err(Errno::EINVAL);
        }
        user::put_bytes(at, &vec![0; len])?;
        let cpus = self.limits.cpus.clamp(1, 64);
        user::put(at, u64::MAX >> (64 - cpus))?;
        Ok(8)
    }

    pub(super) fn prctl(&mut self, tid: Tid, what: i32, at: usize) -> Result<usize, Errno> {
        match what {
            libc::PR_GET_SECCOMP => Ok(0),
            libc::PR_SET_NAME => {
                let name = user::text(at)?;
                self.process(tid).name = name.into_iter().take(15).collect();
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn pidfd_open(&mut self, tid: Tid, pid: Pid, flags: i32) -> Result<usize, Errno> {
        if !self.processes.contains_key(&pid) {
            return Err(Errno::ESRCH);
        }
        self.make(tid, libc::O_RDWR | flags & libc::O_NONBLOCK, true, |_| Kind::Process(pid))
    }

    pub(super) fn pidfd_getfd(&mut self, tid: Tid, pidfd: usize, theirs: usize) -> Result<usize, Errno> {
        let process = self.file(tid, pidfd)?;
        let Kind::Process(pid) = self.files[process].kind else { return Err(Errno::EBADF) };
        self.may_trace(tid, pid)?;
        let place = self.processes[&pid].descriptors.get(theirs).copied().flatten();
        let file = place.ok_or(Errno::EBADF)?.file;
        let number = self.free_number(tid, 0)?;
        self.hold(file);
        Ok(self.install(tid, number, file, true))
    }

    // ---- /proc ----

    /// What a file of /proc or /sys says now.
    pub(super) fn made_up(&mut self, tid: Tid, path: &str) -> Result<Kind, Errno> {
        let text = |text: String| Ok(Kind::Text(text.into_bytes()));
        match path {
            "/proc/sys/kernel/overflowuid" => return text("65534\n".to_owned()),
            "/sys/devices/system/cpu/online" => {
                let last = self.limits.cpus.max(1) - 1;
                return text(if last == 0 { "0\n".to_owned() } else { format!("0-{last}\n") });
            }
            _ => {}
        }
        let rest = path.strip_prefix("/proc/").ok_or(Errno::ENOENT)?;
        let (who, file) = rest.split_once('/').ok_or(Errno::ENOENT)?;
        let number = self.process_number(tid, who)?;
        let thread = self.threads.get(&number);
        let pid = thread.map_or(number, |thread| thread.pid);
        let process = self.processes.get(&pid).ok_or(Errno::ENOENT)?;
        match file {
            "uid_map" | "gid_map" => text(format!("{:>10} {:>10} {:>10}\n", 0, 0, u32::MAX)),
            "stat" => {
                let sleeps = thread.is_none_or(|thread| thread.sleep.is_some());
                let name = String::from_utf8_lossy(&process.name).into_owned();
                let letter = if sleeps { 'S' } else { 'R' };
                text(format!("{number} ({name}) {letter} {} {pid} {pid}\n", process.parent))
            }
            "syscall" => {
                let Some(sleep) = thread.and_then(|thread| thread.sleep.as_ref()) else {
                    return text("running\n".to_owned());
                };
                let args = sleep.args.map(|arg| format!("{arg:#x}")).join(" ");
                text(format!("{} {args} 0x0 0x0\n", sleep.number.id()))
            }
            "maps" => text(String::new()),
            "fd" => {
                self.may_trace(tid, pid)?;
                let all = self.processes[&pid].descriptors.iter().enumerate();
                let open = all.filter(|(_, place)| place.is_some());
                let names = open.map(|(fd, _)| (fd as u64 + 1, fd.to_string().into_bytes()));
                let dots = [(1, b".".to_vec()), (1, b"..".to_vec())];
                Ok(Kind::Folder(dots.into_iter().chain(names).collect()))
            }
            _ => {
                let fd = file.strip_prefix("fdinfo/").and_then(|fd| fd.parse::<usize>().ok());
                let place = fd.and_then(|fd| process.descriptors.get(fd).copied().flatten());
                let file = &self.files[place.ok_or(Errno::ENOENT)?.file];
                let mut info = format!("pos:\t{}\nflags:\t0{:o}\nmnt_id:\t1\n", file.position, file.flags);
                if let Kind::Process(of) = file.kind {
                    let shown = if self.processes.contains_key(&of) { i64::from(of) } else { -1 };
                    info += &format!("Pid:\t{shown}\nNSpid:\t{shown}\n");
                }
                text(info)
            }
        }
    }

    fn process_number(&mut self, tid: Tid, who: &str) -> Result<u32, Errno> {
        match who {
            "self" => Ok(self.pid(tid)),
            "thread-self" => Ok(tid),
            number => number.parse().map_err(|_| Errno::ENOENT),
        }
    }

    pub(super) fn readlink(&mut self, tid: Tid, path: usize, at: usize, room: usize) -> Result<usize, Errno> {
        let path = user::text(path)?;
        let path = core::str::from_utf8(&path).map_err(|_| Errno::ENOENT)?;
        let (who, file) =
            path.strip_prefix("/proc/").and_then(|rest| rest.split_once('/')).ok_or(Errno::ENOENT)?;
        let pid = self.process_number(tid, who)?;
        let pid = self.threads.get(&pid).map_or(pid, |thread| thread.pid);
        let process = self.processes.get(&pid).ok_or(Errno::ENOENT)?;
        let target = if let Some(space) = file.strip_prefix("ns/") {
            let number = 4_026_531_840 + if space == "net" { process.space } else { 0 };
            format!("{space}:[{number}]").into_bytes()
        } else if file == "exe" {
            b"/usr/bin/sim".to_vec()
        } else {
            let fd = file.strip_prefix("fd/").and_then(|fd| fd.parse::<usize>().ok());
            let place = fd.and_then(|fd| process.descriptors.get(fd).copied().flatten());
            let file = place.ok_or(Errno::ENOENT)?.file;
            self.may_trace(tid, pid)?;
            self.target(file)
        };
        let len = target.len().min(room);
        user::put_bytes(at, &target[..len])?;
        Ok(len)
    }

    /// What a link of /proc/PID/fd says.
    fn target(&self, file: u64) -> Vec<u8> {
        let entry = &self.files[file];
        match entry.kind {
            Kind::Null => b"/dev/null".to_vec(),
            Kind::Random => b"/dev/urandom".to_vec(),
            Kind::Tcp(_) | Kind::Unix(_) | Kind::Netlink(_) => {
                format!("socket:[{}]", entry.inode).into_bytes()
            }
            Kind::Counter(_) => b"anon_inode:[eventfd]".to_vec(),
            Kind::Set(_) => b"anon_inode:[eventpoll]".to_vec(),
            Kind::Process(_) => b"anon_inode:[pidfd]".to_vec(),
            Kind::Memory(inode) => [&b"/memfd:"[..], &self.inodes[inode].name, b" (deleted)"].concat(),
            Kind::Disk(inode) => self.inodes[inode].name.clone(),
            Kind::Text(_) | Kind::Folder(_) => b"/proc/self".to_vec(),
        }
    }
}
