//! What a writer does that goes back to tcp, or is about to wake its peer, decided by what it sees
//! and nothing else. Its shell is `demote.rs` and `writer.rs`; the model
//! (`crates/model/tests/machine/paths.rs`) compiles this file.

use super::rules::{self, Rule};

/// The path that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// By tcp, before a ring.
    Tcp,
    Ring,
    /// By tcp, where recalled bytes, kicks or a record still go before anything new.
    Resend,
    /// By tcp again, for good.
    Last,
}

/// What is due on a connection, whatever the program calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// The peer asks for tcp.
    Leave,
    Resend,
    /// Nothing more is to be sent from here: if the other direction is as far, it is the kernel's.
    Finish,
}

/// The same, of a writer whose peer `asks` for tcp or not.
#[inline(always)]
pub(crate) fn due(writes: Writes, asks: impl FnOnce() -> bool) -> Due {
    match writes {
        Writes::Last => Due::Finish,
        Writes::Resend => Due::Resend,
        Writes::Tcp | Writes::Ring => {
            if asks() {
                Due::Leave
            } else {
                Due::Nothing
            }
        }
    }
}

/// One thing that is done to leave a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The peer is told that it is to go to tcp, too, or from where on we read no more.
    Tell,
    /// It is woken, if it is armed, by whatever it is armed for. Whoever arms later finds what it
    /// was told.
    Wake,
    /// It is said where tcp begins. No kick goes behind that, as it would stand among the bytes of
    /// tcp.
    Announce,
}

/// What is done to leave, in this order. `knows`: the peer has asked for it and reads no more, or
/// has closed.
pub(crate) fn leaving(writes: Writes, knows: bool) -> &'static [Step] {
    match (writes, knows) {
        (Writes::Ring, true) => &[Step::Announce],
        (Writes::Ring, false) if rules::off(Rule::AskToo) => &[Step::Wake, Step::Announce],
        (Writes::Ring, false) if rules::off(Rule::TellBeforeWake) => {
            &[Step::Wake, Step::Tell, Step::Announce]
        }
        (Writes::Ring, false) if rules::off(Rule::WakeBeforeAnnounce) => {
            &[Step::Tell, Step::Announce, Step::Wake]
        }
        (Writes::Ring, false) => &[Step::Tell, Step::Wake, Step::Announce],
        // Nothing of ours goes by a ring: the peer's does.
        (_, false) => &[Step::Tell],
        (_, true) => &[],
    }
}

/// What the peer has told a writer on a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    /// It has closed its last descriptor.
    pub closed: bool,
    /// It reads no more of the ring from here on.
    pub recalled: Option<u64>,
}

/// How a writer leaves that was asked to, or whose peer has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leave {
    pub steps: &'static [Step],
    /// The first byte that goes by tcp although it is in the ring.
    pub from: Option<u64>,
    /// What the peer says cannot be.
    pub breaks: bool,
}

impl Told {
    /// The same, of a writer at `written` whose rings hold what it wrote from `oldest` on.
    pub fn leave(self, written: u64, oldest: u64) -> Leave {
        let from = self.recalled.filter(|from| (oldest..=written).contains(from));
        let knows = from.is_some() || self.closed;
        Leave { steps: leaving(Writes::Ring, knows), from, breaks: self.recalled.is_some() && from.is_none() }
    }
}

/// What is written next when tcp begins for the reader `at` a position in the ring: what lies
/// behind that goes again. `owes`: something else must go before anything new, since whoever has
/// the connection from [`Writes::Last`] on may be the kernel.
pub(crate) fn behind(at: u64, written: u64, owes: bool) -> Writes {
    if at == written && !owes { Writes::Last } else { Writes::Resend }
}

/// Whether a peer has gone that told nothing. One that was killed has closed its end of the
/// companion, and did not say that it shut it.
pub(crate) fn is_gone(hung_up: bool, shut: bool, said_so: bool) -> bool {
    hung_up || shut && !said_so
}

/// What a kick takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kick {
    /// The direction has to leave tcp before, or the kick would be taken for one of its bytes.
    SwitchFirst,
    Send,
    /// It would stand among the bytes of tcp. Whoever left the ring has woken the peer before.
    Never,
}

#[inline(always)]
pub(crate) fn kick(writes: Writes) -> Kick {
    match writes {
        Writes::Tcp if !rules::off(Rule::SwitchBeforeKick) => Kick::SwitchFirst,
        Writes::Tcp | Writes::Ring => Kick::Send,
        Writes::Resend | Writes::Last => Kick::Never,
    }
}

/// Recalled bytes that are still to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsent {
    pub from: u64,
    pub written: u64,
    /// Where the big ring begins, if they were written there in the end.
    pub big_from: Option<u64>,
}

/// Some of them, in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub in_big: bool,
    /// Where in the ring.
    pub at: usize,
    pub len: usize,
    /// How many there are, all ways round, of those that are asked for.
    pub most: usize,
}

