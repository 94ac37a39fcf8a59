//! The time stamp of a connection's SYN, by which its two ends know each other as *candidates*
//! where addresses say nothing: NAT rewrites addresses and ports, and keeps the time stamp. The
//! client knows what its SYN carried, as its stamps are its kernel's milliseconds plus a number
//! that stays the same for the connection; the server reads the SYN that its kernel has kept.
//!
//! Several connections may have the same stamp, and anybody may claim one: it proves nothing.

use fabric::sys::{self, Errno};

/// In `linux/tcp.h`.
const TCP_TIMESTAMP: i32 = 24;
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;

/// Has the kernel keep the SYNs of what `listener` accepts from now on, if it does not yet.
pub fn save(listener: i32) {
    let kept: Result<i32, Errno> = sys::getsockopt(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN);
    if kept == Ok(0) {
        let _ = sys::setsockopt(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, 1);
    }
}

/// Whether this option of TCP is the one that [`save`] sets, or what it makes the kernel keep.
pub fn is_save(option: i32) -> bool {
    matches!(option, TCP_SAVE_SYN | TCP_SAVED_SYN)
}

/// The stamp of the SYN by which an accepted connection began, if the kernel has kept it. It tells
/// once.
pub fn of_accepted(fd: i32) -> Option<u32> {
    let mut headers = [0; 256];
    let got = sys::getsockopt_bytes(fd, libc::IPPROTO_TCP, TCP_SAVED_SYN, &mut headers).ok()?;
    stamp(headers.get(..got)?)
}

/// The stamp in a SYN's headers, as they came.
pub fn stamp(headers: &[u8]) -> Option<u32> {
    let network = match headers.first()? >> 4 {
        4 => usize::from(headers[0] & 15) * 4,
        6 => 40,
        _ => return None,
    };
    let tcp = headers.get(network..)?;
    let length = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..length)?;
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([*a, *b, *c, *d])),
            [kind, len, ..] if *kind > 1 && *len > 1 => options = options.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

/// What the stamps of a connection's segments are more than our clock, in milliseconds. `None`
/// where it has none.
pub fn offset(fd: i32) -> Option<u32> {
    // Both clocks may step between the two looks.
    for _ in 0..4 {
        let before = milliseconds();
        let stamp: u32 = sys::getsockopt(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP).ok()?;
        if milliseconds() == before {
            return Some(stamp.wrapping_sub(before));
        }
    }
    None
}

/// The clock that stamps are taken from. In a time namespace it may be off by what is added there,
/// which [`offset`] takes off again.
pub fn milliseconds() -> u32 {
    (sys::now() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_know_the_stamp_of_the_syn() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            save(listener.as_raw_fd());
            let before = milliseconds();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let after = milliseconds();
            let (server, _) = listener.accept().unwrap();
            let offset = offset(client.as_raw_fd()).unwrap();
            let seen = of_accepted(server.as_raw_fd()).unwrap();
            let at = seen.wrapping_sub(offset);
            assert!(at.wrapping_sub(before) <= after.wrapping_sub(before) + 1, "{before} {at} {after}");
            assert_eq!(of_accepted(server.as_raw_fd()), None, "it is told once");
        }
    }

    #[test]
    fn headers_without_a_stamp_have_none() {
        let mut headers = [0; 60];
        headers[0] = 0x45;
        headers[32] = 0xa0;
        // MSS, SACK permitted, no operation, and a stamp that is cut off.
        headers[40..48].copy_from_slice(&[2, 4, 5, 0xb4, 4, 2, 1, 1]);
        assert_eq!(stamp(&headers), None);
        headers[48..58].copy_from_slice(&[8, 10, 1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(stamp(&headers), Some(0x0102_0304));
        for len in 0..headers.len() {
            stamp(&headers[..len]);
        }
        headers[48..50].copy_from_slice(&[9, 0]);
        assert_eq!(stamp(&headers), None, "an option without a length");
        assert_eq!(stamp(&[0x60; 60]), None);
    }
}
