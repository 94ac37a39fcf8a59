//! How neighbours find each other: each process has a *door*, a TCP and an abstract UNIX socket, where others knock and say who they are. Those
//! that can share memory hand it over by the UNIX socket; the others stay connected by TCP.

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
use crate::messages::{self, Door};
use crate::running::Flag;

/// How long a neighbour may take to knock, and to say what it has to say.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// More than any knock has.
const KNOCK_MOST: usize = 512;

/// Who knocks, and at whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Knock {
    /// The secret of the group.
    pub token: String,
    /// The attempt at the plan.
    pub epoch: u64,
    /// The worker that knocks.
    pub from: usize,
    /// The worker that it wants.
    pub to: usize,
}

/// Who has come in.
pub enum Guest {
    /// By the UNIX socket: memory will be handed over.
    Kin(UnixStream),
    /// By TCP.
    Far(Arc<dyn Wire>),
}

/// A process's own door.
pub struct OwnDoor {
    hall: Arc<Hall>,
    door: Door,
    /// `None` if nobody is to come.
    tcp: Option<SocketAddr>,
}

/// Where libshunt.so is, if it lies where [`native::load`] would not look for it by itself.
static LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// Says where libshunt.so is: before the first group starts that has more than one process. It is loaded by then, not before.
pub fn library_is_at(path: impl Into<PathBuf>) {
    let _ = LIBRARY.set(path.into()); // what was said first holds
}

struct Hall {
    token: String,
    closed: Arc<Flag>,
    guests: Mutex<Guests>,
    came: Condvar,
}

#[derive(Default)]
struct Guests {
    waiting: HashMap<Knock, Guest>,
}

impl Hall {
    fn new(token: &str) -> Hall {
        Hall { token: token.into(), closed: Arc::default(), guests: Mutex::default(), came: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnDoor {
    /// Opens one at this address, for those who know the token.
    pub fn open(address: IpAddr, token: &str) -> io::Result<OwnDoor> {
        if let Some(path) = LIBRARY.get() {
            native::load(path);
        }
        let tcp = Listener::bind((address, 0), Path::Auto)?;
        let local = tcp.local_addr()?;
        let name = format!("shunt-filters-{:016x}{:016x}", fabric::sys::random(), fabric::sys::random());
        let unix = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
        let hall = Arc::new(Hall::new(token));
        let door = Door { tcp: local.to_string(), unix: name, kin: kin() };
        let (far, near) = (Arc::clone(&hall), Arc::clone(&hall));
        answer_each(
            "shunt-door-tcp",
            &hall.closed,
            move || tcp.accept(),
            move |(stream, _)| far.admit_far(stream),
        )?;
        answer_each(
            "shunt-door-unix",
            &hall.closed,
            move || unix.accept(),
            move |(stream, _)| near.admit_kin(stream),
        )?;
        Ok(OwnDoor { hall, door, tcp: Some(local) })
    }

    /// One that nobody comes to, as there is no other process.
    pub fn none() -> OwnDoor {
        let hall = Hall::new("");
        let door = Door { tcp: String::new(), unix: String::new(), kin: String::new() };
        OwnDoor { hall: Arc::new(hall), door, tcp: None }
    }

    /// Where it is.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Waits for a neighbour.
    pub fn await_guest(&self, knock: &Knock, given_up: impl Fn() -> bool) -> io::Result<Guest> {
        let until = Instant::now() + PATIENCE;
        let mut guests = self.hall.lock();
        loop {
            if let Some(guest) = guests.waiting.remove(knock) {
                return Ok(guest);
            }
            let left = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
            if left.is_zero() || given_up() {
                let what = format!("worker {} has not come to worker {}", knock.from, knock.to);
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            guests = self.hall.came.wait_timeout(guests, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Forgets those who came for earlier attempts.
    pub fn forget_before(&self, epoch: u64) {
        self.hall.lock().waiting.retain(|knock, _| knock.epoch >= epoch);
    }
}

impl Drop for OwnDoor {
    fn drop(&mut self) {
        self.hall.closed.set();
        let Some(tcp) = &self.tcp else { return };
        // The threads that listen look once more.
        let _ = TcpStream::connect_timeout(tcp, Duration::from_secs(1));
        let _ = UnixAddr::from_abstract_name(&self.door.unix).and_then(|at| UnixStream::connect_addr(&at));
    }
}

impl Hall {
    fn admit_far(&self, stream: Stream) {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        // Whoever says nothing that is understood is not answered.
        if let Ok(knock) = messages::receive_most::<Knock>(&mut &stream, KNOCK_MOST) {
            let _ = stream.set_read_timeout(None);
            self.admit(knock, Guest::Far(Arc::new(stream)));
        }
    }

    fn admit_kin(&self, mut stream: UnixStream) {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        if !trusted(&stream) {
            return;
        }
        if let Ok(knock) = messages::receive_most::<Knock>(&mut stream, KNOCK_MOST) {
            self.admit(knock, Guest::Kin(stream));
        }
    }

    fn admit(&self, knock: Knock, guest: Guest) {
        if knock.token != self.token {
            return;
        }
        self.lock().waiting.insert(knock, guest);
        self.came.notify_all();
    }
}

/// The most guests that are answered at once, as they have proved nothing before; the others wait.
const AT_ONCE: usize = 64;
/// How soon it is looked again whether there is room, or a descriptor.
const SOON: Duration = Duration::from_millis(20);

/// Answers each of those who come, in a thread of its own, until `closed` is set: whoever sets it comes once more. Where there are no descriptors
/// for a guest it waits until there are.
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
            // Where there can be no more threads, the guest is turned away.
            let _ = thread::Builder::new().name(name.into()).spawn(move || {
                answer(guest);
                drop(present);
            });
        }
    };
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// Whether accept() will never give anybody any more: its socket is none. All else passes (no descriptors, no memory, a guest that has left).
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

/// Whether the other end is of this user, or root.
fn trusted(stream: &UnixStream) -> bool {
    use std::os::fd::AsRawFd as _;
    fabric::credentials::is_kin(stream.as_raw_fd())
}

/// Knocks at a neighbour's UNIX socket.
pub fn knock_as_kin(door: &Door, knock: &Knock) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&UnixAddr::from_abstract_name(&door.unix)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    if !trusted(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    messages::send(&mut stream, knock)?;
    Ok(stream)
}

/// Knocks at a neighbour's TCP socket. This end says whether Shunt may promote the connection; the other would let it.
pub fn knock_from_far(door: &Door, knock: &Knock, path: Path) -> io::Result<Arc<dyn Wire>> {
    let stream = Stream::connect(door.tcp.as_str(), path, Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    messages::send(&mut &stream, knock)?;
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

/// What two processes have in common that can share memory.
fn kin() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").map(|to| to.display().to_string()).unwrap_or_default();
    format!("{} {net} {}", boot.trim(), fabric::sys::geteuid())
}

/// Most descriptors that go with one message; the kernel takes 253.
const FILES: usize = 128;

/// Hands files over.
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

/// Waits until the neighbour has said so, too: a byte each way.
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
                // Until the test lets it go.
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
