//! A connection that is filled and emptied, in one world: what it shows of that.

use syscalls::{Errno, Sysno};

use super::world::World;

const NONBLOCK: usize = libc::SOCK_NONBLOCK as usize | libc::SOCK_CLOEXEC as usize;

/// A socket for TCP.
pub fn tcp(world: &mut dyn World) -> usize {
    let new = [libc::AF_INET as usize, libc::SOCK_STREAM as usize | NONBLOCK, 0, 0, 0, 0];
    world.call(Sysno::socket, new).expect("a socket")
}

/// One that listens, and its address.
pub fn listener(world: &mut dyn World) -> (usize, [u8; 16]) {
    let listener = tcp(world);
    let mut name = [0u8; 16];
    (name[0], name[4], name[7]) = (libc::AF_INET as u8, 127, 1);
    let (at, mut len) = (name.as_mut_ptr() as usize, 16i32);
    world.call(Sysno::bind, [listener, at, 16, 0, 0, 0]).expect("a port");
    world.call(Sysno::listen, [listener, 8, 0, 0, 0, 0]).expect("a listener");
    world.call(Sysno::getsockname, [listener, at, &raw mut len as usize, 0, 0, 0]).expect("a name");
    (listener, name)
}

fn pair(world: &mut dyn World, unix: bool) -> [usize; 2] {
    if unix {
        let mut fds = [0i32; 2];
        let kind = libc::SOCK_STREAM as usize | NONBLOCK;
        let args = [libc::AF_UNIX as usize, kind, 0, fds.as_mut_ptr() as usize, 0, 0];
        world.call(Sysno::socketpair, args).expect("a pair");
        return fds.map(|fd| fd as usize);
    }
    let (listener, name) = listener(world);
    let client = tcp(world);
    let at = name.as_ptr() as usize;
    let connected = world.call(Sysno::connect, [client, at, 16, 0, 0, 0]);
    assert_eq!(connected, Err(Errno::EINPROGRESS));
    let server = world.call(Sysno::accept4, [listener, 0, 0, NONBLOCK, 0, 0]).expect("a connection");
    world.call(Sysno::close, [listener, 0, 0, 0, 0, 0]).expect("a descriptor");
    [client, server]
}

fn revents(world: &mut dyn World, fd: usize) -> i16 {
    // What arrives on the real loopback device may take a moment.
    std::thread::sleep(std::time::Duration::from_millis(3));
    let mut entry = libc::pollfd { fd: fd as i32, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    let zero = [0u64; 2];
    let args = [&raw mut entry as usize, 1, zero.as_ptr() as usize, 0, 8, 0];
    world.call(Sysno::ppoll, args).expect("poll");
    entry.revents
}

fn edges(world: &mut dyn World, set: usize) -> Vec<u32> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let args = [set, events.as_mut_ptr() as usize, 4, 0, 0, 8];
    let count = world.call(Sysno::epoll_pwait, args).expect("a set");
    events[..count].iter().map(|event| event.events).collect()
}

/// Fills it by writes of this size, looks, empties it, looks, twice.
pub fn story(world: &mut dyn World, unix: bool, chunk: usize) -> Vec<String> {
    let [one, other] = pair(world, unix);
    let set = world.call(Sysno::epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]).expect("a set");
    let event = libc::epoll_event { events: (libc::EPOLLOUT | libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    let args = [set, libc::EPOLL_CTL_ADD as usize, one, &raw const event as usize, 0, 0];
    world.call(Sysno::epoll_ctl, args).expect("a member");
    let mut shown = vec![format!("at first: {:x} {:?}", revents(world, one), edges(world, set))];
    let (mut sent, mut got) = (0usize, 0usize);
    for _ in 0..2 {
        let mut writes = 0;
        let ended = loop {
            let bytes: Vec<u8> = (sent..sent + chunk).map(|at| (at % 251) as u8).collect();
            let args = [one, bytes.as_ptr() as usize, chunk, libc::MSG_NOSIGNAL as usize, 0, 0];
            match world.call(Sysno::sendto, args) {
                Ok(count) => (sent, writes) = (sent + count, writes + 1),
                // The window may open again, for a moment, by what the real kernel puts together.
                Err(errno) if revents(world, one) & libc::POLLOUT == 0 => break errno,
                Err(_) => {}
            }
        };
        shown.push(format!("full: {ended:?}, {}, {:x}", writes > 2, revents(world, one)));
        edges(world, set);
        shown.push(format!("the other end: {:x}, no edge: {:?}", revents(world, other), edges(world, set)));
        let mut buffer = vec![0u8; 3000];
        let mut quiet = 0;
        while got < sent && quiet < 200 {
            match world.call(Sysno::read, [other, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) {
                Ok(count) => {
                    let right = buffer[..count]
                        .iter()
                        .enumerate()
                        .all(|(at, &byte)| byte as usize == (got + at) % 251);
                    assert!(right, "bytes in their order");
                    (got, quiet) = (got + count, 0);
                }
                Err(_) => {
                    quiet += 1;
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
        }
        let all = got == sent;
        shown.push(format!(
            "empty: {all}, {:x} {:x}, an edge: {:?}",
            revents(world, one),
            revents(world, other),
            edges(world, set)
        ));
    }
    for fd in [one, other, set] {
        world.call(Sysno::close, [fd, 0, 0, 0, 0, 0]).expect("a descriptor");
    }
    shown
}
