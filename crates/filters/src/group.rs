//! A filter group as its program sees it: how it is made, its requests, and its status. `caller` is
//! behind that.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::caller::{Caller, Starting, Terms};
use crate::error::Failure;
use crate::event::Event;
use crate::hello::Reception;
use crate::launch::{Launcher, Local};
use crate::layout::{Layout, Placement, Plan};
use crate::messages::Transport;
use crate::session::Factory;
use crate::status::{Status, Traced};
use crate::unit::{Shared, Unit, UnitOptions};

/// Options of a group.
pub struct Options {
    /// Where filters run.
    pub placement: Placement,
    /// Starts processes on hosts.
    pub launcher: Box<dyn Launcher>,
    /// Starts processes on the caller's host, for filters with [`crate::Place::processes`] that are
    /// placed there.
    pub beside: Local,
    /// The transport of buffers between processes.
    pub transport: Transport,
    /// How many units of work may be under way at once; 1 to [`WINDOW_MOST`].
    pub window: usize,
    /// Whether spans are recorded, for [`Group::spans`].
    pub trace: bool,
}

/// See [`Options::window`]: ends of units of work need room in the queues.
pub const WINDOW_MOST: usize = 16;

/// A filter group that runs.
pub struct Group {
    events: Sender<Event>,
    thread: Option<JoinHandle<()>>,
    plan: Arc<Plan>,
    next: Mutex<u64>,
}

impl Group {
    /// Starts a group. Returns when all copies are ready, or with the problem.
    pub fn start(layout: &Layout, options: Options, factory: Arc<dyn Factory>) -> Result<Group, Failure> {
        let Options { placement, mut launcher, beside, transport, window, trace } = options;
        let closed = |what: String| Failure::Closed(what);
        let hosts =
            launcher.hosts().map_err(|error| closed(format!("the launcher has no hosts: {error}")))?;
        let plan = Arc::new(
            Plan::new(layout, &placement, &hosts).map_err(|wrong| Failure::Mistake(wrong.to_string()))?,
        );
        let address =
            launcher.address().map_err(|error| closed(format!("no address to be reached at: {error}")))?;
        let (events, inbox) = channel();
        let token = format!("{:016x}{:016x}", fabric::sys::random(), fabric::sys::random());
        let reception = Reception::open(address, &token, &events)
            .map_err(|error| closed(format!("{address}: {error}")))?;
        let (ready, started) = channel();
        let window = window.clamp(1, WINDOW_MOST);
        let terms = Terms { plan: Arc::clone(&plan), transport, window, trace, token, address };
        let caller =
            Caller::new(terms, Starting { launcher, beside, reception, factory }, events.clone(), ready);
        let thread = thread::Builder::new()
            .name("shunt-group".into())
            .spawn(move || caller.run(&inbox))
            .map_err(|error| closed(error.to_string()))?;
        let group = Group { events, thread: Some(thread), plan, next: Mutex::new(1) };
        match started.recv() {
            Ok(Ok(())) => Ok(group),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(closed("the group's thread has ended".into())),
        }
    }

    /// Appends a unit of work, which begins when there is room for it; those before it need not
    /// have ended.
    pub fn append(&self, params: impl Into<Vec<u8>>, options: UnitOptions) -> Unit {
        let shared = Arc::new(Shared::default());
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let uow = *next;
        *next += 1;
        let append = Event::Append { uow, params: params.into(), options, shared: Arc::clone(&shared) };
        if self.events.send(append).is_err() {
            shared.end(Err(Failure::Closed("the group is closed".into())));
        }
        let events = self.events.clone();
        let cancel = move || {
            // A group that is closed has cancelled it already.
            let _ = events.send(Event::Cancel(uow, Failure::Cancelled));
        };
        Unit::new(uow, shared, Arc::new(cancel))
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The status at this moment. Asks all workers, for at most a second.
    pub fn status(&self) -> Status {
        self.ask(Event::Status)
    }

    /// The spans of the copies since the last call.
    pub fn spans(&self) -> Vec<Traced> {
        self.ask(Event::Spans)
    }

    fn ask<T: Default>(&self, what: impl FnOnce(Sender<T>) -> Event) -> T {
        let (answer, answered) = channel();
        if self.events.send(what(answer)).is_err() {
            return T::default();
        }
        answered.recv().unwrap_or_default()
    }

    /// Ends it: units of work that have not ended fail.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.events.send(Event::Close); // it may have ended by itself
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Group").field("plan", &self.plan).finish_non_exhaustive()
    }
}
