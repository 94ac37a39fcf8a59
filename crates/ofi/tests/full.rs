//! What a thread of the program sends into a full connection leaves although that thread does
//! nothing more. (A test of its own: it counts what is in all sockets of its process.)

use std::fs;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabric::Remote as _;
use ofi::{Link, Owner, Port};

const PATIENCE: Duration = Duration::from_secs(20);
const LEN: usize = 4096;
/// ioctl(): bytes that were not sent yet (linux/sockios.h).
const UNSENT: libc::c_ulong = 0x894B; // SIOCOUTQNSD

/// Takes nothing from the first call on, until it is let go on; hands out the values of all calls.
struct Owning {
    ready: Mutex<Sender<()>>,
    called: Mutex<Sender<u64>>,
    go_on: Mutex<Receiver<()>>,
}

impl Owner for Owning {
    fn ready(&self, _link: &Link) {
        let _ = self.ready.lock().expect("nobody panics with it").send(());
    }
    fn called(&self, _link: &Link, _what: u64, value: u64) {
        let _ = self.called.lock().expect("nobody panics with it").send(value);
        if value == 0 {
            let _ = self.go_on.lock().expect("nobody panics with it").recv();
        }
    }
}

struct Side {
    port: Port,
    owner: Arc<Owning>,
    ready: Receiver<()>,
    called: Receiver<u64>,
    go_on: Sender<()>,
}

fn side() -> Side {
    let (ready_to, ready) = channel();
    let (called_to, called) = channel();
    let (go_on, go_on_from) = channel();
    let owner = Arc::new(Owning {
        ready: Mutex::new(ready_to),
        called: Mutex::new(called_to),
        go_on: Mutex::new(go_on_from),
    });
    let guest = Arc::clone(&owner);
    let gate = move |_: &[u8]| {
        let owner: Arc<dyn Owner> = guest.clone();
        Some((LEN, owner))
    };
    let found = ofi::find(Some("tcp"), Some(Ipv4Addr::LOCALHOST.into())).expect("libfabric is there");
    let port = Port::open(found.first().expect("there is a loopback"), Box::new(gate)).expect("it opens");
    Side { port, owner, ready, called, go_on }
}

/// Calls `with` with each TCP socket of this process.
fn sockets(mut with: impl FnMut(i32)) {
    for entry in fs::read_dir("/proc/self/fd").expect("it is there") {
        let name = entry.expect("it is read").file_name();
        let fd: i32 = name.to_str().and_then(|name| name.parse().ok()).expect("a number");
        let (mut domain, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
        let to = (&raw mut domain).cast();
        // SAFETY: an integer that the kernel writes.
        let asked = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, to, &mut len) };
        if asked == 0 && domain == libc::AF_INET {
            with(fd);
        }
    }
}

/// The bytes that the kernel holds, to be sent or to be read.
fn held() -> u64 {
    let mut held = 0;
    sockets(|fd| {
        for request in [UNSENT, libc::FIONREAD] {
            let mut bytes = 0i32;
            // SAFETY: an integer that the kernel writes.
            if unsafe { libc::ioctl(fd, request, &raw mut bytes) } == 0 {
                held += bytes as u64;
            }
        }
    });
    held
}

/// Lets the sockets hold little, so that they are soon full.
fn keep_small() {
    let bytes = 50_000i32;
    sockets(|fd| {
        for buffer in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            let (from, len) = ((&raw const bytes).cast(), size_of::<i32>() as libc::socklen_t);
            // SAFETY: an integer.
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, buffer, from, len) };
        }
    });
}

#[test]
fn what_found_the_connection_full_leaves_when_there_is_room() {
    let (here, there) = (side(), side());
    let link =
        here.port.connect(there.port.address(), b"friend", LEN, here.owner.clone()).expect("it is asked");
    here.ready.recv_timeout(PATIENCE).expect("it stands here");
    there.ready.recv_timeout(PATIENCE).expect("it stands there");
    keep_small();
    let mut last = 0;
    for round in 0..30 {
        link.call(1, 0);
        assert_eq!(there.called.recv_timeout(PATIENCE), Ok(0));
        // From here on the other end reads nothing. The provider keeps a message in a buffer of its
        // own if the kernel has no room for any of it, and says that it was sent; if there is room
        // for a part, it waits. Of five first messages one makes it the former.
        let first = last + 1;
        for word in 0..round % 5 {
            link.take_hold();
            link.put_word(8 * word, 1);
        }
        (0..round % 5).for_each(|_| link.let_go());
        let mut before = held();
        loop {
            for _ in 0..20 {
                last += 1;
                link.call(2, last);
            }
            let now = held();
            if now <= before {
                break;
            }
            before = now;
        }
        there.go_on.send(()).expect("it waits");
        for expected in first..=last {
            assert_eq!(there.called.recv_timeout(PATIENCE), Ok(expected), "round {round}, of {last}");
        }
    }
}
