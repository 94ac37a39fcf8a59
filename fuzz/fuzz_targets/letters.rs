//! Letters of a hostile process at the meeting place: it knows where a connection of ours is posted, asks for a proof, answers, shows
//! seeds and passes descriptors, rightly and wrongly, while the program goes on to send and receive. Nothing may panic, hang or keep a
//! descriptor, and nobody is believed. The headers of a SYN that somebody has sent are read, too.
#![no_main]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;

use fabric::sys;
use fuzz::{connection, descriptors};
use libfuzzer_sys::fuzz_target;
use options::{Options, Text};
use sockets::{close, io, link, process, rendezvous};

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
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    host::syn::save(listener.as_raw_fd());
    let place = Place { listener, folder, enemy };
    one(&place, &[0; 64]);
    // An invitation, and a look for its answer: else all that follows would be thrown away unread.
    assert_ne!(one(&place, &[5, 1, 0, 4]), 0, "who is invited answers");
    place
});

fuzz_target!(|input: &[u8]| {
    host::syn::stamp(input);
    let place = &*PLACE;
    let before = descriptors();
    let _ = one(place, input);
    assert_eq!(descriptors(), before, "a descriptor is left");
});

/// The life of one connection; how many letters came.
fn one(place: &Place, input: &[u8]) -> usize {
    let mut letters = 0;
    let mut input = input.iter().copied();
    let (mut peer, fd, conn) = connection(&place.listener);
    let ours = std::fs::read_dir(&place.folder).expect("it was made").flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        (name.ends_with('l') && !name.starts_with(&format!("{TOKEN:016x}"))).then(|| entry.path())
    });
    let ours = ours.expect("ours is there");
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
            4 => letters += usize::from(place.enemy.recv(&mut heard).is_ok()),
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
                // Not the socket that answers go to: one that is connected hears its peer alone.
                let sender = UnixDatagram::unbound().expect("a socket");
                sender.connect(&ours).expect("ours is there");
                let pair = UnixDatagram::pair().expect("two sockets");
                let fds = [pair.0.as_raw_fd()];
                let passed: &[i32] = if spoils & 2 != 0 { &fds } else { &[] };
                let most = if spoils & 4 != 0 { usize::from(spoils) % 80 } else { 80 };
                let _ = sys::send_with_now(sender.as_raw_fd(), &letter[..most], passed);
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
    letters
}
