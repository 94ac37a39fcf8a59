//! The state of the caller's thread: the group's workers, its units of work, and the requests that
//! wait for an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::copy::State;
use crate::error::Failure;
use crate::event::Event;
use crate::hello::Reception;
use crate::launch::{Launcher, Local, Process};
use crate::layout::{CopyId, Plan};
use crate::messages::{self, Hello, ToWorker, Transport};
use crate::session::Factory;
use crate::stats::Figures;
use crate::status::{Status, Traced};
use crate::unit::{Shared, UnitOptions};
use crate::worker::Control;

/// The terms of a group, decided before it starts.
pub struct Terms {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The transport of buffers.
    pub transport: Transport,
    /// How many units of work may be under way at once.
    pub window: usize,
    /// Whether spans are recorded.
    pub trace: bool,
    /// The secret of the group.
    pub token: String,
    /// This host's address by which workers reach it.
    pub address: IpAddr,
}

/// How workers are started.
pub struct Starting {
    /// Starts processes on hosts.
    pub launcher: Box<dyn Launcher>,
    /// Starts processes on this host.
    pub beside: Local,
    /// Where workers say hello.
    pub reception: Reception,
    /// Makes the filters of the caller's own worker.
    pub factory: Arc<dyn Factory>,
}

/// The thread's state.
pub struct Caller {
    pub(super) terms: Terms,
    pub(super) starting: Starting,
    pub(super) events: Sender<Event>,
    pub(super) workers: Vec<Worker>,
    /// The caller's own worker.
    pub(super) here: Option<JoinHandle<()>>,
    pub(super) epoch: u64,
    pub(super) phase: Phase,
    pub(super) ready: BTreeSet<usize>,
    /// When the phase must have ended.
    pub(super) deadline: Option<Instant>,
    pub(super) units: BTreeMap<u64, UnitState>,
    /// Numbers of units that are done, and that have failed.
    pub(super) counted: [usize; 2],
    pub(super) losses: u64,
    pub(super) failed_starts: u32,
    pub(super) ended: Vec<u64>,
    pub(super) spans: Vec<Traced>,
    /// Figures of processes that are gone, and of attempts that are over.
    pub(super) old: Vec<Figures>,
    pub(super) asked: Vec<Asked>,
    pub(super) asked_number: u64,
    pub(super) started: Option<Sender<Result<(), Failure>>>,
    /// Why the group cannot go on.
    pub(super) over: Option<Failure>,
}

/// The state of a unit of work.
pub(super) struct UnitState {
    pub(super) params: Vec<u8>,
    pub(super) options: UnitOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) deadline: Option<Instant>,
    /// Copies that have not ended their part; `None` if it has not begun.
    pub(super) open: Option<BTreeSet<CopyId>>,
    pub(super) cancelled: bool,
    /// A failure that may turn out to be the loss of a process, and until when the caller waits for
    /// that.
    pub(super) suspected: Option<(Failure, Instant)>,
    /// How often it may still be run again.
    pub(super) reruns: usize,
}

/// A request that waits for its answer.
pub(super) struct Asked {
    pub(super) answer: Sender<Status>,
    pub(super) missing: BTreeSet<usize>,
    pub(super) until: Instant,
}

#[derive(Default)]
pub(super) struct Worker {
    pub(super) process: Option<Box<dyn Process>>,
    pub(super) control: Option<Control>,
    pub(super) hello: Option<Hello>,
    /// The number of its processes so far: messages of an earlier one do not count.
    pub(super) incarnation: u64,
    /// Its last figures.
    pub(super) figures: Vec<Figures>,
    pub(super) states: Vec<(CopyId, State, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not all workers have said hello.
    Gathering,
    /// Not all have said that they are ready.
    Linking,
    /// Units of work run.
    Running,
}

impl Caller {
    /// For a group that has not begun; `started` gets the result of the start.
    pub fn new(
        terms: Terms,
        starting: Starting,
        events: Sender<Event>,
        started: Sender<Result<(), Failure>>,
    ) -> Caller {
        Caller {
            workers: terms.plan.workers.iter().map(|_| Worker::default()).collect(),
            ended: vec![0; terms.plan.all().count()],
            terms,
            starting,
            events,
            here: None,
            epoch: 0,
            phase: Phase::Gathering,
            ready: BTreeSet::new(),
            deadline: None,
            units: BTreeMap::new(),
            counted: [0; 2],
            losses: 0,
            failed_starts: 0,
            spans: Vec::new(),
            old: Vec::new(),
            asked: Vec::new(),
            asked_number: 0,
            started: Some(started),
            over: None,
        }
    }

    /// Sends a message to all workers that are there.
    pub(super) fn say_to_all(&mut self, message: &ToWorker) {
        for worker in &mut self.workers {
            if let Some(control) = &mut worker.control {
                // The reading thread notices workers that are gone.
                let _ = messages::send(control, message);
            }
        }
    }
}
