//! Letters of a hostile process at the meeting place: it knows where a connection of ours is posted, asks for a proof, answers, shows
//! seeds and passes descriptors, rightly and wrongly, while the program goes on to send and receive. Nothing may panic, hang or keep a
//! descriptor, and nobody is believed. The headers of a SYN that somebody has sent are read, too.
#![no_main]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;

use fabric::sys;
use libfuzzer_sys::fuzz_target;
use options::{Options, Text};
use sockets::{close, io, lifecycle, link, process, rendezvous, table};

/// The name of the hostile process's socket.
const TOKEN: u64 = 0x0123_4567_89ab_cdef;
const MAGIC: u32 = 0x5348_4d31;

struct Place {
    listener: TcpListener,
    folder: String,
    enemy: UnixDatagram,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let folder = format!("/tmp/shunt-fuzz-meeting.{}", std::process::id());
    std::fs::create_dir_all(&folder).expect("/tmp is there");
    let board = format!("{folder}/board");
    let text = |path: &str| Text::new(path.as_bytes()).expect("short enough");
    let options = Options {
        board: text(&board),
        meeting: text(&folder),
        promote_after: Some(0),
        promote_rate: Some(0),
        ..Options::DEFAULT
    };
    process::set_options(|all| *all = options);
    process::start();
    let enemy = UnixDatagram::bind(format!("{folder}/{TOKEN:016x}l")).expect("a socket of its own");
    enemy.set_nonblocking(true).expect("a socket");
    let place =
        Place { listener: TcpListener::bind("127.0.0.1:0").expect("loopback is there"), folder, enemy };
    one(&place, &[0; 64]);
    place
});

fuzz_target!(|input: &[u8]| {
    host::syn::stamp(input);
    let place = &*PLACE;
    let before = descriptors();
    one(place, input);
    assert_eq!(descriptors(), before, "a descriptor is left");
});

/// How many descriptors there are, ours among them.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is there").count()
}

/// The life of one connection.
fn one(place: &Place, input: &[u8]) {
    let mut input = input.iter().copied();
    let mut peer = TcpStream::connect(place.listener.local_addr().expect("bound")).expect("a connection");
    let fd = place.listener.accept().expect("its other end").0.into_raw_fd();
    let _ = sys::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
    peer.set_nonblocking(true).expect("a socket");
    // No TIME_WAIT: there are only so many ports.
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    sys::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger).expect("a socket");
    lifecycle::track(fd, false, None, 0);
    let conn = table::conn(fd).expect("it is followed");
    sockets::seen::waited_for(conn);
    rendezvous::tick(conn, fd);
    let ours = std::fs::read_dir(&place.folder).expect("it was made").flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        (name.ends_with('l') && !name.starts_with(&format!("{TOKEN:016x}"))).then(|| entry.path())
    });
    let ours = ours.expect("ours is there").into_os_string().into_string().expect("it is a plain name");
    let mut heard = [0u8; 80];
    while let Some(op) = input.next() {
        match op % 8 {
            0 => {
                let mut buffer = [0; 600];
                let iov =
                    [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: usize::from(op) * 2 }];
                let _ = io::send(conn, fd, &iov, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
            }
            1 => {
                let mut buffer = [0; 600];
                let iov = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 600 }];
                let _ = io::recv(conn, fd, &iov, libc::MSG_DONTWAIT);
            }
            2 => drop(peer.write(&[7; 300][..1 + usize::from(input.next().unwrap_or(0))])),
            3 => drop(peer.read(&mut [0; 1000])),
            4 => drop(place.enemy.recv(&mut heard)),
            _ => {
                // A letter that is right but for what the input spoils.
                let mut letter = [0u8; 80];
                let mut put = |at: usize, bytes: &[u8]| letter[at..at + bytes.len()].copy_from_slice(bytes);
                put(0, &MAGIC.to_le_bytes());
                put(4, &u32::from(input.next().unwrap_or(1) % 8).to_le_bytes());
                put(8, &TOKEN.to_le_bytes());
                put(20, &(conn.posted_index.load(Relaxed) as u32).wrapping_sub(1).to_le_bytes());
                put(32, &conn.cookie.load(Relaxed).to_le_bytes());
                // What our last letter gave may be given back.
                put(40, &heard[72..80]);
                put(56, &heard[72..80]);
                put(72, &heard[72..80]);
                let spoils = input.next().unwrap_or(0);
                if spoils & 1 != 0 {
                    letter[usize::from(input.next().unwrap_or(0)) % 80] ^= input.next().unwrap_or(1);
                }
                let sender = place.enemy.as_raw_fd();
                let (address, len) = sys::unix_address(ours.bytes());
                // SAFETY: the address is one.
                unsafe { libc::connect(sender, (&raw const address).cast(), len) };
                let pair = UnixDatagram::pair().expect("two sockets");
                let fds = [pair.0.as_raw_fd()];
                let passed: &[i32] = if spoils & 2 != 0 { &fds } else { &[] };
                let most = if spoils & 4 != 0 { usize::from(spoils) % 80 } else { 80 };
                let _ = sys::send_with_now(sender, &letter[..most], passed);
            }
        }
        conn.due.store(0, Relaxed);
        conn.meeting.due.store(0, Relaxed);
        rendezvous::tick(conn, fd);
        assert!(!conn.is_managed(), "somebody was believed");
    }
    close::closing(fd);
    sys::close(fd);
    drop(peer);
    while place.enemy.recv(&mut heard).is_ok() {}
    link::sweep();
}
