//! Calls on sockets, whatever their family: finds out whose they are, and takes messages apart
//! (`net/socket.c`, `net/core/scm.c`).

use std::collections::VecDeque;

use syscalls::Errno;

use super::objects::{Kind, RCV, SEND};
use super::state::{Kernel, Outcome, Patience, Tid};
use super::unix::{Parcels, address};
use super::user::{self, Places};

const FLAGS: i32 = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
/// What a socket's calls may not be handed.
const MOST_RIGHTS: usize = 253;

/// The parts of a message: where its bytes are, where the address, where the control data.
struct Parts {
    places: Places,
    name: (usize, usize),
    control: (usize, usize),
}

impl Kernel {
    pub(super) fn socket(&mut self, tid: Tid, family: i32, kind: i32, protocol: i32) -> Result<usize, Errno> {
        let (flags, kind) = (kind & !0xf, kind & 0xf);
        if flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let process = self.process(tid);
        let whose = (process.uids[1], process.space);
        let kept = libc::O_RDWR | flags & libc::SOCK_NONBLOCK;
        let cloexec = flags & libc::SOCK_CLOEXEC != 0;
        match (family, kind) {
            (libc::AF_INET, libc::SOCK_STREAM) if protocol == 0 || protocol == libc::IPPROTO_TCP => {
                self.make(tid, kept, cloexec, |kernel| Kind::Tcp(kernel.new_tcp(whose)))
            }
            (libc::AF_INET, libc::SOCK_STREAM) => Err(Errno::EPROTONOSUPPORT),
            (libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_SEQPACKET | libc::SOCK_DGRAM) => {
                if protocol != 0 && protocol != libc::AF_UNIX {
                    return Err(Errno::EPROTONOSUPPORT);
                }
                self.make(tid, kept, cloexec, |kernel| Kind::Unix(kernel.new_unix(whose, kind)))
            }
            (libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_DGRAM) if protocol == libc::NETLINK_SOCK_DIAG => {
                self.make(tid, kept, cloexec, |_| Kind::Netlink(VecDeque::new()))
            }
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    pub(super) fn socketpair(&mut self, tid: Tid, args: [usize; 6]) -> Result<usize, Errno> {
        let [family, kind, protocol, at, ..] = args;
        if family as i32 != libc::AF_UNIX {
            return Err(if family as i32 == libc::AF_INET { Errno::EOPNOTSUPP } else { Errno::EAFNOSUPPORT });
        }
        let one = self.socket(tid, libc::AF_UNIX, kind as i32, protocol as i32)?;
        let other = match self.socket(tid, libc::AF_UNIX, kind as i32, protocol as i32) {
            Ok(other) => other,
            Err(errno) => {
                let file = self.descriptor(tid, one as i32)?.file;
                self.process(tid).descriptors[one] = None;
                self.put(file);
                return Err(errno);
            }
        };
        let files = [self.file(tid, one)?, self.file(tid, other)?];
        if let [Some(first), Some(second)] = files.map(|file| self.unix_of(file)) {
            self.unix_pair(tid, first, second);
        }
        user::put(at, [one as i32, other as i32])?;
        Ok(0)
    }

    pub(super) fn bind(&mut self, tid: Tid, fd: usize, at: usize, len: usize) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_bind(id, at, len),
            Kind::Unix(id) => self.unix_bind(tid, id, at, len),
            Kind::Netlink(_) => Ok(0),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    pub(super) fn listen(&mut self, tid: Tid, fd: usize, backlog: i32) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        // As an unsigned number (__sys_listen_socket).
        let backlog = backlog as u32 as usize;
        match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_listen(id, backlog),
            Kind::Unix(id) => self.unix_listen(tid, id, backlog),
            Kind::Netlink(_) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// For how long a call may sleep that sends or receives.
    fn patience(&mut self, file: u64, flags: i32, sends: bool) -> Patience {
        let now = flags & libc::MSG_DONTWAIT != 0 || self.nonblocking(file);
        let timeout = match self.common_of(file) {
            _ if now => Some(0),
            Ok(common) if sends => common.sndtimeo,
            Ok(common) => common.rcvtimeo,
            Err(_) => None,
        };
        Patience { flags, timeout }
    }

    pub(super) fn connect(&mut self, tid: Tid, fd: usize, at: usize, len: usize) -> Result<Outcome, Errno> {
        let file = self.file(tid, fd)?;
        let patience = self.patience(file, 0, true);
        Ok(match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_connect(tid, id, (at, len), patience),
            Kind::Unix(id) => self.unix_connect(tid, id, (at, len), patience.timeout),
            Kind::Netlink(_) => Outcome::Done(Ok(0)),
            _ => return Err(Errno::ENOTSOCK),
        })
    }

    pub(super) fn accept(
        &mut self,
        tid: Tid,
        fd: usize,
        (at, len_at): (usize, usize),
        flags: i32,
    ) -> Result<Outcome, Errno> {
        if flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let file = self.file(tid, fd)?;
        if !matches!(self.files[file].kind, Kind::Tcp(_) | Kind::Unix(_)) {
            return Err(Errno::ENOTSOCK);
        }
        self.free_number(tid, 0)?;
        let timeout = self.patience(file, 0, false).timeout;
        let taken = match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_accept(tid, id, timeout).map(Kind::Tcp),
            Kind::Unix(id) => self.unix_accept(tid, id, timeout).map(Kind::Unix),
            _ => return Err(Errno::ENOTSOCK),
        };
        let kind = match taken {
            Ok(kind) => kind,
            Err(outcome) => return Ok(outcome),
        };
        let name = match kind {
            // The peer's name, though it may be gone already.
            Kind::Tcp(id) => self.tcps[id].remote.bytes(),
            Kind::Unix(id) => self.unix_name(id, true).unwrap_or_else(|_| address(&[])),
            _ => Vec::new(),
        };
        let kept = libc::O_RDWR | flags & libc::SOCK_NONBLOCK;
        let made = self.make(tid, kept, flags & libc::SOCK_CLOEXEC != 0, |_| kind)?;
        if at != 0 {
            put_name(&name, at, len_at)?;
        }
        Ok(Outcome::Done(Ok(made)))
    }

