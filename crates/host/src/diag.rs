//! The kernel's knowledge of a connection: cookie and owner of the other end (sock_diag), and how
//! many bytes went each way by tcp (TCP_INFO). The first proves who the peer is. The second says at
//! which byte a path changes. Neither trusts a peer or our hooks.

use fabric::sys::{self, Errno};

use crate::addr::Addr;

/// The kernel's record of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub cookie: u64,
    pub uid: u32,
}

/// Looks up the established TCP socket whose own address is `own` and whose peer is `peer`. This
/// takes a descriptor for a moment: `Err(EMFILE)` if there is none.
pub fn lookup(own: Addr, peer: Addr) -> Result<Record, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let fd = sys::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG)?;
    let result = ask(fd, own, peer);
    sys::close(fd);
    result
}

fn ask(fd: i32, own: Addr, peer: Addr) -> Result<Record, Errno> {
    let v4 = is_mapped(&own.ip) && is_mapped(&peer.ip);
    let mut request = [0u8; 72];
    request[0..4].copy_from_slice(&72u32.to_ne_bytes());
    request[4..6].copy_from_slice(&20u16.to_ne_bytes()); // SOCK_DIAG_BY_FAMILY
    request[6..8].copy_from_slice(&1u16.to_ne_bytes()); // NLM_F_REQUEST
    request[16] = if v4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
    request[17] = libc::IPPROTO_TCP as u8;
    request[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    request[24..26].copy_from_slice(&own.port.to_be_bytes());
    request[26..28].copy_from_slice(&peer.port.to_be_bytes());
    let skip = if v4 { 12 } else { 0 };
    request[28..28 + 16 - skip].copy_from_slice(&own.ip[skip..]);
    request[44..44 + 16 - skip].copy_from_slice(&peer.ip[skip..]);
    request[64..72].fill(0xff); // any cookie
    sys::send(fd, request.as_ptr(), request.len(), 0)?;
    let mut answer = [0u8; 512];
    let got = sys::recv(fd, answer.as_mut_ptr(), answer.len(), 0)?;
    // nlmsghdr (16), inet_diag_msg: family, state, timer, retrans, id (48: its cookie at 40),
    // expires, rqueue, wqueue, uid, inode
    if got < 16 + 72 || u16::from_ne_bytes([answer[4], answer[5]]) != 20 {
        return Err(Errno::ENOENT);
    }
    // If there is no such connection, the kernel names the listener on the port.
    if answer[20..24] != request[24..28] {
        return Err(Errno::ENOENT);
    }
    let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| answer[at + i]));
    let uid = u32::from_ne_bytes(core::array::from_fn(|i| answer[16 + 64 + i]));
    Ok(Record { cookie: word(16 + 4 + 40), uid })
}

/// Whether an address is IPv4 mapped into IPv6.
pub fn is_mapped(ip: &[u8; 16]) -> bool {
    ip[..10].iter().all(|&byte| byte == 0) && ip[10] == 0xff && ip[11] == 0xff
}

/// TCP_INFO, as the kernel lays it out.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct TcpInfo([u8; 232]);

impl TcpInfo {
    fn of(fd: i32) -> Result<TcpInfo, Errno> {
        sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
    }
    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(core::array::from_fn(|i| self.0[at + i]))
    }
    fn half(&self, at: usize) -> u64 {
        u64::from(u32::from_ne_bytes(core::array::from_fn(|i| self.0[at + i])))
    }
}

/// Bytes that the program has written since the connection began. `Err(EPROTO)` if the kernel's two
/// ways of counting them disagree. Not to be used after our half was shut.
pub fn written(fd: i32, client: bool) -> Result<u64, Errno> {
    let info = TcpInfo::of(fd)?;
    // bytes_sent - bytes_retrans + notsent_bytes
    let written = info.word(200).wrapping_sub(info.word(208)).wrapping_add(info.half(144));
    let queued = sys::ioctl_int(fd, libc::TIOCOUTQ)? as u64;
    // bytes_acked counts the SYN of the end that called connect(). It only grows, and it may lack
    // at most the bytes that were queued.
    let acked = info.word(120).wrapping_sub(u64::from(client));
    if acked > written || written - acked < queued {
        return Err(Errno::EPROTO);
    }
    Ok(written)
}

/// Bytes that a connection has carried, in both directions, as far as they were acknowledged.
pub fn carried(fd: i32) -> Result<u64, Errno> {
    let info = TcpInfo::of(fd)?;
    Ok(info.word(120).wrapping_add(info.word(128)))
}

/// How much the program has read of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes since the connection began.
    pub read: u64,
    /// Whether it is open in both directions.
    pub open: bool,
}

