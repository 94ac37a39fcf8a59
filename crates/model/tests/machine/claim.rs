//! A recall whose bytes the reader may send in the writer's stead (`demote.rs`: `hand_over`,
//! `send_for_peer`, `to_tcp`). The reader stopped, perhaps where it has not come to the ring yet,
//! and recalls what is unread in the ring, so that a process that knows nothing of rings can go on
//! with the companion. The writer sends them by tcp when it finds the recall; a reader that does
//! not want to wait for it takes a copy of its descriptor and sends them itself, or, where it may
//! not, takes the recall back: it says that it has sent them, and reads them in the ring, up to
//! there (`keep_rest`). Who does is decided by a word that both change in one step. Meanwhile the
//! writer goes on writing, or leaves the ring for a reason of its own, and either may die between
//! any two steps.
//!
//! Steps, assumptions and mutations are as in `paths.rs`; kicks are not in this model, as the
//! reader claims only when none is on the way.

use stateright::{Model, Property};

use super::library::claim::{self, Leaving, Sends};
use super::library::reading::{self, Recalled};
use super::library::rules::{self, Rule};
use super::sound;

/// Bytes that the writer has to send; byte number n has the value n.
const BYTES: u8 = 4;

/// What mutations leave out: a rule of the library's, or what its shell and its callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Rule(Rule),
    /// The writer marks its claim before it announces.
    MarkBeforeAnnounce,
    /// After a byte was published, the recall is looked for.
    LookAfterPublish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Writer {
    /// In no call of ours.
    Idle,
    /// Has published a byte and looks whether it was recalled.
    Published,
    /// Leaves the ring; recalled, or by itself.
    Leaving {
        recalled: bool,
    },
    /// Has marked the claim, which was this before.
    Marked {
        recalled: bool,
        before: u64,
    },
    /// Sends what lies in the ring from here on.
    Resending(u8),
    Tcp,
    Broken,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reader {
    /// Has told the recall, and looks at what there is.
    Waiting,
    /// Found nothing announced, and bytes unread; claims next.
    Claiming,
    /// Sends byte after byte in the writer's stead.
    Sending(u8),
    /// Has claimed what it cannot send, and says next how far it reads itself.
    Keeping,
    /// All that follows comes by tcp.
    Tcp,
    /// The recall is void: it reads the ring up to here, then tcp.
    Ring(u8),
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    writer: Writer,
    reader: Reader,
    /// Write position of the ring. The read position is 0, where the reader stopped.
    written: u8,
    /// How many bytes the program has written, by either way.
    given: u8,
    /// The announcement of tcp, 0 if there is none.
    tcp_at: u8,
    /// The word that decides.
    claim: u64,
    /// How far the reader came, + 1.
    resent_to: u8,
    companion: Vec<u8>,
    /// What was read from the ring after all.
    from_ring: Vec<u8>,
    timed_out: bool,
    kept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Writer,
    /// The writer's program writes, or makes another call.
    Write,
    Call,
    /// The writer leaves the ring by itself.
    Leave,
    /// The writer has waited long enough for the reader.
    TimeOut,
    Reader,
    /// The reader may not send, and claims to keep.
    Keep,
    WriterDies,
    ReaderDies,
}

struct Claim {
    broken: Option<Broken>,
}

impl State {
    /// What the library's writer decides; `waited` as long as for anybody.
    fn sends(&self, recalled: bool, before: u64, waited: bool) -> Sends {
        let seen = Leaving {
            before,
            recalled: recalled.then_some(0),
            written: self.written.into(),
            oldest: 0,
            resent_to: self.resent_to.checked_sub(1).map(u64::from),
            waited: if waited { u64::MAX } else { 0 },
        };
        seen.sends()
    }

    /// The word, if the library's reader may change it so.
    fn claims(&self) -> Option<u64> {
        claim::of_reader(self.claim, self.tcp_at.checked_sub(1).map(u64::from))
    }

    /// Up to where it reads in the ring: what the library says of one that has taken its recall
    /// back, or found it void.
    fn end(&self) -> u64 {
        reading::until(0, self.tcp_at.into()).min(self.written.into())
    }
}

impl Claim {
    fn keeps(&self, broken: Broken) -> bool {
        self.broken != Some(broken)
    }

    fn rule(&self) {
        rules::switch_off(match self.broken {
            Some(Broken::Rule(rule)) => Some(rule),
            _ => None,
        });
    }

    fn writer(&self, s: &mut State, waited: bool) {
        s.writer = match s.writer {
            Writer::Published => Writer::Leaving { recalled: true },
            Writer::Leaving { recalled } => {
                let before = s.claim;
                if self.keeps(Broken::MarkBeforeAnnounce) {
                    s.claim |= claim::BY_WRITER;
                }
                Writer::Marked { recalled, before }
            }
            Writer::Marked { recalled, before } => match s.sends(recalled, before, waited) {
                Sends::NotKnown => s.writer,
                Sends::BreakOff => Writer::Broken,
                Sends::From(from) => {
                    s.tcp_at = from as u8 + 1;
                    Writer::Resending(from as u8)
                }
            },
            Writer::Resending(at) if at < s.written => {
                s.companion.push(at);
                Writer::Resending(at + 1)
            }
            Writer::Resending(_) => Writer::Tcp,
            other => other,
        };
        s.timed_out |= waited;
    }

    fn reader(&self, s: &mut State) {
        s.reader = match s.reader {
            Reader::Waiting => match reading::recalled(0, s.tcp_at.into()) {
                Recalled::Void => Reader::Ring(0),
                Recalled::ByTcp => Reader::Tcp,
                Recalled::Open if s.written == 0 => Reader::Tcp,
                Recalled::Open => Reader::Claiming,
            },
            Reader::Claiming => match s.claims() {
                None => Reader::Waiting,
                Some(word) => {
                    s.claim = word;
                    Reader::Sending(0)
                }
            },
            Reader::Sending(at) if at < s.written => {
                s.companion.push(at);
                Reader::Sending(at + 1)
            }
            Reader::Sending(at) => {
                s.resent_to = at + 1;
                Reader::Tcp
            }
            Reader::Keeping => {
                s.tcp_at = s.written + 1;
                s.resent_to = s.written + 1;
                s.kept = true;
                Reader::Ring(0)
            }
            Reader::Ring(at) if u64::from(at) < s.end() => {
                s.from_ring.push(at);
                Reader::Ring(at + 1)
            }
            other => other,
        };
    }
}

impl Model for Claim {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let with = |written| State {
            writer: Writer::Idle,
            reader: Reader::Waiting,
            written,
            given: written,
            tcp_at: 0,
            claim: 0,
            resent_to: 0,
            companion: Vec::new(),
            from_ring: Vec::new(),
            timed_out: false,
            kept: false,
        };
        (0..=2).map(with).collect()
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        self.rule();
        match s.writer {
            Writer::Idle => {
                if s.given < BYTES {
                    steps.push(Step::Write);
                }
                steps.extend([Step::Call, Step::Leave]);
            }
            Writer::Tcp if s.given < BYTES => steps.push(Step::Write),
            Writer::Marked { recalled, before } if s.sends(recalled, before, false) == Sends::NotKnown => {
                steps.push(Step::TimeOut)
            }
            Writer::Tcp | Writer::Broken | Writer::Dead => {}
            _ => steps.push(Step::Writer),
        }
        match s.reader {
            Reader::Tcp | Reader::Dead => {}
            Reader::Ring(at) if u64::from(at) >= s.end() => {}
            Reader::Claiming if s.claims().is_some() => steps.extend([Step::Reader, Step::Keep]),
            _ => steps.push(Step::Reader),
        }
        if s.writer != Writer::Dead {
            steps.push(Step::WriterDies);
        }
        if s.reader != Reader::Dead {
            steps.push(Step::ReaderDies);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        self.rule();
        let mut s = state.clone();
        match step {
            Step::Write if s.writer == Writer::Idle => {
                s.written += 1;
                s.given += 1;
                s.writer =
                    if self.keeps(Broken::LookAfterPublish) { Writer::Published } else { Writer::Idle };
            }
            Step::Write => {
                s.companion.push(s.given);
                s.given += 1;
            }
            Step::Call => s.writer = Writer::Leaving { recalled: true },
            Step::Leave => s.writer = Writer::Leaving { recalled: false },
            Step::TimeOut => self.writer(&mut s, true),
            Step::Writer => self.writer(&mut s, false),
            Step::Reader => self.reader(&mut s),
            Step::Keep => {
                s.claim = s.claims()?;
                s.reader = Reader::Keeping;
            }
            Step::WriterDies => s.writer = Writer::Dead,
            Step::ReaderDies => s.reader = Reader::Dead,
        }
        (s != *state).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no byte wrong", |_, s: &State| {
                s.from_ring.iter().chain(&s.companion).zip(0..).all(|(byte, n)| *byte == n) || {
                    // What follows the ring's part is on the companion already, and comes when that
                    // part has been read.
                    !matches!(s.reader, Reader::Sending(_) | Reader::Tcp)
                        && (s.resent_to == 0 || s.kept)
                        && s.tcp_at > 1
                        && s.from_ring.len() < usize::from(s.tcp_at)
                        && s.companion.iter().zip(s.tcp_at - 1..).all(|(byte, n)| *byte == n)
                }
            }),
            Property::always("nothing is left out", |_, s: &State| {
                let lives = s.writer != Writer::Dead && s.reader != Reader::Dead && !s.timed_out;
                let ended = s.writer == Writer::Tcp && s.given == BYTES;
                let read = matches!(s.reader, Reader::Tcp)
                    || matches!(s.reader, Reader::Ring(at) if at + 1 >= s.tcp_at);
                !(lives && ended && read) || s.from_ring.len() + s.companion.len() == usize::from(BYTES)
            }),
            Property::always("nobody who is told nothing goes on", |_, s: &State| {
                let stuck = s.writer == Writer::Idle && s.reader == Reader::Tcp && s.written > 0;
                !stuck || s.given < BYTES || s.resent_to != 0 || s.claim & claim::BY_WRITER != 0
            }),
            Property::sometimes("reached: the reader sent all that was in the ring", |_, s: &State| {
                s.resent_to == 4
            }),
            Property::sometimes("reached: the reader sent some, the writer the rest", |_, s: &State| {
                s.resent_to == 2 && s.companion.len() == usize::from(BYTES) && s.from_ring.is_empty()
            }),
            Property::sometimes(
                "reached: the reader kept what there was, and more came by tcp",
                |_, s: &State| s.resent_to == 3 && s.from_ring.len() == 2 && s.companion.len() == 2,
            ),
            Property::sometimes("reached: void", |_, s: &State| {
                s.from_ring.len() == 2 && !s.companion.is_empty()
            }),
        ]
    }
}