    pub(super) fn shutdown(&mut self, tid: Tid, fd: usize, how: i32) -> Result<usize, Errno> {
        let file = self.file(tid, fd)?;
        let halves = match how {
            libc::SHUT_RD => Ok(RCV),
            libc::SHUT_WR => Ok(SEND),
            libc::SHUT_RDWR => Ok(RCV | SEND),
            _ => Err(Errno::EINVAL),
        };
        match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_shutdown(id, halves?),
            Kind::Unix(id) => self.unix_shutdown(id, halves?),
            Kind::Netlink(_) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    pub(super) fn name(&mut self, tid: Tid, args: [usize; 6], peer: bool) -> Result<usize, Errno> {
        let [fd, at, len_at, ..] = args;
        let file = self.file(tid, fd)?;
        let name = match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_name(id, peer)?,
            Kind::Unix(id) => self.unix_name(id, peer)?,
            Kind::Netlink(_) => (libc::AF_NETLINK as u16).to_ne_bytes().repeat(6),
            _ => return Err(Errno::ENOTSOCK),
        };
        put_name(&name, at, len_at)?;
        Ok(0)
    }

    // ---- sending and receiving ----

    pub(super) fn sendto(&mut self, tid: Tid, args: [usize; 6]) -> Result<Outcome, Errno> {
        let [fd, at, len, flags, name, name_len] = args;
        let name_len = if name == 0 { 0 } else { name_len };
        self.send(tid, fd, &Places::one(at, len), (name, name_len), flags as i32, Parcels::default())
    }

    pub(super) fn sendmsg(&mut self, tid: Tid, fd: usize, at: usize, flags: i32) -> Result<Outcome, Errno> {
        let parts = parts(at)?;
        let file = self.file(tid, fd)?;
        if self.unix_of(file).is_none() {
            return self.send(tid, fd, &parts.places, parts.name, flags, Parcels::default());
        }
        let parcels = self.control(tid, parts.control)?;
        self.send(tid, fd, &parts.places, parts.name, flags, parcels)
    }

    fn send(
        &mut self,
        tid: Tid,
        fd: usize,
        from: &Places,
        name: (usize, usize),
        flags: i32,
        parcels: Parcels,
    ) -> Result<Outcome, Errno> {
        let file = self.file(tid, fd)?;
        self.send_to(tid, file, from, name, flags, &parcels)
    }

