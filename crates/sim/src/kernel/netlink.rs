//! Netlink: the one request of sock_diag(7) that asks for a TCP connection by its addresses
//! (`inet_diag_dump_one_icsk`).

use syscalls::Errno;

use super::objects::{Addr, Kind, State, Tcp};
use super::state::{Kernel, Outcome, Tid, ready};
use super::user::Places;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const HEADER: usize = 16;

impl Kernel {
    pub(super) fn netlink_send(&mut self, tid: Tid, file: u64, from: &Places) -> Result<usize, Errno> {
        let request = from.gather(0, 4096)?;
        let space = self.process(tid).space;
        let answer = match self.diag(&request, space) {
            Ok(answer) => answer,
            Err(errno) => error(&request, errno),
        };
        if let Kind::Netlink(answers) = &mut self.files[file].kind {
            answers.push_back(answer);
        }
        self.wake(Some(file), ready::READABLE);
        Ok(request.len())
    }

    pub(super) fn netlink_receive(
        &mut self,
        tid: Tid,
        file: u64,
        to: &Places,
        flags: i32,
        timeout: Option<u64>,
    ) -> Outcome {
        let Kind::Netlink(answers) = &mut self.files[file].kind else {
            return Outcome::Done(Err(Errno::ENOTSOCK));
        };
        let Some(answer) = answers.front().cloned() else {
            return self.block(tid, timeout, Errno::EAGAIN);
        };
        if flags & libc::MSG_PEEK == 0 {
            answers.pop_front();
        }
        Outcome::Done(
            to.scatter(0, &answer).map(
                |copied| {
                    if flags & libc::MSG_TRUNC != 0 { answer.len() } else { copied }
                },
            ),
        )
    }

    /// Of the sockets of one network namespace.
    fn diag(&self, request: &[u8], space: u32) -> Result<Vec<u8>, Errno> {
        let half = |at: usize| request.get(at..at + 2).map_or(0, |two| u16::from_ne_bytes([two[0], two[1]]));
        if request.len() < HEADER + 56 || half(4) != SOCK_DIAG_BY_FAMILY {
            return Err(Errno::EINVAL);
        }
        if i32::from(request[16]) != libc::AF_INET || i32::from(request[17]) != libc::IPPROTO_TCP {
            return Err(Errno::ENOENT);
        }
        let port = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
        let ip = |at: usize| u32::from_be_bytes(core::array::from_fn(|i| request[at + i]));
        let (own, peer) = (Addr { ip: ip(28), port: port(24) }, Addr { ip: ip(44), port: port(26) });
        let hashed = |tcp: &Tcp| !matches!(tcp.state, State::Close | State::Listen | State::SynRecv);
        let exact = |tcp: &Tcp| hashed(tcp) && tcp.local == own && tcp.remote == peer;
        let listens = |tcp: &Tcp| {
            let there = tcp.local.ip == 0 || tcp.local.ip == own.ip;
            tcp.state == State::Listen && tcp.local.port == own.port && there
        };
        let shown = || self.tcps.iter().filter(|(_, tcp)| tcp.common.space == space);
        let found = shown().find(|(_, tcp)| exact(tcp));
        let found = found.or_else(|| shown().find(|(_, tcp)| listens(tcp)));
        let Some((_, tcp)) = found else { return Err(Errno::ENOENT) };
        Ok(record(tcp, &request[8..12]))
    }
}

/// A struct inet_diag_msg.
fn record(tcp: &Tcp, sequence: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; HEADER + 72];
    let len = answer.len() as u32;
    answer[0..4].copy_from_slice(&len.to_ne_bytes());
    answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    answer[8..12].copy_from_slice(sequence);
    answer[16] = libc::AF_INET as u8;
    answer[17] = tcp.state as u8;
    answer[20..22].copy_from_slice(&tcp.local.port.to_be_bytes());
    answer[22..24].copy_from_slice(&tcp.remote.port.to_be_bytes());
    answer[24..28].copy_from_slice(&tcp.local.ip.to_be_bytes());
    answer[40..44].copy_from_slice(&tcp.remote.ip.to_be_bytes());
    answer[60..68].copy_from_slice(&tcp.common.cookie.to_ne_bytes());
    // Of one that listens: who waits to be accepted, and how many may.
    let (unread, unsent) = match tcp.state {
        State::Listen => (tcp.accepted.len() as u32, tcp.backlog as u32),
        _ => (tcp.unread() as u32, tcp.unacked.len() as u32 + u32::from(tcp.fin && !tcp.fin_acked)),
    };
    answer[72..76].copy_from_slice(&unread.to_ne_bytes());
    answer[76..80].copy_from_slice(&unsent.to_ne_bytes());
    answer[80..84].copy_from_slice(&tcp.common.uid.to_ne_bytes());
    // An orphan has no inode.
    let inode = if tcp.common.file.is_some() { tcp.common.inode as u32 } else { 0 };
    answer[84..88].copy_from_slice(&inode.to_ne_bytes());
    answer
}

fn error(request: &[u8], errno: Errno) -> Vec<u8> {
    let mut answer = vec![0; HEADER + 4 + HEADER];
    let len = answer.len() as u32;
    answer[0..4].copy_from_slice(&len.to_ne_bytes());
    answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
    answer[16..20].copy_from_slice(&(-errno.into_raw()).to_ne_bytes());
    let known = request.len().min(HEADER);
    answer[20..20 + known].copy_from_slice(&request[..known]);
    answer
}
