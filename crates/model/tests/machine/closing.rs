//! Ends (`sockets/src/close.rs`): a reader closes beside a writer that may be in the middle of
//! waking it, or shuts its writing half beside one that waits for room. What it decides is the
//! library's own source, `path/closing.rs`. The kernel answers with a reset if the companion has a
//! kick unread when it is closed, or gets one later.

use stateright::{Model, Property};

use super::library::closing::{self, Closing, End, LastKicks, Shut};
use super::library::recall::Reads;
use super::library::rules::{self, Rule};
use super::library::writing::{self, Due, Kick, Writes};
use super::sound;

/// What mutations leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Rule(Rule),
    /// Whoever closes disarms its tripwire before it asks for kicks.
    Disarm,
}

fn switch_off(broken: Option<Broken>) {
    rules::switch_off(match broken {
        Some(Broken::Rule(rule)) => Some(rule),
        _ => None,
    });
}

/// Bytes that the peer has to write.
const BYTES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Peer {
    Idle,
    Published,
    Fired,
    Counted,
    Kicked,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Closer {
    Reads,
    Disarmed,
    /// Asks what it must know before it looks, takes kicks, decides.
    Asks,
    Takes {
        quiet: bool,
        ended: bool,
    },
    Decides {
        quiet: bool,
        ended: bool,
    },
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    peer: Peer,
    closer: Closer,
    written: u8,
    read: u8,
    armed: bool,
    arms: u8,
    fired: u8,
    kicks: u8,
    taken: u8,
    /// Kicks in the companion, and those that it had no room for, which are sent later.
    companion: u8,
    debt: u8,
    /// The connection was reset, although nothing was unread when it was decided to close.
    reset: bool,
    /// With something unread.
    by_unread: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Write,
    Peer,
    /// As [`Step::Peer`], of one that finds the companion full.
    Owe,
    Pay,
    PeerDies,
    Read,
    Arm,
    Close,
}

struct Close {
    broken: Option<Broken>,
}

impl State {
    fn close(&mut self, broken: Option<Broken>, waited: u64) {
        self.closer = match self.closer {
            Closer::Reads => {
                let end = Closing {
                    reads: Reads::Ring,
                    written: self.written.into(),
                    read: self.read.into(),
                    broken: false,
                };
                match end.end() {
                    End::TakeKicks => Closer::Disarmed,
                    _ => {
                        self.by_unread = true;
                        Closer::Closed
                    }
                }
            }
            Closer::Disarmed => {
                if broken != Some(Broken::Disarm) && std::mem::take(&mut self.armed) {
                    self.arms -= 1;
                }
                Closer::Asks
            }
            Closer::Asks => Closer::Takes { quiet: self.fired == self.arms, ended: self.peer == Peer::Dead },
            Closer::Takes { quiet, ended } => {
                let owed = (self.kicks - self.taken).min(self.companion);
                (self.taken, self.companion) = (self.taken + owed, self.companion - owed);
                Closer::Decides { quiet, ended }
            }
            Closer::Decides { quiet, ended } => {
                let (counted, taken) = (self.kicks.into(), self.taken.into());
                let seen = LastKicks { quiet, ended, counted, taken, waited };
                if seen.may_close() {
                    self.reset |= self.companion > 0;
                    Closer::Closed
                } else {
                    Closer::Asks
                }
            }
            Closer::Closed => Closer::Closed,
        };
    }

    fn send(&mut self) {
        if self.closer == Closer::Closed {
            self.reset |= !self.by_unread;
        } else {
            self.companion += 1;
        }
    }

    fn peer(&mut self) {
        self.peer = match self.peer {
            Peer::Published if std::mem::take(&mut self.armed) => Peer::Fired,
            Peer::Published => Peer::Idle,
            Peer::Fired => {
                self.kicks += 1;
                Peer::Counted
            }
            Peer::Counted => {
                self.send();
                Peer::Kicked
            }
            Peer::Kicked => {
                self.fired += 1;
                Peer::Idle
            }
            other => other,
        };
    }
}

impl Model for Close {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            peer: Peer::Idle,
            closer: Closer::Reads,
            written: 0,
            read: 0,
            armed: false,
            arms: 0,
            fired: 0,
            kicks: 0,
            taken: 0,
            companion: 0,
            debt: 0,
            reset: false,
            by_unread: false,
        }]
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        match s.peer {
            Peer::Idle if s.written < BYTES => steps.push(Step::Write),
            Peer::Idle | Peer::Dead => {}
            _ => steps.push(Step::Peer),
        }
        if s.peer == Peer::Counted {
            steps.push(Step::Owe);
        }
        if s.peer != Peer::Dead {
            steps.push(Step::PeerDies);
            if s.debt > 0 {
                steps.push(Step::Pay);
            }
        }
        if s.closer == Closer::Reads {
            steps.extend([Step::Read, Step::Arm]);
        }
        if s.closer != Closer::Closed {
            steps.push(Step::Close);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        switch_off(self.broken);
        let mut s = state.clone();
        match step {
            Step::Write => {
                s.written += 1;
                s.peer = Peer::Published;
            }
            Step::Peer => s.peer(),
            Step::Owe => (s.debt, s.peer) = (s.debt + 1, Peer::Kicked),
            Step::Pay => {
                s.debt -= 1;
                s.send();
            }
            Step::PeerDies => s.peer = Peer::Dead,
            Step::Read => s.read = s.written,
            Step::Arm if !s.armed && s.arms < 2 => (s.armed, s.arms) = (true, s.arms + 1),
            Step::Arm => {}
            Step::Close => s.close(self.broken, 0),
        }
        (s != *state).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is reset that was read to its end", |_, s: &State| !s.reset),
            Property::always("nobody waits for ever", |_, s: &State| {
                // Alone, with a peer that is at an end of what it does, it closes.
                let mut s = s.clone();
                let quiet = matches!(s.peer, Peer::Idle | Peer::Dead) && s.closer != Closer::Reads;
                for _ in 0..8 {
                    s.close(None, if s.debt > 0 { u64::MAX } else { 0 });
                }
                !quiet || s.closer == Closer::Closed
            }),
            Property::sometimes("reached: a kick was waited for", |_, s: &State| {
                s.closer == Closer::Closed && s.taken > 0
            }),
            Property::sometimes("reached: unread", |_, s: &State| s.by_unread),
        ]
    }
}

