//! One copy of a filter at work: the filter itself ([`Filter`]), the world that it sees
//! ([`Context`]), and the loop that takes it through one unit of work after another.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use stream::spin::ticks;

use crate::error::Error;
use crate::flow::Meta;
use crate::input::{Buffer, Found, Input};
use crate::layout::{CopyId, StreamDef};
use crate::listener::Listener;
use crate::outlet::Draft;
use crate::output::{Output, Waiting, With};
use crate::running::{Flag, Running, Until};
use crate::sleeper::{Habit, Sleeper};
use crate::wake::Wake;

/// A filter (section 4.2): resources are made in `init` and released in `finalize`, for each unit
/// of work; in between `process` reads streams and writes streams. It has a thread of its own, so
/// it may take as long as it likes.
pub trait Filter: Send {
    /// Before a unit of work.
    fn init(&mut self, _context: &mut Context) -> Result<(), Error> {
        Ok(())
    }

    /// The unit of work: usually, reads until there is no more.
    fn process(&mut self, context: &mut Context) -> Result<(), Error>;

    /// After it, also after one that failed or was cancelled, if `init` came to its end.
    fn finalize(&mut self, _context: &mut Context) -> Result<(), Error> {
        Ok(())
    }
}

/// Where partial results and reports of a copy go.
pub trait Reporter: Send {
    /// A partial result.
    fn part(&self, uow: u64, data: Vec<u8>) -> Result<(), Error>;
    /// The copy has failed; the unit of work is over.
    fn failed(&self, uow: u64, why: Error);
    /// The copy has ended its part of a unit of work.
    fn done(&self, uow: u64, spans: Vec<Span>);
    /// The copy's state changed, for observers.
    fn state(&self, state: State, uow: u64);
}

/// The states of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum State {
    /// Waits for a unit of work.
    Idle,
    /// In `init`.
    Init,
    /// In `process`.
    Process,
    /// Throws away what it has not read.
    Drain,
    /// In `finalize`.
    Finalize,
}

/// How long something took, for traces: nanoseconds of the host's clock since 1970.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// The state.
    pub state: State,
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
}

/// The world of a filter: which copy it is, the unit of work, and its streams.
pub struct Context {
    id: CopyId,
    name: String,
    host: String,
    copies: usize,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    sleeper: Sleeper,
    habit: Habit,
    running: Arc<Running>,
    reporter: Box<dyn Reporter>,
    /// Ticks that it has waited for input since the last buffer.
    idle: u64,
    next: usize,
}

impl Context {
    /// For a copy that has not begun.
    #[allow(clippy::too_many_arguments)] // one caller, which has just these
    pub fn new(
        id: CopyId,
        name: String,
        host: String,
        copies: usize,
        inputs: Vec<Input>,
        outputs: Vec<Output>,
        wake: Wake,
        reporter: Box<dyn Reporter>,
    ) -> Context {
        Context {
            id,
            name,
            host,
            copies,
            inputs,
            outputs,
            sleeper: Sleeper::new(wake),
            habit: Habit::default(),
            running: Arc::new(Running::new(0, Vec::new(), Arc::new(Flag::default()))),
            reporter,
            idle: 0,
            next: 0,
        }
    }

    /// While it waits, the copy reads these links, too.
    pub(crate) fn helps(&mut self, listeners: &Arc<[Arc<Listener>]>) {
        self.sleeper.helps(listeners);
    }

    /// Which copy this is, from 0.
    pub fn rank(&self) -> usize {
        self.id.rank
    }

    /// How many copies there are.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// How people name the copy: `zoom[1]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host, by the launcher's name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The unit of work.
    pub fn uow(&self) -> &Arc<Running> {
        &self.running
    }

    /// The streams that are read, in the order of the layout.
    pub fn inputs(&self) -> impl Iterator<Item = &StreamDef> {
        self.inputs.iter().map(Input::def)
    }

