//! An offer and its answer (`rendezvous.rs`: `offer`, `take`, `take_back`, `look_for_answer`;
//! `io.rs`: `switch`), while the programs at both ends go on to write and to read. At the end that
//! takes the offer another thread than theirs does it; the end that has offered may take the offer
//! back at any moment, as it does before fork(). Each direction is on tcp, then in a ring with room
//! for one byte, so that writers fall asleep and have to be woken by a kick.
//!
//! A write, a read and a fire are one step each, as each is done under the lock of a direction;
//! arming and looking again are one, too (loom's tripwire model takes them apart). Mutations leave
//! out one rule each, as in `paths.rs`.

use stateright::{Model, Property};

use super::library::offer::{self, Answer};
use super::library::rules::{self, Rule};
use super::sound;

/// Bytes that each end has to send; byte number n has the value n.
const BYTES: u8 = 3;

/// What mutations leave out: a rule of the library's, or what its shell does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Rule(Rule),
    /// Between its answer and its own note of it no thread of it fires, nor writes: the lock of the
    /// writing direction is held.
    HoldLock,
    /// It is looked whether an offer has been accepted, and it is taken back, in one step.
    TakeBackInOneStep,
}

/// The end that has offered, and the one that takes it.
const OFFERER: usize = 0;
const TAKER: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// The offer is out; or it has not been looked at.
    Open,
    /// (Offerer) has found it unanswered and is about to cancel it. (Taker) calls are ours, the
    /// answer is next.
    Deciding,
    /// (Taker) has answered, and notes it next.
    Answered,
    Promoted,
    Plain,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    stage: Stage,
    /// How many bytes its program has written and read.
    given: u8,
    got: u8,
    /// The bytes that it wrote, where the peer finds them.
    companion: Vec<u8>,
    ring: Option<u8>,
    /// After how many bytes on the companion its ring begins.
    ring_from: Option<u8>,
    /// Asleep until the peer makes room, and armed for it.
    asleep: bool,
    armed: bool,
    /// It has made room, and looks next whether the peer is armed.
    to_fire: bool,
    wrong: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ends: [End; 2],
    accepted: bool,
    cancelled: bool,
    /// The taker's thread that answers has the lock of the writing direction.
    locked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Write(usize),
    Read(usize),
    Fire(usize),
    /// The offerer notes the answer, or begins, or ends, to take its offer back.
    Look,
    TakeBack,
    /// The next step of the thread that takes the offer.
    Take,
}

struct Offer {
    broken: Option<Broken>,
}

/// Switches the library's rule off that is left out, if it is one.
fn switch_off(broken: Option<Broken>) {
    rules::switch_off(match broken {
        Some(Broken::Rule(rule)) => Some(rule),
        _ => None,
    });
}

impl State {
    fn answer(&self) -> Answer {
        Answer { accepted: self.accepted, refused: false, cancelled: self.cancelled }
    }
}

impl Offer {
    fn keeps(&self, broken: Broken) -> bool {
        self.broken != Some(broken)
    }

    /// Whether this end may change over to the ring.
    fn agreed(&self, s: &State, end: usize) -> bool {
        let stage = match s.ends[end].stage {
            Stage::Promoted => offer::Stage::Promoted,
            Stage::Plain => offer::Stage::Plain,
            _ if end == OFFERER => offer::Stage::Offered,
            _ => offer::Stage::Posted,
        };
        offer::may_switch(stage, || s.accepted, false)
    }

    /// Whether its calls are ours, and look at the ring.
    fn managed(s: &State, end: usize) -> bool {
        match s.ends[end].stage {
            Stage::Open => end == OFFERER,
            Stage::Plain => false,
            _ => true,
        }
    }

    /// Puts the direction that `end` writes on the ring, if it may; says whether it is there.
    fn switch(&self, s: &mut State, end: usize) -> bool {
        if s.ends[end].ring_from.is_none() && self.agreed(s, end) {
            s.ends[end].ring_from = Some(s.ends[end].given);
        }
        s.ends[end].ring_from.is_some()
    }

    fn write(&self, s: &mut State, end: usize) {
        // Once the offer is cancelled its calls are the kernel's again.
        if Self::managed(s, end) && self.switch(s, end) {
            let end = &mut s.ends[end];
            if end.ring.is_some() {
                (end.asleep, end.armed) = (true, true);
                return;
            }
            end.ring = Some(end.given);
        } else {
            let byte = s.ends[end].given;
            s.ends[end].companion.push(byte);
        }
        s.ends[end].given += 1;
    }

