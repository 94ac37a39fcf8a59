//! What ends in two network namespaces need to meet (`sockets/src/folder.rs`, `host/src/syn.rs`,
//! and the cuts of `rendezvous/meeting`), in one world: sockets that are files, and what TCP tells
//! of SYNs and segments.

use std::ffi::CString;

use syscalls::Sysno;

use super::full;
use super::world::{Answer, World};

const KIND: usize = libc::SOCK_NONBLOCK as usize | libc::SOCK_CLOEXEC as usize;
const HERE: usize = libc::AT_FDCWD as usize;
const SO_PASSRIGHTS: i32 = 83;
const TCP_TIMESTAMP: i32 = 24;
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;
/// Where TCP_INFO has the segments that are not acknowledged.
const UNACKED: usize = 24;

fn unix(world: &mut dyn World, kind: i32) -> usize {
    let new = [libc::AF_UNIX as usize, kind as usize | KIND, 0, 0, 0, 0];
    world.call(Sysno::socket, new).expect("a socket")
}

fn named(world: &mut dyn World, number: Sysno, fd: usize, path: &str) -> Answer {
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend(path.as_bytes());
    address.push(0);
    world.call(number, [fd, address.as_ptr() as usize, address.len(), 0, 0, 0])
}

fn option(world: &mut dyn World, fd: usize, (level, name): (i32, i32)) -> (Answer, Vec<u8>) {
    let (mut value, mut len) = ([0u8; 256], 256i32);
    let args = [fd, level as usize, name as usize, value.as_mut_ptr() as usize, &raw mut len as usize, 0];
    let answer = world.call(Sysno::getsockopt, args);
    (answer, value[..len as usize].to_vec())
}

fn set(world: &mut dyn World, fd: usize, (level, name): (i32, i32), value: i32) -> Answer {
    let args = [fd, level as usize, name as usize, &raw const value as usize, 4, 0];
    world.call(Sysno::setsockopt, args)
}

/// A socket that is a file, found by it, whatever becomes of its path and of itself.
pub fn files(world: &mut dyn World, path: &str) -> Vec<String> {
    const RIGHTS: (i32, i32) = (libc::SOL_SOCKET, SO_PASSRIGHTS);
    let mut shown = Vec::new();
    let mut show = |what: &str, answer: Answer| shown.push(format!("{what}: {answer:?}"));
    let text = CString::new(path).expect("no NUL inside");
    let open = |flags: i32| [HERE, text.as_ptr() as usize, (flags | libc::O_CLOEXEC) as usize, 0, 0, 0];
    let listener = unix(world, libc::SOCK_SEQPACKET);
    let rights = option(world, listener, RIGHTS);
    show(&format!("descriptors may come {:?}", rights.1), rights.0.map(|_| 0));
    show("they may not", set(world, listener, RIGHTS, 0));
    show("bind", named(world, Sysno::bind, listener, path));
    show("listen", world.call(Sysno::listen, [listener, 8, 0, 0, 0, 0]));
    show("open to read", world.call(Sysno::openat, open(libc::O_RDONLY)).map(|_| 0));
    show("open as a folder", world.call(Sysno::openat, open(libc::O_PATH | libc::O_DIRECTORY)).map(|_| 0));
    let file = world.call(Sysno::openat, open(libc::O_PATH | libc::O_NOFOLLOW)).expect("its file");
    // SAFETY: all zeroes is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    show("stat", world.call(Sysno::fstat, [file, &raw mut about as usize, 0, 0, 0, 0]));
    show(&format!("kind {:o}", about.st_mode & libc::S_IFMT), Ok(0));
    let place = format!("/proc/self/fd/{file}");
    let place_text = CString::new(place.as_str()).expect("no NUL inside");
    let args = [HERE, place_text.as_ptr() as usize, 0o666, 0, 0, 0];
    show("chmod", world.call(Sysno::fchmodat, args));
    let client = unix(world, libc::SOCK_SEQPACKET);
    show("connect by its file", named(world, Sysno::connect, client, &place));
    let server = world.call(Sysno::accept4, [listener, 0, 0, KIND, 0, 0]).expect("a connection");
    show(&format!("descriptors may come {:?}", option(world, server, RIGHTS).1), Ok(0));
    show("a descriptor", pass(world, client, file));
    show("bytes", world.call(Sysno::sendto, [client, path.as_ptr() as usize, 4, 0, 0, 0]));
    let other = unix(world, libc::SOCK_DGRAM);
    show("one of another kind", named(world, Sysno::connect, other, &place));
    show("unlink", world.call(Sysno::unlinkat, [HERE, text.as_ptr() as usize, 0, 0, 0, 0]));
    let late = unix(world, libc::SOCK_SEQPACKET);
    show("connect by its path", named(world, Sysno::connect, late, path));
    show("connect by its file", named(world, Sysno::connect, late, &place));
    show("close", world.call(Sysno::close, [listener, 0, 0, 0, 0, 0]));
    let last = unix(world, libc::SOCK_SEQPACKET);
    show("connect by its file", named(world, Sysno::connect, last, &place));
    for fd in [file, client, server, other, late, last] {
        world.call(Sysno::close, [fd, 0, 0, 0, 0, 0]).expect("a descriptor");
    }
    shown
}

