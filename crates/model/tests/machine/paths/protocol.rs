//! The protocol as a state machine. Two sides; side `s` writes direction `s` and reads direction
//! `1 - s`. Each side is one thread that makes one call at a time; a call is a row of steps
//! ([`Pc`]), and between any two steps the other side may do anything, or either may die. What is
//! assumed: the kernel delivers the companion's bytes in order and at once and has room for kicks;
//! a sleeper is woken by anything that *arrives* on the companion (edge-triggered: unread bytes
//! from before do not count); memory is sequentially consistent (loom shows the fences); the link
//! and its slot exist already.

use stateright::{Model, Property};

use crate::library::reading::{self, Boundary, Open, Recalled, Resent, Turn};
use crate::library::rules;
use crate::library::writing::{self, Due, Kick, Step, Told, Writes};

#[derive(Clone, Debug)]
pub struct Protocol {
    /// How many bytes each side has to send.
    pub bytes: [u8; 2],
    /// Bytes that a ring holds (at most 2).
    pub ring: u8,
    /// A recalling reader takes nothing more from the ring; else it goes on until the writer
    /// announces.
    pub stop: bool,
    /// Sides may die.
    pub deaths: bool,
    /// The rule that is left out.
    pub broken: Option<Rule>,
}

/// What holds the protocol together, as the mutations leave it out: the library's rules, and what
/// its shell and its callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Of(rules::Rule),
    LookAfterArm,
    LookAfterPeek,
    TwoAnnouncements,
    RoomForKicks,
}

impl Protocol {
    pub const FULL: Protocol = Protocol { bytes: [0; 2], ring: 1, stop: false, deaths: true, broken: None };

    fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    fn switch_off(&self) {
        rules::switch_off(match self.broken {
            Some(Rule::Of(rule)) => Some(rule),
            _ => None,
        });
    }
}

/// A byte on the companion. Readers see only that it is a byte; the model knows what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    Data(u8),
    Kick,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Path {
    /// Never promoted.
    #[default]
    Tcp,
    Ring,
    /// Demoted, for good.
    Back,
}

/// One direction: the companion's bytes, and what lies in shared memory. `w` and `r` count from the
/// connection's first byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Direction {
    tcp: Vec<Item>,
    fin: bool,
    slots: [u8; 2],
    w: u8,
    r: u8,
    /// "The first so many bytes went by tcp."
    promoted: Option<u8>,
    /// "Those up to here went by the ring."
    demoted: Option<u8>,
    kicks: u8,
    recalled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Side {
    pc: Pc,
    /// The tripwire word in this side's segment.
    armed: u8,
    /// Something has arrived on the companion since this side last woke.
    edge: bool,
    sent: u8,
    tx: Path,
    got: u8,
    rx: Path,
    eaten: u8,
    /// The reader was told the end; the writer was told of a dead peer.
    ended: bool,
    refused: bool,
}

/// Where a side is in its call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pc {
    /// In the program. It may stay there for ever.
    #[default]
    Idle,
    Dead,
    Send,
    SendArmed,
    SendAsleep,
    Recv,
    RecvKernel,
    RecvPeeked,
    RecvEat,
    RecvBack,
    RecvEnd,
    RecvArmed,
    RecvAsleep,
    RecvNaps,
    Stimulate(u8, Then),
    Kick(Then),
    Kick2(Then),
    /// At this step of what is done to leave the ring.
    Leave(Leave, u8),
    Again(u8),
}

/// How a ring is left: the bytes from here on go again by tcp, if any do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leave {
    knows: bool,
    from: Option<u8>,
}

/// What follows a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    Idle,
    Leave(Leave, u8),
}

