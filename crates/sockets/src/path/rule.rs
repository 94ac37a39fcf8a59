//! The rules of the pure parts of this folder, by name, so that the model and the simulator can
//! switch one off and show that it is needed.

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A ring is left only when no kick is on the way that the peer has not counted.
    Quiet,
    /// Nor while one that it has counted is still in the companion.
    KicksTaken,
    /// Nor, while its writer says nothing, with bytes unread.
    NothingUnread,
    /// A reader sends in the writer's stead, or keeps what it had recalled, only if it is the first
    /// to claim that.
    FirstClaims,
    /// A writer that finds the reader's claim sends only what the reader has not.
    WaitForReader,
    /// If it is not told how far the reader came, nothing may follow: the connection ends.
    EndIfUntold,
    /// A reader that has taken its recall back reads no further than it has said.
    ReadNoFurther,
    /// A recall that crossed the announcement of tcp is void: the rest of the ring is read there.
    CrossedIsVoid,
    /// Who leaves a ring for tcp asks its peer to do the same.
    AskToo,
    /// It tells the peer before it wakes it: who is woken before finds nothing, and sleeps on.
    TellBeforeWake,
    /// It wakes the peer before it announces where tcp begins: no kick may go behind that.
    WakeBeforeAnnounce,
    /// A direction leaves tcp before it kicks.
    SwitchBeforeKick,
    /// Who waits for what has been recalled does not sleep: a writer that leaves it in the ring
    /// after all wakes nobody.
    NapBesideRecall,
    /// Of what the companion brings beside a ring, only so many bytes are taken for kicks as have
    /// been counted.
    CountedKicks,
    /// Who has read a ring up to where tcp begins goes on there only behind the last kick.
    KicksFirst,
    /// When the kernel has told the end, it is looked once more what the ring holds: the peer may
    /// have put it there just before.
    LookAfterEnd,
    /// An offer that has been accepted is not taken back.
    AcceptedStands,
    /// Who accepts an offer that had been taken back stays on tcp.
    CancelledIsVoid,
    /// Who has offered may write to the ring, and wake, as soon as the answer is there.
    AcceptedIsAgreed,
    /// Who takes an offer does not use the ring before it is known that the offer stands.
    StandsBeforeUse,
    /// Where both have offered, one of them takes its offer back.
    OneYields,
    /// Whoever goes on for a dead holder announces once more what that one was announcing.
    AnnounceAgain,
    /// It asks the kernel how many recalled bytes have been sent.
    SentIsAsked,
    /// And how many kicks.
    KicksAreAsked,
    /// It wakes the peer once more, unless that is known to be done.
    WakeAgain,
    /// It asks the kernel how much has been read.
    ReadIsAsked,
    /// A connection is closed only when no kick is on the way.
    QuietAtClose,
    /// Nor with one unread in the companion.
    TakenAtClose,
    /// A half is shut when both directions are on tcp, as nobody can be woken by a kick behind a
    /// FIN.
    DemoteBeforeFin,
    /// Whoever goes on for a dead holder moves to the big ring to which that one was moving.
    GrowAgain,
    /// Who makes a connection count as new looks once more whether another thread wants it on tcp.
    WishIsSeen,
    /// What a dead writer has left in a ring that was recalled is read there.
    RestOfTheDead,
    /// Also if it has sent some of that.
    UnsentOfTheDead,
}

/// All of them, by their numbers.
#[allow(dead_code)] // Whoever compiles this to switch one off has a use for it.
pub const ALL: &[Rule] = &[
    Rule::Quiet,
    Rule::KicksTaken,
    Rule::NothingUnread,
    Rule::FirstClaims,
    Rule::WaitForReader,
    Rule::EndIfUntold,
    Rule::ReadNoFurther,
    Rule::CrossedIsVoid,
    Rule::AskToo,
    Rule::TellBeforeWake,
    Rule::WakeBeforeAnnounce,
    Rule::SwitchBeforeKick,
    Rule::NapBesideRecall,
    Rule::CountedKicks,
    Rule::KicksFirst,
    Rule::LookAfterEnd,
    Rule::AcceptedStands,
    Rule::CancelledIsVoid,
    Rule::AcceptedIsAgreed,
    Rule::StandsBeforeUse,
    Rule::OneYields,
    Rule::AnnounceAgain,
    Rule::SentIsAsked,
    Rule::KicksAreAsked,
    Rule::WakeAgain,
    Rule::ReadIsAsked,
    Rule::QuietAtClose,
    Rule::TakenAtClose,
    Rule::DemoteBeforeFin,
    Rule::GrowAgain,
    Rule::WishIsSeen,
    Rule::RestOfTheDead,
    Rule::UnsentOfTheDead,
];
