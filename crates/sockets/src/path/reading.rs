//! Where the direction that is read changes its path, as its writer has announced it, decided by
//! what the reader sees and nothing else. The shell is `reader.rs`; the models
//! (`crates/model/tests/machine`) compile this file.

use super::rules::{self, Rule};

/// The position at which a ring ends, `u64::MAX` if it goes on: where the writer has announced the
/// big ring, if it is a small one that is read, and tcp, if the reader is not to go behind that.
/// Words as the writer puts them: a position plus one, 0 if it has not.
#[inline(always)]
pub(crate) fn until(big_at: u64, tcp_at: u64) -> u64 {
    let tcp = if rules::off(Rule::ReadNoFurther) { u64::MAX } else { tcp_at.wrapping_sub(1) };
    big_at.wrapping_sub(1).min(tcp)
}

/// How many bytes of tcp come before a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// Nothing is announced.
    Unknown,
    Left(u64),
    /// More have been read than there are.
    Broken,
}

/// The same, of a reader that has read so many, whose writer has announced the ring by `small_at`:
/// how many there are, plus one, or 0 if it has not.
pub(crate) fn boundary(small_at: u64, read: u64) -> Boundary {
    match small_at.checked_sub(1).map(|all| all.checked_sub(read)) {
        None => Boundary::Unknown,
        Some(Some(left)) => Boundary::Left(left),
        Some(None) => Boundary::Broken,
    }
}

/// Where the path turns that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Not here.
    Nowhere,
    ToRing,
    ToBig,
    ToTcp,
}

/// Of a reader by tcp, with so many bytes left before the ring, if that is known.
#[inline(always)]
pub(crate) fn turn_of_tcp(left: Option<u64>) -> Turn {
    if left == Some(0) { Turn::ToRing } else { Turn::Nowhere }
}

/// Of a reader of a ring, by what is announced; `big_at`: 0 in the big one.
#[inline(always)]
pub(crate) fn turn(position: u64, big_at: u64, tcp_at: u64) -> Turn {
    match position + 1 {
        here if here == big_at => Turn::ToBig,
        here if here == tcp_at => Turn::ToTcp,
        _ => Turn::Nowhere,
    }
}

/// How many kicks have been counted that are not taken yet; none if their writer does not keep to
/// the protocol.
#[inline(always)]
pub(crate) fn owed(counted: u64, taken: u64) -> u64 {
    let owed = counted.wrapping_sub(taken);
    if rules::off(Rule::CountedKicks) {
        return MOST_OWED;
    }
    if owed > MOST_OWED { 0 } else { owed }
}

const MOST_OWED: u64 = 1 << 20;

/// Whether a reader that has come to where tcp begins goes on there. Kicks that were sent before
/// lie ahead of its bytes; of a writer that has `ended` some may never come.
pub(crate) fn goes_by_tcp(counted: u64, taken: u64, ended: bool) -> bool {
    counted == taken || ended || rules::off(Rule::KicksFirst)
}

/// Whether one that the kernel has told of something behind an empty ring looks there once more:
/// only for what it acts on then, as a peer may announce what it never sends.
pub(crate) fn looks_again(position: u64, written: u64, until: u64, turn: Turn) -> bool {
    let more = written != position && until > position || turn != Turn::Nowhere;
    more && !rules::off(Rule::LookAfterEnd)
}

/// What becomes of a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recalled {
    /// Its writer has not said anything yet.
    Open,
    /// What was recalled comes by tcp, or has come.
    ByTcp,
    /// The writer had left the ring by itself before it saw the recall: the rest of the ring is
    /// read there.
    Void,
}

/// The same, of a reader at `position` that is told where tcp begins by `tcp_at` (plus one, 0: not
/// yet).
pub(crate) fn recalled(position: u64, tcp_at: u64) -> Recalled {
    match tcp_at {
        0 => Recalled::Open,
        at if at == position + 1 || rules::off(Rule::CrossedIsVoid) => Recalled::ByTcp,
        _ => Recalled::Void,
    }
}

/// What a reader does whose recall is open, when it has asked the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// Its writer has just said something.
    LookAgain,
    /// Nothing comes from the writer any more: what it left in the ring is read there.
    ReadRing,
    /// Nor did it leave anything.
    End,
    Wait,
}

/// The same: whether the writer has `told` meanwhile, has `ended`, and left something unread.
pub(crate) fn open(told: bool, ended: bool, unread: bool) -> Open {
    match (told, ended) {
        (true, _) => Open::LookAgain,
        (_, true) if unread && !rules::off(Rule::RestOfTheDead) => Open::ReadRing,
        (_, true) => Open::End,
        (_, false) => Open::Wait,
    }
}

