//! A process of a group: it says hello, receives the plan, works, and reports. The caller's process
//! has a worker, too, in a thread.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::acceptor::Acceptor;
use crate::copy::{Reporter, Span, State};
use crate::error::Error;
use crate::layout::{CopyId, Plan};
use crate::messages::{self, FromWorker, Hello, ToWorker, VERSION};
use crate::running::Flag;
use crate::session::{Factory, Session, Terms, Unfit};

/// All that a worker needs to find its group, as one line of text. A process gets it in its
/// environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Host and port where the group is reached.
    pub address: String,
    /// Which worker it is.
    pub worker: usize,
    /// The secret of the group.
    pub token: String,
}

/// The variable of the environment that holds a ticket.
pub const TICKET: &str = "SHUNT_FILTERS_TICKET";

impl std::fmt::Display for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} {} {}", self.address, self.worker, self.token)
    }
}

impl std::str::FromStr for Ticket {
    type Err = String;
    fn from_str(text: &str) -> Result<Ticket, String> {
        let mut words = text.split(' ');
        let ticket = (|| {
            let address = words.next()?.to_string();
            let worker = words.next()?.parse().ok()?;
            Some(Ticket { address, worker, token: words.next()?.to_string() })
        })();
        ticket.ok_or_else(|| format!("{TICKET} is not what a group hands to its workers: '{text}'"))
    }
}

/// Works for the group of the ticket, until the group is finished.
pub fn serve(ticket: &Ticket, factory: Arc<dyn Factory>) -> io::Result<()> {
    let stream = TcpStream::connect(&ticket.address)
        .map_err(|error| io::Error::new(error.kind(), format!("no group at {}: {error}", ticket.address)))?;
    stream.set_nodelay(true)?;
    let local = stream.local_addr()?.ip();
    serve_by(Control::Tcp(stream), Some(local), ticket.worker, &ticket.token, factory)
}

/// The connection to the caller's process.
#[derive(Debug)]
pub enum Control {
    /// Of another process.
    Tcp(TcpStream),
    /// Of the same process.
    Here(UnixStream),
}

impl Control {
    /// The same connection once more, for another thread.
    pub fn again(&self) -> io::Result<Control> {
        Ok(match self {
            Control::Tcp(stream) => Control::Tcp(stream.try_clone()?),
            Control::Here(stream) => Control::Here(stream.try_clone()?),
        })
    }

