//! What the kernel keeps of files, sockets, epoll sets and processes: plain data.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use syscalls::{Errno, Sysno};

/// Things by numbers that are never given out again.
pub(super) struct Table<T> {
    next: u64,
    items: BTreeMap<u64, T>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { next: 1, items: BTreeMap::new() }
    }
    pub(super) fn add(&mut self, item: T) -> u64 {
        let id = self.next;
        self.next += 1;
        self.items.insert(id, item);
        id
    }
    pub(super) fn find(&self, id: u64) -> Option<&T> {
        self.items.get(&id)
    }
    pub(super) fn find_mut(&mut self, id: u64) -> Option<&mut T> {
        self.items.get_mut(&id)
    }
    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        self.items.remove(&id)
    }
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.items.iter_mut().map(|(&id, item)| (id, item))
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.items.iter().map(|(&id, item)| (id, item))
    }
}

impl<T> core::ops::Index<u64> for Table<T> {
    type Output = T;
    fn index(&self, id: u64) -> &T {
        &self.items[&id]
    }
}

impl<T> core::ops::IndexMut<u64> for Table<T> {
    fn index_mut(&mut self, id: u64) -> &mut T {
        self.items.get_mut(&id).expect("numbers of things are kept no longer than these")
    }
}

/// An open file description.
pub(super) struct File {
    /// Descriptors, messages under way and calls that use it.
    pub(super) refs: u32,
    /// O_NONBLOCK and the like.
    pub(super) flags: i32,
    pub(super) position: u64,
    pub(super) kind: Kind,
    /// Memberships in epoll sets (the set's file, the number by which it is a member), in the order
    /// in which they hear of changes.
    pub(super) members: Vec<(u64, i32)>,
    pub(super) inode: u64,
}

/// What it is of.
pub(super) enum Kind {
    Null,
    Random,
    Tcp(u64),
    Unix(u64),
    Netlink(VecDeque<Vec<u8>>),
    Counter(Counter),
    Set(Set),
    /// A memfd.
    Memory(u64),
    /// A file of the file system.
    Disk(u64),
    /// What is made up when it is opened.
    Text(Vec<u8>),
    Folder(Vec<(u64, Vec<u8>)>),
    Process(u32),
}

/// An eventfd.
pub(super) struct Counter {
    pub(super) count: u64,
    pub(super) semaphore: bool,
}

/// An epoll set.
#[derive(Default)]
pub(super) struct Set {
    pub(super) items: BTreeMap<(u64, i32), Item>,
    pub(super) ready: VecDeque<(u64, i32)>,
    /// The order in which its events were last looked through is that of `ready`; those who sleep
    /// on it.
    pub(super) sleepers: BTreeSet<u32>,
}

/// A member of an epoll set.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) events: u32,
    pub(super) data: u64,
}

/// Half of [`Tcp::shut`] and [`Unix::shut`].
pub(super) const RCV: u8 = 1;
pub(super) const SEND: u8 = 2;

/// As tcpi_state has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum State {
    Established = 1,
    SynSent = 2,
    SynRecv = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    Close = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
}

/// `sock->state`: what connect() has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linked {
    Unconnected,
    Connecting,
    Connected,
    Disconnecting,
}

/// An IPv4 address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Addr {
    pub(super) ip: u32,
    pub(super) port: u16,
}

/// The urgent byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgent {
    None,
    NotYet,
    Valid(u8),
    Read,
}

/// What all sockets have.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) file: Option<u64>,
    pub(super) error: Option<Errno>,
    pub(super) shut: u8,
    pub(super) cookie: u64,
    pub(super) uid: u32,
    /// The network namespace.
    pub(super) space: u32,
    pub(super) inode: u64,
    pub(super) rcvtimeo: Option<u64>,
    pub(super) sndtimeo: Option<u64>,
    pub(super) sndbuf: usize,
    pub(super) rcvbuf: usize,
    pub(super) lowat: usize,
    /// SO_OOBINLINE.
    pub(super) inline: bool,
    pub(super) linger: Option<u32>,
    pub(super) peek_at: Option<usize>,
    /// Options that are only kept: (level, name) -> value.
    pub(super) options: BTreeMap<(i32, i32), i32>,
}

