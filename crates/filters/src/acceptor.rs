//! How neighbours connect: each process listens, by TCP and at an abstract UNIX socket. Others
//! connect there and identify themselves. Those that can share memory pass it by the UNIX socket;
//! the others stay connected by TCP.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use native::{Listener, Path, Stream};
use serde::{Deserialize, Serialize};

use crate::link::Wire;
use crate::messages::{self, WorkerAddress};
use crate::running::Flag;

/// The most time that a neighbour may take for its handshake, and for the messages after it.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// More bytes than any handshake has.
const HANDSHAKE_MOST: usize = 512;

/// The first message of the connecting worker: its own number, and that of the worker that it
/// wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handshake {
    /// The secret of the group.
    pub token: String,
    /// The attempt at the plan.
    pub epoch: u64,
    /// The worker that connects.
    pub from: usize,
    /// The worker that it wants.
    pub to: usize,
}

/// A neighbour that has connected.
pub enum Guest {
    /// By the UNIX socket: memory will be passed.
    Kin(UnixStream),
    /// By TCP.
    Remote(Arc<dyn Wire>),
}

/// The sockets where a process listens, and the neighbours that have connected.
pub struct Acceptor {
    waiting: Arc<Waiting>,
    address: WorkerAddress,
    /// `None` if no neighbour will connect.
    tcp: Option<SocketAddr>,
}

/// The path of libshunt.so, if [`native::load`] would not find it by itself.
static LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// Sets the path of libshunt.so. To be called before the first group starts that has more than one
/// process: the library is loaded by then.
pub fn library_is_at(path: impl Into<PathBuf>) {
    let _ = LIBRARY.set(path.into()); // what was said first holds
}

struct Waiting {
    token: String,
    closed: Arc<Flag>,
    guests: Mutex<Guests>,
    came: Condvar,
}

#[derive(Default)]
struct Guests {
    waiting: HashMap<Handshake, Guest>,
}

