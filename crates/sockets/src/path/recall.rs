//! What a reader does that has recalled what is unread in its ring, decided by what it sees and
//! nothing else: no system call, no memory that others write, no clock. Its shell is `handover.rs`;
//! the model (`crates/model/tests/machine/recall.rs`) compiles this file, and switches its rules
//! off one by one.

use super::rules::{self, Rule};

/// How long a peer gets that is in a call of ours, or about to be.
pub(crate) const PEER_NS: u64 = 1_000_000;
/// How long it may take to send what was recalled; if we may not send in its stead, as it may be
/// long in no call of ours; and if nothing is unread.
const PATIENCE_NS: u64 = 2_000_000_000;
const UNTRACED_NS: u64 = 30_000_000;
const EMPTY_NS: u64 = 200_000_000;
/// How long a kick that was begun may take to come.
const KICK_NS: u64 = 200_000_000;
/// How long a peer on another host may take, whose link may just have ended.
const FAR_NS: u64 = 10_000_000_000;

/// The path that is read, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// By tcp, before a ring.
    Tcp,
    Ring,
    /// By tcp again.
    Last,
}

/// What the reader sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recall {
    pub reads: Reads,
    /// Its writer says where tcp begins by a record, among the bytes of tcp: the peer is on another
    /// host.
    pub records: bool,
    /// Since it was recalled, in ns.
    pub waited: u64,
    /// The peer has carried out all that it fired, so that no kick is on the way that it has not
    /// counted.
    pub quiet: bool,
    /// The kernel, or the peer, has told that nothing comes from it any more.
    pub ended: bool,
    /// The peer knows that we do not read the ring.
    pub recalled: bool,
    /// The writer has announced the ring.
    pub announced: bool,
    /// The writer's position, and the reader's.
    pub written: u64,
    pub read: u64,
    /// Kicks that the writer has counted, and that have been taken out of the companion.
    pub kicks: u64,
    pub kicks_taken: u64,
    /// Where the writer has gone on by tcp, if it has.
    pub by_tcp: Option<u64>,
    /// The writer is in a call, and sends what was recalled.
    pub claimed: bool,
    /// We have tried to send in the writer's stead.
    pub tried: bool,
}

/// What it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing of it is in a ring. `last`: nor will it ever be, which is to be noted.
    Free { last: bool },
    /// What was recalled comes by tcp, or has come: the ring is left.
    ByTcp,
    /// Sends it in the writer's stead, or keeps it.
    SendForPeer,
    /// Looks again when something has come, or in a moment.
    Wait,
    /// The writer sends it no more, or not in time.
    Unsendable,
    /// Between hosts: it does not say so in time, and what it says later nobody would understand.
    BreakOff,
}

impl Recall {
    /// Behind what is unread of tcp there are bytes in the ring, or kicks, perhaps one that is on
    /// the way.
    fn is_ahead(&self) -> bool {
        self.reads == Reads::Tcp && self.announced && (self.written != 0 || self.kicks != 0)
    }

    /// A kick may be on the way to one that reads by tcp.
    fn awaits_kick(&self) -> bool {
        self.reads == Reads::Tcp && !self.records && !self.quiet && self.waited < KICK_NS
    }

    /// Whether nothing is in a ring, before kicks are taken.
    pub fn free(&self) -> Option<Next> {
        if self.reads == Reads::Ring || self.is_ahead() || self.awaits_kick() {
            return None;
        }
        // The writer has put nothing into the ring. When it does, it finds the recall and sends it
        // by tcp.
        let last = self.reads == Reads::Tcp && !self.records && self.quiet && self.recalled;
        Some(Next::Free { last })
    }

