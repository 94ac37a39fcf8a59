//! The Virtual Interface Architecture over remote memory ("VIA over the CLAN network", section 3):
//! NICs, protection tags, registered memory, Virtual Interfaces, completion queues and connections.
//! The crate `vipl` puts C functions in front of it; docs/vipl.md is for users. It shares `fabric`
//! with the sockets and nothing else: it is ordinary Rust, with threads and allocation, in
//! processes that asked for it.
//!
//! * **Handles** ([`handles`]) are numbers, never addresses. The memory of a pool is never freed,
//!   so a thread that comes too late locks memory of the right type and asks whether the handle
//!   still stands.
//! * **Children of fork()** (`fork`): each static is a `PerProcess`, which the child writes anew
//!   without reading the old one; sockets are `Fd`s, which it closes. A new static of this crate
//!   that a child must not share has to be one of these.
//! * **A connection** ([`connect`]) is a UNIX socket that stays, as its end is the peer's, and a
//!   *segment* of each end ([`segment`]). Abstract socket names made of user and discriminator are
//!   the registry. The kernel says who the other end is (`user`), before anything is passed. There
//!   are no links as between sockets: a VIPL program makes few connections, and a peer that breaks
//!   the rules can damage only memory that it maps.
//! * **Queues** ([`wire`]): the receiver writes a cookie for each descriptor into the sender's
//!   segment, the sender an entry into the receiver's. Each carries its own number in the word that
//!   is written last; there are no read or write pointers. The receiver chooses the entry's slot,
//!   the one that was free last, and small messages are in the entry: a message costs one line of
//!   memory.
//! * **Engines** ([`transfer`]): entry, eager buffer, or (from a length on that `engine` measures)
//!   process_vm_writev() behind the *gate* ([`gate`]), two words by which the owner of a buffer
//!   that it takes back knows that no peer is writing to it. Into buffers that programs got from
//!   the library ([`arena`]: one sealed memfd that every peer maps) the sender copies itself,
//!   behind the same gate. Region tables ([`memory`]) lie in shared memory, where peers read them
//!   before RDMA.
//! * **Sends are done at once**, by the thread that posts them, unless they wait for a descriptor
//!   or for room. Then the *agent* ([`agent`]), a thread that listens to all sockets, goes on with
//!   them when the peer kicks. Another thread runs the program's handlers.
//! * **Completion queues** ([`cq`]) keep no entries: peers set a bit for a Virtual Interface whose
//!   tripwire they find armed, and a poll checks those that have one. So nothing overflows, and a
//!   poll costs the same however many Virtual Interfaces there are.
//!
//! # Between hosts
//!
//! All of that stays ([`remote`]; the crate `cm` does what it asks for, as `stream`, and so
//! libshunt.so, must not depend on libfabric). The differences:
//!
//! * **The peer's segment** (`remote::Peer`) is memory that both map on one host. Between hosts it
//!   is a shadow and a *wire*: bytes go into the shadow and from there by the link (`ofi`). The own
//!   segment is then the link's, and takes the place of the one that the Virtual Interface was made
//!   with (`vi::exchange`) before anything is announced. All that one posting call puts goes
//!   together (`Wire::hold`).
//! * **Tripwires** are fired where they are armed, by the thread that reads the link's completions:
//!   `Watch` wakes sleepers, sets the hint in the own completion queue, or has the agent check
//!   (`agent::kick`). It is called under any lock, and takes none.
//! * **Connecting**: the registry is the same, the names of the UNIX sockets. The requesting
//!   program calls the other host's agent, which connects to that socket and passes the TCP
//!   connection on. The hello is the same, without the parts about memory. So nothing is registered
//!   anywhere, and nothing is left of a process that dies. Before an ACCEPT or CONFIRM, which go by
//!   TCP, each end calls by the link. The other end waits for that call, behind which all cookies
//!   are.
//! * **No descriptor**: a cookie may be under way when the program sends because it learned of the
//!   descriptor in another way. So the sender asks the peer, and answers come behind all cookies
//!   (`SendQueue::ask`): only then there is none.
//! * **RDMA** is a request: operation and place, and the bytes of a write, go into the peer's
//!   segment. The peer's agent carries it out under the receive queue's lock (`transfer::serve`).
//!   The descriptor waits for the answer in the send queue, so later ones stay behind it. One at a
//!   time.
//! * **The end**: the last message goes by the link, behind everything, and is confirmed before the
//!   link is closed. If TCP ends without one, the link has a second for bytes that are under way.
//!   Linux checks on hosts that are silent (keepalive).
//!
//! # Modules
//!
//! Bottom up; each uses only those before it:
//!
//! * words and numbers: [`abi`], `limits`, `until`, [`lock`], [`gate`], [`wire`], `user`,
//!   `process`;
//! * what a process has: [`handles`], [`arena`], [`memory`], `opened` (NIC handles, tags, regions),
//!   `handlers` (the program's);
//! * what a connection has: `remote::link`, [`segment`], `socket`, `remote::peer`, [`descriptor`],
//!   `engine`, [`transfer`], [`queue`];
//! * `cq::members`, `connect::pending`, then [`vi`]: its places, waking, connection, work;
//! * those that poll Virtual Interfaces: [`cq`], [`agent`]; those that connect them: [`remote`],
//!   [`connect`];
//! * [`names`], `fork` (a child begins all of them anew), [`nic`] (opens and closes).
//!
//! # Locks
//!
//! In the order in which they are taken; a thread that has one takes only those below it:
//!
//! 1. a request of `connect` while it is answered; the list of listeners, then a listener; what
//!    peers have asked for, then its result;
//! 2. the agent's `polling`: who polls for handlers (so that they get what is done in order);
//! 3. a completion queue's;
//! 4. a Virtual Interface's: its own, the send queue's, the receive queue's;
//! 5. those under which no other is taken, but for a table's under the arena's: the agent's lists
//!    (`registered`, `kicked`, `calls`) and beginning, handles, regions, the arena, mappings,
//!    names, a NIC handle's, sockets; and those of links between hosts (crate `cm`), which call
//!    [`remote::Watch`] under theirs.
//!
//! Under 2 to 5 nobody runs a handler, ends a connection ([`vi::Breach`]) or waits for a peer, but
//! for a transfer of the peer that is under way, which the kernel carries out.
#![deny(missing_docs)]

pub mod abi;
#[cfg(not(loom))]
pub mod agent;
#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod connect;
#[cfg(not(loom))]
pub mod cq;
#[cfg(not(loom))]
pub mod descriptor;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
pub(crate) mod fork;
pub mod gate;
#[cfg(not(loom))]
mod handlers;
#[cfg(not(loom))]
pub mod handles;
#[cfg(not(loom))]
pub mod limits;
pub mod lock;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod names;
#[cfg(not(loom))]
pub mod nic;
#[cfg(not(loom))]
mod opened;
#[cfg(not(loom))]
pub(crate) mod process;
#[cfg(not(loom))]
pub mod queue;
#[cfg(not(loom))]
pub mod remote;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
pub mod transfer;
#[cfg(not(loom))]
mod until;
#[cfg(not(loom))]
mod user;
#[cfg(not(loom))]
pub mod vi;
pub mod wire;
