//! Where things lie in a link's segment. Each process exports one segment per link; the peer writes
//! into it. The offsets are the protocol between two versions of Shunt: change one and raise
//! [`VERSION`].
//!
//! | from | what | who writes |
//! |---|---|---|
//! | [`CTL`] | control queue, peer -> owner | peer |
//! | [`CTL_BACK`] | read index of the control queue owner -> peer | peer |
//! | [`HINTS`] | [`QUEUES`] event queues of hints | peer sets, owner takes |
//! | [`SLOT`] | one header of [`SLOT_BYTES`] for each of [`SLOTS`] connections | see below |
//! | [`BIGS`] | [`GROWN`] big rings, for connections that grow | peer |
//! | [`DATA`] | a small ring for each slot | peer |
//! | [`VIAS`] | [`VIA`] bytes for each slot: queues of Virtual Interfaces; if stream = via | peer |

use fabric::{hints, queue};
use stream::sovia;

/// Version of the layout and of the hand-shake.
pub const VERSION: u32 = 14;
/// Connections that fit in one link; a pair of processes may have many links.
pub const SLOTS: usize = hints::SLOTS;
/// Event queues of a process (one for each epoll set that has promoted members).
pub const QUEUES: usize = 8;
/// Bells for single calls: so many threads may sleep by one each.
pub const CALL_BELLS: usize = 24;
/// Bells of a process, which it passes to processes of its own user: bell n is event queue n's, and
/// those from [`CALL_BELL`] on are for single calls.
pub const BELLS: usize = QUEUES + CALL_BELLS;
pub const CALL_BELL: usize = QUEUES;
/// Bells that are passed with the hand-shake, at most: the first for single calls, and those of as
/// many event queues as there are sets. The others follow when they are needed.
pub const FIRST_BELLS: usize = 1 + QUEUES;
/// Capacity of the ring that a connection starts with.
pub const SMALL: usize = 16 << 10;
/// Capacity of the ring that it grows to.
pub const BIG: usize = 256 << 10;
/// So many of these each direction of a link has: who writes gives them to the connections that
/// fill their small rings, and takes them back when both ends have left the slot. Most connections
/// never need one, and what each of them could have, it would keep when it is idle.
pub const GROWN: usize = 16;

pub const CTL: usize = 0;
pub const CTL_BACK: usize = (CTL + queue::BYTES).next_multiple_of(64);
pub const HINTS: usize = (CTL_BACK + 64).next_multiple_of(256);
pub const SLOT: usize = (HINTS + QUEUES * hints::BYTES).next_multiple_of(4096);
pub const SLOT_BYTES: usize = 256;
pub const BIGS: usize = (SLOT + SLOTS * SLOT_BYTES).next_multiple_of(4096);
pub const DATA: usize = BIGS + GROWN * BIG;
/// Bytes of the queues and buffers of a connection that goes by Virtual Interfaces.
pub const VIA: usize = sovia::BYTES.next_multiple_of(4096);
/// Bytes that can be under way at most, on all ways of a direction together.
pub const UNDER_WAY: usize = SMALL + BIG + VIA;
pub const VIAS: usize = DATA + SLOTS * SMALL;
/// Length of a segment: of a process whose bytes go by rings, and of one whose bytes may go by
/// Virtual Interfaces.
pub const SEGMENT: usize = VIAS;
pub const SEGMENT_VIA: usize = VIAS + SLOTS * VIA;

// Words of a slot's header. First line: put by the peer as the producer of what we read.
/// Write position of the ring that we read.
pub const W: usize = 0;
/// Announcement: from this many bytes of tcp on, plus one, the small ring is used. 0: not
/// announced. Each change happens at most once and in this order, so that an announcement is never
/// overwritten.
pub const SMALL_AT: usize = 8;
/// Announcement: from this position on, plus one, the big ring that [`BIG_RING`] tells.
pub const BIG_AT: usize = 16;
/// Announcement: from this position on, plus one, tcp for good.
pub const TCP_AT: usize = 24;
/// Kicks sent to us.
pub const KICKS: usize = 32;
/// How often the peer has fired our tripwire, and done what that asked for.
pub const FIRED: usize = 40;
/// The peer's descriptor of its end, plus one: a hint.
pub const FD: usize = 48;
/// When the peer last set a hint for us, in ticks: epoll sets tell of what came first first.
pub const HINTED: usize = 56;
// Second line: put by the peer as the consumer of what we write, at every read.
/// Read position of the ring that we write.
pub const R: usize = 64;
/// Processor on which the peer last began to wait, plus one.
pub const CPU: usize = 72;
// Third line: the tripwire, armed by us, fired by the peer.
pub const TRIP: usize = 128;
/// Who sends the bytes that we have recalled (bits of `path::claim`).
pub const CLAIM: usize = 136;
// Fourth line: put by the peer now and then, looked at by us at every write.
/// Bits of [`note`].
pub const NOTES: usize = 192;
/// With [`note::RECALL`]: the position from which our bytes are to go by tcp.
pub const RECALL_AT: usize = 200;
/// With [`note::RECALL`], if the peer has sent recalled bytes in our stead (see [`CLAIM`]): up to
/// this position, plus one.
pub const RESENT_TO: usize = 208;
/// Answer to our offer: 0, or bits [`ACCEPTED`], [`REFUSED`], [`CANCELLED`]; and
/// [`SMALL_BUFFERS_SET`].
pub const STATE: usize = 216;