    /// Sends, by the file.
    pub(super) fn send_to(
        &mut self,
        tid: Tid,
        file: u64,
        from: &Places,
        name: (usize, usize),
        flags: i32,
        parcels: &Parcels,
    ) -> Result<Outcome, Errno> {
        let patience = self.patience(file, flags, true);
        Ok(match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_send(tid, id, from, patience),
            Kind::Unix(id) => self.unix_send(tid, id, from, name, patience, parcels),
            Kind::Netlink(_) => Outcome::Done(self.netlink_send(tid, file, from)),
            _ => return Err(Errno::ENOTSOCK),
        })
    }

    /// Control data of a message: files and credentials (`__scm_send`).
    fn control(&mut self, tid: Tid, (at, len): (usize, usize)) -> Result<Parcels, Errno> {
        let mut parcels = Parcels::default();
        let head = size_of::<libc::cmsghdr>();
        let mut offset = 0;
        while at != 0 && offset + head <= len {
            let header: libc::cmsghdr = user::get(at + offset)?;
            let size = header.cmsg_len;
            if size < head || size > len - offset {
                return Err(Errno::EINVAL);
            }
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let count = (size - head) / 4;
                    if count > MOST_RIGHTS {
                        return Err(Errno::EINVAL);
                    }
                    for index in 0..count {
                        let fd: i32 = user::get(at + offset + head + index * 4)?;
                        parcels.rights.push(self.file(tid, fd as usize)?);
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    let [pid, uid, gid] = user::get::<[u32; 3]>(at + offset + head)?;
                    let own = self.credentials(tid);
                    if own.1 != 0 && (pid, uid, gid) != own {
                        return Err(Errno::EPERM);
                    }
                    parcels.creds = Some((pid, uid, gid));
                }
                (libc::SOL_SOCKET, _) => return Err(Errno::EINVAL),
                _ => {}
            }
            offset += size.next_multiple_of(8);
        }
        Ok(parcels)
    }

    pub(super) fn recvfrom(&mut self, tid: Tid, args: [usize; 6]) -> Result<Outcome, Errno> {
        let [fd, at, len, flags, name, len_at] = args;
        let file = self.file(tid, fd)?;
        let mut parcels = Parcels::default();
        let outcome = self.receive(tid, file, &Places::one(at, len), flags as i32, &mut parcels)?;
        // Nobody takes what came along.
        parcels.rights.iter().for_each(|&file| self.put(file));
        if let (Outcome::Done(Ok(_)), true) = (outcome, name != 0) {
            // TCP says nothing, in a length of 0.
            match &parcels.name {
                Some(known) => put_name(&address(known), name, len_at)?,
                None => user::put_if(len_at, 0i32)?,
            }
        }
        Ok(outcome)
    }

    pub(super) fn recvmsg(&mut self, tid: Tid, fd: usize, at: usize, flags: i32) -> Result<Outcome, Errno> {
        let parts = parts(at)?;
        let file = self.file(tid, fd)?;
        let mut parcels = Parcels::default();
        let outcome = self.receive(tid, file, &parts.places, flags, &mut parcels)?;
        let mut message: libc::msghdr = user::get(at)?;
        message.msg_flags = parcels.flags | flags & libc::MSG_CMSG_CLOEXEC;
        let Outcome::Done(Ok(_)) = outcome else {
            parcels.rights.iter().for_each(|&file| self.put(file));
            return Ok(outcome);
        };
        if message.msg_name.is_null() {
        } else if let Some(known) = &parcels.name {
            let name = address(known);
            let room = (message.msg_namelen as usize).min(name.len());
            user::put_bytes(message.msg_name as usize, &name[..room])?;
            message.msg_namelen = if known.is_empty() { 0 } else { name.len() as u32 };
        } else {
            message.msg_namelen = 0;
        }
        let pass = self.unix_of(file).is_some_and(|id| self.unixes[id].pass_creds);
        let creds = parcels.creds.filter(|_| pass);
        let cloexec = flags & libc::MSG_CMSG_CLOEXEC != 0;
        let used =
            self.put_control(tid, parts.control, creds, parcels.rights, cloexec, &mut message.msg_flags)?;
        message.msg_controllen = used;
        user::put(at, message)?;
        Ok(outcome)
    }

    /// Receives, by the file.
    pub(super) fn receive(
        &mut self,
        tid: Tid,
        file: u64,
        to: &Places,
        flags: i32,
        parcels: &mut Parcels,
    ) -> Result<Outcome, Errno> {
        let patience = self.patience(file, flags, false);
        Ok(match self.files[file].kind {
            Kind::Tcp(id) => self.tcp_receive(tid, id, to, patience, &mut parcels.flags),
            Kind::Unix(id) => self.unix_receive(tid, id, to, patience, parcels),
            Kind::Netlink(_) => self.netlink_receive(tid, file, to, flags, patience.timeout),
            _ => return Err(Errno::ENOTSOCK),
        })
    }

    /// Hands over what came with a message, as far as there is room; how much of that is used
    /// (`scm_recv_unix`).
    fn put_control(
        &mut self,
        tid: Tid,
        (at, len): (usize, usize),
        creds: Option<(u32, u32, u32)>,
        rights: Vec<u64>,
        cloexec: bool,
        shown: &mut i32,
    ) -> Result<usize, Errno> {
        const HEAD: usize = size_of::<libc::cmsghdr>();
        let mut used = 0;
        if let Some((pid, uid, gid)) = creds {
            if at == 0 || len < HEAD {
                *shown |= libc::MSG_CTRUNC;
            } else {
                let size = (HEAD + 12).min(len);
                if size < HEAD + 12 {
                    *shown |= libc::MSG_CTRUNC;
                }
                put_header(at, size, libc::SCM_CREDENTIALS)?;
                let bytes: Vec<u8> = [pid, uid, gid].into_iter().flat_map(u32::to_ne_bytes).collect();
                user::put_bytes(at + HEAD, &bytes[..size - HEAD])?;
                used = (HEAD + 12).next_multiple_of(8).min(len);
            }
        }
        if rights.is_empty() {
            return Ok(used);
        }
        let room = if at == 0 { 0 } else { (len - used).saturating_sub(HEAD) / 4 };
        let mut given = 0;
        for &file in rights.iter().take(room) {
            let Ok(number) = self.free_number(tid, 0) else { break };
            self.hold(file);
            self.install(tid, number, file, cloexec);
            user::put(at + used + HEAD + given * 4, number as i32)?;
            given += 1;
        }
        if given < rights.len() {
            *shown |= libc::MSG_CTRUNC;
        }
        if given > 0 {
            put_header(at + used, HEAD + given * 4, libc::SCM_RIGHTS)?;
            used = (used + (HEAD + given * 4).next_multiple_of(8)).min(len);
        }
        rights.iter().for_each(|&file| self.put(file));
        Ok(used)
    }

    /// sendmmsg and recvmmsg: one message after the other, until one would block.
    pub(super) fn many(&mut self, tid: Tid, args: [usize; 6], sends: bool) -> Result<Outcome, Errno> {
        const EACH: usize = size_of::<libc::mmsghdr>();
        let [fd, at, count, flags, ..] = args;
        for index in 0..count {
            let place = at + index * EACH;
            let mut flags = flags as i32;
            if index > 0 && flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            flags &= !libc::MSG_WAITFORONE;
            // A call that sleeps begins with its first message: those after it are not waited for.
            let flags = if index > 0 { flags | libc::MSG_DONTWAIT } else { flags };
            let outcome = match sends {
                true => self.sendmsg(tid, fd, place, flags),
                false => self.recvmsg(tid, fd, place, flags),
            };
            self.sleep(tid).done = 0;
            match outcome {
                Ok(Outcome::Done(Ok(len))) => {
                    user::put(place + EACH - 8, len as u32)?;
                }
                _ if index > 0 => return Ok(Outcome::Done(Ok(index))),
                other => return other,
            }
        }
        Ok(Outcome::Done(Ok(count)))
    }

    pub(super) fn socket_ioctl(
        &mut self,
        file: u64,
        request: usize,
        at: usize,
    ) -> Option<Result<usize, Errno>> {
        const SIOCOUTQNSD: usize = 0x894b;
        const SIOCATMARK: usize = 0x8905;
        let known = [libc::FIONREAD as usize, libc::TIOCOUTQ as usize, SIOCOUTQNSD, SIOCATMARK];
        match self.files[file].kind {
            Kind::Tcp(id) if known.contains(&request) => Some(self.tcp_ioctl(id, request, at)),
            Kind::Unix(id) if known[..2].contains(&request) => Some(self.unix_ioctl(id, request, at)),
            _ => None,
        }
    }
}

fn put_header(at: usize, len: usize, kind: i32) -> Result<(), Errno> {
    user::put(at, len)?;
    user::put(at + size_of::<usize>(), [libc::SOL_SOCKET, kind])
}

fn parts(at: usize) -> Result<Parts, Errno> {
    let message: libc::msghdr = user::get(at)?;
    let name = if message.msg_name.is_null() { 0 } else { message.msg_namelen as usize };
    if message.msg_iovlen > 1024 {
        return Err(Errno::EMSGSIZE);
    }
    Ok(Parts {
        places: Places::of(message.msg_iov as usize, message.msg_iovlen)?,
        name: (message.msg_name as usize, name),
        control: (message.msg_control as usize, message.msg_controllen),
    })
}

/// Stores an address as far as there is room, and how long it is (`move_addr_to_user`).
fn put_name(name: &[u8], at: usize, len_at: usize) -> Result<(), Errno> {
    let room = user::get::<i32>(len_at)?;
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    user::put_bytes(at, &name[..name.len().min(room)])?;
    user::put(len_at, name.len() as i32)
}
