//! A reader on a ring recalls what is unread, and leaves the ring to a process that knows nothing
//! of it (`sockets/src/handover.rs`). What it decides is the library's own source,
//! `path/recall.rs`; the rest is what a writer does meanwhile: it publishes, finds the tripwire
//! armed, counts a kick and sends it, says that it has, and, when it is in a call, finds the recall
//! and sends by tcp. All of that in single steps, in any order; either may die, and the writer may
//! never call again.
//!
//! The reader looks in the shell's order: whether it is quiet, then at the words, then it takes
//! kicks, then at the words once more. Another thread of its process is about to sleep meanwhile,
//! and arms the tripwire, as `sockets/src/wake/arm.rs` does.

use stateright::{Model, Property};

use super::library::recall::{Next, PEER_NS, Reads, Recall};
use super::library::rules::{self, Rule};
use super::sound;

/// Bytes that the writer has to send; byte number n has the value n.
const BYTES: u8 = 3;
/// A kick, in the companion.
const KICK: u8 = 0xff;
/// How long the reader has waited: not at all, long enough to send in the peer's stead, longer than
/// for any kick, longer than for anybody.
const WAITED: [u64; 4] = [0, PEER_NS + 1, 500_000_000, 11_000_000_000];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Writer {
    /// On the ring, in no call of ours.
    Idle,
    /// Has published.
    Published,
    /// Has disarmed the tripwire, has counted the kick, has sent it.
    Fired,
    Counted,
    Kicked,
    /// Leaves the ring; it has marked that.
    Leaving,
    Marked {
        by_reader: bool,
    },
    Resending(u8),
    Tcp,
    Broken,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reader {
    /// Has not recalled yet; has disarmed the tripwire.
    Begins,
    Disarmed,
    /// Looks whether it is quiet, then at the words, then takes kicks, then looks once more.
    Asks,
    Looks {
        quiet: bool,
    },
    Takes {
        quiet: bool,
    },
    Decides {
        quiet: bool,
    },
    /// Sends in the writer's stead.
    Sending(u8),
    /// The companion is somebody's who knows nothing of rings.
    Left,
    /// It could not: what is unread goes by a relay, or stays.
    GaveUp,
    Dead,
}

/// Another thread that goes to sleep, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sleeper {
    Awake,
    /// Has counted that it arms; has asked whether it may.
    Counted,
    MayArm,
    Asleep,
}

/// What mutations leave out: a rule of the library's, or what its shell does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Rule(Rule),
    /// Whoever is about to sleep asks whether it may arm.
    Ask,
    /// It counts that it arms before it asks.
    CountFirst,
    /// The reader disarms again with each look.
    DisarmAgain,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    writer: Writer,
    reader: Reader,
    sleeper: Sleeper,
    written: u8,
    given: u8,
    armed: bool,
    /// Nobody is to arm any more.
    disarmed: bool,
    /// How often it was armed, less what was taken back; how often the peer has carried out.
    arms: u8,
    fired: u8,
    kicks: u8,
    kicks_taken: u8,
    recalled: bool,
    tcp_at: u8,
    claimed_by_writer: bool,
    claimed_by_reader: bool,
    resent_to: u8,
    companion: Vec<u8>,
    /// Index in WAITED.
    waited: u8,
    tried: bool,
    /// The reader left when the writer had left bytes in the ring and was in no call.
    left_unsent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Writer,
    /// The writer's program writes, or makes another call.
    Write,
    Call,
    Reader,
    Sleeper,
    /// Time passes for the reader.
    Wait,
    /// As [`Step::Reader`], where others are asleep, or it may not send in the writer's stead.
    Others,
    WriterDies,
    ReaderDies,
}

/// Without one rule, or with all.
struct Handover {
    broken: Option<Broken>,
}

fn switch_off(broken: Option<Broken>) {
    rules::switch_off(match broken {
        Some(Broken::Rule(rule)) => Some(rule),
        _ => None,
    });
}

impl State {
    fn look(&self, quiet: bool) -> Recall {
        Recall {
            // Its shell goes on to tcp where the writer says, behind the last kick.
            reads: if self.tcp_at == 1 && self.kicks == self.kicks_taken { Reads::Last } else { Reads::Ring },
            records: false,
            waited: WAITED[self.waited as usize],
            quiet,
            ended: self.writer == Writer::Dead,
            recalled: self.recalled,
            announced: true,
            written: self.written.into(),
            read: 0,
            kicks: self.kicks.into(),
            kicks_taken: self.kicks_taken.into(),
            by_tcp: self.tcp_at.checked_sub(1).map(u64::from),
            claimed: self.claimed_by_writer,
            tried: self.tried,
        }
    }

    fn leave(&mut self) -> Reader {
        self.left_unsent =
            self.written > 0 && self.tcp_at == 0 && self.resent_to == 0 && self.writer == Writer::Idle;
        Reader::Left
    }

    fn disarm(&mut self) {
        self.disarmed = true;
        if std::mem::take(&mut self.armed) {
            self.arms -= 1;
        }
    }

