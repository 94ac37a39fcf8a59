//! getsockopt(2) and setsockopt(2).

use std::collections::BTreeMap;

use syscalls::Errno;

use super::objects::{Common, Kind, Linked, State};
use super::state::{Kernel, Tid, ready};
use super::user;

const SOL: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const SO_COOKIE: i32 = 57;
const SO_PEERPIDFD: i32 = 77;
const SO_PASSRIGHTS: i32 = 83;
const TCP_TIMESTAMP: i32 = 24;
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;
/// What SO_RCVBUF and SO_SNDBUF cannot go below.
const LEAST: usize = 2304;

/// Options that are numbers, and nothing else to the model: what they are when nobody has set them.
const KEPT: &[(i32, i32, i32)] = &[
    (SOL, libc::SO_REUSEADDR, 0),
    (SOL, libc::SO_REUSEPORT, 0),
    (SOL, libc::SO_KEEPALIVE, 0),
    (SOL, libc::SO_BROADCAST, 0),
    (SOL, libc::SO_PRIORITY, 0),
    (SOL, libc::SO_MARK, 0),
    (SOL, libc::SO_TIMESTAMP, 0),
    (SOL, libc::SO_TIMESTAMPNS, 0),
    (SOL, libc::SO_TIMESTAMPING, 0),
    (SOL, libc::SO_BUSY_POLL, 0),
    (SOL, libc::SO_ZEROCOPY, 0),
    (SOL, libc::SO_DONTROUTE, 0),
    (SOL, libc::SO_INCOMING_CPU, -1),
    (TCP, libc::TCP_NODELAY, 0),
    (TCP, libc::TCP_MAXSEG, 65_483),
    (TCP, libc::TCP_KEEPIDLE, 7200),
    (TCP, libc::TCP_KEEPINTVL, 75),
    (TCP, libc::TCP_KEEPCNT, 9),
    (TCP, libc::TCP_SYNCNT, 6),
    (TCP, libc::TCP_LINGER2, 60),
    (TCP, libc::TCP_DEFER_ACCEPT, 0),
    (TCP, libc::TCP_WINDOW_CLAMP, 0),
    (TCP, libc::TCP_QUICKACK, 1),
    (TCP, libc::TCP_USER_TIMEOUT, 0),
    (TCP, libc::TCP_FASTOPEN, 0),
    (TCP, libc::TCP_NOTSENT_LOWAT, 0),
    (TCP, libc::TCP_INQ, 0),
    (TCP, libc::TCP_REPAIR, 0),
    (libc::IPPROTO_IP, libc::IP_TOS, 0),
    (libc::IPPROTO_IP, libc::IP_TTL, 64),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, 1),
];