impl Common {
    /// SO_PEEK_OFF after so many bytes were peeked at, or read.
    pub(super) fn move_peek(&mut self, bytes: usize, peek: bool) {
        self.peek_at = self.peek_at.map(|at| if peek { at + bytes } else { at.saturating_sub(bytes) });
    }
}

/// A TCP socket.
#[derive(Clone)]
pub(super) struct Tcp {
    pub(super) common: Common,
    pub(super) state: State,
    pub(super) linked: Linked,
    pub(super) local: Addr,
    pub(super) remote: Addr,
    /// Whether the port is its own (bound, or connected and not done).
    pub(super) holds_port: bool,
    pub(super) bound: bool,
    /// Whether to an address of its own.
    pub(super) bound_ip: bool,
    /// The other end; 0: none.
    pub(super) peer: u64,
    pub(super) connects: bool,
    // Receiving: offsets in the stream.
    pub(super) queue: VecDeque<u8>,
    pub(super) copied: u64,
    pub(super) received: u64,
    /// Whether FIN has come: it counts in `received`.
    pub(super) done: bool,
    pub(super) urgent: Urgent,
    pub(super) urgent_at: u64,
    /// The room last told to the other end, by the offset up to which it may send.
    pub(super) told: u64,
    // Sending.
    pub(super) unacked: VecDeque<u8>,
    pub(super) acked: u64,
    pub(super) sent: u64,
    pub(super) written: u64,
    pub(super) allowed: u64,
    /// The offset behind the last urgent byte.
    pub(super) urgent_sent: u64,
    pub(super) fin: bool,
    pub(super) fin_sent: bool,
    pub(super) fin_acked: bool,
    pub(super) no_space: bool,
    pub(super) corked: bool,
    /// Until when it is held together at most.
    pub(super) cork_until: Option<u64>,
    /// When its last segment arrives.
    pub(super) arrives: u64,
    // Listening.
    pub(super) backlog: usize,
    pub(super) accepted: VecDeque<u64>,
    /// Whose queue it is in, or will be.
    pub(super) listener: u64,
    /// TCP_SAVE_SYN, and the time stamp of the SYN that is kept of one that was accepted.
    pub(super) saves_syn: bool,
    pub(super) saved_syn: Option<u32>,
    /// What its time stamps are more than the clock, in ms.
    pub(super) stamp: u32,
    /// Offsets at which a segment ends (MSG_EOR), of what has not been sent.
    pub(super) edges: VecDeque<u64>,
    /// Segments with data, each way.
    pub(super) segments_out: u32,
    pub(super) segments_in: u32,
}

impl Tcp {
    /// Bytes that have come and are not read, FIN counted as one.
    pub(super) fn unread(&self) -> u64 {
        self.received.saturating_sub(self.copied)
    }

    /// Where the data that has come ends.
    pub(super) fn end(&self) -> u64 {
        self.received - u64::from(self.done)
    }

    /// `tcp_epollin_ready`: as much as is asked for, or as much as there is room for.
    pub(super) fn readable(&self, target: usize) -> bool {
        let full = self.queue.len() >= self.common.rcvbuf - self.common.rcvbuf / 16;
        self.unread() > 0 && (self.unread() >= target as u64 || full)
    }

    /// Whether a third of the room is free (`sk_stream_is_writeable`).
    pub(super) fn is_writable(&self) -> bool {
        self.common.sndbuf.saturating_sub(self.unacked.len()) >= self.unacked.len() / 2
            && self.unacked.len() < self.common.sndbuf
    }
}

/// What is on its way to a TCP socket.
pub(super) enum Parcel {
    /// The client.
    Syn(u64),
    SynAck {
        to: u64,
        from: u64,
        allowed: u64,
    },
    Segment(Segment),
    Reset {
        to: u64,
    },
    /// A cork has been in for as long as it may.
    Uncork(u64),
    /// A write that was cut short by chance could go on.
    Space(u64),
}

impl Parcel {
    /// The socket that it is for; 0: one that listens.
    pub(super) fn target(&self) -> u64 {
        match self {
            Parcel::Syn(_) => 0,
            Parcel::SynAck { to, .. } | Parcel::Reset { to } => *to,
            Parcel::Segment(segment) => segment.to,
            Parcel::Uncork(id) | Parcel::Space(id) => *id,
        }
    }
}

