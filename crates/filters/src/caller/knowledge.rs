//! What the caller's thread knows: of the group's workers, of its units of work, and of who has asked.

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

/// What is settled before a group starts.
pub struct Terms {
    /// What runs where.
    pub plan: Arc<Plan>,
    /// How buffers go.
    pub transport: Transport,
    /// How many units of work may be under way at once.
    pub window: usize,
    /// Whether spans are recorded.
    pub trace: bool,
    /// The secret of the group.
    pub token: String,
    /// At which of this host's addresses workers reach it.
    pub address: IpAddr,
}

/// How workers come into being.
pub struct Starting {
    /// What starts processes on hosts.
    pub launcher: Box<dyn Launcher>,
    /// What starts them beside this one.
    pub beside: Local,
    /// Where they say hello.
    pub reception: Reception,
    /// What the caller's own worker makes filters with.
    pub factory: Arc<dyn Factory>,
}

/// The thread's knowledge.
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
    /// Units that are done, that have failed.
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
    /// Why there is no going on.
    pub(super) over: Option<Failure>,
}

/// What is known of a unit of work.
pub(super) struct UnitState {
    pub(super) params: Vec<u8>,
    pub(super) options: UnitOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) deadline: Option<Instant>,
    /// Copies that have not ended their part; `None` if it has not begun.
    pub(super) open: Option<BTreeSet<CopyId>>,
    pub(super) cancelled: bool,
    /// A failure that may turn out to be the loss of a process, and until when that is waited for.
    pub(super) suspected: Option<(Failure, Instant)>,
    /// How often it may still be run again.
    pub(super) reruns: usize,
}

/// Somebody who has asked.
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
    /// How many processes it has had: what one that is gone has said does not count.
    pub(super) incarnation: u64,
    /// What it said last of its figures.
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
    /// Of a group that has not begun; `started` is told how that went.
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
                // One that is gone is noticed by the thread that reads.
                let _ = messages::send(control, message);
            }
        }
    }
}
