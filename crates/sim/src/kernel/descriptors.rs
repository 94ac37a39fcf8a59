//! Descriptors: copies, flags and their end, and what becomes of a file that nobody uses any more.

use syscalls::Errno;

use super::objects::{Data, Descriptor, Kind};
use super::state::{Kernel, Pid, Tid};
use super::user;

/// Flags of a file that F_SETFL changes.
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;

impl Kernel {
    pub(super) fn close(&mut self, tid: Tid, fd: usize) -> Result<usize, Errno> {
        let file = self.descriptor(tid, fd as i32)?.file;
        self.process(tid).descriptors[fd as i32 as usize] = None;
        self.put(file);
        Ok(0)
    }

    pub(super) fn close_range(
        &mut self,
        tid: Tid,
        first: u32,
        last: u32,
        flags: u32,
    ) -> Result<usize, Errno> {
        if first > last {
            return Err(Errno::EINVAL);
        }
        let len = self.process(tid).descriptors.len();
        for fd in first as usize..(last as usize).saturating_add(1).min(len) {
            match self.descriptor(tid, fd as i32) {
                Ok(descriptor) if flags & libc::CLOSE_RANGE_CLOEXEC != 0 => descriptor.cloexec = true,
                Ok(_) => drop(self.close(tid, fd)),
                Err(_) => {}
            }
        }
        Ok(0)
    }

    pub(super) fn dup(&mut self, tid: Tid, fd: usize, from: usize, cloexec: bool) -> Result<usize, Errno> {
        let file = self.descriptor(tid, fd as i32)?.file;
        let number = self.free_number(tid, from)?;
        self.hold(file);
        Ok(self.install(tid, number, file, cloexec))
    }

    /// Another process gets a copy of a descriptor.
    pub fn lend(&mut self, tid: Tid, fd: i32, to: Tid) -> Option<i32> {
        let file = self.descriptor(tid, fd).ok()?.file;
        let number = self.free_number(to, 0).ok()?;
        self.hold(file);
        Some(self.install(to, number, file, true) as i32)
    }

    pub(super) fn dup_over(&mut self, tid: Tid, fd: usize, to: usize, cloexec: bool) -> Result<usize, Errno> {
        let (fd, to) = (fd as i32, to as u32);
        if u64::from(to) >= self.process(tid).limits[libc::RLIMIT_NOFILE as usize].0 {
            return Err(Errno::EBADF);
        }
        let file = self.descriptor(tid, fd)?.file;
        self.hold(file);
        Ok(self.install(tid, to as usize, file, cloexec))
    }

    pub(super) fn fcntl(&mut self, tid: Tid, fd: usize, command: i32, arg: usize) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        let fd = fd as i32;
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let limit = self.process(tid).limits[libc::RLIMIT_NOFILE as usize].0;
                if arg as u64 >= limit {
                    return Err(Errno::EINVAL);
                }
                self.dup(tid, fd as usize, arg, command == libc::F_DUPFD_CLOEXEC)
            }
            libc::F_GETFD => Ok(usize::from(self.descriptor(tid, fd)?.cloexec)),
            libc::F_SETFD => {
                self.descriptor(tid, fd)?.cloexec = arg as i32 & libc::FD_CLOEXEC != 0;
                Ok(0)
            }
            libc::F_GETFL => Ok(self.files[file].flags as usize),
            libc::F_SETFL => {
                let flags = &mut self.files[file].flags;
                *flags = *flags & !SETTABLE | arg as i32 & SETTABLE;
                self.changes += 1;
                Ok(0)
            }
            libc::F_GET_SEALS => match self.files[file].kind {
                Kind::Memory(inode) => Ok(self.inodes[inode].seals as usize),
                _ => Err(Errno::EINVAL),
            },
            libc::F_ADD_SEALS => {
                let Kind::Memory(inode) = self.files[file].kind else { return Err(Errno::EINVAL) };
                if self.inodes[inode].seals & libc::F_SEAL_SEAL != 0 {
                    return Err(Errno::EPERM);
                }
                self.inodes[inode].seals |= arg as i32;
                Ok(0)
            }
            // Whose signals: nobody's.
            libc::F_SETOWN | libc::F_GETOWN => Ok(0),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn ioctl(&mut self, tid: Tid, fd: usize, request: usize, at: usize) -> Result<usize, Errno> {
        const TCGETS: usize = 0x5401;
        let file = self.file(tid, fd)?;
        match request {
            _ if request == libc::FIONBIO as usize => {
                let on = user::get::<i32>(at)? != 0;
                let flags = &mut self.files[file].flags;
                *flags = *flags & !libc::O_NONBLOCK | if on { libc::O_NONBLOCK } else { 0 };
                Ok(0)
            }
            _ if request == libc::FIOCLEX as usize || request == libc::FIONCLEX as usize => {
                self.descriptor(tid, fd as i32)?.cloexec = request == libc::FIOCLEX as usize;
                Ok(0)
            }
            TCGETS => Err(Errno::ENOTTY),
            _ => self.socket_ioctl(file, request, at).unwrap_or(Err(Errno::ENOTTY)),
        }
    }

    /// Ends the files that nobody uses any more; those may have kept others.
    pub(super) fn release_dropped(&mut self) {
        while let Some(file) = self.dropped.pop() {
            if self.files.find(file).is_none_or(|entry| entry.refs > 0) {
                continue;
            }
            self.leave_sets(file);
            let Some(entry) = self.files.remove(file) else { continue };
            match entry.kind {
                Kind::Tcp(id) => self.tcp_close(id),
                Kind::Unix(id) => self.unix_close(id, false),
                Kind::Memory(inode) | Kind::Disk(inode) => self.put_inode(inode),
                _ => {}
            }
            self.changes += 1;
        }
    }

    /// Closes descriptors of a process: all, or those that exec() closes.
    pub(super) fn close_all(&mut self, pid: Pid, only_cloexec: bool) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let mut gone = Vec::new();
        for place in &mut process.descriptors {
            let closes = |descriptor: &Descriptor| descriptor.cloexec || !only_cloexec;
            if let Some(descriptor) = place.take_if(|descriptor| closes(descriptor)) {
                gone.push(descriptor.file);
            }
        }
        for file in gone {
            self.put(file);
        }
        self.release_dropped();
    }

    pub(super) fn ftruncate(&mut self, tid: Tid, fd: usize, len: usize) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        let (Kind::Memory(inode) | Kind::Disk(inode)) = self.files[file].kind else {
            return Err(Errno::EINVAL);
        };
        if len > i64::MAX as usize {
            return Err(Errno::EINVAL);
        }
        let entry = &mut self.inodes[inode];
        let seals = entry.seals;
        match &mut entry.data {
            Data::Bytes(bytes) => bytes.resize(len, 0),
            Data::Socket(_) => return Err(Errno::EINVAL),
            Data::Memory { fd, len: known } => {
                let sealed = if len < *known { libc::F_SEAL_SHRINK } else { libc::F_SEAL_GROW };
                if len != *known && seals & sealed != 0 {
                    return Err(Errno::EPERM);
                }
                // SAFETY: a call on a file of the model's own.
                if unsafe { libc::ftruncate(*fd, len as i64) } != 0 {
                    return Err(Errno::ENOSPC);
                }
                *known = len;
            }
        }
        Ok(0)
    }
}