    /// The streams that are written, in the order of the layout.
    pub fn outputs(&self) -> impl Iterator<Item = &StreamDef> {
        self.outputs.iter().map(Output::def)
    }

    /// The next buffer of this unit of work, of any stream; `None` when all producers have ended
    /// it.
    pub fn read(&mut self) -> Result<Option<Buffer>, Error> {
        self.read_where(None)
    }

    /// The next buffer of one of the streams, by its place in [`Context::inputs`].
    pub fn read_from(&mut self, input: usize) -> Result<Option<Buffer>, Error> {
        if input >= self.inputs.len() {
            return Err(self.no_such("input", input, self.inputs.len()));
        }
        self.read_where(Some(input))
    }

    /// As [`Context::read`] (or, with a place, [`Context::read_from`]), without waiting: a buffer,
    /// nothing yet, or the end.
    pub fn try_read(&mut self, input: Option<usize>) -> Result<Found, Error> {
        if let Some(input) = input
            && input >= self.inputs.len()
        {
            return Err(self.no_such("input", input, self.inputs.len()));
        }
        self.poll(input)
    }

    /// [`Context::reserve`] without waiting: `None` if that would be needed.
    pub fn try_reserve(&mut self, output: usize) -> Result<Option<Draft>, Error> {
        if self.running.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(self.output(output)?.0.try_reserve())
    }

    /// Whether sending such a buffer would have to wait now.
    pub fn would_wait(&mut self, output: usize, meta: &Meta) -> Result<bool, Error> {
        Ok(self.output(output)?.0.would_wait(meta))
    }

    /// Memory for a buffer of an output, by its place in [`Context::outputs`].
    #[inline(always)]
    pub fn reserve(&mut self, output: usize) -> Result<Draft, Error> {
        let (output, mut waiting) = self.output(output)?;
        output.reserve(&mut waiting)
    }

    /// Sends the first `len` bytes of a buffer that was reserved.
    #[inline(always)]
    pub fn send(&mut self, output: usize, draft: Draft, len: usize, with: With) -> Result<(), Error> {
        let (output, mut waiting) = self.output(output)?;
        output.send(draft, len, with, false, &mut waiting)
    }

    /// Writes bytes to the only output.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_to(0, bytes, With::default())
    }

    /// Writes bytes to an output, by its place.
    pub fn write_to(&mut self, output: usize, bytes: &[u8], with: With) -> Result<(), Error> {
        let (output, mut waiting) = self.output(output)?;
        output.write(bytes, with, &mut waiting)
    }

    /// Hands a partial result to the caller that appended the unit of work.
    pub fn emit(&mut self, data: impl Into<Vec<u8>>) -> Result<(), Error> {
        if self.running.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.reporter.part(self.running.id, data.into())
    }

    #[inline(always)]
    fn output(&mut self, place: usize) -> Result<(&mut Output, Waiting<'_>), Error> {
        let count = self.outputs.len();
        if place >= count {
            return Err(self.no_such("output", place, count));
        }
        let until = Until::Cancelled(&self.running);
        let waiting = Waiting { sleeper: &self.sleeper, habit: &mut self.habit, until };
        Ok((&mut self.outputs[place], waiting))
    }

    fn no_such(&self, what: &str, place: usize, count: usize) -> Error {
        Error::Usage(format!("filter {} has no {what} {place}: it has {count}", self.name))
    }

    #[inline(always)]
    fn read_where(&mut self, only: Option<usize>) -> Result<Option<Buffer>, Error> {
        let uow = self.running.id;
        loop {
            match self.poll(only)? {
                Found::Buffer(buffer) => return Ok(Some(buffer)),
                Found::End => return Ok(None),
                Found::Nothing => {}
            }
            let before = ticks();
            let Context { inputs, running, sleeper, habit, .. } = self;
            sleeper.wait(habit, None, || {
                let ready = match only {
                    Some(at) => inputs[at].has_news(uow),
                    None => inputs.iter().any(|input| input.has_news(uow)),
                };
                ready || running.is_cancelled()
            });
            self.idle += ticks() - before;
        }
    }

    #[inline(always)]
    fn poll(&mut self, only: Option<usize>) -> Result<Found, Error> {
        if self.running.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let uow = self.running.id;
        let mut ended = true;
        let count = if only.is_some() { 1 } else { self.inputs.len() };
        for step in 0..count {
            let at = only.unwrap_or((self.next + step) % count);
            match self.inputs[at].poll(uow, &mut self.idle)? {
                Found::Buffer(buffer) => {
                    self.next = at + 1;
                    return Ok(Found::Buffer(buffer));
                }
                Found::Nothing => ended = false,
                Found::End => {}
            }
        }
        Ok(if ended { Found::End } else { Found::Nothing })
    }

    /// Reads the rest of the unit of work, and drops it.
    fn drain(&mut self) -> Result<(), Error> {
        let uow = self.running.id;
        for at in 0..self.inputs.len() {
            loop {
                if self.inputs[at].drain(uow)? {
                    break;
                }
                let Context { inputs, sleeper, habit, running, .. } = self;
                sleeper.wait(habit, None, || inputs[at].has_news(uow) || running.is_aborted());
                if running.is_aborted() {
                    return Err(Error::Cancelled);
                }
            }
        }
        Ok(())
    }

    fn end_of_work(&mut self) -> Result<(), Error> {
        for output in &mut self.outputs {
            // Consumers wait for this, cancelled or not.
            let until = Until::Aborted(&self.running);
            output.end_of_work(&mut Waiting { sleeper: &self.sleeper, habit: &mut self.habit, until })?;
        }
        Ok(())
    }
}

