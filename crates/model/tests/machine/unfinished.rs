//! Holders of a direction's lock that die between any two steps, and whoever goes on for them
//! (`sockets/src/path/recovery.rs`), who may die as well. What is done then is the library's own
//! decision, `path/unfinished.rs`; the rest is what a writer does step by step: it fires the peer's
//! tripwire, counts a kick, tells of it, sends it; announces tcp; sends recalled bytes. And a
//! reader: it takes bytes from the companion up to the ring's beginning, then kicks.

use stateright::{Model, Property};

use super::library::reading::{self, Turn};
use super::library::rules::{self, Rule};
use super::library::unfinished::{Marks, Note, Reader, Writer};
use super::sound;

/// A kick, in the companion; a byte that the program has written has its number.
const KICK: u8 = 0xff;
/// How many holders may die.
const DEATHS: u8 = 2;

/// Where a holder of the writing direction's lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Nobody has the lock.
    Free,
    /// Has just got it.
    Locked,
    Fire(u8),
    /// Sends what is owed; `then` it goes on with firing.
    Pay(u8, Then),
    Leave(u8),
    Resend(u8),
    /// Goes on for a dead one, with what was decided.
    Redo(u8, Todo),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Fire,
    Redo(Todo),
    Resend,
}

/// The library's decision, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Todo {
    announce: bool,
    resend: Option<u8>,
    debt: Option<u8>,
    wake: bool,
    carried_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Path {
    Ring,
    Resend,
    Last,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    at: At,
    deaths: u8,
    /// What holders note.
    path: Path,
    written: u8,
    marks: [bool; 4],
    fires: u8,
    fires_with: u8,
    kicks: u8,
    debt: u8,
    tcp_at: u8,
    resend: u8,
    resend_from: u8,
    sent_from: Option<u8>,
    /// What the reader finds.
    armed: bool,
    fired: u8,
    told: u8,
    announced: u8,
    companion: Vec<u8>,
    /// An announcement was changed.
    changed: bool,
}

const LEAVING: usize = 0;
const SENDING: usize = 1;
const FIRING: usize = 2;
const PAYING: usize = 3;

struct Holders {
    broken: Option<Rule>,
    /// The reader has recalled the ring from its beginning on.
    recalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Go,
    Die,
}

impl State {
    fn todo(&self) -> Todo {
        let [leaving, sending, firing, paying] = self.marks;
        let seen = Writer {
            marks: Marks { growing: false, leaving, sending, firing, paying },
            in_small: true,
            gone: Some(self.companion.len() as u64),
            gone_before_ring: Some(0),
            gone_before_resend: self.sent_from.map(u64::from),
            resend_from: self.resend_from.into(),
            written: self.written.into(),
            kicks: self.kicks.into(),
            woken: self.fires == self.fires_with,
        };
        let redo = seen.redo();
        Todo {
            announce: redo.announce,
            resend: redo.resend.map(|at| at as u8),
            debt: redo.debt.map(|debt| debt as u8),
            wake: redo.wake,
            carried_out: redo.carried_out,
        }
    }

    fn done(&self) -> bool {
        self.at == At::Free && self.path == Path::Last
    }

    fn kicks_sent(&self) -> usize {
        self.companion.iter().filter(|&&byte| byte == KICK).count()
    }

    fn announce(&mut self) {
        self.changed |= self.announced != 0 && self.announced != self.tcp_at;
        self.announced = self.tcp_at;
    }

