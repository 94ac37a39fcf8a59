//! A network of one's own for the real kernel: nobody else is on its loopback device, and what is
//! received there is acknowledged at once (a route with `quickack`), where the real kernel waits
//! for up to 40 ms otherwise. The model has no such delay.

use std::io;

/// Enters a new network namespace: to be called in a process of one thread.
pub fn enter() -> io::Result<()> {
    // SAFETY: a call without pointers.
    let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    // SAFETY: as above.
    if alone != 0 && unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes the loopback device into use.
pub fn prepare() -> io::Result<()> {
    // SAFETY: plain calls on a socket of this function's own; the structures are as the kernel has
    // them, and live as long as the calls.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = core::mem::zeroed();
        request.ifr_name[0] = b'l' as _;
        request.ifr_name[1] = b'o' as _;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        let done = libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw mut request);
        libc::close(fd);
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    acknowledge_at_once([127, 0, 0, 0], 8)?;
    acknowledge_at_once([127, 0, 0, 1], 32)
}

/// `ip route replace local NETWORK/BITS dev lo table local src 127.0.0.1 quickack 1`
fn acknowledge_at_once(network: [u8; 4], bits: u8) -> io::Result<()> {
    const RTM_NEWROUTE: u16 = 24;
    const RTAX_QUICKACK: u16 = 15;
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes
    };
    // SAFETY: a string that ends.
    let lo = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
    // family, prefix, source prefix, tos, table local, by the kernel, scope host, type local, flags
    let mut body = vec![libc::AF_INET as u8, bits, 0, 0, 255, 2, 254, 2, 0, 0, 0, 0];
    body.extend(attribute(1, &network));
    body.extend(attribute(4, &lo.to_ne_bytes()));
    body.extend(attribute(7, &[127, 0, 0, 1]));
    body.extend(attribute(8, &attribute(RTAX_QUICKACK, &1u32.to_ne_bytes())));
    let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend(RTM_NEWROUTE.to_ne_bytes());
    // request, acknowledge, replace, create
    message.extend((0x1u16 | 0x4 | 0x100 | 0x400).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    let mut answer = [0u8; 256];
    // SAFETY: plain calls on a socket of this function's own, with memory of its own.
    let got = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
        libc::send(fd, message.as_ptr().cast(), message.len(), 0);
        let got = libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0);
        libc::close(fd);
        got
    };
    let code = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    if got >= 20 && code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) }
}
