//! What is done for a holder of a direction's lock that died in the middle of something, decided by
//! its marks, by what it had noted, and by what the kernel has counted. Pure: the shell is
//! `recovery.rs`, and the model (`crates/model/tests/machine/unfinished.rs`) compiles this file.

use super::rules::{self, Rule};

/// What it had begun, by its marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub growing: bool,
    pub leaving: bool,
    pub sending: bool,
    pub firing: bool,
    pub paying: bool,
}

/// What whoever has the lock of the writing direction next sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer {
    pub marks: Marks,
    /// It writes to the small ring.
    pub in_small: bool,
    /// How many bytes have gone by tcp, if the kernel knows.
    pub gone: Option<u64>,
    /// The same when the ring began: since then only kicks go by tcp until it is left.
    pub gone_before_ring: Option<u64>,
    /// The same when the first recalled byte was to be sent, and which that was.
    pub gone_before_resend: Option<u64>,
    pub resend_from: u64,
    pub written: u64,
    /// Kicks that have been counted.
    pub kicks: u64,
    /// The peer's tripwire has been fired with the one that is marked, and all of that has been
    /// done.
    pub woken: bool,
}

/// What it does, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Redo {
    pub grow: bool,
    pub announce: bool,
    /// The first recalled byte that has not been sent.
    pub resend: Option<u64>,
    /// How many of the kicks that have been counted have not been sent. The peer is told once more
    /// how many have been counted.
    pub debt: Option<u64>,
    /// Wakes the peer once more: for nothing, perhaps, which does no harm until it has been told
    /// that it was woken.
    pub wake: bool,
    /// Tells it so.
    pub carried_out: bool,
}

impl Writer {
    pub fn redo(&self) -> Redo {
        let Marks { growing, leaving, sending, firing, paying } = self.marks;
        let since = |before: Option<u64>| Some(self.gone?.wrapping_sub(before?));
        let sent = since(self.gone_before_resend).filter(|_| sending && !leaving);
        let resend = sent.map(|sent| self.resend_from.saturating_add(sent).min(self.written));
        let debt = since(self.gone_before_ring).map_or(0, |sent| self.kicks.saturating_sub(sent));
        Redo {
            grow: growing && self.in_small && !rules::off(Rule::GrowAgain),
            announce: leaving && !rules::off(Rule::AnnounceAgain),
            resend: resend.filter(|_| !rules::off(Rule::SentIsAsked)),
            debt: (firing || paying).then_some(debt).filter(|_| !rules::off(Rule::KicksAreAsked)),
            wake: firing && !self.woken && !rules::off(Rule::WakeAgain),
            carried_out: firing,
        }
    }
}

/// What whoever has the lock of the reading direction next sees, whose last holder was reading by
/// tcp, or taking kicks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader {
    /// How much has been read on tcp, as the kernel has counted.
    pub read: u64,
    /// How many bytes of tcp come before the ring, once announced.
    pub boundary: Option<u64>,
    /// The path is still tcp, before the ring.
    pub by_tcp: bool,
    /// Kicks that have been taken, as it had noted, and that have been counted.
    pub taken: u64,
    pub counted: u64,
}

/// What it notes: up to the ring's beginning what was read were the program's bytes, then kicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    Bytes {
        read: u64,
        left: Option<u64>,
    },
    /// So many have been taken.
    Kicks(u64),
}

impl Reader {
    pub fn note(&self) -> Option<Note> {
        let note = match self.boundary {
            Some(boundary) if !self.by_tcp || self.read > boundary => {
                let taken = self.read.wrapping_sub(boundary);
                Note::Kicks(taken.clamp(self.taken, self.counted.max(self.taken)))
            }
            boundary => Note::Bytes { read: self.read, left: boundary.map(|all| all - self.read) },
        };
        (!rules::off(Rule::ReadIsAsked)).then_some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut each: impl FnMut(Writer)) {
        for bits in 0..1u32 << 7 {
            let bit = |number: u32| bits >> number & 1 != 0;
            let marks =
                Marks { growing: bit(0), leaving: bit(1), sending: bit(2), firing: bit(3), paying: bit(4) };
            for gone in [None, Some(10), Some(12), Some(20)] {
                for before in [None, Some(10)] {
                    for (kicks, written) in [(0, 5), (2, 5), (3, 9)] {
                        each(Writer {
                            marks,
                            in_small: bit(5),
                            gone,
                            gone_before_ring: before,
                            gone_before_resend: before,
                            resend_from: 4,
                            written,
                            kicks,
                            woken: bit(6),
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn only_what_is_marked_is_done_again() {
        all(|seen| {
            let redo = seen.redo();
            assert_eq!(redo.announce, seen.marks.leaving);
            assert_eq!(redo.grow, seen.marks.growing && seen.in_small);
            assert_eq!(redo.debt.is_some(), seen.marks.firing || seen.marks.paying);
            assert_eq!(redo.carried_out, seen.marks.firing);
            assert!(!redo.wake || seen.marks.firing && !seen.woken);
            assert!(redo.resend.is_none() || seen.marks.sending && !seen.marks.leaving);
        });
    }

    #[test]
    fn what_the_kernel_has_counted_is_not_sent_again_and_nothing_that_never_was_there() {
        all(|seen| {
            let redo = seen.redo();
            if let Some(from) = redo.resend {
                assert!((4..=seen.written).contains(&from), "{seen:?}");
                assert_eq!(from, seen.written.min(4 + seen.gone.unwrap() - 10));
            }
            if let Some(debt) = redo.debt {
                assert!(debt <= seen.kicks, "{seen:?}");
            }
        });
    }

    #[test]
    fn what_was_read_is_bytes_up_to_the_ring_and_kicks_behind() {
        for read in 0..8 {
            for boundary in [None, Some(3), Some(5)] {
                for by_tcp in [false, true] {
                    for (taken, counted) in [(0, 0), (0, 2), (1, 2)] {
                        let seen = Reader { read, boundary, by_tcp, taken, counted };
                        match seen.note().unwrap() {
                            Note::Bytes { left, .. } => {
                                assert!(by_tcp || boundary.is_none());
                                assert_eq!(left, boundary.map(|all| all - read));
                            }
                            Note::Kicks(now) => assert!((taken..=counted).contains(&now), "{seen:?}"),
                        }
                    }
                }
            }
        }
    }
}
