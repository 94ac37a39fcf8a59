//! A whole peer that is hostile (rule F2): it meets us as any other, over the board and the UNIX socket, and then sends offers, right
//! and wrong, and scribbles over all that it maps, while the program goes on to send, receive, poll and close. Nothing may panic,
//! reach outside a segment (the process would crash), hang, or keep a descriptor.
#![no_main]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;

use fabric::queue::{MESSAGE, Producer};
use fabric::shm::Map;
use fabric::{Local, sys};
use fuzz::{connection, descriptors};
use libfuzzer_sys::fuzz_target;
use options::{Options, Text};
use sockets::board::Post;
use sockets::conn::Conn;
use sockets::reason::Reason;
use sockets::{close, demote, io, layout, link, process, ready, rendezvous};
use stream::sovia;

static LISTENER: LazyLock<TcpListener> = LazyLock::new(|| {
    let board = format!("/tmp/shunt-fuzz-board.{}", std::process::id());
    let options = Options {
        board: Text::new(board.as_bytes()).expect("short enough"),
        promote_after: Some(0),
        promote_rate: Some(0),
        spin_us: Some(0),
        ..Options::DEFAULT
    };
    process::set_options(|all| *all = options);
    process::start();
    // Makes what is made once: the table, the board, our listener, bells.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    one(&listener, &[]);
    std::fs::remove_file(board).expect("the first connection was posted");
    listener
});

fuzz_target!(|input: &[u8]| {
    let listener = &*LISTENER;
    let before = descriptors();
    one(listener, input);
    assert_eq!(descriptors(), before, "a descriptor is left");
});

/// The life of one connection.
fn one(listener: &TcpListener, input: &[u8]) {
    let mut input = input.iter().copied();
    let (mut peer, fd, conn) = connection(listener);

    let mut enemy = Enemy::meet(conn, fd, &peer, &mut input);
    let mut buffer = vec![0; 40_000];
    while let Some(op) = input.next() {
        let arg = input.next().unwrap_or(0);
        let len = usize::from(arg) * 156;
        let mut iov = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len }];
        match op % 13 {
            0 => enemy.offer(conn, arg, &mut input),
            1 => tick(conn, fd),
            2..=4 => enemy.scribble(conn, arg, &mut input),
            5 => {
                let peek = if arg & 1 == 0 { 0 } else { libc::MSG_PEEK };
                if let io::Outcome::Done(Ok(count)) = io::recv(conn, fd, &iov, libc::MSG_DONTWAIT | peek) {
                    assert!(count <= len);
                }
            }
            6 => {
                iov[0].iov_len = len.max(1);
                if let io::Outcome::Done(Ok(count)) =
                    io::send(conn, fd, &iov, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
                {
                    assert!(count <= len.max(1));
                }
            }
            7 => drop(ready::events(conn, fd, u32::from(arg))),
            8 => drop((io::unread(conn, fd), io::unsent(conn, fd), io::before_mark(conn, fd))),
            9 => drop(peer.write(&buffer[..len])),
            10 => drop(peer.read(&mut buffer[..len])),
            11 => enemy.pass(arg),
            _ if arg < 16 => demote::now(conn, fd, Reason::Option),
            _ if arg < 24 => close::shut(conn, fd, libc::SHUT_RD),
            _ => ready::absorb(conn, fd),
        }
    }
    close::closing(fd);
    sys::close(fd);
    enemy.leave();
    drop(peer);
    link::sweep();
}

/// Housekeeping that is due.
fn tick(conn: &'static Conn, fd: i32) {
    conn.due.store(0, Relaxed);
    rendezvous::tick(conn, fd);
}

/// The other process, as far as we see it.
struct Enemy {
    socket: i32,
    mine: Map,
    /// Our segment, if the hand-shake came that far.
    theirs: Option<Map>,
    producer: Producer,
    cookie: u64,
}

static BELL: LazyLock<i32> = LazyLock::new(|| sys::eventfd().expect("descriptors are left"));

/// Bytes of a HELLO.
const HELLO: usize = 72;

#[repr(C, align(8))]
struct Control([u8; 64]);

