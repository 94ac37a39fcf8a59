//! A connection whose directions are both back on tcp counts as new again, as its peer's program
//! has gone through exec() (`begin_anew` in `sockets/src/demote.rs`), while another thread of ours
//! wants it on tcp (`leave`). What is decided is the library's own, `path/writing.rs`.

use stateright::{Model, Property};

use super::library::rules::{self, Rule};
use super::library::writing::{self, Anew};
use super::sound;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Promoted,
    Plain,
    New,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    stage: Stage,
    wish: bool,
    never: bool,
    /// The next step of the thread that finishes, and of the one with the wish.
    finishes: u8,
    wishes: u8,
}

struct Finish {
    broken: Option<Rule>,
}

impl State {
    fn finish(&mut self) {
        self.finishes = match self.finishes {
            0 => {
                self.stage = Stage::Plain;
                1
            }
            1 if (Anew { again: true, ended: false, stays: self.wish }).is_new() => 2,
            1 => 6,
            2 => {
                self.never = false;
                3
            }
            3 => {
                self.stage = Stage::New;
                4
            }
            4 if writing::is_taken_back(self.wish) => 5,
            4 => 6,
            _ => {
                (self.never, self.stage) = (true, Stage::Plain);
                6
            }
        };
    }

    fn wish(&mut self) {
        self.wishes = match self.wishes {
            0 => {
                self.wish = true;
                1
            }
            // Both directions are on tcp already.
            1 if self.stage == Stage::Promoted => 2,
            1 => 3,
            2 => {
                self.never = true;
                5
            }
            3 => {
                self.never = true;
                4
            }
            _ => {
                if self.stage == Stage::New {
                    self.stage = Stage::Plain;
                }
                5
            }
        };
    }
}

impl Model for Finish {
    type State = State;
    type Action = bool;

    fn init_states(&self) -> Vec<State> {
        vec![State { stage: Stage::Promoted, wish: false, never: true, finishes: 0, wishes: 0 }]
    }

    fn actions(&self, s: &State, steps: &mut Vec<bool>) {
        if s.finishes < 6 {
            steps.push(true);
        }
        if s.wishes < 5 {
            steps.push(false);
        }
    }

    fn next_state(&self, state: &State, finishes: bool) -> Option<State> {
        rules::switch_off(self.broken);
        let mut s = state.clone();
        if finishes {
            s.finish()
        } else {
            s.wish()
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is promoted that is wanted on tcp", |_, s: &State| {
                s.finishes < 6 || s.wishes < 5 || s.stage == Stage::Plain || s.never
            }),
            Property::sometimes("reached: new", |_, s: &State| s.finishes == 6 && s.stage == Stage::New),
        ]
    }
}

#[test]
fn what_is_wanted_on_tcp_does_not_count_as_new() {
    sound(Finish { broken: None });
    let broken = Some(Rule::WishIsSeen);
    super::caught(broken, Finish { broken }, "nothing is promoted");
}