#[test]
fn a_connection_is_closed_behind_the_last_kick() {
    sound(Close { broken: None });
}

fn caught(broken: Broken) {
    super::caught(broken, Close { broken: Some(broken) }, "nothing is reset");
}

#[test]
fn no_kick_comes_after_close() {
    caught(Broken::Rule(Rule::QuietAtClose));
}

#[test]
fn no_kick_is_unread_at_close() {
    caught(Broken::Rule(Rule::TakenAtClose));
}

#[test]
fn who_closes_disarms_before() {
    super::caught(Broken::Disarm, Close { broken: Some(Broken::Disarm) }, "no");
}

/// A reader shuts its writing half, beside a writer of a ring that has room for one byte.
struct Half {
    broken: Option<Broken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Halves {
    /// The writer is in its program, has armed, sleeps.
    writer: u8,
    on_tcp: bool,
    given: u8,
    full: bool,
    armed: bool,
    /// What the reader has told: to go to tcp, and that its FIN is no death.
    asks: bool,
    said: bool,
    /// Its own direction, whether it is about to wake, and which step is next.
    writes_last: bool,
    fires: bool,
    step: usize,
    fin: bool,
}

impl Halves {
    /// Wakes the writer if it is armed and a kick may go.
    fn wake(&mut self) {
        let writes = if self.writes_last { Writes::Last } else { Writes::Ring };
        if std::mem::take(&mut self.armed) && !self.fin && writing::kick(writes) == Kick::Send {
            self.writer = 0;
        }
    }

    fn shut(&mut self) {
        match closing::shutting().get(self.step) {
            Some(Shut::Demote) => {
                // Tell, wake, announce: `path/writing.rs`, in the model of paths.
                self.asks = true;
                self.wake();
                self.writes_last = true;
            }
            Some(Shut::Flush) => {}
            Some(Shut::Tell) => self.said = true,
            None => {
                self.fin = true;
                // It wakes whoever sleeps on the companion.
                self.writer = 0;
            }
        }
        self.step += 1;
    }

    fn write(&mut self) {
        match self.writer {
            0 => {
                self.on_tcp |= writing::due(Writes::Ring, || self.asks) == Due::Leave
                    || writing::is_gone(false, self.fin, self.said);
                if self.on_tcp || !self.full {
                    (self.given, self.full) = (self.given + 1, !self.on_tcp || self.full);
                } else {
                    (self.writer, self.armed) = (1, true);
                }
            }
            // Looks again.
            1 if !self.full || self.asks => self.writer = 0,
            1 => self.writer = 2,
            _ => {}
        }
    }
}

impl Model for Half {
    type State = Halves;
    type Action = u8;

    fn init_states(&self) -> Vec<Halves> {
        vec![Halves {
            writer: 0,
            on_tcp: false,
            given: 0,
            full: false,
            armed: false,
            asks: false,
            said: false,
            writes_last: false,
            fires: false,
            step: 0,
            fin: false,
        }]
    }

    fn actions(&self, s: &Halves, steps: &mut Vec<u8>) {
        if s.writer < 2 && s.given < 3 {
            steps.push(0);
        }
        if s.full && !s.fires {
            steps.push(1);
        }
        if s.fires {
            steps.push(2);
        }
        if !s.fin {
            steps.push(3);
        }
    }

    fn next_state(&self, state: &Halves, step: u8) -> Option<Halves> {
        switch_off(self.broken);
        let mut s = state.clone();
        match step {
            0 => s.write(),
            1 => (s.full, s.fires) = (false, true),
            2 => {
                s.fires = false;
                s.wake();
            }
            _ => s.shut(),
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody sleeps for ever", |_, s: &Halves| {
                s.writer < 2 || s.fires || !s.fin || s.full && !s.asks
            }),
            Property::always("a half that was shut is no death", |_, s: &Halves| {
                !writing::is_gone(false, s.fin, s.said)
            }),
            Property::sometimes("reached: all written, some by each way", |_, s: &Halves| {
                s.given == 3 && s.on_tcp && s.fin
            }),
        ]
    }
}

#[test]
fn a_half_is_shut_when_its_peer_needs_no_kick_any_more() {
    sound(Half { broken: None });
    let broken = Some(Broken::Rule(Rule::DemoteBeforeFin));
    super::caught(broken, Half { broken }, "nobody sleeps for ever");
}