    fn go(&mut self, recalled: bool) {
        self.at = match self.at {
            At::Free => At::Locked,
            At::Locked if self.marks.contains(&true) => At::Redo(0, self.todo()),
            At::Locked => match self.path {
                Path::Ring if self.armed => At::Fire(0),
                Path::Ring => At::Leave(0),
                Path::Resend => At::Pay(0, Then::Resend),
                Path::Last => At::Free,
            },
            // `wake_armed`.
            At::Fire(0) => {
                self.fires_with = self.fires + 1;
                At::Fire(1)
            }
            At::Fire(1) => {
                self.marks[FIRING] = true;
                At::Fire(2)
            }
            At::Fire(2) => {
                self.armed = false;
                At::Fire(3)
            }
            At::Fire(3) => {
                self.kicks += 1;
                At::Fire(4)
            }
            At::Fire(4) => {
                self.debt += 1;
                At::Fire(5)
            }
            At::Fire(5) => {
                self.told = self.kicks;
                At::Pay(0, Then::Fire)
            }
            At::Fire(6) => {
                self.fires = self.fires_with;
                At::Fire(7)
            }
            At::Fire(7) => {
                self.fired = self.fires;
                At::Fire(8)
            }
            At::Fire(_) => {
                self.marks[FIRING] = false;
                At::Locked
            }
            // `send_owed`.
            At::Pay(0, then) if self.debt > 0 => {
                self.marks[PAYING] = true;
                At::Pay(1, then)
            }
            At::Pay(0, Then::Fire) => At::Fire(6),
            At::Pay(0, Then::Redo(todo)) => At::Redo(7, todo),
            At::Pay(0, Then::Resend) => At::Resend(0),
            At::Pay(1, then) => {
                self.companion.push(KICK);
                At::Pay(2, then)
            }
            At::Pay(2, then) => {
                self.debt -= 1;
                At::Pay(3, then)
            }
            At::Pay(_, then) => {
                // Within a recovery all marks stay until its end.
                self.marks[PAYING] = matches!(then, Then::Redo(_));
                At::Pay(0, then)
            }
            // `to_tcp`.
            At::Leave(0) => {
                self.tcp_at = if recalled { 1 } else { self.written + 1 };
                At::Leave(1)
            }
            At::Leave(1) => {
                self.marks[LEAVING] = true;
                At::Leave(2)
            }
            At::Leave(2) => {
                (self.resend, self.sent_from) = (self.tcp_at - 1, None);
                At::Leave(3)
            }
            At::Leave(3) => {
                self.announce();
                At::Leave(4)
            }
            At::Leave(4) => {
                self.path = Path::Resend;
                At::Leave(5)
            }
            At::Leave(_) => {
                self.marks[LEAVING] = false;
                At::Locked
            }
            // `resend`.
            At::Resend(0) if self.sent_from.is_none() => {
                self.resend_from = self.resend;
                At::Resend(1)
            }
            At::Resend(1) => {
                self.sent_from = Some(self.companion.len() as u8);
                At::Resend(0)
            }
            At::Resend(0) if self.resend < self.written => {
                self.marks[SENDING] = true;
                At::Resend(2)
            }
            At::Resend(2) => {
                self.companion.push(self.resend);
                At::Resend(3)
            }
            At::Resend(3) => {
                self.resend += 1;
                At::Resend(4)
            }
            At::Resend(4) => {
                self.marks[SENDING] = false;
                At::Resend(0)
            }
            At::Resend(_) => {
                self.path = Path::Last;
                At::Free
            }
            At::Redo(step, todo) => self.redo(step, todo, recalled),
        };
    }

    /// `recover_slowly`.
    fn redo(&mut self, step: u8, todo: Todo, recalled: bool) -> At {
        match step {
            0 if todo.announce => {
                (self.resend, self.sent_from) = (self.tcp_at - 1, None);
                self.announce();
            }
            1 if todo.announce => self.path = Path::Resend,
            2 => self.resend = todo.resend.unwrap_or(self.resend),
            3 => self.debt = todo.debt.unwrap_or(self.debt),
            4 if todo.debt.is_some() => self.told = self.kicks,
            5 if todo.wake => self.armed = false,
            6 if todo.wake && self.path == Path::Ring => {
                (self.kicks, self.debt) = (self.kicks + 1, self.debt + 1);
                self.told = self.kicks;
                return At::Pay(0, Then::Redo(todo));
            }
            7 if todo.carried_out => self.fires = self.fires_with,
            8 if todo.carried_out => self.fired = self.fires,
            9 => {
                self.marks = [false; 4];
                // It came to write.
                if self.path == Path::Ring && !recalled {
                    self.written += 1;
                }
                return At::Locked;
            }
            _ => {}
        }
        At::Redo(step + 1, todo)
    }
}

impl Model for Holders {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            at: At::Free,
            deaths: DEATHS,
            path: Path::Ring,
            written: 2,
            marks: [false; 4],
            fires: 0,
            fires_with: 0,
            kicks: 0,
            debt: 0,
            tcp_at: 0,
            resend: 0,
            resend_from: 0,
            sent_from: None,
            armed: true,
            fired: 0,
            told: 0,
            announced: 0,
            companion: Vec::new(),
            changed: false,
        }]
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        if s.path != Path::Last || s.at != At::Free {
            steps.push(Step::Go);
        }
        if s.at != At::Free && s.deaths > 0 {
            steps.push(Step::Die);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        rules::switch_off(self.broken);
        let mut s = state.clone();
        match step {
            Step::Go => s.go(self.recalled),
            Step::Die => {
                s.at = At::Free;
                s.deaths -= 1;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no byte wrong", |model: &Holders, s: &State| {
                let from = if model.recalled { 0 } else { s.written };
                let data = &s.companion[s.companion.iter().take_while(|&&byte| byte == KICK).count()..];
                data.iter().zip(from..).all(|(&byte, n)| byte == n)
                    && (!s.done() || data.len() == usize::from(s.written - from))
            }),
            Property::always("so many kicks are sent as were told", |_, s: &State| {
                !s.done() || s.kicks_sent() == usize::from(s.told)
            }),
            Property::always("who slept is woken", |_, s: &State| {
                !s.done() || !s.armed && s.kicks_sent() > 0 && s.fired == 1
            }),
            Property::always("an announcement stands", |_, s: &State| !s.changed),
            Property::sometimes("reached: after two deaths", |_, s: &State| s.done() && s.deaths == 0),
            Property::sometimes("reached: woken for nothing", |_, s: &State| s.kicks == 2),
        ]
    }
}