/// Before [`BIG_AT`]: which of the big rings it is, plus one.
pub const BIG_RING: usize = 224;

pub const ACCEPTED: u64 = 1;
pub const REFUSED: u64 = 2;
/// We took the offer back.
pub const CANCELLED: u64 = 4;
/// Since we made it, our program has set a small receive buffer: as [`note::SMALL_BUFFERS`], which
/// the peer takes for an earlier slot's until it has taken this one.
pub const SMALL_BUFFERS_SET: u64 = 8;

/// What a peer tells about its end.
pub mod note {
    /// It has closed its last descriptor.
    pub const CLOSED: u64 = 1;
    /// It has shut its writing half.
    pub const SHUT_WR: u64 = 2;
    /// It asks us to write by tcp from now on; also with [`RECALL`].
    pub const DEMOTE: u64 = 4;
    /// It reads no more from the ring: what lies beyond RECALL_AT goes by tcp.
    pub const RECALL: u64 = 8;
    /// It has left the slot and will not touch it again: the slot's owner may give it to another
    /// connection.
    pub const GONE: u64 = 32;
    /// Its program has set a small receive buffer.
    pub const SMALL_BUFFERS: u64 = 64;
    /// Between hosts: it has found our END, and sends no STOP any more.
    pub const END_HEARD: u64 = 256;
    /// A process that has it ends: the kernel may tell of the end of the connection without a word
    /// in memory. Between hosts: what it has put is there; its END comes by tcp, and whatever it
    /// may still say.
    pub const ENDING: u64 = 512;
    /// With [`RECALL`]: its program goes through exec(), and the next image may offer a slot for
    /// the connection again.
    pub const AGAIN: u64 = 128;
}

/// Bytes of a segment that are mapped for its first `slots` connections.
pub const fn mapped(slots: usize) -> usize {
    DATA + slots * SMALL
}

/// How much one mapping of ours may take of the address space of a process that may have so much:
/// what we take, the program cannot have any more.
const fn share(address_space: u64) -> usize {
    (address_space / 32) as usize
}

/// Connections that a link has room for in a process that may have so much address space.
pub const fn slots_within(address_space: u64) -> usize {
    let most = share(address_space);
    if most >= SEGMENT { SLOTS } else { most.saturating_sub(DATA) / SMALL }
}

/// Entries of `bytes` that a table has room for there, of the `most` that it has elsewhere.
pub const fn entries_within(address_space: u64, most: usize, bytes: usize) -> usize {
    let room = share(address_space) / bytes;
    if room < most { room } else { most }
}

/// Offset of a slot's header.
pub const fn slot(index: usize) -> usize {
    SLOT + index * SLOT_BYTES
}

/// Offset of a slot's small ring.
pub const fn small(index: usize) -> usize {
    DATA + index * SMALL
}

/// Offset of the big ring with this number, as [`BIG_RING`] has it; whatever that is, it is one of
/// them.
pub const fn big(number: u64) -> usize {
    BIGS + (number.wrapping_sub(1) % GROWN as u64) as usize * BIG
}

/// Offset of a slot's queues and buffers of Virtual Interfaces.
pub const fn via(index: usize) -> usize {
    VIAS + index * VIA
}

/// Links that a process can have, if its address space is not limited (setrlimit(RLIMIT_AS)).
pub const LINKS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_address_space_has_room_for_some() {
        assert_eq!(slots_within(u64::MAX), SLOTS);
        let few = slots_within(200 << 20);
        assert!(few >= 2 && mapped(few) <= (200 << 20) / 32, "{few}");
        assert_eq!(slots_within(1 << 20), 0);
        assert_eq!(entries_within(u64::MAX, 4096, 700), 4096);
        assert_eq!(entries_within(60 << 20, 4096, 700), (60 << 20) / 32 / 700);
        assert_eq!(entries_within(1 << 14, 4096, 700), 0);
    }
}