    fn read(&self, s: &mut State, end: usize) {
        let managed = Self::managed(s, end);
        let [own, peer] = match &mut s.ends {
            [a, b] if end == 0 => [a, b],
            [a, b] => [b, a],
        };
        let byte = if managed && peer.ring_from.is_some_and(|from| own.got >= from) {
            own.to_fire |= peer.ring.is_some();
            peer.ring.take()
        } else if peer.companion.is_empty() {
            None
        } else {
            Some(peer.companion.remove(0))
        };
        if let Some(byte) = byte {
            own.wrong |= byte != own.got;
            own.got += 1;
        }
    }

    fn fire(&self, s: &mut State, end: usize) {
        s.ends[end].to_fire = false;
        if std::mem::take(&mut s.ends[1 - end].armed) && self.switch(s, end) {
            s.ends[1 - end].asleep = false;
        }
    }

    fn take(&self, s: &mut State) {
        s.ends[TAKER].stage = match s.ends[TAKER].stage {
            Stage::Open => Stage::Deciding,
            Stage::Deciding => {
                let before = s.answer();
                s.accepted = true;
                if before.stands() {
                    s.locked = self.keeps(Broken::HoldLock);
                    Stage::Answered
                } else {
                    Stage::Plain
                }
            }
            Stage::Answered => {
                s.locked = false;
                Stage::Promoted
            }
            other => other,
        };
    }
}

impl Model for Offer {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let end = End {
            stage: Stage::Open,
            given: 0,
            got: 0,
            companion: Vec::new(),
            ring: None,
            ring_from: None,
            asleep: false,
            armed: false,
            to_fire: false,
            wrong: false,
        };
        vec![State { ends: [end.clone(), end], accepted: false, cancelled: false, locked: false }]
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        let ends = [OFFERER, TAKER].into_iter();
        let all = ends.flat_map(|end| [Step::Write(end), Step::Read(end), Step::Fire(end)]);
        steps.extend(
            all.chain([Step::Look, Step::TakeBack, Step::Take])
                .filter(|&step| self.next_state(s, step).is_some()),
        );
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        switch_off(self.broken);
        let mut s = state.clone();
        let offerer = s.ends[OFFERER].stage;
        match step {
            Step::Write(TAKER) | Step::Fire(TAKER) if s.locked => {}
            Step::Write(end) if s.ends[end].given < BYTES && !s.ends[end].asleep => self.write(&mut s, end),
            Step::Fire(end) if s.ends[end].to_fire => self.fire(&mut s, end),
            Step::Write(_) | Step::Fire(_) => {}
            Step::Read(end) => self.read(&mut s, end),
            Step::Look if offerer == Stage::Open && s.answer().stage() == Some(offer::Stage::Promoted) => {
                s.ends[OFFERER].stage = Stage::Promoted;
            }
            Step::Look => {}
            Step::TakeBack if offerer == Stage::Open && s.answer().may_cancel() => {
                s.ends[OFFERER].stage = Stage::Deciding;
                if self.keeps(Broken::TakeBackInOneStep) {
                    (s.cancelled, s.ends[OFFERER].stage) = (true, Stage::Plain);
                }
            }
            Step::TakeBack if offerer == Stage::Deciding => {
                (s.cancelled, s.accepted, s.ends[OFFERER].stage) = (true, false, Stage::Plain);
            }
            Step::TakeBack => {}
            Step::Take => self.take(&mut s),
        }
        (s != *state).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no byte wrong", |_, s: &State| s.ends.iter().all(|end| !end.wrong)),
            Property::always("at the end all bytes are there", |model: &Offer, s: &State| {
                let mut steps = Vec::new();
                model.actions(s, &mut steps);
                !steps.is_empty() || s.ends.iter().all(|end| end.given == BYTES && end.got == BYTES)
            }),
            Property::always("both ends decide alike", |_, s: &State| {
                !matches!(
                    (s.ends[OFFERER].stage, s.ends[TAKER].stage),
                    (Stage::Plain, Stage::Promoted) | (Stage::Promoted, Stage::Plain)
                )
            }),
            Property::sometimes("reached: in memory both ways", |_, s: &State| {
                s.ends.iter().all(|end| end.ring_from.is_some() && end.got == BYTES)
            }),
            Property::sometimes("reached: taken back although it was being taken", |_, s: &State| {
                s.cancelled && s.accepted && s.ends.iter().all(|end| end.got == BYTES)
            }),
        ]
    }
}