/// Counts how much the program has read. `Err(ENOTCONN)` after a reset.
pub fn received(fd: i32) -> Result<Received, Errno> {
    // Bytes may arrive between the two calls: the count of received bytes must be the same before
    // and after.
    let mut info = TcpInfo::of(fd)?;
    loop {
        let waiting = sys::ioctl_int(fd, libc::FIONREAD)? as u64;
        let again = TcpInfo::of(fd)?;
        // bytes_received counts a FIN, and FIONREAD does not.
        let fin = match again.0[0] {
            ESTABLISHED | FIN_WAIT1 | FIN_WAIT2 => 0,
            CLOSE_WAIT | LAST_ACK | CLOSING => 1,
            CLOSE if !has_error(fd) => 1,
            _ => return Err(Errno::ENOTCONN),
        };
        if again.word(128) == info.word(128) {
            let read = again.word(128).wrapping_sub(waiting + fin);
            return Ok(Received { read, open: again.0[0] == ESTABLISHED });
        }
        info = again;
    }
}

/// Whether the peer may still send, whichever half this end has shut.
pub fn may_send(fd: i32) -> bool {
    TcpInfo::of(fd).is_ok_and(|info| matches!(info.0[0], ESTABLISHED | FIN_WAIT1 | FIN_WAIT2))
}

/// Counts the bytes that have come since the connection began, read or not. `reset`: it was, and
/// the kernel has told so already, which it does once.
pub fn come(fd: i32, reset: bool) -> Result<u64, Errno> {
    let info = TcpInfo::of(fd)?;
    let ended = match info.0[0] {
        ESTABLISHED | FIN_WAIT1 | FIN_WAIT2 => false,
        CLOSE_WAIT | LAST_ACK | CLOSING => true,
        CLOSE => !reset && !has_error(fd),
        _ => return Err(Errno::ENOTCONN),
    };
    Ok(info.word(128).wrapping_sub(u64::from(ended)))
}

/// What a connection has carried each way: bytes, and in how many segments with data they went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    pub sent: u64,
    pub sent_in: u32,
    pub come: u64,
    pub come_in: u32,
}

/// Counts what has been sent and what has come, all in one look. What was sent again counts once,
/// and may count twice where it came.
pub fn segments(fd: i32) -> Result<Carried, Errno> {
    let info = TcpInfo::of(fd)?;
    Ok(Carried {
        // bytes_sent - bytes_retrans, data_segs_out - total_retrans
        sent: info.word(200).wrapping_sub(info.word(208)),
        sent_in: (info.half(156) as u32).wrapping_sub(info.half(100) as u32),
        // bytes_received, data_segs_in
        come: info.word(128),
        come_in: info.half(152) as u32,
    })
}

/// Whether the kernel has an error to report: the connection was reset.
fn has_error(fd: i32) -> bool {
    let mut poll = [libc::pollfd { fd, events: 0, revents: 0 }];
    sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0 && poll[0].revents & libc::POLLERR != 0
}

/// A value of tcpi_state.
const ESTABLISHED: u8 = 1;
const FIN_WAIT1: u8 = 4;
const FIN_WAIT2: u8 = 5;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn counts_are_what_was_written_and_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for round in 0..100u64 {
            client.write_all(&[1; 1000]).unwrap();
            server.read_exact(&mut [0; 1000]).unwrap();
            server.write_all(&[2; 10]).unwrap();
            client.read_exact(&mut [0; 9]).unwrap();
            let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
            let so_far = |read| Ok(Received { read, open: true });
            assert_eq!(
                (written(c, true), received(c)),
                (Ok((round + 1) * 1000), so_far((round + 1) * 10 - 1))
            );
            assert_eq!((written(s, false), received(s)), (Ok((round + 1) * 10), so_far((round + 1) * 1000)));
            client.read_exact(&mut [0; 1]).unwrap();
        }
        client.write_all(&[1; 100]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let (c, s) = (client.as_raw_fd(), server.as_raw_fd());
        let ending = |read| Ok(Received { read, open: false });
        assert_eq!(received(s), ending(100_000));
        server.read_exact(&mut [0; 30]).unwrap();
        assert_eq!(received(s), ending(100_030));
        server.read_exact(&mut [0; 70]).unwrap();
        assert_eq!(received(s), ending(100_100));
        assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!((received(s), received(c)), (ending(100_100), ending(1000)));
        server.write_all(&[2; 5]).unwrap();
        client.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(received(c), ending(1002));
        drop(server);
        assert_eq!(received(c), ending(1002), "both halves are closed");
    }

    #[test]
    fn lookup_finds_the_other_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let mapped = |port| Addr { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1], port };
        let (c, s) = (client.local_addr().unwrap().port(), server.local_addr().unwrap().port());
        let record = lookup(mapped(s), mapped(c)).unwrap();
        let cookie: u64 = sys::getsockopt(server.as_raw_fd(), libc::SOL_SOCKET, 57).unwrap();
        assert_eq!(record, Record { cookie, uid: sys::geteuid() });
        assert!(lookup(mapped(s), mapped(s)).is_err());
    }
}