#[test]
fn a_claim_sends_every_byte_once_and_in_order() {
    sound(Claim { broken: None });
}

fn caught(broken: Broken, property: &str) {
    super::caught(broken, Claim { broken: Some(broken) }, property);
}

#[test]
fn the_reader_claims_only_if_it_is_the_first() {
    caught(Broken::Rule(Rule::FirstClaims), "no byte wrong");
}

#[test]
fn the_writer_marks_its_claim_before_it_announces() {
    caught(Broken::MarkBeforeAnnounce, "no byte wrong");
}

#[test]
fn the_writer_waits_for_a_reader_that_sends() {
    caught(Broken::Rule(Rule::WaitForReader), "no byte wrong");
}

#[test]
fn a_writer_that_is_told_nothing_sends_nothing() {
    caught(Broken::Rule(Rule::EndIfUntold), "no byte wrong");
}

#[test]
fn the_writer_looks_for_a_recall_after_it_published() {
    caught(Broken::LookAfterPublish, "nobody who is told nothing goes on");
}

#[test]
fn a_reader_that_keeps_what_it_had_recalled_reads_no_further_than_it_has_said() {
    caught(Broken::Rule(Rule::ReadNoFurther), "no byte wrong");
}

#[test]
fn a_recall_that_crossed_the_announcement_is_void() {
    caught(Broken::Rule(Rule::CrossedIsVoid), "no");
}