#[test]
fn what_a_dead_writer_had_begun_is_ended() {
    for recalled in [false, true] {
        sound(Holders { broken: None, recalled });
    }
}

fn caught(rule: Rule, recalled: bool, property: &str) {
    super::caught(rule, Holders { broken: Some(rule), recalled }, property);
}

#[test]
fn an_announcement_that_was_begun_is_made() {
    caught(Rule::AnnounceAgain, false, "an announcement stands");
}

#[test]
fn the_kernel_says_how_many_recalled_bytes_were_sent() {
    caught(Rule::SentIsAsked, true, "no byte wrong");
}

#[test]
fn the_kernel_says_how_many_kicks_were_sent() {
    caught(Rule::KicksAreAsked, true, "so many kicks are sent as were told");
}

#[test]
fn a_wake_up_that_was_begun_is_made() {
    caught(Rule::WakeAgain, false, "who slept is woken");
}

/// Holders of the reading direction's lock.
struct Readers {
    broken: Option<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Read {
    /// Nobody, marked, received, noted.
    at: u8,
    locked: bool,
    deaths: u8,
    marked: bool,
    read: u8,
    left: u8,
    kicks_taken: u8,
    /// On tcp before the ring, on the ring, on tcp again.
    path: u8,
    /// How many bytes of the companion have been read.
    received: usize,
    wrong: bool,
}

/// Two bytes of the program before the ring, two kicks, and one byte that was recalled.
const COMPANION: [u8; 5] = [0, 1, KICK, KICK, 2];

impl Model for Readers {
    type State = Read;
    type Action = Step;

    fn init_states(&self) -> Vec<Read> {
        vec![Read {
            at: 0,
            locked: false,
            deaths: DEATHS,
            marked: false,
            read: 0,
            left: 2,
            kicks_taken: 0,
            path: 0,
            received: 0,
            wrong: false,
        }]
    }

    fn actions(&self, s: &Read, steps: &mut Vec<Step>) {
        if s.received < COMPANION.len() || s.locked {
            steps.push(Step::Go);
        }
        if s.locked && s.deaths > 0 {
            steps.push(Step::Die);
        }
    }

