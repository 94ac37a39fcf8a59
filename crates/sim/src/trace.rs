//! What happened, for the picture of a failure: a seed that fails is run once more with this
//! switched on.

use std::collections::VecDeque;
use std::fmt::Write;

use sim::kernel::{Outcome, Pid, Tid};
use syscalls::Sysno;

/// The last steps of a run.
pub struct Trace {
    on: bool,
    shown: usize,
    pub calls: u64,
    steps: VecDeque<Step>,
}

struct Step {
    now: u64,
    pid: Pid,
    tid: Tid,
    text: String,
}

impl Trace {
    /// That keeps the last so many steps; none at all if that is 0.
    pub fn new(shown: usize) -> Trace {
        Trace { on: shown > 0, shown, calls: 0, steps: VecDeque::new() }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// That a thread did something.
    pub fn note(&mut self, now: u64, pid: Pid, tid: Tid, text: String) {
        if !self.on {
            return;
        }
        if self.steps.len() == self.shown {
            self.steps.pop_front();
        }
        self.steps.push_back(Step { now, pid, tid, text });
    }

    /// That it made a system call.
    pub fn call(
        &mut self,
        now: u64,
        pid: Pid,
        tid: Tid,
        number: Sysno,
        arguments: &[usize; 6],
        outcome: &Outcome,
    ) {
        self.calls += 1;
        if !self.on {
            return;
        }
        let mut text = format!("  {number}(");
        for (at, argument) in arguments.iter().enumerate().take(5) {
            let comma = if at > 0 { ", " } else { "" };
            let _ = match *argument as isize {
                value @ -4096..=65536 => write!(text, "{comma}{value}"),
                value => write!(text, "{comma}{value:#x}"),
            };
        }
        let _ = match outcome {
            Outcome::Done(Ok(value)) => write!(text, ") = {value}"),
            Outcome::Done(Err(errno)) => write!(text, ") = {errno}"),
            Outcome::Sleep => write!(text, ") sleeps"),
        };
        self.note(now, pid, tid, text);
    }

    /// The last steps, a column for each process.
    pub fn picture(&self) -> String {
        let mut pids: Vec<Pid> = self.steps.iter().map(|step| step.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let mut text = String::new();
        for step in &self.steps {
            let column = pids.iter().position(|&pid| pid == step.pid).unwrap_or(0);
            let _ = writeln!(
                text,
                "{:>14.3} us  {:indent$}{}/{} {}",
                step.now as f64 / 1000.0,
                "",
                step.pid,
                step.tid,
                step.text,
                indent = column * 48
            );
        }
        text
    }
}