#[test]
fn an_offer_is_agreed_on_or_leaves_no_trace() {
    sound(Offer { broken: None });
}

fn caught(broken: Broken, property: &str) {
    super::caught(broken, Offer { broken: Some(broken) }, property);
}

#[test]
fn the_ring_is_not_used_before_the_offer_stands() {
    caught(Broken::Rule(Rule::StandsBeforeUse), "at the end all bytes are there");
}

#[test]
fn the_answer_and_its_note_are_one_for_writers() {
    caught(Broken::HoldLock, "at the end all bytes are there");
}

#[test]
fn an_answer_that_is_not_noted_yet_lets_wake() {
    caught(Broken::Rule(Rule::AcceptedIsAgreed), "at the end all bytes are there");
}

#[test]
fn an_offer_is_taken_back_in_one_step() {
    caught(Broken::TakeBackInOneStep, "both ends decide alike");
}

#[test]
fn an_offer_that_was_accepted_is_not_taken_back() {
    caught(Broken::Rule(Rule::AcceptedStands), "both ends decide alike");
}

#[test]
fn an_offer_that_was_taken_back_is_none() {
    caught(Broken::Rule(Rule::CancelledIsVoid), "both ends decide alike");
}

/// Both ends have offered, and each finds the other's offer.
struct Crossing {
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Crossed {
    /// Has offered, and has not heard the other's offer.
    Offered,
    /// Has taken its own back, and takes the other's next.
    Takes,
    /// Has refused the other's, and waits for the answer to its own.
    Waits,
    /// In memory on the slot that this end offered.
    On(usize),
    Tcp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Two {
    ends: [Crossed; 2],
    /// What has become of the offer that each end made.
    offers: [Answer; 2],
}

impl Model for Crossing {
    type State = Two;
    type Action = usize;

    fn init_states(&self) -> Vec<Two> {
        vec![Two { ends: [Crossed::Offered; 2], offers: [Answer::default(); 2] }]
    }

    fn actions(&self, s: &Two, steps: &mut Vec<usize>) {
        steps.extend((0..2).filter(|&end| self.next_state(s, end).is_some()));
    }

    /// The next step of an end: its cookie is its number.
    fn next_state(&self, state: &Two, end: usize) -> Option<Two> {
        switch_off(self.broken);
        let mut s = state.clone();
        let other = 1 - end;
        s.ends[end] = match s.ends[end] {
            Crossed::Offered if offer::yields(end as u64, other as u64) && s.offers[end].may_cancel() => {
                s.offers[end].cancelled = true;
                Crossed::Takes
            }
            Crossed::Offered => {
                s.offers[other].refused = true;
                Crossed::Waits
            }
            Crossed::Takes => {
                let before = s.offers[other];
                s.offers[other].accepted = true;
                if before.stands() { Crossed::On(other) } else { Crossed::Tcp }
            }
            Crossed::Waits => match s.offers[end].stage()? {
                offer::Stage::Promoted => Crossed::On(end),
                _ => Crossed::Tcp,
            },
            Crossed::On(_) | Crossed::Tcp => return None,
        };
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("both go the same way", |_, s: &Two| {
                !matches!(s.ends, [Crossed::On(a), Crossed::On(b)] if a != b)
                    && !matches!(s.ends, [Crossed::On(_), Crossed::Tcp] | [Crossed::Tcp, Crossed::On(_)])
            }),
            Property::always("one of two offers stands", |_, s: &Two| s.ends != [Crossed::Tcp; 2]),
            Property::sometimes("reached: in memory", |_, s: &Two| s.ends == [Crossed::On(0); 2]),
        ]
    }
}

#[test]
fn of_two_offers_that_cross_one_stands() {
    sound(Crossing { broken: None });
    let broken = Broken::Rule(Rule::OneYields);
    super::caught(broken, Crossing { broken: Some(broken) }, "one of two offers stands");
}