    /// What is next, after kicks have been taken.
    pub fn next(&self) -> Next {
        let on_ring = self.reads == Reads::Ring;
        let empty = self.written == self.read;
        let ahead = self.is_ahead();
        // No kick is on the way. With nothing unread, whatever the writer does later, it will find
        // the recall and send it by tcp.
        let quiet = self.quiet || rules::off(Rule::Quiet);
        let taken = self.kicks == self.kicks_taken || rules::off(Rule::KicksTaken);
        let settled = quiet && on_ring && taken;
        // It sends by tcp what it has put into the ring, behind what is unread of tcp, and no kick
        // stands between.
        let sends = quiet && ahead && self.by_tcp == Some(self.read) && self.kicks == 0;
        let silent = self.by_tcp.is_none();
        // Between hosts it says so among the bytes of tcp, which must not be taken for the
        // program's.
        let nothing = empty || rules::off(Rule::NothingUnread);
        if settled && nothing && silent && !self.records || sends || self.reads == Reads::Last {
            return Next::ByTcp;
        }
        let may_send = !self.tried && !self.claimed && self.waited > PEER_NS;
        if quiet && (settled || ahead) && silent && !self.ended && may_send {
            return Next::SendForPeer;
        }
        if self.records && on_ring && !self.ended && silent {
            // A record comes among the bytes of tcp, and nobody behind us would know it.
            return if self.waited < FAR_NS { Next::Wait } else { Next::BreakOff };
        }
        let patience = match () {
            () if empty => EMPTY_NS,
            () if self.tried && !self.claimed => UNTRACED_NS,
            () => PATIENCE_NS,
        };
        // It sends no more what we have not read: it has gone another way behind it, or nothing
        // comes from it any more; or, between hosts, a record will stand behind what is unread of
        // tcp, where only we can take it out.
        let unsendable = self.by_tcp.is_some_and(|at| at > self.read)
            || self.ended && silent
            || ahead && (!silent || self.records);
        if !self.awaits_kick()
            && (unsendable && (self.quiet || self.waited > KICK_NS) || self.waited > patience)
        {
            return Next::Unsendable;
        }
        Next::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a reader can see, with few values of each.
    fn all(mut each: impl FnMut(Recall)) {
        let bools = [false, true];
        for bits in 0..1u32 << 7 {
            let bit = |number: u32| bools[(bits >> number & 1) as usize];
            for reads in [Reads::Tcp, Reads::Ring, Reads::Last] {
                for waited in [0, PEER_NS + 1, UNTRACED_NS + 1, KICK_NS + 1, PATIENCE_NS + 1, FAR_NS + 1] {
                    for (written, read) in [(0, 0), (5, 5), (5, 3)] {
                        for (kicks, kicks_taken) in [(0, 0), (2, 1), (2, 2)] {
                            for by_tcp in [None, Some(read), Some(written), Some(written + 1)] {
                                each(Recall {
                                    reads,
                                    records: bit(0),
                                    waited,
                                    quiet: bit(1),
                                    ended: bit(2),
                                    recalled: bit(3),
                                    announced: bit(4) || reads != Reads::Tcp,
                                    written,
                                    read,
                                    kicks,
                                    kicks_taken,
                                    by_tcp,
                                    claimed: bit(6),
                                    tried: bit(5) && waited > PEER_NS,
                                });
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nobody_waits_for_ever() {
        all(|seen| {
            if seen.free().is_none() && seen.waited > FAR_NS {
                assert_ne!(seen.next(), Next::Wait, "{seen:?}");
            }
        });
    }

    #[test]
    fn the_ring_is_left_only_where_no_kick_can_come_between() {
        all(|seen| {
            if seen.free().is_none() && seen.reads != Reads::Last && seen.next() == Next::ByTcp {
                let taken = if seen.reads == Reads::Tcp { 0 } else { seen.kicks_taken };
                assert!(seen.quiet && seen.kicks == taken, "{seen:?}");
            }
        });
    }

    #[test]
    fn what_is_unread_is_left_only_if_its_writer_sends_it() {
        all(|seen| {
            let leaves = seen.free().is_none() && seen.reads == Reads::Ring && seen.next() == Next::ByTcp;
            if leaves && seen.written != seen.read {
                panic!("{seen:?}");
            }
        });
    }

    #[test]
    fn nobody_sends_in_the_stead_of_a_writer_that_does_it_or_has_ended() {
        all(|seen| {
            if seen.free().is_none() && seen.next() == Next::SendForPeer {
                let sends = seen.by_tcp.is_some() || seen.claimed;
                assert!(!sends && !seen.ended && !seen.tried && seen.quiet, "{seen:?}");
            }
        });
    }

    #[test]
    fn a_connection_is_broken_off_only_between_hosts() {
        all(|seen| assert!(seen.records || seen.next() != Next::BreakOff, "{seen:?}"));
    }
}