impl Waiting {
    fn new(token: &str) -> Waiting {
        Waiting {
            token: token.into(),
            closed: Arc::default(),
            guests: Mutex::default(),
            came: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acceptor {
    /// Opens one at this address, for neighbours that know the token.
    pub fn open(address: IpAddr, token: &str) -> io::Result<Acceptor> {
        if let Some(path) = LIBRARY.get() {
            native::load(path);
        }
        let tcp = Listener::bind((address, 0), Path::Auto)?;
        let local = tcp.local_addr()?;
        let name = format!("shunt-filters-{:016x}{:016x}", fabric::sys::random(), fabric::sys::random());
        let unix = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
        let waiting = Arc::new(Waiting::new(token));
        let address = WorkerAddress { tcp: local.to_string(), unix: name, kin: kin() };
        let (remote, near) = (Arc::clone(&waiting), Arc::clone(&waiting));
        answer_each(
            "shunt-tcp-in",
            &waiting.closed,
            move || tcp.accept(),
            move |(stream, _)| remote.admit_remote(stream),
        )?;
        answer_each(
            "shunt-unix-in",
            &waiting.closed,
            move || unix.accept(),
            move |(stream, _)| near.admit_kin(stream),
        )?;
        Ok(Acceptor { waiting, address, tcp: Some(local) })
    }

    /// One without sockets, as there is no other process.
    pub fn none() -> Acceptor {
        let waiting = Waiting::new("");
        let address = WorkerAddress { tcp: String::new(), unix: String::new(), kin: String::new() };
        Acceptor { waiting: Arc::new(waiting), address, tcp: None }
    }

    /// Its address.
    pub fn address(&self) -> &WorkerAddress {
        &self.address
    }

    /// Waits for a neighbour.
    pub fn await_guest(&self, handshake: &Handshake, given_up: impl Fn() -> bool) -> io::Result<Guest> {
        let until = Instant::now() + PATIENCE;
        let mut guests = self.waiting.lock();
        loop {
            if let Some(guest) = guests.waiting.remove(handshake) {
                return Ok(guest);
            }
            let left = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
            if left.is_zero() || given_up() {
                let what = format!("worker {} has not come to worker {}", handshake.from, handshake.to);
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            guests = self.waiting.came.wait_timeout(guests, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drops neighbours that came for earlier attempts.
    pub fn forget_before(&self, epoch: u64) {
        self.waiting.lock().waiting.retain(|handshake, _| handshake.epoch >= epoch);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.waiting.closed.set();
        let Some(tcp) = &self.tcp else { return };
        // Makes the listening threads check once more.
        let _ = TcpStream::connect_timeout(tcp, Duration::from_secs(1));
        let _ = UnixAddr::from_abstract_name(&self.address.unix).and_then(|at| UnixStream::connect_addr(&at));
    }
}

impl Waiting {
    fn admit_remote(&self, stream: Stream) {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        // A malformed handshake gets no answer.
        if let Ok(handshake) = messages::receive_most::<Handshake>(&mut &stream, HANDSHAKE_MOST) {
            let _ = stream.set_read_timeout(None);
            self.admit(handshake, Guest::Remote(Arc::new(stream)));
        }
    }

    fn admit_kin(&self, mut stream: UnixStream) {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        if !trusted(&stream) {
            return;
        }
        if let Ok(handshake) = messages::receive_most::<Handshake>(&mut stream, HANDSHAKE_MOST) {
            self.admit(handshake, Guest::Kin(stream));
        }
    }

    fn admit(&self, handshake: Handshake, guest: Guest) {
        if handshake.token != self.token {
            return;
        }
        self.lock().waiting.insert(handshake, guest);
        self.came.notify_all();
    }
}

/// The most guests that are answered at once, as they have not proved anything yet; the others
/// wait.
const AT_ONCE: usize = 64;
/// How soon it checks again whether there is room, or a descriptor.
const SOON: Duration = Duration::from_millis(20);

/// Answers each guest in a thread of its own, until `closed` is set; the one that sets it must
/// connect once more. If there are no descriptors for a guest, it waits until there are.
pub fn answer_each<T: Send + 'static>(
    name: &'static str,
    closed: &Arc<Flag>,
    accept: impl Fn() -> io::Result<T> + Send + 'static,
    answer: impl Fn(T) + Send + Sync + 'static,
) -> io::Result<()> {
    let (closed, answer) = (Arc::clone(closed), Arc::new(answer));
    let there = Arc::new(AtomicUsize::new(0));
    let body = move || {
        while !closed.is_set() {
            if there.load(Ordering::Acquire) >= AT_ONCE {
                thread::sleep(SOON);
                continue;
            }
            let guest = match accept() {
                Ok(guest) => guest,
                Err(error) if is_over(&error) => return,
                Err(_) => {
                    thread::sleep(SOON);
                    continue;
                }
            };
            if closed.is_set() {
                return;
            }
            let (answer, present) = (Arc::clone(&answer), Present::of(&there));
            // If there can be no more threads, the connection is closed.
            let _ = thread::Builder::new().name(name.into()).spawn(move || {
                answer(guest);
                drop(present);
            });
        }
    };
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// Whether accept() will never succeed again, because the descriptor is no listening socket. All
/// other errors pass (no descriptors, no memory, a guest that has left).
fn is_over(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::EOPNOTSUPP))
}

/// A guest that is being answered.
struct Present(Arc<AtomicUsize>);

impl Present {
    fn of(there: &Arc<AtomicUsize>) -> Present {
        there.fetch_add(1, Ordering::AcqRel);
        Present(Arc::clone(there))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether the other end belongs to this user, or to root.
fn trusted(stream: &UnixStream) -> bool {
    use std::os::fd::AsRawFd as _;
    fabric::credentials::is_kin(stream.as_raw_fd())
}

/// Connects to a neighbour's UNIX socket.
pub fn connect_as_kin(address: &WorkerAddress, handshake: &Handshake) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&UnixAddr::from_abstract_name(&address.unix)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    if !trusted(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    messages::send(&mut stream, handshake)?;
    Ok(stream)
}

/// Connects to a neighbour's TCP socket. This end decides whether Shunt may promote the connection;
/// the other end allows it.
pub fn connect_remotely(
    address: &WorkerAddress,
    handshake: &Handshake,
    path: Path,
) -> io::Result<Arc<dyn Wire>> {
    let stream = Stream::connect(address.tcp.as_str(), path, Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    messages::send(&mut &stream, handshake)?;
    Ok(Arc::new(stream))
}

impl Wire for Stream {
    fn send(&self, mut parts: &mut [IoSlice]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match (&mut &*self).write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut parts, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(to)
    }

    fn read_now(&self, to: &mut [u8]) -> io::Result<usize> {
        Stream::read_now(self, to)
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both); // it may have ended by itself
    }

    fn way(&self) -> &'static str {
        if self.is_promoted() { "shunt" } else { "tcp" }
    }
}

/// A text that is equal for two processes if they can share memory.
fn kin() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").map(|to| to.display().to_string()).unwrap_or_default();
    format!("{} {net} {}", boot.trim(), fabric::sys::geteuid())
}

/// The most descriptors of one message; the kernel allows 253.
const FILES: usize = 128;

/// Passes files on.
pub fn send_files(to: &UnixStream, files: &[&OwnedFd]) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd as _;
    for part in files.chunks(FILES) {
        let borrowed: Vec<_> = part.iter().map(|file| file.as_fd()).collect();
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&borrowed));
        sendmsg(to, &[IoSlice::new(&[part.len() as u8])], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Takes as many files as are expected.
pub fn receive_files(from: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut files = Vec::new();
    while files.len() < count {
        let mut byte = [0u8];
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let before = files.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        if got.bytes != 1 || files.len() - before != byte[0] as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a neighbour did not hand over its memory",
            ));
        }
    }
    if files.len() == count { Ok(files) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Waits until the neighbour is as far, too: a byte each way.
pub fn agree(with: &mut UnixStream) -> io::Result<()> {
    with.write_all(&[1])?;
    let mut byte = [0];
    with.read_exact(&mut byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn one_who_finds_no_descriptor_does_not_shut_the_door() {
        let (closed, tries) = (Arc::new(Flag::default()), AtomicUsize::new(0));
        let (came, seen) = channel();
        let accept = move || match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
            1 => Err(io::Error::from_raw_os_error(libc::ECONNABORTED)),
            2 => Ok("guest"),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        answer_each("test", &closed, accept, move |guest| came.send(guest).unwrap()).unwrap();
        assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok("guest"));
    }

    #[test]
    fn those_who_say_nothing_are_so_many_at_most() {
        let (closed, (let_go, held)) = (Arc::new(Flag::default()), channel::<()>());
        let (came, seen) = channel();
        let (came, held) = (Mutex::new(came), Mutex::new(held));
        answer_each(
            "test",
            &closed,
            || Ok(()),
            move |()| {
                let _ = came.lock().unwrap().send(());
                // Until the test releases it.
                let _ = held.lock().unwrap().recv();
            },
        )
        .unwrap();
        for _ in 0..AT_ONCE {
            seen.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        assert!(seen.recv_timeout(SOON * 5).is_err(), "one more has been let in");
        let_go.send(()).unwrap();
        seen.recv_timeout(Duration::from_secs(20)).unwrap();
        closed.set();
        drop(let_go);
    }
}