const RX: u8 = 1;
const TX: u8 = 2;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    side: [Side; 2],
    dir: [Direction; 2],
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Send(usize),
    /// As Send, and the direction moves to its ring first.
    Promote(usize),
    Recv(usize),
    Demote(usize),
    Step(usize),
    Die(usize),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        for s in 0..2 {
            let side = &state.side[s];
            match side.pc {
                Pc::Dead => continue,
                Pc::Idle => {
                    if side.sent < self.bytes[s] && !side.refused {
                        actions.push(Action::Send(s));
                        if side.tx == Path::Tcp {
                            actions.push(Action::Promote(s));
                        }
                    }
                    if !side.ended && side.got < self.bytes[1 - s] + 1 {
                        actions.push(Action::Recv(s));
                    }
                    if side.tx != Path::Back && (side.tx == Path::Ring || state.side[1 - s].tx == Path::Ring)
                    {
                        actions.push(Action::Demote(s));
                    }
                }
                Pc::SendAsleep | Pc::RecvAsleep if !side.edge => {}
                _ => actions.push(Action::Step(s)),
            }
            if self.deaths {
                actions.push(Action::Die(s));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.switch_off();
        let mut state = last.clone();
        match action {
            Action::Send(s) => state.side[s].pc = Pc::Send,
            Action::Promote(s) => {
                state.promote(s);
                state.side[s].pc = Pc::Send;
            }
            Action::Recv(s) => state.side[s].pc = Pc::Recv,
            Action::Demote(s) => {
                // Under the lock: its own direction switches first, as a kick may go.
                if state.side[s].tx == Path::Tcp {
                    state.promote(s);
                }
                // What has been recalled meanwhile goes by tcp.
                let from = state.asked(self, s).from.map(|from| from as u8);
                state.side[s].pc = Pc::Leave(Leave { knows: false, from }, 0);
            }
            Action::Step(s) => state.step(self, s),
            Action::Die(s) => {
                state.side[s] = Side { pc: Pc::Dead, sent: state.side[s].sent, ..Side::default() };
                state.dir[s].fin = true;
                state.side[1 - s].edge = true;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no byte wrong", |_, state: &State| state.wrong.is_none()),
            Property::always("nobody sleeps for ever", |model, state: &State| {
                (0..2).all(|s| !state.sleeps_for_ever(model, s))
            }),
            Property::always("the end comes after all bytes", |_, state: &State| {
                (0..2).all(|s| !state.side[s].ended || state.side[s].got == state.side[1 - s].sent)
            }),
            Property::sometimes("reached: all bytes, both directions demoted", |model, state: &State| {
                (0..2).all(|s| state.side[s].rx == Path::Back && state.side[s].got == model.bytes[1 - s])
            }),
            Property::sometimes("reached: a kick each way", |_, state: &State| {
                state.dir.iter().all(|dir| dir.kicks > 0)
            }),
            Property::sometimes("reached: data behind kicks", |_, state: &State| {
                state.dir.iter().any(|dir| matches!(dir.tcp[..], [Item::Kick, Item::Data(_), ..]))
            }),
        ]
    }
}

impl State {
    /// One step of side `s`: one access to shared memory, or one system call.
    fn step(&mut self, model: &Protocol, s: usize) {
        let p = 1 - s;
        self.side[s].pc = match self.side[s].pc {
            Pc::Idle | Pc::Dead => unreachable!("has no step"),
            Pc::Send => self.send(model, s),
            Pc::SendArmed => {
                let wake = self.room(model, s) || self.dir[s].recalled || self.dir[p].fin;
                if wake && model.keeps(Rule::LookAfterArm) { Pc::Send } else { Pc::SendAsleep }
            }
            Pc::SendAsleep => {
                self.side[s].edge = false;
                Pc::Send
            }
            Pc::Recv => self.recv(model, s),
            Pc::RecvKernel => self.recv_kernel(s),
            Pc::RecvPeeked => {
                if model.keeps(Rule::LookAfterPeek) && self.dir[p].promoted == Some(self.side[s].got) {
                    self.side[s].rx = Path::Ring;
                    Pc::Recv
                } else {
                    self.take_tcp(s)
                }
            }
            Pc::RecvEat => self.eat(s),
            Pc::RecvBack if !self.dir[p].tcp.is_empty() => self.take_tcp(s),
            Pc::RecvBack if self.dir[p].fin => Pc::RecvEnd,
            Pc::RecvBack => Pc::RecvAsleep,
            Pc::RecvEnd => self.end(model, s),
            Pc::RecvArmed => {
                let (side, dir) = (&self.side[s], &self.dir[p]);
                let moved = self.turn(s) == Turn::ToRing;
                let wake = moved
                    || self.ring_has(model, s)
                    || (self.turn(s) == Turn::ToTcp && dir.goes_by_tcp(side.eaten))
                    || !dir.tcp.is_empty()
                    || dir.fin;
                if wake && model.keeps(Rule::LookAfterArm) { Pc::Recv } else { Pc::RecvAsleep }
            }
            Pc::RecvAsleep => {
                self.side[s].edge = false;
                Pc::Recv
            }
            Pc::RecvNaps => Pc::Recv,
            Pc::Stimulate(interest, then) if self.side[p].armed & interest == 0 => then.into(),
            Pc::Stimulate(_, then) => {
                self.side[p].armed = 0;
                if writing::kick(self.writes(s)) == Kick::SwitchFirst {
                    self.promote(s);
                }
                if writing::kick(self.writes(s)) == Kick::Send { Pc::Kick(then) } else { then.into() }
            }
            Pc::Kick(then) => {
                self.dir[s].kicks += 1;
                Pc::Kick2(then)
            }
            Pc::Kick2(then) => {
                if self.dir[s].tcp.is_empty() || model.keeps(Rule::RoomForKicks) {
                    self.push_tcp(s, Item::Kick);
                } else {
                    self.dir[s].kicks -= 1; // refused: EAGAIN
                }
                then.into()
            }
            Pc::Leave(leave, at) => {
                let next = Pc::Leave(leave, at + 1);
                match writing::leaving(Writes::Ring, leave.knows).get(usize::from(at)) {
                    Some(Step::Tell) => {
                        self.dir[p].recalled = true;
                        next
                    }
                    Some(Step::Wake) => Pc::Stimulate(RX | TX, Then::Leave(leave, at + 1)),
                    Some(Step::Announce) => {
                        self.dir[s].demoted = Some(leave.from.unwrap_or(self.dir[s].w));
                        if !model.keeps(Rule::TwoAnnouncements) {
                            self.dir[s].promoted = None;
                        }
                        self.side[s].tx = Path::Back;
                        next
                    }
                    None => Pc::Again(leave.from.unwrap_or(self.dir[s].w)),
                }
            }
            Pc::Again(at) if at == self.dir[s].w => Pc::Idle,
            Pc::Again(at) => {
                let byte = self.dir[s].slots[usize::from(at % model.ring)];
                self.push_tcp(s, Item::Data(byte));
                Pc::Again(at + 1)
            }
        };
    }

    fn send(&mut self, model: &Protocol, s: usize) -> Pc {
        if self.dir[1 - s].fin {
            self.side[s].refused = true;
            return Pc::Idle;
        }
        match self.side[s].tx {
            Path::Ring if writing::due(Writes::Ring, || self.dir[s].recalled) == Due::Leave => {
                let leave = self.asked(model, s);
                let knows = !leave.steps.contains(&Step::Tell);
                Pc::Leave(Leave { knows, from: leave.from.map(|from| from as u8) }, 0)
            }
            Path::Ring if self.room(model, s) => {
                let dir = &mut self.dir[s];
                dir.slots[usize::from(dir.w % model.ring)] = self.side[s].sent;
                dir.w += 1;
                self.side[s].sent += 1;
                Pc::Stimulate(RX, Then::Idle)
            }
            Path::Ring => {
                self.side[s].armed = TX;
                Pc::SendArmed
            }
            Path::Tcp | Path::Back => {
                let byte = self.side[s].sent;
                self.side[s].sent += 1;
                self.push_tcp(s, Item::Data(byte));
                Pc::Idle
            }
        }
    }

    fn recv(&mut self, model: &Protocol, s: usize) -> Pc {
        let dir = &self.dir[1 - s];
        let Side { got, eaten, rx, .. } = self.side[s];
        let stopped = rx == Path::Ring && model.stop && dir.recalled;
        let comes_by_tcp = match reading::recalled(got.into(), dir.tcp_at()) {
            Recalled::ByTcp => stopped || self.turn(s) == Turn::ToTcp,
            _ => false,
        };
        if self.turn(s) == Turn::ToRing {
            self.side[s].rx = Path::Ring;
            Pc::Recv
        } else if self.ring_has(model, s) {
            self.take_ring(model, s)
        } else if stopped && dir.naps(got) {
            // It asks the kernel first.
            if dir.fin { Pc::RecvEnd } else { Pc::RecvNaps }
        } else if comes_by_tcp && dir.goes_by_tcp(eaten) {
            self.side[s].rx = Path::Back;
            Pc::Recv
        } else {
            Pc::RecvKernel
        }
    }

    /// Asks the companion, after the shared memory had nothing.
    fn recv_kernel(&mut self, s: usize) -> Pc {
        let dir = &self.dir[1 - s];
        let owed = reading::owed(dir.kicks.into(), self.side[s].eaten.into()) > 0;
        match self.side[s].rx {
            Path::Tcp if !dir.tcp.is_empty() => Pc::RecvPeeked,
            Path::Ring if !dir.tcp.is_empty() && owed => Pc::RecvEat,
            Path::Back => Pc::RecvBack,
            _ if dir.fin => Pc::RecvEnd,
            Path::Tcp | Path::Ring => {
                self.side[s].armed = RX;
                Pc::RecvArmed
            }
        }
    }

    /// The kernel said end; the writer is dead and shared memory will not change any more. What
    /// does it hold?
    fn end(&mut self, model: &Protocol, s: usize) -> Pc {
        let dir = &self.dir[1 - s];
        let (side, left) = (&self.side[s], dir.w > self.side[s].got);
        match side.rx {
            Path::Tcp if dir.promoted == Some(side.got) || !dir.tcp.is_empty() => Pc::Recv,
            Path::Ring if model.stop && dir.recalled && dir.demoted.is_none() => {
                if reading::open(false, true, left) == Open::ReadRing {
                    return self.take_ring(model, s);
                }
                self.side[s].ended = true;
                Pc::Idle
            }
            Path::Ring if self.looks_again(s) => Pc::Recv,
            // Recalled, and the writer died while it sent again.
            Path::Back if matches!(dir.unsent(side.got), Resent::NoMore(_)) => self.take_ring(model, s),
            _ => {
                self.side[s].ended = true;
                Pc::Idle
            }
        }
    }

    fn take_ring(&mut self, model: &Protocol, s: usize) -> Pc {
        let byte = self.dir[1 - s].slots[usize::from(self.side[s].got % model.ring)];
        self.deliver(s, Item::Data(byte));
        self.dir[1 - s].r = self.side[s].got;
        Pc::Stimulate(TX, Then::Idle)
    }

    fn take_tcp(&mut self, s: usize) -> Pc {
        let item = self.dir[1 - s].tcp.remove(0);
        self.deliver(s, item);
        Pc::Idle
    }

    fn eat(&mut self, s: usize) -> Pc {
        if self.dir[1 - s].tcp.remove(0) != Item::Kick {
            self.wrong = Some("data eaten as a kick");
        }
        self.side[s].eaten += 1;
        Pc::Recv
    }

    /// Where the path turns that is read, if here: what the library says.
    fn turn(&self, s: usize) -> Turn {
        let (side, dir) = (&self.side[s], &self.dir[1 - s]);
        match side.rx {
            Path::Tcp => {
                let small_at = dir.promoted.map_or(0, |at| u64::from(at) + 1);
                match reading::boundary(small_at, side.got.into()) {
                    Boundary::Left(left) => reading::turn_of_tcp(Some(left)),
                    _ => Turn::Nowhere,
                }
            }
            Path::Ring => reading::turn(side.got.into(), 0, dir.tcp_at()),
            Path::Back => Turn::Nowhere,
        }
    }

    fn looks_again(&self, s: usize) -> bool {
        let (side, dir) = (&self.side[s], &self.dir[1 - s]);
        reading::looks_again(side.got.into(), dir.w.into(), reading::until(0, dir.tcp_at()), self.turn(s))
    }

    fn deliver(&mut self, s: usize, item: Item) {
        match item {
            Item::Kick => self.wrong = Some("a kick delivered as data"),
            Item::Data(byte) if byte != self.side[s].got => {
                self.wrong = Some("a byte lost, doubled or out of order")
            }
            Item::Data(_) => self.side[s].got += 1,
        }
    }

    fn promote(&mut self, s: usize) {
        let sent = self.side[s].sent;
        self.dir[s].promoted = Some(sent);
        self.dir[s].w = sent;
        self.dir[s].r = sent;
        self.side[s].tx = Path::Ring;
    }

    fn push_tcp(&mut self, s: usize, item: Item) {
        if self.side[1 - s].pc != Pc::Dead {
            self.dir[s].tcp.push(item);
            self.side[1 - s].edge = true;
        }
    }

    /// How side `s` is to leave the ring that it writes, if it has been asked to.
    fn asked(&self, model: &Protocol, s: usize) -> writing::Leave {
        let dir = &self.dir[s];
        let recalled = (model.stop && dir.recalled).then_some(dir.r.into());
        Told { closed: false, recalled }.leave(dir.w.into(), 0)
    }

    fn writes(&self, s: usize) -> Writes {
        match self.side[s].tx {
            Path::Tcp => Writes::Tcp,
            Path::Ring => Writes::Ring,
            Path::Back => Writes::Last,
        }
    }

    fn room(&self, model: &Protocol, s: usize) -> bool {
        self.dir[s].w - self.dir[s].r < model.ring
    }

    fn ring_has(&self, model: &Protocol, s: usize) -> bool {
        let (side, dir) = (&self.side[s], &self.dir[1 - s]);
        let recalled = reading::recalled(side.got.into(), dir.tcp_at());
        let goes_on = !(model.stop && dir.recalled) || recalled == Recalled::Void;
        let until = reading::until(0, dir.tcp_at()).min(dir.w.into());
        side.rx == Path::Ring && goes_on && until > side.got.into()
    }

    /// Asleep, with nothing in the kernel to end it and nobody about to, though what it waits for
    /// is there.
    fn sleeps_for_ever(&self, model: &Protocol, s: usize) -> bool {
        let (side, peer) = (&self.side[s], &self.side[1 - s]);
        let quiet = matches!(peer.pc, Pc::Idle | Pc::Dead | Pc::SendAsleep | Pc::RecvAsleep);
        // A peer that has an edge to see will go on.
        let coming = peer.edge && matches!(peer.pc, Pc::SendAsleep | Pc::RecvAsleep);
        if side.edge || !quiet || coming {
            return false;
        }
        let (out, inn) = (&self.dir[s], &self.dir[1 - s]);
        match side.pc {
            Pc::SendAsleep => self.room(model, s) || out.recalled || inn.fin,
            // Nor one that waits for a writer that is in no call.
            Pc::RecvAsleep => peer.sent > side.got || inn.fin,
            _ => false,
        }
    }
}

impl Direction {
    /// The word that says where tcp begins, as the library has it.
    fn tcp_at(&self) -> u64 {
        self.demoted.map_or(0, |at| u64::from(at) + 1)
    }

    /// Whether a reader that is where tcp begins goes on there.
    fn goes_by_tcp(&self, eaten: u8) -> bool {
        // What the end brought with it has been taken before.
        reading::goes_by_tcp(self.kicks.into(), eaten.into(), self.fin && self.tcp.is_empty())
    }

    /// Whether bytes that it was to send again are left, of a writer that has ended.
    fn unsent(&self, got: u8) -> Resent {
        reading::resent(got.into(), 0, self.w.into(), self.tcp.is_empty())
    }

    fn naps(&self, got: u8) -> bool {
        reading::naps(got.into(), self.w.into(), self.tcp_at())
    }
}

impl From<Then> for Pc {
    fn from(then: Then) -> Pc {
        match then {
            Then::Idle => Pc::Idle,
            Then::Leave(leave, at) => Pc::Leave(leave, at),
        }
    }
}