/// Passes a descriptor with a byte.
fn pass(world: &mut dyn World, by: usize, fd: usize) -> Answer {
    let mut control = [0u64; 3];
    control[0] = 20;
    control[1] = libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
    control[2] = fd as u64;
    let byte = libc::iovec { iov_base: (&raw const control).cast_mut().cast(), iov_len: 1 };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = ((&raw const byte).cast_mut(), 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 24);
    world.call(Sysno::sendmsg, [by, &raw const message as usize, libc::MSG_NOSIGNAL as usize, 0, 0, 0])
}

/// Of the SYN that a listener keeps, and of segments.
pub fn segments(world: &mut dyn World) -> Vec<String> {
    const TCP: i32 = libc::IPPROTO_TCP;
    let (listener, name) = full::listener(world);
    let client = full::tcp(world);
    let mut shown = vec![format!("kept: {:?}", option(world, listener, (TCP, TCP_SAVE_SYN)).1)];
    set(world, listener, (TCP, TCP_SAVE_SYN), 1).expect("an option");
    shown.push(format!("kept: {:?}", option(world, listener, (TCP, TCP_SAVE_SYN)).1));
    let _ = world.call(Sysno::connect, [client, name.as_ptr() as usize, 16, 0, 0, 0]);
    let server = world.call(Sysno::accept4, [listener, 0, 0, KIND, 0, 0]).expect("a connection");
    let now = option(world, client, (TCP, TCP_TIMESTAMP)).1;
    let now = u32::from_ne_bytes(now.try_into().expect("a number"));
    let syn = option(world, server, (TCP, TCP_SAVED_SYN)).1;
    let sent = host::syn::stamp(&syn).expect("a time stamp");
    shown.push(format!("its clock: {}", now.wrapping_sub(sent).wrapping_add(1000) < 2000));
    shown.push(format!("told once: {:?}", option(world, server, (TCP, TCP_SAVED_SYN)).1));
    set(world, client, (TCP, libc::TCP_NODELAY), 1).expect("an option");
    let more = libc::MSG_MORE | libc::MSG_EOR;
    for (len, flags) in
        [(10, 0), (1, more), (9, 0), (1, libc::MSG_MORE), (5, 0), (1, more), (1, more), (1, 0)]
    {
        let args = [client, name.as_ptr() as usize, len, (flags | libc::MSG_NOSIGNAL) as usize, 0, 0];
        world.call(Sysno::sendto, args).expect("room");
        let half = |info: &[u8], at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().expect("four"));
        // Until all that was sent has come, and its sender knows.
        let out = loop {
            let out = option(world, client, (TCP, libc::TCP_INFO)).1;
            if half(&out, UNACKED) == 0 {
                break out;
            }
            std::thread::yield_now();
        };
        let into = option(world, server, (TCP, libc::TCP_INFO)).1;
        shown.push(format!("{len} bytes, {flags:x}: out {}, in {}", half(&out, 156), half(&into, 152)));
    }
    for fd in [listener, client, server] {
        world.call(Sysno::close, [fd, 0, 0, 0, 0, 0]).expect("a descriptor");
    }
    shown
}
