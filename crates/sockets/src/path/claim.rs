//! Who sends the bytes that a reader has recalled: their writer, when it finds the recall, or the
//! reader in its stead. One word decides, which each of them changes in one step; whoever changes
//! it first does it. A reader that claims them may also keep them, to read them in the ring after
//! all. Pure: the model (`crates/model/tests/machine/claim.rs`) compiles this file.

use super::rules::{self, Rule};

/// Bits of the word: set by the writer when it leaves the ring, and by the reader.
pub(crate) const BY_WRITER: u64 = 1;
pub(crate) const BY_READER: u64 = 2;

/// How long a writer waits for a reader that has claimed to say how far it came.
const CLAIMED_NS: u64 = if cfg!(fuzzing) { 0 } else { 1_000_000_000 };

/// What a reader changes the word to, whose writer has said that it goes on by tcp from `by_tcp`
/// on, if it has. `None`: the writer is first.
pub(crate) fn of_reader(word: u64, by_tcp: Option<u64>) -> Option<u64> {
    let first = word == 0 && by_tcp.is_none();
    (first || rules::off(Rule::FirstClaims)).then_some(word | BY_READER)
}

/// What a writer sees that leaves the ring, and has set its bit of the word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// The word before that.
    pub before: u64,
    /// From where on the reader has recalled, if the writer leaves because of that.
    pub recalled: Option<u64>,
    /// Its position, and the oldest one that its rings still hold.
    pub written: u64,
    pub oldest: u64,
    /// How far the reader that has claimed has sent, or reads in the ring, once it says so.
    pub resent_to: Option<u64>,
    /// How long it has waited for that, in ns.
    pub waited: u64,
}

/// Which bytes of the ring the writer sends by tcp, before it goes on there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sends {
    /// Those from here on, if there are any.
    From(u64),
    /// The reader has not said how far it came.
    NotKnown,
    /// And will not: it has gone, is stopped, or is hostile. Nothing may follow.
    BreakOff,
}

impl Leaving {
    pub fn sends(&self) -> Sends {
        let by_reader = self.before & BY_READER != 0 && !rules::off(Rule::WaitForReader);
        match (self.resent_to, self.recalled) {
            (Some(to), _) if by_reader => Sends::From(to.clamp(self.oldest, self.written)),
            (None, _) if by_reader && self.waited < CLAIMED_NS => Sends::NotKnown,
            (None, _) if by_reader && !rules::off(Rule::EndIfUntold) => Sends::BreakOff,
            (_, recalled) => Sends::From(recalled.unwrap_or(self.written)),
        }
    }
}

/// What a writer between hosts sees that has left the ring, or whose link is over. Nothing is in
/// memory that both have: how far the peer has read a record of its says, or nobody.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parted {
    /// How far it says that it has read.
    pub stopped: Option<u64>,
    /// Older bytes do not lie in the ring any more.
    pub oldest: u64,
    /// From where on it was to be sent before that.
    pub from: u64,
    /// How far it has read at least, as its memory told before the link ended. `None`: that cannot
    /// be.
    pub read: Option<u64>,
    pub written: u64,
    /// It has closed, and hears nothing: the kernel would answer a record with a reset.
    pub closed: bool,
    /// Its process ends, and most likely reads no record; one that still reads says how far.
    pub ending: bool,
}

/// Up to where a reader whose link is over reads the ring; what lies behind comes by tcp. What has
/// `come` is read where it is, as it may have been told to be readable. Whoever sleeps has not been
/// told, and what would have woken it may be lost: all that is not `read` comes by tcp, as it does
/// after a recall.
pub(crate) fn stop(come: u64, read: u64, sleeps: bool, recalled: bool) -> u64 {
    if sleeps || recalled { read } else { come }
}

/// Whether the peer may still say how far it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// By the link, or by what the kernel tells of its end.
    Perhaps,
    /// It reads on, and may not be able to: it has shut its writing half, or its STOP stands behind
    /// bytes for which there is no room until this end reads.
    ReadsOn,
    /// It has closed, or its process has ended.
    Gone,
}

/// What such a writer sends by tcp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parting {
    /// What lies in the ring from here on, behind a record that says so.
    Behind(u64),
    /// What follows alone.
    Nothing,
    NotKnown,
    /// Nothing: what the peer says cannot be.
    BreakOff,
}

