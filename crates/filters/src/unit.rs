//! A unit of work as the program that appended it sees it: a future with partial results.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Failure;

/// A partial result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The copy that emitted it, as people name it.
    pub copy: String,
    /// The result.
    pub data: Vec<u8>,
}

/// Options of a unit of work.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnitOptions {
    /// How long it may take from being appended; it fails then.
    pub timeout: Option<Duration>,
    /// How often it is run again after a process was lost. If not 0, its partial results are
    /// returned at its end only, as those of a lost attempt must not be.
    pub reruns: usize,
}

/// A unit of work that was appended. Dropping it changes nothing: it goes on.
#[derive(Clone)]
pub struct Unit {
    id: u64,
    shared: Arc<Shared>,
    cancel: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    parts: VecDeque<Part>,
    /// Partial results that are returned at the end only, as the unit may be run again.
    held: Vec<Part>,
    outcome: Option<Result<(), Failure>>,
    /// Copies that have ended their part, of so many.
    progress: (usize, usize),
    callbacks: Vec<Callback>,
}

struct Callback(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Callback {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Callback")
    }
}

/// The result of waiting for the next partial result.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// One came.
    Part(Part),
    /// There will be no more: the unit of work is done.
    Done,
    /// There will be no more: it has failed.
    Failed(Failure),
    /// None came in time.
    NotYet,
}

impl Unit {
    pub(crate) fn new(id: u64, shared: Arc<Shared>, cancel: Arc<dyn Fn() + Send + Sync>) -> Unit {
        Unit { id, shared, cancel }
    }

    /// Its number: 1 is the group's first.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next partial result. Those from before a failure come before it.
    pub fn next_part(&self, timeout: Option<Duration>) -> Next {
        self.shared
            .wait(timeout, |state| match (state.parts.pop_front(), &state.outcome) {
                (Some(part), _) => Some(Next::Part(part)),
                (None, Some(Ok(()))) => Some(Next::Done),
                (None, Some(Err(failure))) => Some(Next::Failed(failure.clone())),
                (None, None) => None,
            })
            .unwrap_or(Next::NotYet)
    }

    /// Waits for the end; `None` if it does not come in time. Partial results stay where they are.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<(), Failure>> {
        self.shared.wait(timeout, |state| state.outcome.clone())
    }

    /// Waits for the end, and takes all partial results that have not been taken.
    pub fn result(&self) -> Result<Vec<Part>, Failure> {
        self.wait(None).unwrap_or(Ok(()))?;
        Ok(self.shared.lock().parts.drain(..).collect())
    }

    /// Whether it has ended, one way or the other.
    pub fn is_done(&self) -> bool {
        self.shared.lock().outcome.is_some()
    }

    /// How many copies have ended their part, of how many.
    pub fn progress(&self) -> (usize, usize) {
        self.shared.lock().progress
    }

    /// Cancels it, unless it has ended.
    pub fn cancel(&self) {
        (self.cancel)();
    }

    /// Calls `what` once, in a thread of the group's, when there is a new partial result or the
    /// end. At once if there is one already.
    pub fn on_news(&self, what: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.parts.is_empty() && state.outcome.is_none() {
            state.callbacks.push(Callback(Box::new(what)));
        } else {
            drop(state);
            what();
        }
    }
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Unit").field("id", &self.id).field("done", &self.is_done()).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(&self, timeout: Option<Duration>, mut look: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return None,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn change(&self, what: impl FnOnce(&mut State)) {
        let callbacks = {
            let mut state = self.lock();
            what(&mut state);
            let news = !state.parts.is_empty() || state.outcome.is_some();
            if news { std::mem::take(&mut state.callbacks) } else { Vec::new() }
        };
        self.changed.notify_all();
        for Callback(callback) in callbacks {
            callback();
        }
    }

    /// A partial result came. With `hold` it may still turn out to belong to a lost attempt.
    pub(crate) fn part(&self, part: Part, hold: bool) {
        self.change(|state| {
            if state.outcome.is_none() {
                if hold { state.held.push(part) } else { state.parts.push_back(part) }
            }
        });
    }

    pub(crate) fn progress(&self, done: usize, of: usize) {
        self.change(|state| state.progress = (done, of));
    }

    /// It begins anew: the held results belong to a lost attempt.
    pub(crate) fn again(&self) {
        self.change(|state| state.held.clear());
    }

    /// It has ended, unless it had before.
    pub(crate) fn end(&self, outcome: Result<(), Failure>) {
        self.change(|state| {
            if state.outcome.is_none() {
                let held = std::mem::take(&mut state.held);
                state.parts.extend(held);
                state.outcome = Some(outcome);
            }
        });
    }
}