    /// `others`: where it takes kicks others are asleep; where it is to send in the writer's stead,
    /// it may not. In another network namespace it never may: such runs are among these.
    fn reader(&mut self, others: bool, broken: Option<Broken>) {
        self.reader = match self.reader {
            Reader::Begins => {
                self.disarm();
                Reader::Disarmed
            }
            Reader::Disarmed => {
                self.recalled = true;
                Reader::Asks
            }
            Reader::Asks => {
                if broken != Some(Broken::DisarmAgain) {
                    self.disarm();
                }
                Reader::Looks { quiet: self.fired == self.arms }
            }
            Reader::Looks { quiet } => match self.look(quiet).free() {
                Some(_) => self.leave(),
                None => Reader::Takes { quiet },
            },
            // Others may be asleep who are to wake by it: then it stays, at first.
            Reader::Takes { quiet } if others && self.waited == 0 => Reader::Decides { quiet },
            Reader::Takes { quiet } => {
                while self.companion.first() == Some(&KICK) && self.kicks_taken < self.kicks {
                    self.companion.remove(0);
                    self.kicks_taken += 1;
                }
                Reader::Decides { quiet }
            }
            Reader::Decides { quiet } => match self.look(quiet).next() {
                Next::ByTcp => self.leave(),
                Next::SendForPeer => {
                    self.tried = true;
                    if !others && !self.claimed_by_writer {
                        self.claimed_by_reader = true;
                        Reader::Sending(0)
                    } else {
                        Reader::Asks
                    }
                }
                Next::Unsendable | Next::BreakOff => Reader::GaveUp,
                Next::Wait | Next::Free { .. } => Reader::Asks,
            },
            Reader::Sending(at) if at < self.written => {
                self.companion.push(at);
                Reader::Sending(at + 1)
            }
            Reader::Sending(at) => {
                self.resent_to = at + 1;
                self.leave()
            }
            other => other,
        };
    }

    fn sleeper(&mut self, broken: Option<Broken>) {
        let counts_late = broken == Some(Broken::CountFirst);
        self.sleeper = match self.sleeper {
            Sleeper::Awake => {
                self.arms += u8::from(!counts_late);
                Sleeper::Counted
            }
            Sleeper::Counted if self.disarmed && broken != Some(Broken::Ask) => {
                self.arms -= u8::from(!counts_late);
                Sleeper::Asleep
            }
            Sleeper::Counted => Sleeper::MayArm,
            Sleeper::MayArm => {
                let was = std::mem::replace(&mut self.armed, true);
                if counts_late {
                    self.arms += u8::from(!was);
                } else {
                    self.arms -= u8::from(was);
                }
                Sleeper::Asleep
            }
            Sleeper::Asleep => Sleeper::Asleep,
        };
    }

    fn writer(&mut self) {
        self.writer = match self.writer {
            // Under the lock of its direction: the tripwire first, then the recall.
            Writer::Published if std::mem::take(&mut self.armed) => Writer::Fired,
            Writer::Published if self.recalled => Writer::Leaving,
            Writer::Published => Writer::Idle,
            Writer::Fired => {
                self.kicks += 1;
                Writer::Counted
            }
            Writer::Counted => {
                self.companion.push(KICK);
                Writer::Kicked
            }
            Writer::Kicked => {
                self.fired += 1;
                if self.recalled { Writer::Leaving } else { Writer::Idle }
            }
            Writer::Leaving => {
                self.claimed_by_writer = true;
                Writer::Marked { by_reader: self.claimed_by_reader }
            }
            Writer::Marked { by_reader: true } => match self.resent_to {
                0 if self.reader == Reader::Dead => Writer::Broken,
                0 => Writer::Marked { by_reader: true },
                to => {
                    self.tcp_at = to;
                    Writer::Resending(to - 1)
                }
            },
            Writer::Marked { by_reader: false } => {
                self.tcp_at = 1;
                Writer::Resending(0)
            }
            Writer::Resending(at) if at < self.written => {
                self.companion.push(at);
                Writer::Resending(at + 1)
            }
            Writer::Resending(_) => Writer::Tcp,
            other => other,
        };
    }
}

