//! What is done and told at an end: before the last descriptor is closed, before a half is shut,
//! and when a peer has gone that told nothing. Pure: the shell is `close.rs` and `reader.rs`, and
//! the model (`crates/model/tests/machine/closing.rs`) compiles this file.

use super::recall::Reads;
use super::rules::{self, Rule};

/// How long a kick that is known to be on the way may take: as long as its sender may have to wait
/// for a processor.
const KICK_NS: u64 = if cfg!(fuzzing) { 0 } else { 200_000_000 };

/// What whoever closes a connection has not read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Closing {
    pub reads: Reads,
    /// The writer's position in the ring, and the reader's.
    pub written: u64,
    pub read: u64,
    /// The peer broke the protocol, which has reset the connection.
    pub broken: bool,
}

/// What close() is to make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Unread bytes reset the connection, as they do with tcp. The kernel does not know of these.
    Reset,
    /// Nothing is unread in memory, so nothing there may reset it: kicks are taken out of the
    /// companion before, as the kernel knows only them. One that wakes whoever reads by tcp comes
    /// behind the announcement of the ring, and both may be on the way.
    TakeKicks,
    /// The kernel knows all.
    ByKernel,
}

impl Closing {
    pub fn end(&self) -> End {
        let unread = match self.reads {
            Reads::Ring => self.written != self.read,
            Reads::Tcp => self.written != 0,
            Reads::Last => false,
        };
        match self.reads {
            _ if unread && !self.broken => End::Reset,
            Reads::Ring | Reads::Tcp => End::TakeKicks,
            Reads::Last => End::ByKernel,
        }
    }
}

/// What whoever closes sees of kicks, with its tripwire disarmed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastKicks {
    /// The peer has carried out all that it fired: no kick is on the way that it has not counted.
    pub quiet: bool,
    /// The peer has ended, and what its end brought with it has been taken.
    pub ended: bool,
    pub counted: u64,
    pub taken: u64,
    /// How long it has waited, in ns.
    pub waited: u64,
}

impl LastKicks {
    /// Whether it may close now. One that nobody has read, or that comes after close(), the kernel
    /// would answer with a reset, and what it has still to send would be lost.
    pub fn may_close(&self) -> bool {
        let quiet = self.quiet || rules::off(Rule::QuietAtClose);
        let taken = self.counted == self.taken || rules::off(Rule::TakenAtClose);
        self.ended || quiet && taken || self.waited > KICK_NS
    }
}

/// One thing that is done to shut the writing half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shut {
    /// Both directions go back to tcp: behind the FIN nobody can be woken by a kick.
    Demote,
    /// What was recalled goes out.
    Flush,
    /// The peer is told, which would take the FIN for a death otherwise.
    Tell,
}

/// What is done before the kernel's call, in this order.
pub(crate) fn shutting() -> &'static [Shut] {
    if rules::off(Rule::DemoteBeforeFin) {
        return &[Shut::Flush, Shut::Tell];
    }
    &[Shut::Demote, Shut::Flush, Shut::Tell]
}

/// The end of a peer, as an end that has written to it sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone {
    /// It has said that it closed, or shut its half.
    pub told: bool,
    /// We write to a ring.
    pub on_ring: bool,
    /// It has sent what it recalled by tcp, in our stead: the kernel knows what became of that.
    pub resent: bool,
    /// Bytes of ours lie unread in the ring.
    pub unread: bool,
    /// A reset has been told to the program already.
    pub reset_told: bool,
}

impl Gone {
    /// Whether that is a reset, which is told once, or an end; `None`: as the kernel says.
    pub fn reset(&self) -> Option<bool> {
        let killed = !self.told && self.on_ring && !self.resent;
        killed.then_some(self.unread && !self.reset_told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [bool; 2] = [false, true];

    #[test]
    fn unread_bytes_reset_and_nothing_else_does() {
        for (written, read) in [(0, 0), (5, 5), (5, 3)] {
            for broken in BOTH {
                let end = |reads| Closing { reads, written, read, broken }.end();
                assert_eq!(end(Reads::Ring) == End::Reset, written != read && !broken);
                assert_eq!(end(Reads::Tcp) == End::Reset, written != 0 && !broken);
                assert_eq!(end(Reads::Last), End::ByKernel);
                // Kicks are taken wherever there may be some and the connection goes on to its end.
                assert_ne!(end(Reads::Ring), End::ByKernel);
                assert_ne!(end(Reads::Tcp), End::ByKernel);
            }
        }
    }

    #[test]
    fn nobody_closes_before_a_kick_that_is_on_the_way_nor_waits_for_ever() {
        for quiet in BOTH {
            for ended in BOTH {
                for (counted, taken) in [(0, 0), (2, 1), (2, 2)] {
                    let seen = LastKicks { quiet, ended, counted, taken, waited: 0 };
                    assert_eq!(seen.may_close(), ended || quiet && counted == taken);
                    assert!(LastKicks { waited: KICK_NS + 1, ..seen }.may_close());
                }
            }
        }
    }

    #[test]
    fn a_half_is_shut_when_both_directions_are_on_tcp_and_the_peer_knows() {
        assert_eq!(shutting(), [Shut::Demote, Shut::Flush, Shut::Tell]);
    }

    #[test]
    fn a_reset_is_told_once_and_only_of_a_peer_that_was_killed_with_bytes_unread() {
        for bits in 0..32u32 {
            let bit = |number: u32| bits >> number & 1 != 0;
            let seen =
                Gone { told: bit(0), on_ring: bit(1), resent: bit(2), unread: bit(3), reset_told: bit(4) };
            let killed = !seen.told && seen.on_ring && !seen.resent;
            assert_eq!(seen.reset().is_some(), killed);
            assert_eq!(seen.reset() == Some(true), killed && seen.unread && !seen.reset_told);
        }
    }
}
