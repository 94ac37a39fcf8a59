//! Files of file systems: the board, memfds, and what /proc and /sys say; read() and write() of
//! everything.

use syscalls::Errno;

use super::objects::{Data, Inode, Kind, key};
use super::state::{Kernel, Outcome, Tid};
use super::unix::Parcels;
use super::user::{self, Places};

impl Kernel {
    /// read(), readv() and preadv2() without an offset.
    pub(super) fn read(&mut self, tid: Tid, fd: usize, to: &Places, now: bool) -> Result<Outcome, Errno> {
        let file = self.file(tid, fd)?;
        let at = self.files[file].position;
        let timeout = if now || self.nonblocking(file) { Some(0) } else { None };
        match &self.files[file].kind {
            // Nothing is asked for (sock_read_iter).
            Kind::Tcp(_) | Kind::Unix(_) if to.len() == 0 => Ok(Outcome::Done(Ok(0))),
            Kind::Tcp(_) | Kind::Unix(_) | Kind::Netlink(_) => {
                let flags = if now { libc::MSG_DONTWAIT } else { 0 };
                let mut parcels = Parcels::default();
                let outcome = self.receive(tid, file, to, flags, &mut parcels);
                parcels.rights.iter().for_each(|&file| self.put(file));
                outcome
            }
            Kind::Counter(_) => Ok(self.read_counter(tid, file, to, timeout)),
            Kind::Set(_) | Kind::Process(_) => Err(Errno::EINVAL),
            Kind::Folder(_) => Err(Errno::EISDIR),
            _ => {
                let got = self.read_at(file, to, at)?;
                self.files[file].position += got as u64;
                Ok(Outcome::Done(Ok(got)))
            }
        }
    }

    /// Reads from a place in a file.
    fn read_at(&mut self, file: u64, to: &Places, at: u64) -> Result<usize, Errno> {
        let from = |bytes: &[u8]| to.scatter(0, bytes.get(at as usize..).unwrap_or_default());
        match &self.files[file].kind {
            Kind::Null => Ok(0),
            Kind::Random => {
                let bytes: Vec<u8> = (0..to.len()).map(|_| self.dice.next() as u8).collect();
                to.scatter(0, &bytes)
            }
            Kind::Text(text) => from(text),
            Kind::Memory(inode) | Kind::Disk(inode) => match &self.inodes[*inode].data {
                Data::Bytes(bytes) => from(bytes),
                Data::Socket(_) => Err(Errno::ENXIO),
                Data::Memory { fd, .. } => {
                    let mut bytes = vec![0u8; to.len()];
                    // SAFETY: a call on a file of the model's own; there is room for so many bytes.
                    let got = unsafe { libc::pread(*fd, bytes.as_mut_ptr().cast(), bytes.len(), at as i64) };
                    to.scatter(0, &bytes[..got.max(0) as usize])
                }
            },
            _ => Err(Errno::ESPIPE),
        }
    }

    /// write() and writev().
    pub(super) fn write(&mut self, tid: Tid, fd: usize, from: &Places, now: bool) -> Result<Outcome, Errno> {
        let file = self.file(tid, fd)?;
        let timeout = if now || self.nonblocking(file) { Some(0) } else { None };
        match self.files[file].kind {
            Kind::Tcp(_) | Kind::Unix(_) | Kind::Netlink(_) => {
                let flags = if now { libc::MSG_DONTWAIT } else { 0 };
                self.send_to(tid, file, from, (0, 0), flags, &Parcels::default())
            }
            Kind::Counter(_) => Ok(self.write_counter(tid, file, from, timeout)),
            Kind::Memory(inode) | Kind::Disk(inode) => {
                let append = self.files[file].flags & libc::O_APPEND != 0;
                let at = if append { self.inode_len(inode) as u64 } else { self.files[file].position };
                let done = self.write_at(file, from, at)?;
                self.files[file].position = at + done as u64;
                Ok(Outcome::Done(Ok(done)))
            }
            Kind::Null | Kind::Random => Ok(Outcome::Done(Ok(from.len()))),
            Kind::Text(_) | Kind::Folder(_) => Err(Errno::EBADF),
            Kind::Set(_) | Kind::Process(_) => Err(Errno::EINVAL),
        }
    }