    /// Ends it, for all threads that read or write.
    pub fn close(&self) {
        // It may have ended by itself.
        let _ = match self {
            Control::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Control::Here(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Control {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Control::Tcp(stream) => stream.read(to),
            Control::Here(stream) => stream.read(to),
        }
    }
}

impl Write for Control {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Control::Tcp(stream) => stream.write(from),
            Control::Here(stream) => stream.write(from),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Works by this connection; neighbours, if there are any, connect at `local`.
pub fn serve_by(
    control: Control,
    local: Option<IpAddr>,
    worker: usize,
    token: &str,
    factory: Arc<dyn Factory>,
) -> io::Result<()> {
    let acceptor = match local {
        Some(local) => Acceptor::open(local, token)?,
        None => Acceptor::none(),
    };
    let mut reading = control.again()?;
    let voice = Arc::new(Voice(Mutex::new(control)));
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string();
    let hello = Hello {
        version: VERSION,
        token: token.into(),
        worker,
        pid: std::process::id(),
        machine,
        address: acceptor.address().clone(),
    };
    messages::send(&mut *voice.0.lock().unwrap_or_else(PoisonError::into_inner), &hello)?;
    let acceptor = Arc::new(acceptor);
    let mut current = Attempt::default();
    loop {
        let message = match messages::receive::<ToWorker>(&mut reading) {
            Ok(message) => message,
            // The caller's process has ended, or has no more work for this worker.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        match message {
            ToWorker::Plan { plan, epoch, addresses, transport, trace } => {
                let terms = Terms {
                    plan: Arc::new(plan),
                    epoch,
                    addresses,
                    transport,
                    trace,
                    me: worker,
                    token: token.into(),
                };
                acceptor.forget_before(epoch);
                current.say_figures(&voice);
                // The old one ends in its own time: a filter may be in the middle of something
                // long.
                current = Attempt::begin(terms, &acceptor, &factory, &voice)?;
            }
            ToWorker::Append { uow, params } => current.with(|session| session.append(uow, params)),
            ToWorker::Cancel { uow } => current.with(|session| session.cancel(uow)),
            ToWorker::Report { number } => current.report(number, &voice),
            ToWorker::Finish => {
                current.finish();
                return Ok(());
            }
        }
    }
}

/// How long the threads of copies may take to end, when all of it ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// The way to the caller's process, for all copies.
#[derive(Debug)]
struct Voice(Mutex<Control>);

impl Voice {
    /// An error means that the caller's process is gone, which the reading thread notices as well.
    fn say(&self, message: &FromWorker) -> io::Result<()> {
        messages::send(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), message)
    }
}

/// The session that runs now, once it is made.
#[derive(Default)]
struct Attempt {
    aborted: Arc<Flag>,
    session: Arc<Mutex<Option<Session>>>,
    states: Arc<States>,
}

#[derive(Debug, Default)]
struct States(Mutex<Vec<(CopyId, State, u64)>>);

impl Attempt {
    /// Begins one in a thread of its own, as linking up takes time, and it may be given up
    /// meanwhile.
    fn begin(
        terms: Terms,
        acceptor: &Arc<Acceptor>,
        factory: &Arc<dyn Factory>,
        voice: &Arc<Voice>,
    ) -> io::Result<Attempt> {
        let attempt = Attempt::default();
        let (aborted, session) = (Arc::clone(&attempt.aborted), Arc::clone(&attempt.session));
        let states = Arc::clone(&attempt.states);
        let (acceptor, factory) = (Arc::clone(acceptor), Arc::clone(factory));
        let voice = Arc::clone(voice);
        thread::Builder::new().name("shunt-session".into()).spawn(move || {
            let epoch = terms.epoch;
            let reporter = |copy| -> Box<dyn Reporter> {
                let (voice, states) = (Arc::clone(&voice), Arc::clone(&states));
                states.set(copy, State::Idle, 0);
                Box::new(CopyReporter { epoch, copy, voice, states })
            };
            let made = Session::start(terms, Arc::clone(&aborted), &acceptor, &*factory, &reporter);
            let message = match made {
                Ok(made) => {
                    *session.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
                    FromWorker::Ready { epoch }
                }
                Err(Unfit { copy, error }) => {
                    let (what, traceback, broken) = parts(error);
                    FromWorker::Unfit { epoch, copy, what, traceback, broken }
                }
            };
            let _ = voice.say(&message); // see there
            if aborted.is_set() {
                session.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        })?;
        Ok(attempt)
    }

    fn with(&self, what: impl FnOnce(&Session)) {
        if let Some(session) = &*self.session.lock().unwrap_or_else(PoisonError::into_inner) {
            what(session);
        }
    }

    /// Ends it in order: an interpreter that its filters need may be about to end.
    fn finish(&self) {
        self.aborted.set();
        if let Some(session) = self.session.lock().unwrap_or_else(PoisonError::into_inner).take() {
            session.finish(PATIENCE);
        }
    }

    /// Reports the counts, so that they stay when another attempt begins.
    fn say_figures(&self, voice: &Voice) {
        let mut figures = None;
        self.with(|session| figures = Some(session.figures()));
        if let Some(figures) = figures {
            let _ = voice.say(&FromWorker::Counted { figures }); // see there
        }
    }

    fn report(&self, number: u64, voice: &Voice) {
        let mut figures = Vec::new();
        self.with(|session| figures = session.figures());
        let states = self.states.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = voice.say(&FromWorker::Report { number, states, figures }); // see there
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.aborted.set();
        self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl States {
    fn set(&self, copy: CopyId, state: State, uow: u64) {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match states.iter_mut().find(|(known, ..)| *known == copy) {
            Some(place) => *place = (copy, state, uow),
            None => states.push((copy, state, uow)),
        }
    }
}

struct CopyReporter {
    epoch: u64,
    copy: CopyId,
    voice: Arc<Voice>,
    states: Arc<States>,
}

impl Reporter for CopyReporter {
    fn part(&self, uow: u64, data: Vec<u8>) -> Result<(), Error> {
        Ok(self.voice.say(&FromWorker::Part { epoch: self.epoch, uow, copy: self.copy, data })?)
    }

    fn failed(&self, uow: u64, why: Error) {
        let (what, traceback, broken) = parts(why);
        let message = FromWorker::Failed { epoch: self.epoch, uow, copy: self.copy, what, traceback, broken };
        let _ = self.voice.say(&message); // see there
    }

    fn done(&self, uow: u64, spans: Vec<Span>) {
        let _ = self.voice.say(&FromWorker::Done { epoch: self.epoch, uow, copy: self.copy, spans }); // see there
    }

    fn state(&self, state: State, uow: u64) {
        self.states.set(self.copy, state, uow);
    }
}

fn parts(error: Error) -> (String, String, bool) {
    match error {
        Error::Filter { what, traceback } => (what, traceback, false),
        Error::Io(error) => (error.to_string(), String::new(), true),
        other => (other.to_string(), String::new(), false),
    }
}

/// Whether the plan has work for this worker.
pub fn has_copies(plan: &Plan, worker: usize) -> bool {
    plan.copies.iter().any(|copies| copies.contains(&worker))
}