impl Parted {
    /// Whether the peer has `echoed` all that was put, and what it `says`, is asked only if it
    /// matters.
    pub fn sends(self, echoed: impl FnOnce() -> bool, says: impl FnOnce() -> Says) -> Parting {
        match self.stopped {
            Some(from) if (self.oldest..=self.written).contains(&from) => Parting::Behind(from),
            Some(_) => Parting::BreakOff,
            None if self.closed => Parting::Nothing,
            None if !self.ending && echoed() => Parting::Behind(self.from),
            None => match says() {
                Says::Perhaps => Parting::NotKnown,
                // It takes out again what it has read behind that.
                Says::ReadsOn => match self.read {
                    Some(from) if (self.oldest..=self.written).contains(&from) => Parting::Behind(from),
                    _ => Parting::BreakOff,
                },
                Says::Gone => Parting::Nothing,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_before_a_link_ended_stays_readable_unless_somebody_sleeps() {
        assert_eq!(stop(9, 4, false, false), 9);
        for (sleeps, recalled) in [(true, false), (false, true), (true, true)] {
            assert_eq!(stop(9, 4, sleeps, recalled), 4);
        }
    }

    #[test]
    fn between_hosts_bytes_go_again_only_behind_what_the_peer_has_said_or_echoed() {
        for bits in 0..8u32 {
            let bit = |number: u32| bits >> number & 1 != 0;
            let (closed, ending) = (bit(0), bit(1));
            for says in [Says::Perhaps, Says::ReadsOn, Says::Gone] {
                let seen =
                    Parted { stopped: None, oldest: 1, from: 4, read: Some(2), written: 9, closed, ending };
                let sends = seen.sends(|| bit(2), || says);
                let echoed = bit(2) && !closed && !ending;
                assert_eq!(sends == Parting::Behind(4), echoed);
                let asked = !echoed && !closed;
                assert_eq!(sends == Parting::NotKnown, asked && says == Says::Perhaps);
                let reads_on = asked && says == Says::ReadsOn;
                assert_eq!(sends == Parting::Behind(2), reads_on, "from where it may not have read on");
                for read in [None, Some(0), Some(10)] {
                    let broken = Parted { read, ..seen }.sends(|| bit(2), || says);
                    assert_eq!(broken == Parting::BreakOff, reads_on);
                }
                for at in [0, 1, 9, 10, u64::MAX] {
                    let said = Parted { stopped: Some(at), ..seen }.sends(|| bit(2), || says);
                    let can_be = (1..=9).contains(&at);
                    assert_eq!(said, if can_be { Parting::Behind(at) } else { Parting::BreakOff });
                }
            }
        }
    }

    fn all(mut each: impl FnMut(Leaving)) {
        for before in 0..4 {
            for recalled in [None, Some(3), Some(5)] {
                for resent_to in [None, Some(0), Some(4), Some(5), Some(u64::MAX)] {
                    for waited in [0, CLAIMED_NS] {
                        each(Leaving { before, recalled, written: 5, oldest: 2, resent_to, waited });
                    }
                }
            }
        }
    }

    #[test]
    fn only_what_the_rings_hold_is_sent() {
        all(|seen| {
            if let Sends::From(from) = seen.sends() {
                assert!((2..=5).contains(&from), "{seen:?}");
            }
        });
    }

    #[test]
    fn what_the_reader_has_claimed_is_sent_only_from_where_it_came() {
        all(|seen| match seen.sends() {
            _ if seen.before & BY_READER == 0 => {
                assert_eq!(seen.sends(), Sends::From(seen.recalled.unwrap_or(5)));
            }
            Sends::From(from) => assert_eq!(from, seen.resent_to.unwrap().clamp(2, 5)),
            Sends::NotKnown => assert!(seen.resent_to.is_none() && seen.waited == 0),
            Sends::BreakOff => assert!(seen.resent_to.is_none() && seen.waited == CLAIMED_NS),
        });
    }

    #[test]
    fn the_reader_claims_only_what_nobody_has() {
        for word in 0..4 {
            for by_tcp in [None, Some(0), Some(7)] {
                let claims = of_reader(word, by_tcp);
                assert_eq!(claims.is_some(), word == 0 && by_tcp.is_none());
                assert!(claims.is_none_or(|word| word == BY_READER));
            }
        }
    }
}