/// How far bytes have come that were recalled and go by tcp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resent {
    All,
    /// Some are with their writer, or on the way.
    Some,
    /// No more comes: the rest is read in the ring, from here on.
    NoMore(u64),
}

/// The same, of those from `position` up to `written`, if so many have `come` and perhaps others
/// behind them; `ended`: nothing comes from the peer any more, and all that came has been read.
pub(crate) fn resent(position: u64, come: u64, written: u64, ended: bool) -> Resent {
    match position.saturating_add(come) {
        at if at >= written => Resent::All,
        at if ended && !rules::off(Rule::UnsentOfTheDead) => Resent::NoMore(at),
        _ => Resent::Some,
    }
}

/// Whether one that waits for bytes of a ring that has been recalled only naps: what is unread may
/// come by tcp, or be left to it in the ring, or its writer is stopped.
pub(crate) fn naps(position: u64, written: u64, tcp_at: u64) -> bool {
    recalled(position, tcp_at) == Recalled::Open && written != position && !rules::off(Rule::NapBesideRecall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_waits_for_bytes_that_nobody_has_answered_for_naps() {
        assert!(naps(3, 5, 0));
        assert!(!naps(3, 3, 0) && !naps(3, 5, 4) && !naps(3, 5, 6));
    }

    #[test]
    fn what_a_writer_never_sends_is_read_from_where_tcp_ended() {
        for come in 0..6 {
            let all = 3 + come >= 7;
            assert_eq!(resent(3, come, 7, false), if all { Resent::All } else { Resent::Some });
            assert_eq!(resent(3, come, 7, true), if all { Resent::All } else { Resent::NoMore(3 + come) });
        }
        assert_eq!(resent(3, u64::MAX, 7, true), Resent::All);
    }

    #[test]
    fn bytes_of_tcp_are_read_up_to_the_ring_and_no_further() {
        assert_eq!(boundary(0, 7), Boundary::Unknown);
        for read in 0..5 {
            for all in 0..5u64 {
                let seen = boundary(all + 1, read);
                assert_eq!(seen, all.checked_sub(read).map_or(Boundary::Broken, Boundary::Left));
                let left = if let Boundary::Left(left) = seen { Some(left) } else { None };
                assert_eq!(turn_of_tcp(left) == Turn::ToRing, all == read);
            }
        }
        assert_eq!(turn_of_tcp(None), Turn::Nowhere);
    }

    #[test]
    fn a_reader_turns_where_it_is_announced_first_to_the_big_ring() {
        for position in 0..4u64 {
            for big_at in 0..5 {
                for tcp_at in 0..5 {
                    let turns = turn(position, big_at, tcp_at);
                    assert_eq!(turns == Turn::ToBig, big_at == position + 1);
                    assert_eq!(turns == Turn::ToTcp, tcp_at == position + 1 && big_at != tcp_at);
                    // Who does not turn may have bytes to read, and who turns has none there.
                    assert!(turns == Turn::Nowhere || until(big_at, tcp_at) <= position);
                }
            }
        }
    }

    #[test]
    fn nobody_looks_again_for_what_it_would_not_act_on() {
        assert!(!looks_again(3, 3, u64::MAX, Turn::Nowhere) && !looks_again(3, 5, 3, Turn::Nowhere));
        assert!(looks_again(3, 5, 4, Turn::Nowhere) && looks_again(3, 3, 3, Turn::ToTcp));
    }

    #[test]
    fn so_many_kicks_are_taken_as_were_counted() {
        assert_eq!((owed(3, 1), owed(3, 3), owed(1, 3)), (2, 0, 0));
        assert!(goes_by_tcp(3, 3, false) && goes_by_tcp(3, 1, true) && !goes_by_tcp(3, 1, false));
    }

    #[test]
    fn a_ring_ends_where_the_first_announcement_says() {
        for (big_at, tcp_at, end) in [(0, 0, u64::MAX), (1, 0, 0), (0, 4, 3), (3, 4, 2), (5, 4, 3)] {
            assert_eq!(until(big_at, tcp_at), end);
        }
    }

    #[test]
    fn what_a_dead_writer_left_is_read_unless_it_sends_it() {
        for ended in [false, true] {
            for unread in [false, true] {
                assert_eq!(open(true, ended, unread), Open::LookAgain);
                assert_eq!(open(false, ended, unread) == Open::ReadRing, ended && unread);
                assert_eq!(open(false, ended, unread) == Open::Wait, !ended);
            }
        }
    }

    #[test]
    fn a_recall_is_answered_where_the_reader_stands_or_not_at_all() {
        assert_eq!(recalled(3, 0), Recalled::Open);
        assert_eq!(recalled(3, 4), Recalled::ByTcp);
        assert_eq!(recalled(3, 5), Recalled::Void);
    }
}