/// Data, FIN and acknowledgements.
pub(super) struct Segment {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) at: u64,
    pub(super) data: Vec<u8>,
    /// The offset of the urgent byte.
    pub(super) urgent: Option<u64>,
    pub(super) fin: bool,
    pub(super) acked: u64,
    pub(super) allowed: u64,
}

/// A message in a UNIX socket.
pub(super) struct Message {
    pub(super) data: VecDeque<u8>,
    pub(super) from: u64,
    pub(super) name: Vec<u8>,
    pub(super) creds: (u32, u32, u32),
    /// Whether they were passed on.
    pub(super) rights: Vec<u64>,
    pub(super) peeked: bool,
    /// What it takes of the sender's room until it is received.
    pub(super) weight: usize,
}

/// A UNIX socket.
pub(super) struct Unix {
    pub(super) common: Common,
    pub(super) kind: i32,
    pub(super) state: State,
    pub(super) name: Vec<u8>,
    pub(super) peer: u64,
    /// The name of a peer that has gone.
    pub(super) peer_name: Vec<u8>,
    /// Of the peer, when the connection was made; of one that listens: its own.
    pub(super) peer_creds: Option<(u32, u32, u32)>,
    pub(super) queue: VecDeque<Message>,
    /// Bytes of ours that others have not received yet.
    pub(super) weight: usize,
    pub(super) backlog: usize,
    pub(super) accepted: VecDeque<u64>,
    pub(super) pass_creds: bool,
    /// SO_PASSRIGHTS: whether descriptors may be passed to it.
    pub(super) pass_rights: bool,
    /// A classic packet filter: what is let in.
    pub(super) filter: Option<Vec<(u16, u8, u8, u32)>>,
}

/// What a UNIX socket is found by.
pub(super) type Name = (Vec<u8>, i32, u32);

/// The same of a name: an abstract one is one of its type and its network namespace, a path is of
/// none.
pub(super) fn key(name: &[u8], kind: i32, space: u32) -> Name {
    let abstractly = name.first().is_none_or(|&byte| byte == 0);
    (name.to_vec(), if abstractly { kind } else { 0 }, if abstractly { space } else { 0 })
}

impl Unix {
    pub(super) fn is_stream(&self) -> bool {
        self.kind == libc::SOCK_STREAM
    }

    /// What it is found by.
    pub(super) fn key(&self, name: &[u8]) -> Name {
        key(name, self.kind, self.common.space)
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.kind == libc::SOCK_DGRAM
    }

    /// `unix_writable`: a quarter of the room is in use at most.
    pub(super) fn is_writable(&self) -> bool {
        self.state != State::Listen && self.weight * 4 <= self.common.sndbuf
    }

    /// `unix_recvq_full`.
    pub(super) fn is_full(&self) -> bool {
        let waiting = if self.state == State::Listen { self.accepted.len() } else { self.queue.len() };
        waiting > self.backlog
    }
}

/// The contents of a file.
pub(super) struct Inode {
    pub(super) refs: u32,
    pub(super) name: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) seals: i32,
    pub(super) data: Data,
}

pub(super) enum Data {
    Bytes(Vec<u8>),
    /// A UNIX socket's, which may be gone.
    Socket(u64),
    /// A real memfd, so that it can be mapped.
    Memory {
        fd: i32,
        len: usize,
    },
}

/// A descriptor.
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) file: u64,
    pub(super) cloexec: bool,
}

pub(super) struct Process {
    pub(super) parent: u32,
    pub(super) uids: [u32; 3],
    pub(super) gids: [u32; 3],
    pub(super) descriptors: Vec<Option<Descriptor>>,
    pub(super) limits: [(u64, u64); 16],
    pub(super) name: Vec<u8>,
    /// The network namespace.
    pub(super) space: u32,
}

pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) blocked: u64,
    pub(super) sleep: Option<Sleep>,
}

/// A call that has not ended yet.
#[derive(Clone)]
pub(super) struct Sleep {
    pub(super) number: Sysno,
    pub(super) args: [usize; 6],
    pub(super) deadline: Option<u64>,
    /// Whether the deadline is known.
    pub(super) begun: bool,
    /// Bytes moved so far.
    pub(super) done: usize,
    /// Of futex(): whether it waits, and whether it has been woken.
    pub(super) waits: bool,
    pub(super) woken: bool,
    /// The files that it uses, with the numbers by which it named them: they stay, whoever closes
    /// these meanwhile.
    pub(super) held: Vec<(i32, u64)>,
}
