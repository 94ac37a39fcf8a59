//! What the two ends of a connection decide about an offer: whether it is answered, taken back, or
//! stands, and from when on either may write to the ring. An offer is answered, and taken back, by
//! one word that both ends change in one step. Pure: the shell is `rendezvous/agreement.rs` and
//! `rendezvous/pairing.rs`, and the model (`crates/model/tests/machine/offer.rs`) compiles this
//! file.

use super::rules::{self, Rule};

/// Where an end stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// On tcp, and not to be found yet.
    New,
    /// On tcp, to be found by the other end.
    Posted,
    /// It has offered a slot.
    Offered,
    /// Both ends have agreed.
    Promoted,
    /// On tcp for good.
    Plain,
}

/// What has become of an offer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Answer {
    pub accepted: bool,
    pub refused: bool,
    /// Whoever made it has taken it back.
    pub cancelled: bool,
}

impl Answer {
    /// Where the end stands now that made it; `None`: it waits for the answer.
    pub fn stage(self) -> Option<Stage> {
        match self {
            Answer { accepted: true, .. } => Some(Stage::Promoted),
            Answer { refused: true, .. } => Some(Stage::Posted),
            _ => None,
        }
    }

    /// Whether it can be taken back still.
    pub fn may_cancel(self) -> bool {
        !self.accepted || rules::off(Rule::AcceptedStands)
    }

    /// Whether it stands, for the end that has accepted it and found this there.
    pub fn stands(self) -> bool {
        !self.cancelled || rules::off(Rule::CancelledIsVoid)
    }
}

/// Whether a direction may leave tcp for the ring: the end that has offered as soon as the answer
/// is there, even if it has not taken note of it, since the peer may be in the ring by then and
/// have to be woken; the end that was offered when it is known that the offer stands. `barred`: it
/// is not to be promoted any more, or its writing half is shut.
#[inline(always)]
pub(crate) fn may_switch(stage: Stage, accepted: impl FnOnce() -> bool, barred: bool) -> bool {
    let agreed = match stage {
        Stage::Promoted => true,
        Stage::Offered => accepted() && !rules::off(Rule::AcceptedIsAgreed),
        Stage::Posted => rules::off(Rule::StandsBeforeUse),
        Stage::New | Stage::Plain => false,
    };
    agreed && !barred
}

/// Both ends have offered: whether we take ours back for the peer's, by the cookies of the two
/// ends.
pub(crate) fn yields(own: u64, theirs: u64) -> bool {
    theirs <= own || rules::off(Rule::OneYields)
}

/// Whether this end makes the offer between hosts, by the names of the two processes: the peer does
/// it else. An offer cannot be taken back there without waiting for the peer.
pub(crate) fn offers(own: u64, theirs: u64) -> bool {
    own <= theirs
}

/// Whether an offer may be taken by an end that stands so, unless it is `barred`, or its slot has a
/// connection already.
pub(crate) fn takes(stage: Stage, barred: bool, occupied: bool) -> bool {
    stage == Stage::Posted && !barred && !occupied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Answer> {
        (0..8).map(|bits| Answer {
            accepted: bits & 1 != 0,
            refused: bits & 2 != 0,
            cancelled: bits & 4 != 0,
        })
    }

    #[test]
    fn what_was_accepted_stays_so() {
        for answer in all() {
            assert_eq!(answer.may_cancel(), !answer.accepted);
            assert_eq!(answer.stands(), !answer.cancelled);
            let stage = answer.stage();
            assert_eq!(stage == Some(Stage::Promoted), answer.accepted);
            assert_eq!(stage == Some(Stage::Posted), answer.refused && !answer.accepted);
        }
    }

    #[test]
    fn the_ring_is_used_when_it_is_known_that_both_agree() {
        for stage in [Stage::New, Stage::Posted, Stage::Offered, Stage::Promoted, Stage::Plain] {
            for accepted in [false, true] {
                let agreed = stage == Stage::Promoted || stage == Stage::Offered && accepted;
                assert_eq!(may_switch(stage, || accepted, false), agreed);
                assert!(!may_switch(stage, || accepted, true));
            }
            assert_eq!(takes(stage, false, false), stage == Stage::Posted);
            assert!(!takes(stage, true, false) && !takes(stage, false, true));
        }
    }

    #[test]
    fn one_of_two_ends_offers_and_one_yields() {
        for (own, theirs) in [(1, 2), (2, 1), (0, u64::MAX)] {
            assert_ne!(yields(own, theirs), yields(theirs, own));
            assert_ne!(offers(own, theirs), offers(theirs, own));
        }
    }
}