    fn next_state(&self, state: &Read, step: Step) -> Option<Read> {
        rules::switch_off(self.broken);
        let mut s = state.clone();
        if step == Step::Die {
            (s.at, s.locked, s.deaths) = (0, false, s.deaths - 1);
            return Some(s);
        }
        match s.at {
            0 if !s.locked => s.locked = true,
            0 if s.marked => {
                let seen = Reader {
                    read: s.received as u64,
                    boundary: Some(2),
                    by_tcp: s.path == 0,
                    taken: s.kicks_taken.into(),
                    counted: 2,
                };
                match seen.note() {
                    // Once it is on tcp again, nothing is noted.
                    _ if s.path == 2 => {}
                    Some(Note::Kicks(taken)) => s.kicks_taken = taken as u8,
                    Some(Note::Bytes { read, left }) => {
                        (s.read, s.left) = (read as u8, left.map_or(0, |left| left as u8));
                    }
                    None => {}
                }
                s.marked = false;
            }
            0 if s.path == 0 && s.left == 0 => s.path = 1,
            0 if s.path == 1 && s.kicks_taken == 2 => s.path = 2,
            0 => (s.at, s.marked) = (1, s.path != 2),
            1 => {
                let byte = *COMPANION.get(s.received)?;
                s.wrong |= (byte == KICK) != (s.path == 1);
                (s.at, s.received) = (2, s.received + 1);
            }
            2 => {
                match s.path {
                    0 => (s.read, s.left) = (s.read + 1, s.left.saturating_sub(1)),
                    1 => s.kicks_taken += 1,
                    _ => {}
                }
                s.at = 3;
            }
            _ => (s.at, s.marked, s.locked) = (0, false, false),
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no kick is taken for a byte, nor a byte for a kick", |_, s: &Read| !s.wrong),
            Property::sometimes("reached: all of it, after two deaths", |_, s: &Read| {
                s.deaths == 0 && s.received == COMPANION.len()
            }),
        ]
    }
}

#[test]
fn what_a_dead_reader_had_read_is_known() {
    sound(Readers { broken: None });
    super::caught(Rule::ReadIsAsked, Readers { broken: Some(Rule::ReadIsAsked) }, "no kick is taken");
}

/// Holders of the writing direction's lock that move to a big ring, beside a reader.
struct Growers {
    broken: Option<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Grown {
    /// Free, locked, or at a step of `writer::grow`; a recovery takes those from the third on
    /// again.
    at: Option<u8>,
    deaths: u8,
    marked: bool,
    /// What holders note: the path, the ring that is written, which big one is theirs.
    in_big: bool,
    writes_big: bool,
    number: u8,
    /// What the reader finds.
    written: u8,
    big_ring: u8,
    big_at: u8,
    small: [Option<u8>; 3],
    big: [Option<u8>; 3],
    /// Where it is.
    read: u8,
    reads_big: bool,
    wrong: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Move {
    Go,
    /// As [`Move::Go`], of one that grows if it can.
    Grow,
    Die,
    Read,
}

impl Grown {
    fn grows_again(&self) -> bool {
        let seen = Writer {
            marks: Marks { growing: true, ..Marks::default() },
            in_small: !self.in_big,
            gone: None,
            gone_before_ring: None,
            gone_before_resend: None,
            resend_from: 0,
            written: self.written.into(),
            kicks: 0,
            woken: true,
        };
        seen.redo().grow
    }

    fn go(&mut self, grows: bool) {
        self.at = match self.at {
            None => Some(0),
            Some(0) if self.marked && self.grows_again() => Some(3),
            Some(0) if self.marked => {
                self.marked = false;
                Some(0)
            }
            // Whoever needs more room than there is.
            Some(0) if !self.in_big && grows => Some(1),
            Some(0) => {
                let ring = if self.writes_big { &mut self.big } else { &mut self.small };
                ring[usize::from(self.written)] = Some(self.written);
                self.written += 1;
                None
            }
            Some(1) => {
                self.number = 1;
                Some(2)
            }
            Some(2) => {
                self.marked = true;
                Some(3)
            }
            Some(3) => {
                self.big_ring = self.number;
                Some(4)
            }
            Some(4) => {
                self.wrong |= self.big_at != 0 && self.big_at != self.written + 1;
                self.big_at = self.written + 1;
                Some(5)
            }
            Some(5) => {
                self.writes_big = true;
                Some(6)
            }
            Some(6) => {
                self.in_big = true;
                Some(7)
            }
            Some(_) => {
                self.marked = false;
                Some(0)
            }
        };
    }

    fn read(&mut self) {
        let big_at = if self.reads_big { 0 } else { self.big_at.into() };
        if reading::turn(self.read.into(), big_at, 0) == Turn::ToBig {
            self.wrong |= self.big_ring != 1;
            self.reads_big = true;
        } else if u64::from(self.read) < reading::until(big_at, 0).min(self.written.into()) {
            let ring = if self.reads_big { &self.big } else { &self.small };
            self.wrong |= ring[usize::from(self.read)] != Some(self.read);
            self.read += 1;
        }
    }
}

impl Model for Growers {
    type State = Grown;
    type Action = Move;

    fn init_states(&self) -> Vec<Grown> {
        vec![Grown {
            at: None,
            deaths: DEATHS,
            marked: false,
            in_big: false,
            writes_big: false,
            number: 0,
            written: 0,
            big_ring: 0,
            big_at: 0,
            small: [None; 3],
            big: [None; 3],
            read: 0,
            reads_big: false,
            wrong: false,
        }]
    }

    fn actions(&self, s: &Grown, moves: &mut Vec<Move>) {
        moves.push(Move::Read);
        if s.written < 3 {
            moves.extend([Move::Go, Move::Grow]);
        }
        if s.at.is_some() && s.deaths > 0 {
            moves.push(Move::Die);
        }
    }

    fn next_state(&self, state: &Grown, step: Move) -> Option<Grown> {
        rules::switch_off(self.broken);
        let mut s = state.clone();
        match step {
            Move::Go => s.go(false),
            Move::Grow => s.go(true),
            Move::Die => (s.at, s.deaths) = (None, s.deaths - 1),
            Move::Read => s.read(),
        }
        (s != *state && !state.wrong).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no byte wrong", |_, s: &Grown| !s.wrong),
            Property::sometimes("reached: by both rings, after two deaths", |_, s: &Grown| {
                s.deaths == 0 && s.read == 3 && s.reads_big
            }),
        ]
    }
}

#[test]
fn a_move_to_the_big_ring_that_was_begun_is_made() {
    sound(Growers { broken: None });
    super::caught(Rule::GrowAgain, Growers { broken: Some(Rule::GrowAgain) }, "no byte wrong");
}