impl Unsent {
    /// The first of them, at most `most`, in rings that have room for so many bytes.
    pub fn piece(&self, small: usize, big: usize, most: usize) -> Piece {
        let in_big = self.big_from.is_some_and(|begin| self.from >= begin);
        let end = if in_big { self.written } else { self.big_from.unwrap_or(self.written) };
        let capacity = if in_big { big } else { small };
        let at = (self.from % capacity as u64) as usize;
        let most = (end.saturating_sub(self.from)).min(most as u64) as usize;
        Piece { in_big, at, len: most.min(capacity - at), most }
    }
}

/// What a connection is like whose directions are both back on tcp because its peer's program goes
/// through exec(), and may want it in memory again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anew {
    /// The peer has said so.
    pub again: bool,
    /// A half has been shut, or the peer has gone.
    pub ended: bool,
    /// Our program wants it on tcp, or shares it with another process.
    pub stays: bool,
}

impl Anew {
    /// Whether it counts as a new connection.
    pub fn is_new(self) -> bool {
        self.again && !self.ended && !self.stays
    }
}

/// Whether one that counts as new does so no more, as our program wants it on tcp: another thread
/// of it, since it was looked at last.
pub(crate) fn is_taken_back(stays: bool) -> bool {
    stays && !rules::off(Rule::WishIsSeen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Writes; 4] = [Writes::Tcp, Writes::Ring, Writes::Resend, Writes::Last];
    const BOTH: [bool; 2] = [false, true];

    #[test]
    fn a_ring_is_left_once_and_a_peer_that_does_not_know_is_told_and_woken_before() {
        for knows in BOTH {
            let place = |step| leaving(Writes::Ring, knows).iter().position(|&one| one == step);
            assert_eq!(place(Step::Announce), Some(leaving(Writes::Ring, knows).len() - 1));
            assert_eq!(place(Step::Tell), (!knows).then_some(0));
            assert_eq!(place(Step::Wake), (!knows).then_some(1));
        }
        for writes in [Writes::Tcp, Writes::Resend, Writes::Last] {
            assert_eq!(leaving(writes, false), [Step::Tell]);
            assert_eq!(leaving(writes, true), []);
        }
    }

    #[test]
    fn only_what_the_rings_hold_is_sent_again() {
        for closed in BOTH {
            for recalled in [None, Some(0), Some(3), Some(9), Some(10), Some(u64::MAX)] {
                let leave = Told { closed, recalled }.leave(9, 3);
                assert_eq!(leave.from, recalled.filter(|from| (3..=9).contains(from)));
                assert_eq!(leave.breaks, recalled.is_some() && leave.from.is_none());
                let tells = leave.steps.contains(&Step::Tell);
                assert_eq!(tells, !closed && leave.from.is_none(), "{leave:?}");
            }
        }
    }

    #[test]
    fn nothing_new_goes_before_what_is_owed() {
        for at in 0..=7 {
            for owes in BOTH {
                assert_eq!(behind(at, 7, owes) == Writes::Last, at == 7 && !owes);
            }
        }
    }

    #[test]
    fn kicks_go_only_beside_a_ring() {
        for writes in ALL {
            assert_eq!(kick(writes) == Kick::Send, writes == Writes::Ring);
            assert_eq!(due(writes, || false) == Due::Nothing, matches!(writes, Writes::Tcp | Writes::Ring));
            assert_eq!(due(writes, || true) == Due::Leave, matches!(writes, Writes::Tcp | Writes::Ring));
        }
    }

    #[test]
    fn pieces_make_up_all_that_is_unsent() {
        for written in 0..40u64 {
            for big_from in [None, Some(0), Some(5), Some(written)] {
                if big_from.is_some_and(|begin| begin > written) {
                    continue;
                }
                for start in big_from.unwrap_or(written).saturating_sub(8)..=written {
                    let mut from = start;
                    while from < written {
                        let piece = Unsent { from, written, big_from }.piece(8, 32, 6);
                        assert!((1..=6).contains(&piece.len) && piece.len <= piece.most);
                        let (capacity, in_big) =
                            if big_from.is_some_and(|b| from >= b) { (32, true) } else { (8, false) };
                        assert_eq!((piece.in_big, piece.at as u64), (in_big, from % capacity));
                        assert!(piece.at as u64 + piece.len as u64 <= capacity);
                        from += piece.len as u64;
                        assert!(in_big || big_from.is_none_or(|b| from <= b));
                    }
                    assert_eq!(from, written);
                }
            }
        }
    }

    #[test]
    fn a_peer_that_shut_its_half_and_said_so_lives() {
        for (hung_up, shut, said_so) in BOTH
            .into_iter()
            .flat_map(|a| BOTH.into_iter().flat_map(move |b| BOTH.into_iter().map(move |c| (a, b, c))))
        {
            assert_eq!(is_gone(hung_up, shut, said_so), hung_up || (shut && !said_so));
            let anew = Anew { again: hung_up, ended: shut, stays: said_so };
            assert_eq!(anew.is_new(), hung_up && !shut && !said_so);
        }
    }
}
