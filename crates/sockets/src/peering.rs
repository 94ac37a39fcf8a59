//! Where the peer of a connection is, and all that differs by that. On this host both map the same
//! memory. On another one the peer is reached by an outbox and a thread of this process, which
//! bring what is put (`wire`, `desk`, `progress`), and by records in the companion.
//!
//! Other modules do not ask where a peer is. They ask for a fact of [`Facts`], or do one of the
//! operations below, whichever says what they need it for. [`Kind`] is matched in this folder
//! only.
//!
//! # What each kind of peers must supply
//!
//! A variant of [`Kind`], with what reaches such a peer in one word, and a file here (`local`,
//! `foreign`, `remote`) with
//!
//! * `FACTS`, its [`Facts`];
//! * each operation of `contract!` below, with the same arguments, for a kind that has something in
//!   its variant behind that. What a kind does as another one does, it takes from there by `use`.
//!
//! Operations are called on any connection, also on one that has no link yet, which is local, or
//! has none any more. They may be called in a signal handler and by the progress thread: none may
//! allocate, print or wait for a lock, none may sleep in the kernel, and only [`settle`], and
//! [`has_settled`] outside the progress thread, may wait for the peer. They stand below what reads,
//! writes and wakes: they touch words, records, and the `Rx` or `Tx` that they are given.
//!
//! Before there is a link, [`desk`] is told of connections that are posted, and [`introduced`] says
//! what became of that.
//!
//! How bytes and words get into a peer's segment is said by [`peer::Peer`], below connections. What
//! is made of facts and operations together, in the order that the protocol needs, is in [`cut`]
//! and, for the progress thread, in [`progress`], above.

pub(crate) mod cut;
pub mod desk;
mod foreign;
pub(crate) mod kind;
mod local;
pub(crate) mod peer;
pub mod progress;
mod records;
mod remote;
pub mod wire;

use self::kind::{Facts, Kind, Peered, Peering};
pub(crate) use self::records::{BYTES, HELD_NS, Next, Run, ask_again, follow};
use crate::conn::{Conn, Held, Rx, Tx};

/// Where a process of this host is whose end of a connection our kernel shows, and where one is
/// that has proved to have it.
pub(crate) const SHOWN: Peering = Peering::LOCAL;
pub(crate) const INTRODUCED: Peering = Peering::FOREIGN;

/// The facts of the peer of a connection or a link.
#[inline(always)]
pub(crate) fn facts(of: &impl Peered) -> Facts {
    match of.peering().kind() {
        Kind::Local => local::FACTS,
        Kind::Foreign => foreign::FACTS,
        Kind::Remote(_) => remote::FACTS,
    }
}

/// Where the other end of a posted connection is, if agents have told of it, or a proof has.
pub(crate) fn introduced(conn: &Conn) -> Option<wire::Introduced> {
    conn.remote.introduced()
}

/// Makes of each declaration the function that calls the one of the same name in the peer's kind.
macro_rules! contract {
    ($($(#[$doc:meta])* fn $name:ident($of:ident: $kind:ty $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name($of: $kind $(, $arg: $type)*) $(-> $result)? {
            match $of.peering().kind() {
                Kind::Local => self::local::$name($of $(, $arg)*),
                Kind::Foreign => self::foreign::$name($of $(, $arg)*),
                Kind::Remote(wire) => self::remote::$name(wire, $of $(, $arg)*),
            }
        }
    )*};
}

contract! {
    /// Whether a link can still be used by new connections, as far as that is known without asking
    /// the kernel. `socket`: the one that it was made by.
    fn is_whole(link: &impl Peered, socket: i32) -> bool;

    /// Whether the link has ended under the connection, which goes on by tcp then ([`cut`]). False
    /// where the two end together.
    fn is_over(conn: &Conn) -> bool;

    /// Gives the link up: it is over for all its connections.
    fn end_link(conn: &Conn);

    /// Asks the peer's process to go to tcp for a program that may be in no call of ours. Nothing
    /// where we can do that in its stead.
    fn call_to_tcp(conn: &Conn);

    /// This end is about to offer a slot, as it is marked then.
    fn offered(conn: &Conn);

    /// This end has taken the peer's offer, which the peer is told in words: asks that it notices.
    fn taken(conn: &Conn);

    /// Whether the peer is known to know that both have agreed. An end of which that is not so may
    /// still be one that has never been promoted for its peer, if their link is over: it writes by
    /// tcp, and sends no records.
    fn has_agreed(conn: &Conn) -> bool;

    /// This end has told the peer that both have agreed: asks for an echo of it, if it has offered.
    fn promised(conn: &Conn);

    /// Whether this end may write to the ring: the peer is known to know that both have agreed,
    /// also if this end is killed and their link is over then. A peer that knows takes an end
    /// without a word for a death, behind which bytes may be lost; one that does not, for the
    /// end of a connection that has never been promoted for us.
    fn may_put(conn: &Conn) -> bool;

    /// Whether the peer has not answered in time, and not since: nobody waits for it in vain again,
    /// where that may be left out.
    fn is_silent(conn: &Conn) -> bool;

    /// It has not answered in time.
    fn fell_silent(conn: &Conn);

    /// Waits until all that was put is there, or never will be: before the companion says what must
    /// not come earlier. Not for the progress thread.
    fn settle(conn: &Conn);

    /// Whether all that was put is there, or never will be: before kicks that were counted are
    /// sent. Waits for it; the progress thread, which cannot, notes in `echo` for what, and asks
    /// again.
    fn has_settled(conn: &Conn, echo: &mut u64) -> bool;

    /// How many of the next `count` bytes of the companion, which have been counted as kicks, are
    /// kicks. Those that have not come do not matter.
    fn kicks_ahead(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, count: usize) -> usize;

    /// Whether records may come. Once none may, none will.
    fn may_come(conn: &Conn) -> bool;

    /// Whether the connection can be left to the kernel alone, so that calls on it pass us by: no
    /// record can come any more.
    fn may_finish(conn: &Conn) -> bool;

    /// Whether the record that says where the ring ends is on its way: the reader looks for it.
    /// Before each read that finds the ring empty.
    fn end_due(conn: &Conn) -> bool;

    /// Looks what the companion has next, behind kicks if they have been taken, and takes a record.
    /// Before each read by tcp while they [`may_come`].
    fn hear(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Next;

    /// How many bytes a look that `wants` so many may see before a record, of which `free` are
    /// known: it takes nothing, so it cannot go on from where it was.
    fn further(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, free: usize, wants: usize) -> usize;

    /// The records that stand `skip` bytes after what is read next, behind bytes that the program
    /// has not read, and kicks.
    fn run_at(conn: &Conn, fd: i32, skip: usize) -> Run;

    /// When the link is over: looks for what the peer says of it behind bytes that the program has
    /// not read.
    fn seek_stop(conn: &Conn, fd: i32);

    /// Sends the records that are due, before anything else goes by tcp; false if the companion
    /// takes no more now.
    fn send_records(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool;

    /// Whether a killed peer, whose end the kernel tells, may have had more to say that never
    /// comes. `None`: not known yet.
    fn died_untold(conn: &Conn) -> Option<bool>;

    /// Whether the peer has closed with bytes of ours unread, which may have been on their way:
    /// with tcp it is a reset when they come. True once.
    fn closed_unread(conn: &Conn) -> bool;
}