    fn write_at(&mut self, file: u64, from: &Places, at: u64) -> Result<usize, Errno> {
        if self.files[file].flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::EBADF);
        }
        let bytes = from.gather(0, usize::MAX)?;
        let (Kind::Memory(inode) | Kind::Disk(inode)) = self.files[file].kind else {
            return Err(Errno::ESPIPE);
        };
        let (at, end) = (at as usize, at as usize + bytes.len());
        match &mut self.inodes[inode].data {
            Data::Bytes(all) => {
                all.resize(all.len().max(end), 0);
                all[at..end].copy_from_slice(&bytes);
            }
            Data::Socket(_) => return Err(Errno::ENXIO),
            Data::Memory { fd, len } => {
                // SAFETY: a call on a file of the model's own.
                let done = unsafe { libc::pwrite(*fd, bytes.as_ptr().cast(), bytes.len(), at as i64) };
                *len = (*len).max(end);
                return usize::try_from(done).map_err(|_| Errno::ENOSPC);
            }
        }
        Ok(bytes.len())
    }

    pub(super) fn pread(&mut self, tid: Tid, fd: usize, to: &Places, at: u64) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        self.read_at(file, to, at)
    }

    pub(super) fn pwrite(&mut self, tid: Tid, fd: usize, from: &Places, at: u64) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        self.write_at(file, from, at)
    }

    fn inode_len(&self, inode: u64) -> usize {
        match &self.inodes[inode].data {
            Data::Bytes(bytes) => bytes.len(),
            Data::Socket(_) => 0,
            Data::Memory { len, .. } => *len,
        }
    }

    pub(super) fn lseek(&mut self, tid: Tid, fd: usize, to: i64, whence: i32) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        let len = match self.files[file].kind {
            Kind::Memory(inode) | Kind::Disk(inode) => self.inode_len(inode),
            Kind::Text(_) | Kind::Folder(_) | Kind::Null => 0,
            _ => return Err(Errno::ESPIPE),
        };
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.files[file].position as i64,
            libc::SEEK_END => len as i64,
            _ => return Err(Errno::EINVAL),
        };
        let to = from.checked_add(to).filter(|&to| to >= 0).ok_or(Errno::EINVAL)?;
        self.files[file].position = to as u64;
        Ok(to as usize)
    }

    pub(super) fn openat(&mut self, tid: Tid, path: usize, flags: i32, mode: u32) -> Result<usize, Errno> {
        let path = user::text(path)?;
        let name = core::str::from_utf8(&path).map_err(|_| Errno::ENOENT)?.to_owned();
        let kept = flags & (libc::O_ACCMODE | libc::O_NONBLOCK | libc::O_APPEND);
        let cloexec = flags & libc::O_CLOEXEC != 0;
        self.free_number(tid, 0)?;
        let kind = match name.as_str() {
            "/dev/null" => Kind::Null,
            "/dev/urandom" | "/dev/random" => Kind::Random,
            _ if name.starts_with("/proc/") || name.starts_with("/sys/") => self.made_up(tid, &name)?,
            _ if flags & libc::O_DIRECTORY != 0 => self.folder(&path)?,
            _ => self.disk_file(tid, path, flags, mode)?,
        };
        self.make(tid, kept, cloexec, |_| kind)
    }

    fn disk_file(&mut self, tid: Tid, path: Vec<u8>, flags: i32, mode: u32) -> Result<Kind, Errno> {
        let create = flags & libc::O_CREAT != 0;
        let inode = match self.paths.get(&path).copied() {
            Some(_) if create && flags & libc::O_EXCL != 0 => return Err(Errno::EEXIST),
            // Only its place is opened.
            Some(inode) if flags & libc::O_PATH != 0 => {
                self.inodes[inode].refs += 1;
                return Ok(Kind::Disk(inode));
            }
            Some(inode) if self.inodes[inode].mode & libc::S_IFMT == libc::S_IFSOCK => {
                return Err(Errno::ENXIO);
            }
            Some(inode) => inode,
            None if !create => return Err(Errno::ENOENT),
            None => {
                let (_, uid, _) = self.credentials(tid);
                let mode = libc::S_IFREG | mode & 0o755;
                let data = Data::Bytes(Vec::new());
                let inode = self.inodes.add(Inode { refs: 1, name: path.clone(), mode, uid, seals: 0, data });
                self.paths.insert(path, inode);
                inode
            }
        };
        let (_, uid, _) = self.credentials(tid);
        let entry = &mut self.inodes[inode];
        let bits = if entry.uid == uid { entry.mode >> 6 } else { entry.mode } & 7;
        let wanted = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => 4,
            libc::O_WRONLY => 2,
            _ => 6,
        };
        if uid != 0 && bits & wanted != wanted {
            return Err(Errno::EACCES);
        }
        entry.refs += 1;
        if flags & libc::O_TRUNC != 0 {
            entry.data = Data::Bytes(Vec::new());
        }
        Ok(Kind::Disk(inode))
    }

    /// Makes a file that is there from the beginning (a configuration file, say).
    pub fn write_file(&mut self, path: &str, contents: &[u8]) {
        let data = Data::Bytes(contents.to_vec());
        let name = path.as_bytes().to_vec();
        let mode = libc::S_IFREG | 0o644;
        let inode = self.inodes.add(Inode { refs: 1, name: name.clone(), mode, uid: 0, seals: 0, data });
        if let Some(before) = self.paths.insert(name, inode) {
            self.put_inode(before);
        }
    }

    pub(super) fn unlink(&mut self, path: usize) -> Result<usize, Errno> {
        let path = user::text(path)?;
        let inode = self.paths.remove(&path).ok_or(Errno::ENOENT)?;
        // Whoever has bound a socket there keeps it, but nobody finds it by that name any more.
        self.names.remove(&key(&path, 0, 0));
        self.put_inode(inode);
        Ok(0)
    }

    /// A folder that was made ([`Kernel::make_folder`]), with what is in it.
    fn folder(&self, path: &[u8]) -> Result<Kind, Errno> {
        if !self.folders.contains(path) {
            return Err(if self.paths.contains_key(path) { Errno::ENOTDIR } else { Errno::ENOENT });
        }
        let inside = self.paths.iter().filter_map(|(name, &inode)| {
            let name = name.strip_prefix(path)?.strip_prefix(b"/")?;
            Some((inode, name.to_vec()))
        });
        Ok(Kind::Folder(inside.collect()))
    }

    /// Makes a folder that is there from the beginning.
    pub fn make_folder(&mut self, path: &str) {
        self.folders.insert(path.as_bytes().to_vec());
    }

    pub(super) fn fchmodat(&mut self, tid: Tid, path: usize, mode: u32) -> Result<usize, Errno> {
        let path = user::text(path)?;
        let inode = self.inode_at(tid, &path)?;
        let entry = &mut self.inodes[inode];
        entry.mode = entry.mode & libc::S_IFMT | mode & 0o7777;
        Ok(0)
    }

    pub(super) fn fchmod(&mut self, tid: Tid, fd: usize, mode: u32) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        if let Kind::Memory(inode) | Kind::Disk(inode) = self.files[file].kind {
            let entry = &mut self.inodes[inode];
            entry.mode = entry.mode & libc::S_IFMT | mode & 0o7777;
        }
        Ok(0)
    }

    pub(super) fn fstat(&mut self, tid: Tid, fd: usize, at: usize) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        // SAFETY: all zeroes is a valid stat.
        let mut about: libc::stat = unsafe { core::mem::zeroed() };
        about.st_nlink = 1;
        about.st_blksize = 4096;
        match self.files[file].kind {
            Kind::Memory(inode) | Kind::Disk(inode) => {
                let entry = &self.inodes[inode];
                (about.st_mode, about.st_uid) = (entry.mode, entry.uid);
                about.st_size = self.inode_len(inode) as i64;
                (about.st_ino, about.st_dev) = (inode, 1);
            }
            Kind::Tcp(_) | Kind::Unix(_) | Kind::Netlink(_) => {
                about.st_mode = libc::S_IFSOCK | 0o777;
                (about.st_ino, about.st_dev) = (self.files[file].inode, 8);
            }
            // Anonymous ones are all one file, of no kind.
            Kind::Counter(_) | Kind::Set(_) | Kind::Process(_) => {
                (about.st_mode, about.st_ino, about.st_dev) = (0o600, 1, 9);
            }
            Kind::Null | Kind::Random => about.st_mode = libc::S_IFCHR | 0o666,
            Kind::Text(_) => about.st_mode = libc::S_IFREG | 0o444,
            Kind::Folder(_) => about.st_mode = libc::S_IFDIR | 0o555,
        }
        user::put(at, about)?;
        Ok(0)
    }

    pub(super) fn fstatfs(&mut self, tid: Tid, fd: usize, at: usize) -> Result<usize, Errno> {
        const PROC: i64 = 0x9fa0;
        const SOCKETS: i64 = 0x534f_434b;
        const ANONYMOUS: i64 = 0x0904_1934;
        let file = self.file(tid, fd)?;
        // SAFETY: all zeroes is a valid statfs.
        let mut about: libc::statfs = unsafe { core::mem::zeroed() };
        about.f_type = match self.files[file].kind {
            Kind::Memory(_) | Kind::Disk(_) | Kind::Null | Kind::Random => libc::TMPFS_MAGIC as _,
            Kind::Text(_) | Kind::Folder(_) => PROC as _,
            Kind::Tcp(_) | Kind::Unix(_) | Kind::Netlink(_) => SOCKETS as _,
            _ => ANONYMOUS as _,
        };
        about.f_bsize = 4096;
        user::put(at, about)?;
        Ok(0)
    }

    pub(super) fn getdents(&mut self, tid: Tid, fd: usize, at: usize, room: usize) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        let entry = &mut self.files[file];
        let Kind::Folder(names) = &entry.kind else { return Err(Errno::ENOTDIR) };
        let mut bytes = Vec::new();
        let mut position = entry.position as usize;
        while let Some((inode, name)) = names.get(position) {
            let len = (19 + name.len() + 1).next_multiple_of(8);
            if bytes.len() + len > room {
                break;
            }
            position += 1;
            let start = bytes.len();
            bytes.extend(inode.to_ne_bytes());
            bytes.extend((position as u64).to_ne_bytes());
            bytes.extend((len as u16).to_ne_bytes());
            bytes.push(libc::DT_LNK);
            bytes.extend(name);
            bytes.resize(start + len, 0);
        }
        if bytes.is_empty() && position < names.len() {
            return Err(Errno::EINVAL);
        }
        entry.position = position as u64;
        user::put_bytes(at, &bytes)?;
        Ok(bytes.len())
    }
}