impl Model for Handover {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let with = |written, armed| State {
            writer: Writer::Idle,
            reader: Reader::Begins,
            sleeper: Sleeper::Awake,
            written,
            given: written,
            armed,
            disarmed: false,
            arms: u8::from(armed),
            fired: 0,
            kicks: 0,
            kicks_taken: 0,
            recalled: false,
            tcp_at: 0,
            claimed_by_writer: false,
            claimed_by_reader: false,
            resent_to: 0,
            companion: Vec::new(),
            waited: 0,
            tried: false,
            left_unsent: false,
        };
        // A kick for what has been read already.
        let kicked = State { arms: 1, fired: 1, kicks: 1, companion: vec![KICK], ..with(0, false) };
        [(0, false), (0, true), (1, false), (1, true), (2, true)]
            .map(|(written, armed)| with(written, armed))
            .into_iter()
            .chain([kicked])
            .collect()
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        match s.writer {
            Writer::Idle => {
                if s.given < BYTES {
                    steps.push(Step::Write);
                }
                if s.recalled {
                    steps.push(Step::Call);
                }
            }
            Writer::Tcp if s.given < BYTES => steps.push(Step::Write),
            Writer::Tcp | Writer::Broken | Writer::Dead => {}
            _ => steps.push(Step::Writer),
        }
        match s.reader {
            Reader::Left | Reader::GaveUp | Reader::Dead => {}
            Reader::Takes { .. } | Reader::Decides { .. } => steps.extend([Step::Reader, Step::Others]),
            _ => steps.push(Step::Reader),
        }
        if s.sleeper != Sleeper::Asleep {
            steps.push(Step::Sleeper);
        }
        // Nobody takes so long to fall asleep.
        let falls_asleep = matches!(s.sleeper, Sleeper::Counted | Sleeper::MayArm);
        if usize::from(s.waited) + 1 < WAITED.len() && s.reader == Reader::Asks && !falls_asleep {
            steps.push(Step::Wait);
        }
        if s.writer != Writer::Dead {
            steps.push(Step::WriterDies);
        }
        if s.reader != Reader::Dead {
            steps.push(Step::ReaderDies);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        switch_off(self.broken);
        let mut s = state.clone();
        match step {
            Step::Write if s.writer == Writer::Idle => {
                s.written += 1;
                s.given += 1;
                s.writer = Writer::Published;
            }
            Step::Write => {
                s.companion.push(s.given);
                s.given += 1;
            }
            Step::Call => s.writer = Writer::Leaving,
            Step::Writer => s.writer(),
            Step::Reader => s.reader(false, self.broken),
            Step::Sleeper => s.sleeper(self.broken),
            Step::Others => s.reader(true, self.broken),
            Step::Wait => s.waited += 1,
            Step::WriterDies => s.writer = Writer::Dead,
            Step::ReaderDies => s.reader = Reader::Dead,
        }
        (s != *state).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody who knows nothing of rings reads a kick", |_, s: &State| {
                s.reader != Reader::Left || !s.companion.contains(&KICK)
            }),
            Property::always("what the companion has is in order", |_, s: &State| {
                s.reader != Reader::Left
                    || s.companion.iter().zip(0..).all(|(&byte, n)| byte == n || byte == KICK)
            }),
            Property::always("nothing is left behind in the ring", |_, s: &State| {
                // Of a writer that is at an end of what it does, or has no more to do.
                let sent = s.writer == Writer::Tcp;
                let kicks = s.companion.iter().filter(|&&byte| byte == KICK).count();
                !(s.reader == Reader::Left && sent) || s.companion.len() - kicks == usize::from(s.given)
            }),
            Property::always("what was there comes without another call of the writer's", |_, s: &State| {
                !s.left_unsent
            }),
            Property::always("nobody waits for ever", |model: &Handover, s: &State| {
                switch_off(model.broken);
                // Who has waited longer than for anybody ends with its next decision, unless a kick
                // or the writer is just coming.
                let over = usize::from(s.waited) + 1 == WAITED.len();
                !over || !matches!(s.reader, Reader::Decides { quiet } if s.look(quiet).next() == Next::Wait)
            }),
            Property::always("whoever sleeps takes nothing from who hands over", |_, s: &State| {
                let can_send = s.writer == Writer::Idle && s.kicks == s.kicks_taken && !s.tried;
                s.reader != Reader::GaveUp || s.sleeper != Sleeper::Asleep || !can_send || s.fired == s.arms
            }),
            Property::sometimes("reached: the writer sent it", |_, s: &State| {
                s.reader == Reader::Left && s.companion == [0, 1, 2] && s.resent_to == 0
            }),
            Property::sometimes("reached: the reader sent it, and the writer went on", |_, s: &State| {
                s.reader == Reader::Left && s.resent_to == 3 && s.companion == [0, 1, 2]
            }),
            Property::sometimes("reached: a kick was taken", |_, s: &State| {
                s.reader == Reader::Left && s.kicks_taken == 1
            }),
            Property::sometimes("reached: given up", |_, s: &State| s.reader == Reader::GaveUp),
        ]
    }
}

#[test]
fn a_ring_is_handed_over_whole_and_without_kicks() {
    sound(Handover { broken: None });
}

fn caught(broken: Broken, property: &str) {
    super::caught(broken, Handover { broken: Some(broken) }, property);
}

#[test]
fn a_ring_is_left_only_when_no_kick_is_on_the_way() {
    caught(Broken::Rule(Rule::Quiet), "nobody who knows nothing of rings reads a kick");
}

#[test]
fn a_ring_is_left_only_when_kicks_are_taken() {
    caught(Broken::Rule(Rule::KicksTaken), "nobody who knows nothing of rings reads a kick");
}

#[test]
fn a_ring_is_left_only_when_nothing_is_unread_or_its_writer_sends_it() {
    caught(Broken::Rule(Rule::NothingUnread), "what was there comes without");
}

#[test]
fn nobody_arms_behind_who_has_disarmed() {
    let kick = "nobody who knows nothing of rings reads a kick";
    caught(Broken::Ask, kick);
    caught(Broken::CountFirst, kick);
    caught(Broken::DisarmAgain, "whoever sleeps takes nothing from who hands over");
}
