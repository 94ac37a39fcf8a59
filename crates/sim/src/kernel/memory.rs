//! Memory calls: memfds, mmap(2) and its like, and copies between processes. Where mappings lie is
//! in [`super::arena`].

use std::collections::BTreeSet;

use syscalls::Errno;

use super::arena::{Mapping, NOWHERE, PAGE};
use super::objects::{Data, Inode, Kind};
use super::state::{Kernel, Pid, Tid};
use super::user;

impl Kernel {
    pub(super) fn memfd_create(&mut self, tid: Tid, name: usize, flags: u32) -> Result<usize, Errno> {
        let name = user::text(name)?;
        let (_, uid, _) = self.credentials(tid);
        let seals = if flags & libc::MFD_ALLOW_SEALING != 0 { 0 } else { libc::F_SEAL_SEAL };
        self.make(tid, libc::O_RDWR, flags & libc::MFD_CLOEXEC != 0, |kernel| {
            // SAFETY: a string that ends.
            let fd = unsafe { libc::memfd_create(c"sim".as_ptr(), libc::MFD_CLOEXEC) };
            assert!(fd >= 0, "a real memfd for the model's");
            let mode = libc::S_IFREG | 0o777;
            let data = Data::Memory { fd, len: 0 };
            Kind::Memory(kernel.inodes.add(Inode { refs: 1, name, mode, uid, seals, data }))
        })
    }

    /// One use of a file's contents less.
    pub(super) fn put_inode(&mut self, inode: u64) {
        let entry = &mut self.inodes[inode];
        entry.refs -= 1;
        if entry.refs == 0
            && let Some(Inode { data: Data::Memory { fd, .. }, .. }) = self.inodes.remove(inode)
        {
            // SAFETY: it was made for this inode alone.
            unsafe { libc::close(fd) };
        }
    }