impl Kernel {
    pub(super) fn common_of(&mut self, file: u64) -> Result<&mut Common, Errno> {
        match self.files[file].kind {
            Kind::Tcp(id) => Ok(&mut self.tcps[id].common),
            Kind::Unix(id) => Ok(&mut self.unixes[id].common),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    pub(super) fn getsockopt(&mut self, tid: Tid, args: [usize; 6]) -> Result<usize, Errno> {
        let [fd, level, name, at, len_at, _] = args;
        let file = self.file(tid, fd)?;
        if matches!(self.files[file].kind, Kind::Netlink(_)) {
            return Err(Errno::ENOPROTOOPT);
        }
        self.common_of(file)?;
        let room = user::get::<i32>(len_at)?;
        let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
        let value = self.option(tid, file, level as i32, name as i32)?;
        let len = value.len().min(room);
        user::put_bytes(at, &value[..len])?;
        user::put(len_at, len as i32)?;
        Ok(0)
    }

    fn option(&mut self, tid: Tid, file: u64, level: i32, name: i32) -> Result<Vec<u8>, Errno> {
        let tcp = self.tcp_of(file);
        if level == TCP && tcp.is_none() || level == libc::IPPROTO_IP && tcp.is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        match (level, name) {
            (SOL, libc::SO_PEERCRED) => return Ok(self.peer_credentials(file)),
            (SOL, libc::SO_GET_FILTER) => return Ok(Vec::new()),
            (SOL, SO_PEERPIDFD) => {
                let (pid, _, _) =
                    self.unix_of(file).and_then(|id| self.unixes[id].peer_creds).ok_or(Errno::ENODATA)?;
                let made = self.make(tid, libc::O_RDWR, true, |_| Kind::Process(pid))?;
                return Ok((made as i32).to_ne_bytes().to_vec());
            }
            (TCP, libc::TCP_INFO) => return Ok(self.tcp_info(tcp.ok_or(Errno::EOPNOTSUPP)?)),
            (TCP, TCP_SAVED_SYN) => {
                let stamp = tcp.and_then(|id| self.tcps[id].saved_syn.take());
                return Ok(stamp.map_or_else(Vec::new, syn));
            }
            (TCP, libc::TCP_CONGESTION) => return Ok(b"cubic\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
            (SOL, libc::SO_ERROR) => {
                let error = self.common_of(file)?.error.take();
                return Ok(error.map_or(0, Errno::into_raw).to_ne_bytes().to_vec());
            }
            (SOL, SO_COOKIE) => return Ok(self.common_of(file)?.cookie.to_ne_bytes().to_vec()),
            (SOL, libc::SO_RCVTIMEO) => return Ok(timeval(self.common_of(file)?.rcvtimeo)),
            (SOL, libc::SO_SNDTIMEO) => return Ok(timeval(self.common_of(file)?.sndtimeo)),
            (SOL, libc::SO_LINGER) => {
                let linger = self.common_of(file)?.linger;
                let words = [i32::from(linger.is_some()), linger.unwrap_or(0) as i32];
                return Ok(words.into_iter().flat_map(i32::to_ne_bytes).collect());
            }
            _ => {}
        }
        self.number_option(file, level, name).map(|value| value.to_ne_bytes().to_vec())
    }

    fn number_option(&mut self, file: u64, level: i32, name: i32) -> Result<i32, Errno> {
        let (tcp, unix) = (self.tcp_of(file), self.unix_of(file));
        let kind = unix.map_or(libc::SOCK_STREAM, |id| self.unixes[id].kind);
        let listens = tcp.is_some_and(|id| self.tcps[id].state == State::Listen)
            || unix.is_some_and(|id| self.unixes[id].state == State::Listen);
        let common = self.common_of(file)?;
        Ok(match (level, name) {
            (SOL, libc::SO_TYPE) => kind,
            (SOL, libc::SO_DOMAIN) => {
                if tcp.is_some() {
                    libc::AF_INET
                } else {
                    libc::AF_UNIX
                }
            }
            (SOL, libc::SO_PROTOCOL) => {
                if tcp.is_some() {
                    TCP
                } else {
                    0
                }
            }
            (SOL, libc::SO_ACCEPTCONN) => i32::from(listens),
            (SOL, libc::SO_SNDBUF) => common.sndbuf as i32,
            (SOL, libc::SO_RCVBUF) => common.rcvbuf as i32,
            (SOL, libc::SO_RCVLOWAT) => common.lowat as i32,
            (SOL, libc::SO_SNDLOWAT) => 1,
            (SOL, libc::SO_PEEK_OFF) => common.peek_at.map_or(-1, |at| at as i32),
            (SOL, libc::SO_OOBINLINE) => i32::from(common.inline),
            (SOL, libc::SO_PASSCRED) => i32::from(self.unixes[unix.ok_or(Errno::EOPNOTSUPP)?].pass_creds),
            (SOL, SO_PASSRIGHTS) => i32::from(self.unixes[unix.ok_or(Errno::EOPNOTSUPP)?].pass_rights),
            (TCP, libc::TCP_CORK) => i32::from(tcp.is_some_and(|id| self.tcps[id].corked)),
            (TCP, TCP_SAVE_SYN) => i32::from(tcp.is_some_and(|id| self.tcps[id].saves_syn)),
            (TCP, TCP_TIMESTAMP) => {
                let stamp = tcp.map_or(0, |id| self.tcps[id].stamp);
                stamp.wrapping_add((self.now / 1_000_000) as u32) as i32
            }
            _ => {
                let kept = KEPT.iter().find(|kept| (kept.0, kept.1) == (level, name));
                let kept = kept.ok_or(Errno::ENOPROTOOPT)?;
                common.options.get(&(level, name)).copied().unwrap_or(kept.2)
            }
        })
    }

    fn peer_credentials(&mut self, file: u64) -> Vec<u8> {
        // Of one that is connected to nobody: process 0, no user (sk_peer_cred is empty).
        let creds = self.unix_of(file).and_then(|id| self.unixes[id].peer_creds);
        let (pid, uid, gid) = creds.unwrap_or((0, u32::MAX, u32::MAX));
        [pid, uid, gid].into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    /// `struct tcp_info`, with what the model knows.
    fn tcp_info(&self, id: u64) -> Vec<u8> {
        let tcp = &self.tcps[id];
        let mut info = vec![0; 248];
        info[0] = tcp.state as u8;
        let mut half = |at: usize, value: u32| info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        half(16, 65_483);
        half(20, 65_483);
        half(68, 50);
        half(80, 10);
        half(84, 65_483);
        half(144, (tcp.written - tcp.sent) as u32);
        half(152, tcp.segments_in);
        half(156, tcp.segments_out);
        let mut word = |at: usize, value: u64| info[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        // bytes_acked counts the SYN of one who has called connect(), and FIN; bytes_received
        // counts FIN.
        word(120, tcp.acked + u64::from(tcp.connects) + u64::from(tcp.fin_acked));
        word(128, tcp.received);
        word(200, tcp.sent);
        info
    }

    pub(super) fn setsockopt(&mut self, tid: Tid, args: [usize; 6]) -> Result<usize, Errno> {
        let [fd, level, name, at, len, _] = args;
        let (level, name) = (level as i32, name as i32);
        let file = self.file(tid, fd)?;
        if matches!(self.files[file].kind, Kind::Netlink(_)) {
            return Ok(0);
        }
        let tcp = self.tcp_of(file);
        self.common_of(file)?;
        if (level == TCP || level == libc::IPPROTO_IP) && tcp.is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        if (level, name) == (TCP, libc::TCP_CONGESTION) {
            return Ok(0);
        }
        if len < 4 {
            return Err(Errno::EINVAL);
        }
        if (level, name) == (SOL, libc::SO_ATTACH_FILTER) {
            return self.attach_filter(file, at, len);
        }
        let value = user::get::<i32>(at)?;
        let least = self.limits.rcvbuf;
        let common = self.common_of(file)?;
        match (level, name) {
            (SOL, libc::SO_RCVTIMEO) => common.rcvtimeo = duration(at, len)?,
            (SOL, libc::SO_SNDTIMEO) => common.sndtimeo = duration(at, len)?,
            (SOL, libc::SO_LINGER) => {
                if len < 8 {
                    return Err(Errno::EINVAL);
                }
                let seconds = user::get::<i32>(at + 4)?;
                common.linger = (value != 0).then_some(seconds as u32);
            }
            (SOL, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                common.sndbuf = (value.max(0) as usize).saturating_mul(2).clamp(LEAST * 2, 1 << 23);
            }
            (SOL, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                common.rcvbuf = (value.max(0) as usize).saturating_mul(2).clamp(LEAST, 1 << 23);
            }
            (SOL, libc::SO_RCVLOWAT) => {
                let wanted = if value < 0 { i32::MAX } else { value.max(1) } as usize;
                common.lowat = if tcp.is_some() { wanted.min(least.max(3 << 20)) } else { wanted };
                if let Some(id) = tcp {
                    self.low_water(id);
                }
            }
            (SOL, libc::SO_PEEK_OFF) => common.peek_at = usize::try_from(value).ok(),
            (SOL, libc::SO_OOBINLINE) => common.inline = value != 0,
            (SOL, libc::SO_PASSCRED) => {
                let id = self.unix_of(file).ok_or(Errno::EOPNOTSUPP)?;
                self.unixes[id].pass_creds = value != 0;
            }
            (SOL, SO_PASSRIGHTS) => {
                let id = self.unix_of(file).ok_or(Errno::EOPNOTSUPP)?;
                self.unixes[id].pass_rights = value != 0;
            }
            (TCP, TCP_SAVE_SYN) => {
                if let Some(id) = tcp {
                    self.tcps[id].saves_syn = value != 0;
                }
            }
            (SOL, libc::SO_DETACH_FILTER) => {
                if let Some(id) = self.unix_of(file) {
                    self.unixes[id].filter.take().ok_or(Errno::ENOENT)?;
                }
            }
            (TCP, libc::TCP_CORK) => {
                if let Some(id) = tcp {
                    self.tcps[id].corked = value != 0;
                    self.output(id);
                }
            }
            (TCP, libc::TCP_NODELAY) => {
                let on = i32::from(value != 0);
                common.options.insert((level, name), on);
                if let Some(id) = tcp.filter(|_| value != 0) {
                    // What was held back goes at once, even by a cork (__tcp_sock_set_nodelay).
                    let corked = core::mem::take(&mut self.tcps[id].corked);
                    self.output(id);
                    self.tcps[id].corked = corked;
                }
            }
            _ => return keep(&mut common.options, level, name, value),
        }
        Ok(0)
    }

    /// `tcp_set_rcvlowat`: what is there may be enough now.
    fn low_water(&mut self, id: u64) {
        let tcp = &self.tcps[id];
        if tcp.linked != Linked::Unconnected && (tcp.readable(tcp.common.lowat) || tcp.done) {
            let file = tcp.common.file;
            self.wake(file, ready::READABLE);
        }
    }

    fn attach_filter(&mut self, file: u64, at: usize, len: usize) -> Result<usize, Errno> {
        if len != size_of::<libc::sock_fprog>() {
            return Err(Errno::EINVAL);
        }
        let program = user::get::<libc::sock_fprog>(at)?;
        let step = |index: usize| {
            let place = program.filter as usize + index * size_of::<libc::sock_filter>();
            user::get::<libc::sock_filter>(place).map(|step| (step.code, step.jt, step.jf, step.k))
        };
        let filter = (0..usize::from(program.len)).map(step).collect::<Result<Vec<_>, _>>()?;
        if let Some(id) = self.unix_of(file) {
            self.unixes[id].filter = Some(filter);
        }
        Ok(0)
    }
}

fn keep(options: &mut BTreeMap<(i32, i32), i32>, level: i32, name: i32, value: i32) -> Result<usize, Errno> {
    let known = KEPT.iter().any(|kept| (kept.0, kept.1) == (level, name));
    if !known {
        return Err(Errno::ENOPROTOOPT);
    }
    let switch = level == SOL && name != libc::SO_PRIORITY && name != libc::SO_MARK;
    options.insert((level, name), if switch { i32::from(value != 0) } else { value });
    Ok(0)
}

/// The headers of a SYN with this time stamp, and no other options.
fn syn(stamp: u32) -> Vec<u8> {
    let mut headers = vec![0; 52];
    headers[0] = 0x45;
    headers[32] = 0x80;
    headers[40..44].copy_from_slice(&[1, 1, 8, 10]);
    headers[44..48].copy_from_slice(&stamp.to_be_bytes());
    headers
}

fn timeval(nanos: Option<u64>) -> Vec<u8> {
    let nanos = nanos.unwrap_or(0);
    [nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000].into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// A `struct timeval`; zero is for ever.
fn duration(at: usize, len: usize) -> Result<Option<u64>, Errno> {
    if len < 16 {
        return Err(Errno::EINVAL);
    }
    let [seconds, micros] = user::get::<[i64; 2]>(at)?;
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    if seconds < 0 {
        return Ok(Some(0));
    }
    let nanos = (seconds as u64).saturating_mul(1_000_000_000).saturating_add(micros as u64 * 1000);
    Ok(Some(nanos).filter(|&nanos| nanos > 0))
}