/// Takes a filter through units of work until there are no more.
pub fn work(filter: &mut dyn Filter, context: &mut Context, jobs: &Receiver<Arc<Running>>, trace: bool) {
    while let Ok(running) = jobs.recv() {
        one(filter, context, running, trace);
    }
}

fn one(filter: &mut dyn Filter, context: &mut Context, running: Arc<Running>, trace: bool) {
    let uow = running.id;
    context.running = Arc::clone(&running);
    context.idle = 0;
    context.inputs.iter_mut().for_each(|input| input.begin(uow));
    let mut stages = Stages { spans: Vec::new(), trace };
    let mut failed = false;
    let mut keep = |context: &Context, result: Result<(), Error>| {
        let Err(error) = result else { return };
        // An error after being cancelled is no failure of the filter.
        if !failed && !running.is_cancelled() {
            failed = true;
            context.reporter.failed(uow, error);
        }
        running.cancel();
    };
    let begun = !running.is_cancelled() && {
        let result = stages.run(State::Init, context, |context| filter.init(context));
        let begun = result.is_ok();
        keep(context, result);
        begun
    };
    if begun {
        let result = stages.run(State::Process, context, |context| filter.process(context));
        keep(context, result);
    }
    let result = context.end_of_work();
    keep(context, result);
    context.reporter.state(State::Drain, uow);
    let result = context.drain();
    keep(context, result);
    if begun {
        let result = stages.run(State::Finalize, context, |context| filter.finalize(context));
        keep(context, result);
    }
    context.reporter.done(uow, stages.spans);
    context.reporter.state(State::Idle, uow);
}

struct Stages {
    spans: Vec<Span>,
    trace: bool,
}

impl Stages {
    fn run(
        &mut self,
        state: State,
        context: &mut Context,
        stage: impl FnOnce(&mut Context) -> Result<(), Error>,
    ) -> Result<(), Error> {
        context.reporter.state(state, context.running.id);
        let (from, began) = (since_1970(), Instant::now());
        let result = catch_unwind(AssertUnwindSafe(|| stage(context)))
            .unwrap_or_else(|panic| Err(Error::filter(format!("it panicked: {}", text_of(&*panic)))));
        if self.trace {
            self.spans.push(Span { state, from, to: from + began.elapsed().as_nanos() as u64 });
        }
        result
    }
}

fn since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("?")
}