impl Enemy {
    /// Finds us on the board and says HELLO, mostly as it should be said.
    fn meet(conn: &'static Conn, fd: i32, peer: &TcpStream, input: &mut impl Iterator<Item = u8>) -> Enemy {
        static TOKEN: LazyLock<u64> = LazyLock::new(|| {
            let board =
                std::fs::read(format!("/tmp/shunt-fuzz-board.{}", std::process::id())).expect("posted");
            board[4096..].chunks_exact(56).find_map(Post::parse).expect("posted").token
        });
        let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = sys::socket(libc::AF_UNIX, flags, 0).expect("descriptors are left");
        let (name, len) = rendezvous::address(*TOKEN);
        sys::connect(socket, (&raw const name).cast(), len).expect("it listens");
        let (mine, memfd) = Map::create(c"fuzz", layout::SEGMENT_VIA).expect("memory is left");
        let mut hello = [0; HELLO];
        hello[0..4].copy_from_slice(&0x5348_4c4bu32.to_ne_bytes());
        hello[4..8].copy_from_slice(&layout::VERSION.to_ne_bytes());
        hello[8..16].copy_from_slice(&4711u64.to_ne_bytes());
        hello[16..24].copy_from_slice(&(layout::SEGMENT_VIA as u64).to_ne_bytes());
        // The connection that proves it.
        let cookie: u64 =
            sys::getsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).expect("it has one");
        hello[24..28]
            .copy_from_slice(&(conn.posted_index.load(Relaxed).wrapping_sub(1) as u32).to_ne_bytes());
        hello[32..40].copy_from_slice(&conn.cookie.load(Relaxed).to_ne_bytes());
        hello[40..48].copy_from_slice(&cookie.to_ne_bytes());
        let (how, arg) = (input.next().unwrap_or(0), input.next().unwrap_or(0));
        if how & 0xf0 == 0xf0 {
            hello[usize::from(arg) % HELLO] ^= how;
        }
        let bell = *BELL;
        let fds: &[i32] = match how & 15 {
            15 => &[],
            14 => &[socket],
            13 => &[memfd, memfd, 2, 2, 2, 2],
            12 => &[memfd],
            11 => &[memfd, 2, 2],
            10 => &[memfd, 2, 2, 2, 2, 2, 2, 2, 2, 2],
            _ => &[memfd, bell, bell, bell, bell, bell, bell, bell, bell, bell],
        };
        say(socket, &hello[..if how & 0xf0 == 0xe0 { usize::from(arg) % HELLO } else { HELLO }], fds);
        sys::close(memfd);
        tick(conn, fd);
        Enemy { socket, mine, theirs: hear(socket), producer: Producer::default(), cookie }
    }

    /// Passes a bell, or what is none.
    fn pass(&self, how: u8) {
        let fds: &[i32] = match how >> 6 {
            0 => &[],
            1 => &[2],
            2 => &[*BELL, 2],
            _ => &[*BELL],
        };
        say(self.socket, &[how & 63; 2][..if how & 63 == 63 { 2 } else { 1 }], fds);
    }

    /// An offer, whose fields are right unless the input has it otherwise.
    fn offer(&mut self, conn: &Conn, how: u8, input: &mut impl Iterator<Item = u8>) {
        let Some(theirs) = self.theirs else { return };
        let mut message = [0; MESSAGE];
        message[0..4].copy_from_slice(&1u32.to_ne_bytes());
        message[4..8].copy_from_slice(&u32::from(how & 0x7e).to_ne_bytes());
        message[8..12]
            .copy_from_slice(&(conn.posted_index.load(Relaxed).wrapping_sub(1) as u32).to_ne_bytes());
        // By Virtual Interfaces, in whatever manner.
        if how & 1 != 0 {
            message[13..16].fill_with(|| input.next().unwrap_or(1));
        }
        message[16..24].copy_from_slice(&conn.cookie.load(Relaxed).to_ne_bytes());
        message[24..32].copy_from_slice(&self.cookie.to_ne_bytes());
        if how & 0x80 != 0 {
            message[usize::from(input.next().unwrap_or(0)) % 32] ^= input.next().unwrap_or(0);
        }
        self.producer.push(&theirs, layout::CTL, &self.mine, layout::CTL_BACK, &message);
    }

    /// Changes a word of our segment: of the header of the connection's slot, of its queues, or anywhere before the data.
    fn scribble(&self, conn: &Conn, how: u8, input: &mut impl Iterator<Item = u8>) {
        let Some(theirs) = self.theirs else { return };
        let mut value = u64::from(input.next().unwrap_or(0));
        let word = usize::from(how & 31) * 8;
        let slot = conn.slot.load(Relaxed) as usize % layout::SLOTS;
        let at = if how & 32 == 0 {
            layout::slot(slot) + word
        } else {
            let far = usize::from(input.next().unwrap_or(0));
            let queues = layout::via(slot) + (far * 128 + word) % sovia::at::BUFFERS;
            if far & 1 != 0 { queues } else { (far * 512 + word) % layout::DATA }
        };
        value = match how >> 6 {
            0 => value,
            1 => theirs.word(at).wrapping_add(value),
            2 => theirs.word(at).wrapping_sub(value),
            _ => 1 << (value % 64),
        };
        theirs.set_word(at, value);
    }

    fn leave(self) {
        sys::close(self.socket);
        // SAFETY: nobody else has copies of these mappings of ours.
        unsafe {
            self.mine.unmap();
            if let Some(theirs) = self.theirs {
                theirs.unmap();
            }
        }
    }
}

/// Sends a packet with descriptors.
fn say(socket: i32, bytes: &[u8], fds: &[i32]) {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    let len = 16 + fds.len() * 4;
    control.0[0..8].copy_from_slice(&len.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    for (place, fd) in control.0[16..].chunks_exact_mut(4).zip(fds) {
        place.copy_from_slice(&fd.to_ne_bytes());
    }
    // SAFETY: zeroes are a valid msghdr; everything it points to outlives the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = len.next_multiple_of(8);
        }
        libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL);
    }
}

/// Receives our answer and maps the segment that comes with it.
fn hear(socket: i32) -> Option<Map> {
    let mut bytes = [0; HELLO];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: zeroes are a valid msghdr; everything it points to outlives the call.
    let got = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = 64;
        libc::recvmsg(socket, &mut message, libc::MSG_DONTWAIT)
    };
    if got != HELLO as isize {
        return None;
    }
    let len = usize::from_ne_bytes(std::array::from_fn(|i| control.0[i]));
    let mut map = None;
    for bytes in control.0[16..len].chunks_exact(4) {
        let fd = i32::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
        map = map.or_else(|| Map::open(fd, layout::SEGMENT_VIA).ok());
        sys::close(fd);
    }
    map
}