    pub(super) fn mmap(&mut self, tid: Tid, args: [usize; 6]) -> Result<usize, Errno> {
        let [at, len, protection, flags, fd, offset] = args;
        let flags = flags as i32;
        if len == 0 || !offset.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let len = len.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
        let pid = self.pid(tid);
        let (mut inode, mut real) = (None, -1);
        if flags & libc::MAP_ANONYMOUS == 0 {
            let file = self.file(tid, fd)?;
            let Kind::Memory(id) = self.files[file].kind else { return Err(Errno::ENODEV) };
            if let Data::Memory { fd, .. } = self.inodes[id].data {
                (inode, real) = (Some(id), fd);
            }
        }
        let at = if flags & libc::MAP_FIXED == 0 {
            self.memory.place(len)?
        } else {
            if !at.is_multiple_of(PAGE) || !self.memory.is_within(at) || !self.memory.is_within(at + len) {
                return Err(Errno::EINVAL);
            }
            if !self.give_up(pid, at, len) {
                self.unlike("mmap over memory of another process");
                return Ok(at);
            }
            at
        };
        let kept = flags & (libc::MAP_SHARED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: within what this kernel has reserved, where nothing is mapped that anybody still
        // has.
        let got = unsafe {
            let flags = kept | libc::MAP_FIXED;
            libc::mmap(at as *mut _, len, protection as i32, flags, real, offset as i64)
        };
        if got as usize != at {
            return Err(Errno::ENOMEM);
        }
        if let Some(inode) = inode {
            self.inodes[inode].refs += 1;
        }
        let shared = flags & libc::MAP_SHARED != 0;
        self.memory.maps.insert(at, Mapping { len, inode, offset, shared, holders: BTreeSet::from([pid]) });
        Ok(at)
    }

    /// A process gives up what it has mapped of a range. Whether nobody else has it: then it is not
    /// mapped any more.
    fn give_up(&mut self, pid: Pid, at: usize, len: usize) -> bool {
        for edge in [at, at + len] {
            if let Some(inode) = self.memory.split(edge) {
                self.inodes[inode].refs += 1;
            }
        }
        let starts: Vec<usize> = self.memory.maps.range(at..at + len).map(|(&start, _)| start).collect();
        let mut alone = true;
        for start in starts {
            let Some(found) = self.memory.maps.get_mut(&start) else { continue };
            found.holders.remove(&pid);
            if !found.holders.is_empty() {
                alone = false;
                continue;
            }
            if let Some(found) = self.memory.maps.remove(&start) {
                // SAFETY: within the reserved part, of a mapping that nobody has any more.
                unsafe {
                    let flags = NOWHERE | libc::MAP_FIXED;
                    libc::mmap(start as *mut _, found.len, libc::PROT_NONE, flags, -1, 0)
                };
                if let Some(inode) = found.inode {
                    self.put_inode(inode);
                }
            }
        }
        alone
    }

    pub(super) fn munmap(&mut self, tid: Tid, at: usize, len: usize) -> Result<usize, Errno> {
        if len == 0 || !at.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let pid = self.pid(tid);
        if self.memory.is_within(at) {
            self.give_up(pid, at, len.next_multiple_of(PAGE));
        }
        Ok(0)
    }

    pub(super) fn mremap(&mut self, tid: Tid, args: [usize; 6]) -> Result<usize, Errno> {
        let [from, old, new, flags, to, _] = args;
        let pid = self.pid(tid);
        let fixed = flags as i32 & libc::MREMAP_FIXED != 0;
        if !fixed || old != new || !from.is_multiple_of(PAGE) || !to.is_multiple_of(PAGE) || old == 0 {
            return Err(Errno::EINVAL);
        }
        let len = old.next_multiple_of(PAGE);
        if !self.memory.is_mapped(pid, from, len)
            || !self.memory.is_within(from)
            || !self.memory.is_within(to)
        {
            return Err(Errno::EFAULT);
        }
        if !self.give_up(pid, to, len) {
            self.unlike("mremap over memory of another process");
            return Ok(to);
        }
        for edge in [from, from + len] {
            if let Some(inode) = self.memory.split(edge) {
                self.inodes[inode].refs += 1;
            }
        }
        let starts: Vec<usize> = self.memory.maps.range(from..from + len).map(|(&start, _)| start).collect();
        for start in starts {
            let Some(found) = self.memory.maps.remove(&start) else { continue };
            let target = to + (start - from);
            // SAFETY: moves a mapping within the reserved part, to where nothing is mapped, and
            // reserves again where it was.
            unsafe {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                libc::mremap(start as *mut _, found.len, found.len, flags, target as *mut libc::c_void);
                libc::mmap(start as *mut _, found.len, libc::PROT_NONE, NOWHERE | libc::MAP_FIXED, -1, 0);
            }
            self.memory.maps.insert(target, found);
        }
        Ok(to)
    }

    /// madvise and mprotect, which are done really.
    pub(super) fn madvise(&mut self, tid: Tid, at: usize, len: usize, advice: i32) -> Result<usize, Errno> {
        self.check_mapped(tid, at, len)?;
        if self.memory.is_within(at) {
            // SAFETY: mapped by this kernel, for the process that asks.
            let done = unsafe { libc::madvise(at as *mut _, len, advice) };
            if done != 0 {
                return Err(Errno::EINVAL);
            }
        }
        Ok(0)
    }

    pub(super) fn mprotect(
        &mut self,
        tid: Tid,
        at: usize,
        len: usize,
        protection: i32,
    ) -> Result<usize, Errno> {
        self.check_mapped(tid, at, len)?;
        if self.memory.is_within(at) {
            // SAFETY: as above.
            unsafe { libc::mprotect(at as *mut _, len, protection) };
        }
        Ok(0)
    }

    /// Whether all of it is mapped: ENOMEM if not (mincore, msync, mlock and others).
    pub(super) fn check_mapped(&mut self, tid: Tid, at: usize, len: usize) -> Result<usize, Errno> {
        let pid = self.pid(tid);
        let len = len.next_multiple_of(PAGE);
        if self.memory.is_mapped(pid, at & !(PAGE - 1), len) { Ok(0) } else { Err(Errno::ENOMEM) }
    }

    pub(super) fn mincore(&mut self, tid: Tid, at: usize, len: usize, to: usize) -> Result<usize, Errno> {
        self.check_mapped(tid, at, len)?;
        user::put_bytes(to, &vec![1; len.div_ceil(PAGE)])?;
        Ok(0)
    }

    /// process_vm_readv and process_vm_writev; `out`: from the other process.
    pub(super) fn process_vm(&mut self, tid: Tid, args: [usize; 6], out: bool) -> Result<usize, Errno> {
        let [pid, local, locals, remote, remotes, _] = args;
        let pid = pid as Pid;
        if !self.processes.contains_key(&pid) {
            return Err(Errno::ESRCH);
        }
        self.may_trace(tid, pid)?;
        let (local, remote) = (user::Places::of(local, locals)?, user::Places::of(remote, remotes)?);
        let (mut done, total) = (0, local.len().min(remote.len()));
        let own = self.pid(tid);
        let (mut here, mut there) = (local.parts().to_vec(), remote.parts().to_vec());
        while done < total {
            here.retain(|part| part.1 > 0);
            there.retain(|part| part.1 > 0);
            let (Some(near), Some(far)) = (here.first_mut(), there.first_mut()) else { break };
            // A page at a time, as far as it goes.
            let len = near.1.min(far.1).min(PAGE - far.0 % PAGE);
            let mapped = self.memory.is_mapped(pid, far.0, len) && self.memory.is_mapped(own, near.0, len);
            let (from, to) = if out { (far.0, near.0) } else { (near.0, far.0) };
            if !mapped || user::copy(from, to, len).is_err() {
                return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
            }
            for part in [near, far] {
                *part = (part.0 + len, part.1 - len);
            }
            done += len;
        }
        Ok(done)
    }

    /// What a futex at an address is: of shared memory the place in the file, so that processes
    /// meet there by any address.
    pub(super) fn futex_key(&self, at: usize) -> (u64, usize) {
        match self.memory.at(at) {
            Some((start, Mapping { inode: Some(inode), offset, shared: true, .. })) => {
                (*inode, offset + (at - start))
            }
            _ => (0, at),
        }
    }

    /// The child of fork() has what its parent has.
    pub(super) fn fork_memory(&mut self, parent: Pid, child: Pid) {
        for found in self.memory.maps.values_mut().filter(|found| found.holders.contains(&parent)) {
            found.holders.insert(child);
        }
    }

    /// A process has ended, or executes another program.
    pub(super) fn end_memory(&mut self, pid: Pid) {
        let had =
            |(&start, found): (&usize, &Mapping)| found.holders.contains(&pid).then_some((start, found.len));
        let all: Vec<_> = self.memory.maps.iter().filter_map(had).collect();
        for (start, len) in all {
            self.give_up(pid, start, len);
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for (_, inode) in self.inodes.iter() {
            if let Data::Memory { fd, .. } = inode.data {
                // SAFETY: made for this inode alone.
                unsafe { libc::close(fd) };
            }
        }
    }
}
