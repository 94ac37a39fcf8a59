//! The caller's side of a group: one thread, which receives all messages and requests and has all
//! state. So there is one order of events, and nothing to lock.
//!
//! When a process of the group is lost, the units of work that were under way fail (or are run
//! again, if they may be). The process is started again, and all workers begin a new attempt at the
//! plan, with a new *epoch*; messages of an older one do not count. Waiting units go on then.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::event::Event;
use crate::launch::Launcher as _;
use crate::layout::CALLER;
use crate::messages::{self, FromWorker, Hello, ToWorker, VERSION, WorkerAddress};
use crate::unit::Part;
use crate::worker::{self, Control, Ticket};

mod knowledge;
mod seen;
mod units;

pub use knowledge::{Caller, Starting, Terms};
use knowledge::{Phase, UnitState, Worker};

/// How long a broken connection counts as a sign of a lost process, before its loss is reported.
const SUSPICION: Duration = Duration::from_millis(400);
/// How often it checks on processes that have not said hello.
const STILLBORN: Duration = Duration::from_millis(50);
/// How many starts in a row may fail.
const STARTS: u32 = 3;
/// The most time that workers may take to say hello, and to link up.
const START_PATIENCE: Duration = Duration::from_secs(60);

impl Caller {
    /// Handles events, until the group is closed or cannot go on.
    pub fn run(mut self, inbox: &Receiver<Event>) {
        self.gather();
        loop {
            if self.over.is_some() {
                break;
            }
            let event = match self.next_time() {
                Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look_at_times();
            self.dispatch();
        }
        let why = self.over.take().unwrap_or_else(|| Failure::Closed("the group was closed".into()));
        if let Some(started) = self.started.take() {
            let _ = started.send(Err(why.clone()));
        }
        for unit in self.units.values() {
            unit.shared.end(Err(why.clone()));
        }
        // A worker that has said hello must hear of the end, even if its hello was not handled:
        // this waits for the caller's own worker.
        for event in inbox.try_iter() {
            match event {
                Event::Came(worker, control, _) => {
                    if let Some(place) = self.workers.get_mut(worker) {
                        place.control.get_or_insert(control);
                    }
                }
                Event::Append { shared, .. } => shared.end(Err(why.clone())),
                _ => {}
            }
        }
        for worker in &mut self.workers {
            if let Some(control) = &mut worker.control {
                let _ = messages::send(control, &ToWorker::Finish);
            }
        }
        if let Some(here) = self.here.take() {
            let _ = here.join(); // it has said all that it had to say
        }
        let until = Instant::now() + Duration::from_secs(2);
        for worker in &mut self.workers {
            let Some(process) = &mut worker.process else { continue };
            while process.ended().is_none() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            process.kill();
        }
        // Events that have come meanwhile.
        for event in inbox.try_iter() {
            if let Event::Append { shared, .. } = event {
                shared.end(Err(why.clone()));
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Came(worker, control, hello) => self.came(worker, control, hello),
            Event::Said(worker, incarnation, message) => {
                if self.workers[worker].incarnation == incarnation {
                    self.said(worker, message);
                }
            }
            Event::Gone(worker, incarnation) => {
                if self.workers[worker].incarnation == incarnation {
                    let how = self.how_it_ended(worker);
                    self.lost(worker, &how);
                }
            }
            Event::Append { uow, params, options, shared } => {
                let copies = self.terms.plan.all().count();
                shared.progress(0, copies);
                let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
                let unit = UnitState {
                    params,
                    options,
                    shared,
                    deadline,
                    open: None,
                    cancelled: false,
                    suspected: None,
                    reruns: options.reruns,
                };
                self.units.insert(uow, unit);
            }
            Event::Cancel(uow, why) => self.fail(uow, why),
            Event::Status(answer) => self.ask(answer),
            Event::Spans(answer) => {
                let _ = answer.send(std::mem::take(&mut self.spans)); // whoever asked may be gone
            }
            Event::Close => {}
        }
    }

    /// The attempt is over, if there was one: its messages do not count from now on.
    fn begin_again(&mut self) {
        self.epoch += 1;
        self.phase = Phase::Gathering;
    }

    /// Starts the processes that are missing.
    fn gather(&mut self) {
        self.begin_again();
        self.deadline = Some(Instant::now() + START_PATIENCE);
        for worker in 0..self.workers.len() {
            let started = self.workers[worker].process.is_some() || worker == 0 && self.here.is_some();
            if started || self.workers[worker].hello.is_some() {
                continue;
            }
            self.workers[worker].incarnation += 1;
            if worker == 0 {
                self.start_here();
                continue;
            }
            let ticket = Ticket {
                address: self.starting.reception.address().clone(),
                worker,
                token: self.terms.token.clone(),
            };
            let host = self.terms.plan.workers[worker].host.clone();
            let launched = if host == CALLER {
                self.starting.beside.launch(&host, &ticket)
            } else {
                self.starting.launcher.launch(&host, &ticket)
            };
            match launched {
                Ok(process) => self.workers[worker].process = Some(process),
                Err(error) => {
                    self.over = Some(Failure::Closed(format!(
                        "no process could be started on host '{host}': {error}"
                    )));
                    return;
                }
            }
        }
        self.plan_if_all_are_there();
    }

    /// The caller's own worker is a thread.
    fn start_here(&mut self) {
        if !worker::has_copies(&self.terms.plan, 0) {
            return;
        }
        let address = (self.terms.plan.workers.len() > 1).then_some(self.terms.address);
        let token = self.terms.token.clone();
        let factory = Arc::clone(&self.starting.factory);
        let events = self.events.clone();
        let started = UnixStream::pair().and_then(|(ours, theirs)| {
            self.here = Some(thread::Builder::new().name("shunt-worker".into()).spawn(move || {
                // The other end notices how it ends.
                let _ = worker::serve_by(Control::Here(theirs), address, 0, &token, factory);
            })?);
            let mut control = Control::Here(ours);
            let hello = messages::receive::<Hello>(&mut control)?;
            let _ = events.send(Event::Came(0, control, hello));
            Ok(())
        });
        if let Err(error) = started {
            self.over = Some(Failure::Closed(format!("the caller's process cannot be a worker: {error}")));
        }
    }

    fn came(&mut self, worker: usize, control: Control, hello: Hello) {
        if worker >= self.workers.len() || self.workers[worker].hello.is_some() {
            return;
        }
        if hello.version != VERSION {
            let host = self.terms.plan.host_of(worker);
            self.over = Some(Failure::Closed(format!("host '{host}' has another version of Shunt")));
            return;
        }
        let incarnation = self.workers[worker].incarnation;
        let (mut reading, events) = match control.again() {
            Ok(reading) => (reading, self.events.clone()),
            Err(_) => return,
        };
        let spawned = thread::Builder::new().name("shunt-control".into()).spawn(move || {
            while let Ok(message) = messages::receive(&mut reading) {
                if events.send(Event::Said(worker, incarnation, message)).is_err() {
                    return;
                }
            }
            let _ = events.send(Event::Gone(worker, incarnation)); // the group may be gone, too
        });
        if spawned.is_err() {
            return;
        }
        let place = &mut self.workers[worker];
        place.hello = Some(hello);
        place.control = Some(control);
        self.plan_if_all_are_there();
    }

    fn plan_if_all_are_there(&mut self) {
        let there = |(at, worker): (usize, &Worker)| {
            worker.hello.is_some() || !worker::has_copies(&self.terms.plan, at)
        };
        if self.phase != Phase::Gathering || !self.workers.iter().enumerate().all(there) {
            return;
        }
        self.phase = Phase::Linking;
        self.deadline = Some(Instant::now() + START_PATIENCE);
        self.ready.clear();
        let nowhere = WorkerAddress { tcp: String::new(), unix: String::new(), kin: String::new() };
        let address =
            |worker: &Worker| worker.hello.as_ref().map_or(nowhere.clone(), |hello| hello.address.clone());
        let addresses = self.workers.iter().map(address).collect();
        let message = ToWorker::Plan {
            plan: (*self.terms.plan).clone(),
            epoch: self.epoch,
            addresses,
            transport: self.terms.transport,
            trace: self.terms.trace,
        };
        self.say_to_all(&message);
    }

    fn said(&mut self, worker: usize, message: FromWorker) {
        // Rule F2: a copy that does not exist belongs to no worker.
        if message.copy().is_some_and(|copy| {
            self.terms.plan.copies.get(copy.filter).is_none_or(|ranks| copy.rank >= ranks.len())
        }) {
            return;
        }
        match message {
            FromWorker::Ready { epoch } if epoch == self.epoch && self.phase == Phase::Linking => {
                self.ready.insert(worker);
                let all = (0..self.workers.len()).filter(|&at| worker::has_copies(&self.terms.plan, at));
                if all.collect::<BTreeSet<_>>() == self.ready {
                    self.phase = Phase::Running;
                    self.deadline = None;
                    self.failed_starts = 0;
                    if let Some(started) = self.started.take() {
                        let _ = started.send(Ok(()));
                    }
                }
            }
            FromWorker::Unfit { epoch, copy, what, traceback, broken } if epoch == self.epoch => {
                let host = self.terms.plan.host_of(worker).to_string();
                if broken {
                    // Another attempt, unless that was tried often enough. A lost process is
                    // noticed on its own.
                    self.try_again(&format!("host '{host}' cannot reach its neighbours: {what}"));
                    return;
                }
                let copy = copy.map_or_else(|| "?".into(), |copy| self.terms.plan.name_of(copy));
                self.over = Some(Failure::Filter { copy, host, what, traceback });
            }
            FromWorker::Part { epoch, uow, copy, data } if epoch == self.epoch => {
                if let Some(unit) = self.units.get(&uow) {
                    let part = Part { copy: self.terms.plan.name_of(copy), data };
                    unit.shared.part(part, unit.options.reruns > 0);
                }
            }
            FromWorker::Failed { epoch, uow, copy, what, traceback, broken } if epoch == self.epoch => {
                let (copy, host) =
                    (self.terms.plan.name_of(copy), self.terms.plan.host_of(worker).to_string());
                let failure = Failure::Filter { copy, host, what, traceback };
                match self.units.get_mut(&uow) {
                    Some(unit) if broken => {
                        unit.suspected.get_or_insert((failure, Instant::now() + SUSPICION));
                    }
                    Some(_) => self.fail(uow, failure),
                    None => {}
                }
            }
            FromWorker::Done { epoch, uow, copy, spans } if epoch == self.epoch => {
                self.done(uow, copy, spans);
            }
            FromWorker::Counted { figures } => {
                self.workers[worker].figures.clear();
                self.keep(figures);
            }
            FromWorker::Report { number, states, figures } => {
                self.workers[worker].states = states;
                self.workers[worker].figures = figures;
                if number == self.asked_number {
                    for asked in &mut self.asked {
                        asked.missing.remove(&worker);
                    }
                    self.answer();
                }
            }
            // Of an attempt that is over.
            FromWorker::Ready { .. }
            | FromWorker::Unfit { .. }
            | FromWorker::Part { .. }
            | FromWorker::Failed { .. }
            | FromWorker::Done { .. } => {}
        }
    }

    fn how_it_ended(&mut self, worker: usize) -> String {
        let Some(process) = &mut self.workers[worker].process else { return "its connection ended".into() };
        // The kernel closes its sockets a little before it is a zombie.
        let until = Instant::now() + Duration::from_millis(200);
        loop {
            match process.ended() {
                Some(how) => return how,
                None if Instant::now() > until => return "its connection ended".into(),
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// A process is gone.
    fn lost(&mut self, worker: usize, how: &str) {
        let place = &mut self.workers[worker];
        if let Some(control) = place.control.take() {
            control.close();
        }
        if let Some(mut process) = place.process.take() {
            process.kill();
        }
        place.hello = None;
        place.states.clear();
        // Its counts since the last report are lost with it.
        let figures = std::mem::take(&mut place.figures);
        self.keep(figures);
        self.losses += 1;
        let copies = self.terms.plan.all().filter(|&copy| self.terms.plan.worker_of(copy) == worker);
        let failure = Failure::Lost {
            copies: copies.map(|copy| self.terms.plan.name_of(copy)).collect(),
            host: self.terms.plan.host_of(worker).to_string(),
            how: how.to_string(),
        };
        self.fail_all_under_way(&failure);
        if worker == 0 {
            self.over = Some(failure);
            return;
        }
        if self.phase != Phase::Running {
            self.failed_starts += 1;
            if self.failed_starts >= STARTS {
                self.over = Some(Failure::Closed(format!("the group does not start: {failure}")));
                return;
            }
        }
        self.gather();
    }

    /// Linking up has failed.
    fn try_again(&mut self, why: &str) {
        self.failed_starts += 1;
        if self.failed_starts >= STARTS {
            self.over = Some(Failure::Closed(format!("the group does not start: {why}")));
            return;
        }
        self.begin_again();
        self.plan_if_all_are_there();
    }

    /// When something is due.
    fn next_time(&self) -> Option<Instant> {
        let units = self.units.values().flat_map(|unit| {
            let deadline = if unit.cancelled { None } else { unit.deadline };
            [deadline, unit.suspected.as_ref().map(|(_, until)| *until)]
        });
        let asked = self.asked.iter().map(|asked| Some(asked.until));
        let look = (self.phase == Phase::Gathering).then(|| Instant::now() + STILLBORN);
        units.chain([look]).chain(asked).chain([self.deadline]).flatten().min()
    }

    /// Finds processes that have ended before they said hello: they have no connection that could
    /// tell.
    fn look_for_stillborn(&mut self) {
        for worker in 0..self.workers.len() {
            let place = &mut self.workers[worker];
            if place.hello.is_none()
                && let Some(how) = place.process.as_mut().and_then(|process| process.ended())
            {
                self.lost(worker, &how);
                return;
            }
        }
    }

    fn look_at_times(&mut self) {
        if self.phase == Phase::Gathering {
            self.look_for_stillborn();
        }
        let now = Instant::now();
        let late = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let due: Vec<(u64, Failure)> = self
            .units
            .iter()
            .filter_map(|(&uow, unit)| match &unit.suspected {
                Some((failure, until)) if *until <= now => Some((uow, failure.clone())),
                _ if late(unit.deadline) && !unit.cancelled => Some((uow, Failure::TimedOut)),
                _ => None,
            })
            .collect();
        for (uow, failure) in due {
            self.fail(uow, failure);
        }
        if self.asked.iter().any(|asked| asked.until <= now) {
            self.asked.iter_mut().filter(|asked| asked.until <= now).for_each(|asked| asked.missing.clear());
            self.answer();
        }
        if late(self.deadline) {
            self.deadline = None;
            let missing: Vec<&str> = (0..self.workers.len())
                .filter(|&at| worker::has_copies(&self.terms.plan, at))
                .filter(|&at| match self.phase {
                    Phase::Gathering => self.workers[at].hello.is_none(),
                    _ => !self.ready.contains(&at),
                })
                .map(|at| self.terms.plan.host_of(at))
                .collect();
            let what = format!("the group does not start: nothing is heard from {}", missing.join(", "));
            self.over = Some(Failure::Closed(what));
        }
    }
}
