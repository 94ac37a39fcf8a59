//! The scheduler: simulated threads are coroutines of one real thread, and a seed decides which of
//! them makes how many steps before the next one. Time is the simulation's own.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_void};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use oorandom::Rand64;
use sim::kernel::{Kernel, Outcome, Pid, Tid};
use syscalls::{Errno, Sysno};

use crate::family::Family;
use crate::hosts::state::Hosts;
use crate::image::Image;
use crate::judge::Judge;
use crate::seam::{Host, THREAD_BYTES};
use crate::signals::{BIT, Handler, MOMENT_NS, SIGNAL, Signals};
use crate::trace::Trace;

const STACK: usize = 256 << 10;
/// A step on shared memory, a system call, and a turn of a spin loop take so long, in nanoseconds.
const STEP_NS: u64 = 10;
const CALL_NS: u64 = 1000;
const SPIN_NS: u64 = 40;
/// A run may make so many steps, and take so long.
const MOST_STEPS: u64 = 20_000_000;
const MOST_NS: u64 = 60_000_000_000;

/// Gets its environment.
pub type NextImage = Box<dyn FnOnce(Vec<CString>)>;

/// All that is of one run.
pub struct World {
    pub kernel: Kernel,
    pub dice: Rand64,
    pub judge: Judge,
    pub trace: Trace,
    pub steps: u64,
    pub threads: Vec<Thread>,
    pub current: usize,
    /// What the thread that runs may still do before it is another's turn, and what it was given.
    budget: u64,
    granted: u64,
    /// How many steps a turn has on average.
    turn: u64,
    families: Vec<Family>,
    /// The process that is killed at this step.
    killed: Option<(u64, Pid)>,
    /// Processes that are stopped, and until when.
    pub stopped: Vec<(Pid, u64)>,
    /// When one is stopped: the step, which, and for how long.
    pub stops: Vec<(u64, Pid, u64)>,
    pub handlers: Vec<Handler>,
    /// The steps at which signals come, the next one last.
    pub signals: Vec<u64>,
    /// Bytes that programs, or the library for them, have sent by TCP.
    pub by_tcp: u64,
    /// What the next image of a process does that goes through exec().
    pub next_image: Option<NextImage>,
    /// Arguments and environments.
    strings: Vec<(Vec<CString>, Vec<*const c_char>)>,
    next_tid: Tid,
    spare: Vec<DefaultStack>,
    /// Where the server listens, and the client's own address.
    pub addresses: [u32; 2],
    /// What there is between two hosts, if there are two.
    pub hosts: Option<Hosts>,
    /// Whether the processes are in network namespaces of their own.
    pub spaces: bool,
    /// Processes for which a run does not wait.
    pub daemons: Vec<Pid>,
}

pub struct Thread {
    pub pid: Pid,
    pub tid: Tid,
    coroutine: Option<Coroutine<(), (), ()>>,
    yielder: *const Yielder<(), ()>,
    pub state: State,
    pub signals: Signals,
    errno: i32,
    /// A thread of the library's own, which ends with its process.
    helps: bool,
    own: Box<[u64; THREAD_BYTES / 8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    Ready,
    /// In a call of the kernel that had nothing for it when that had changed so many times.
    Asleep(u64),
    /// Until something is due between the hosts.
    Network,
    Done,
}

/// How a run ended that did not fail.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    /// Bytes that programs wrote, and how many of them went by memory.
    pub written: u64,
    pub in_memory: u64,
    /// The longest that somebody slept beside what was his.
    pub owed: u64,
    pub steps: u64,
    pub calls: u64,
}

struct Global(UnsafeCell<Option<World>>);
// SAFETY: the simulator has one thread.
unsafe impl Sync for Global {}
static WORLD: Global = Global(UnsafeCell::new(None));

/// Works on the run that is under way. Nothing in it may switch to another thread.
pub fn with<R>(work: impl FnOnce(&mut World) -> R) -> R {
    // SAFETY: there is one real thread, and no use of the world spans a switch of coroutines or
    // another use.
    work(unsafe { (*WORLD.0.get()).as_mut().expect("a run is under way") })
}

impl World {
    /// Begins a run.
    pub fn begin(seed: u64, shown: usize) {
        let mut dice = Rand64::new(u128::from(seed) * 0x9e37_79b9_7f4a_7c15 + 1);
        let turn = [1, 2, 5, 20, 100, 1000, 20_000][dice.rand_range(0..7) as usize];
        let kernel = Kernel::new(dice.rand_u64());
        // SAFETY: no run is under way, so nobody uses the world.
        let world = unsafe { &mut *WORLD.0.get() };
        let spare = world.take().map(World::stop).unwrap_or_default();
        *world = Some(World {
            kernel,
            dice,
            judge: Judge::default(),
            trace: Trace::new(shown),
            steps: 0,
            threads: Vec::new(),
            current: 0,
            budget: 0,
            granted: 0,
            turn,
            families: Vec::new(),
            killed: None,
            stopped: Vec::new(),
            stops: Vec::new(),
            handlers: Vec::new(),
            signals: Vec::new(),
            by_tcp: 0,
            next_image: None,
            strings: Vec::new(),
            next_tid: 1000,
            spare,
            addresses: [0x7f00_0001; 2],
            hosts: None,
            spaces: false,
            daemons: Vec::new(),
        });
    }

    /// Whatever is left of a run that failed goes; the stacks are used again.
    fn stop(mut self) -> Vec<DefaultStack> {
        let pids: Vec<Pid> = self.threads.iter().map(|thread| thread.pid).collect();
        pids.into_iter().for_each(|pid| self.end(pid));
        self.spare
    }

    /// Adds a thread to a process.
    pub fn spawn(&mut self, pid: Pid, body: impl FnOnce() + 'static) -> Tid {
        // The first thread has the process's number.
        let others = self.threads.iter().any(|thread| thread.pid == pid && thread.state != State::Done);
        let tid = if others { self.next_tid } else { pid };
        self.next_tid += 1;
        self.kernel.thread(pid, tid);
        let stack = self.spare.pop().unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            with(|world| {
                let current = world.current;
                world.threads[current].yielder = yielder;
            });
            body();
        });
        self.threads.push(Thread {
            pid,
            tid,
            coroutine: Some(coroutine),
            yielder: std::ptr::null(),
            state: State::Ready,
            signals: Signals::default(),
            errno: 0,
            helps: false,
            own: Box::new([0; THREAD_BYTES / 8]),
        });
        tid
    }

    /// Adds a thread of the library's own to a process.
    pub fn spawn_helper(&mut self, pid: Pid, body: impl FnOnce() + 'static) -> Tid {
        let tid = self.spawn(pid, body);
        if let Some(thread) = self.threads.last_mut() {
            thread.helps = true;
        }
        tid
    }

    /// Whether a thread has ended.
    pub fn is_done(&self, tid: Tid) -> bool {
        self.threads.iter().all(|thread| thread.tid != tid || thread.state == State::Done)
    }

    /// What runs needs so much time; whether it is another's turn then.
    pub fn takes(&mut self, nanos: u64) -> bool {
        self.kernel.now += nanos;
        self.budget = self.budget.saturating_sub(1);
        self.budget == 0
    }

    /// The process has ended, or has another image.
    fn leave_hosts(&mut self, pid: Pid) {
        let now = self.kernel.now;
        if let Some(hosts) = &mut self.hosts {
            hosts.network.ended(pid, now);
        }
    }

    /// A new process, with a copy of the library if it has one.
    pub fn process(&mut self, pid: Pid, image: Option<&'static Image>) {
        self.kernel.spawn(pid, 1000);
        self.families.extend(image.map(|image| Family::new(image, pid)));
    }

    /// Strings that stay as long as the run, as an array of C's.
    pub fn keep(&mut self, strings: Vec<CString>) -> *const *const c_char {
        let pointers = strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        self.strings.push((strings, pointers));
        self.strings.last().map_or(std::ptr::null(), |(_, pointers)| pointers.as_ptr())
    }

    /// The process of the thread that runs has another image from now on, which does `body`.
    fn exec(&mut self, body: impl FnOnce() + 'static) {
        let (pid, current) = (self.pid(), self.current);
        for at in 0..self.threads.len() {
            if self.threads[at].pid != pid || self.threads[at].state == State::Done {
                continue;
            }
            self.kernel.end_thread(self.threads[at].tid);
            self.threads[at].state = State::Done;
            if at != current
                && let Some(mut coroutine) = self.threads[at].coroutine.take()
            {
                // SAFETY: as in `end`.
                unsafe { coroutine.force_reset() };
                self.spare.push(coroutine.into_stack());
            }
        }
        self.kernel.exec(pid);
        self.leave_hosts(pid);
        self.handlers.retain(|handler| handler.pid != pid);
        if let Some(family) = self.families.iter_mut().find(|family| family.has(pid)) {
            family.exec();
        }
        self.spawn(pid, body);
    }

    /// The process of the thread that runs forks; what the child does.
    pub fn fork(&mut self, body: impl FnOnce() + 'static) -> Pid {
        let (parent, child) = (self.pid(), self.next_tid);
        self.kernel.fork(parent, child);
        if let Some(family) = self.families.iter_mut().find(|family| family.has(parent)) {
            family.fork(&self.kernel, child);
        }
        self.next_tid += 1;
        let own = self.threads[self.current].own.clone();
        self.spawn(child, body);
        if let Some(thread) = self.threads.last_mut() {
            thread.own = own;
        }
        child
    }

    /// Kills a process when so many steps have been made.
    pub fn kill_at(&mut self, step: u64, pid: Pid) {
        self.killed = Some((step, pid));
    }

    /// The process of the thread that runs.
    pub fn pid(&self) -> Pid {
        self.threads[self.current].pid
    }

    pub fn tid(&self) -> Tid {
        self.threads[self.current].tid
    }

    /// Whether the process has been killed or has ended.
    pub fn is_gone(&self, pid: Pid) -> bool {
        self.threads.iter().all(|thread| thread.pid != pid || thread.helps || thread.state == State::Done)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.dice.rand_range(0..end.max(1))
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn settle(&mut self) {
        let used = self.granted - self.budget;
        self.steps += used;
        self.kernel.now += used * STEP_NS;
        (self.budget, self.granted) = (0, 0);
    }

    fn grant(&mut self) {
        let turn = if self.turn == 1 { 1 } else { 1 + self.below(self.turn * 2) };
        let killed = self.killed.iter().map(|&(step, _)| step);
        let stopped = self.stops.last().map(|&(step, ..)| step);
        let events = killed.chain(self.signals.last().copied()).chain(stopped);
        let until = events.min().map_or(u64::MAX, |step| step.saturating_sub(self.steps).max(1));
        self.granted = turn.min(until);
        self.budget = self.granted;
    }

    /// Who may go on: the ready ones, and sleepers for whom something has changed or whose time has
    /// come.
    fn candidates(&self) -> Vec<usize> {
        let (changes, now) = (self.kernel.changes(), self.kernel.now);
        let may_go_on = |at: usize, thread: &Thread| match thread.state {
            _ if self.is_stopped(thread.pid) => false,
            State::Ready => true,
            State::Asleep(_) if self.is_signalled(at) => true,
            State::Asleep(seen) => {
                seen != changes || self.kernel.deadline(thread.tid).is_some_and(|deadline| deadline <= now)
            }
            State::Network => self.due().is_some_and(|due| due <= now),
            State::Done => false,
        };
        (0..self.threads.len()).filter(|&at| may_go_on(at, &self.threads[at])).collect()
    }

    /// When the first sleeper's time comes.
    fn first_deadline(&self) -> Option<u64> {
        let asleep = self.threads.iter().filter(|thread| matches!(thread.state, State::Asleep(_)));
        let asleep = asleep.filter(|thread| !self.is_stopped(thread.pid));
        let deadlines = asleep.filter_map(|thread| self.kernel.deadline(thread.tid));
        let stopped = self.stopped.iter().map(|&(_, until)| until);
        deadlines.chain(stopped).chain(self.due()).min()
    }

    /// When something is due between the hosts.
    fn due(&self) -> Option<u64> {
        self.hosts.as_ref()?.network.due()
    }

    /// Ends a process: its threads make no step any more.
    fn end(&mut self, pid: Pid) {
        self.kernel.end(pid);
        self.leave_hosts(pid);
        self.judge.ended(pid);
        for thread in self.threads.iter_mut().filter(|thread| thread.pid == pid) {
            thread.state = State::Done;
            if let Some(mut coroutine) = thread.coroutine.take() {
                // SAFETY: what its frames own is leaked; nothing refers to them, as all that
                // simulated threads share is the world's.
                unsafe { coroutine.force_reset() };
                self.spare.push(coroutine.into_stack());
            }
        }
    }

    /// Picks who is next; `None` if all have ended.
    fn pick(&mut self) -> Result<Option<usize>, String> {
        loop {
            if let Some((step, pid)) = self.killed
                && self.steps >= step
            {
                self.killed = None;
                if !self.is_gone(pid) {
                    self.trace.note(self.kernel.now, pid, pid, "is killed".into());
                    self.judge.killed(pid);
                    self.end(pid);
                }
            }
            self.stop_and_go_on();
            if self.signals.last().is_some_and(|&step| self.steps >= step) {
                self.signals.pop();
                self.signal();
            }
            let counts = |thread: &Thread| !self.daemons.contains(&thread.pid);
            if self.threads.iter().all(|thread| thread.state == State::Done || !counts(thread)) {
                return Ok(None);
            }
            if self.steps > MOST_STEPS {
                return Err(format!("no end after {MOST_STEPS} steps"));
            }
            if let Some(failure) = self.judge.failure() {
                return Err(failure);
            }
            if let Some(wrong) = self.hosts.as_mut().and_then(|hosts| hosts.network.wrong.take()) {
                return Err(wrong);
            }
            let candidates = self.candidates();
            if !candidates.is_empty() {
                let at = self.below(candidates.len() as u64) as usize;
                return Ok(Some(candidates[at]));
            }
            if !self.signals.is_empty() && self.once_in(4) {
                self.signals.pop();
                if self.signal() {
                    continue;
                }
            }
            let Some(deadline) = self.first_deadline() else {
                return Err("everybody sleeps, for ever".into());
            };
            let stopped = |pid: Pid| self.stopped.iter().any(|&(other, _)| other == pid);
            let asleep = |tid| {
                self.threads.iter().any(|thread| {
                    let asleep = matches!(thread.state, State::Asleep(_)) && !stopped(thread.pid);
                    thread.tid == tid && asleep
                })
            };
            if deadline > MOST_NS {
                return Err("no end after a minute".into());
            }
            // Who is stopped may be waited for, for a while: it has to agree to some things.
            if self.stopped.is_empty() {
                self.judge.idle(self.kernel.now, deadline, &asleep)?;
            }
            self.kernel.now = deadline;
            self.kernel.settle();
        }
    }
}

/// Runs until all threads have ended.
pub fn run() -> Result<Ran, String> {
    loop {
        let picked = with(World::pick)?;
        let Some(at) = picked else {
            return with(|world| {
                world.judge.verdict()?;
                let written = world.judge.directions.iter().map(|direction| direction.written).sum::<u64>();
                let in_memory = written.saturating_sub(world.by_tcp);
                let owed = world.judge.longest;
                Ok(Ran { written, in_memory, owed, steps: world.steps, calls: world.trace.calls })
            });
        };
        let mut coroutine = with(|world| {
            world.current = at;
            world.threads[at].state = State::Ready;
            let pid = world.threads[at].pid;
            if let Some(family) = world.families.iter_mut().find(|family| family.has(pid)) {
                family.switch(&world.kernel, pid);
            }
            world.grant();
            // SAFETY: libc gives each thread a valid address.
            unsafe { *libc::__errno_location() = world.threads[at].errno };
            world.threads[at].coroutine.take().expect("a thread that has not ended")
        });
        let result = coroutine.resume(());
        with(|world| {
            world.settle();
            // SAFETY: as above.
            world.threads[at].errno = unsafe { *libc::__errno_location() };
            match result {
                CoroutineResult::Yield(()) => world.threads[at].coroutine = Some(coroutine),
                CoroutineResult::Return(()) => {
                    world.threads[at].state = State::Done;
                    world.spare.push(coroutine.into_stack());
                    let pid = world.threads[at].pid;
                    if world.is_gone(pid) {
                        world.end(pid);
                    }
                }
            }
        });
    }
}

/// Lets others run; then the handler of a signal, if one has come.
pub fn switch() {
    suspend();
    deliver();
}

fn suspend() {
    let yielder = with(|world| world.threads[world.current].yielder);
    // SAFETY: the thread that runs is a coroutine that has noted its yielder, which lives as long
    // as it does.
    unsafe { (*yielder).suspend(()) }
}

/// The thread that runs sleeps until something is due between the hosts.
pub fn wait_for_network() {
    with(|world| {
        let current = world.current;
        world.threads[current].state = State::Network;
    });
    switch();
}

/// exec() of the thread that runs, which makes no step any more.
pub fn exec(env: Vec<CString>) -> ! {
    with(|world| {
        let body = world.next_image.take().expect("a program that execs says what comes next");
        world.exec(move || body(env));
    });
    loop {
        switch();
    }
}

/// A system call of the thread that runs: the value, or minus the error.
pub fn call(number: Sysno, words: &[usize]) -> isize {
    let mut arguments = [0; 6];
    arguments[..words.len()].copy_from_slice(words);
    let others_first = with(|world| {
        world.kernel.now += CALL_NS;
        world.budget = world.budget.saturating_sub(1);
        world.budget == 0
    });
    if others_first {
        switch();
    }
    let instead = mask_of(number, &arguments);
    if instead.is_some() {
        with(|world| world.threads[world.current].signals.instead = instead);
    }
    let result = sleep_through(number, arguments);
    if instead.is_some() {
        with(|world| world.threads[world.current].signals.instead = None);
    }
    deliver();
    result
}

/// The signals that a call blocks instead of those that the thread does, if it says so.
fn mask_of(number: Sysno, arguments: &[usize; 6]) -> Option<u64> {
    let at = match number {
        Sysno::ppoll => arguments[3],
        Sysno::epoll_pwait | Sysno::epoll_pwait2 => arguments[4],
        _ => 0,
    };
    // SAFETY: programs pass a mask there, or nothing.
    (at != 0).then(|| unsafe { (at as *const u64).read_unaligned() })
}

/// A call until it ends: by itself, or by a signal.
fn sleep_through(number: Sysno, arguments: [usize; 6]) -> isize {
    loop {
        let outcome = with(|world| {
            let tid = world.tid();
            let outcome = world.kernel.call(tid, number, arguments);
            if !world.daemons.contains(&world.pid()) {
                world.trace.call(world.kernel.now, world.pid(), tid, number, &arguments, &outcome);
            }
            let no_memory = matches!(outcome, Outcome::Done(Err(Errno::ENOMEM)));
            if number == Sysno::clone || number == Sysno::mmap && no_memory {
                let pid = world.pid();
                world.judge.no_relay.push(pid);
            }
            if let Outcome::Done(Ok(bytes)) = outcome
                && matches!(number, Sysno::sendto | Sysno::sendmsg | Sysno::write | Sysno::writev)
                && world.kernel.is_tcp(tid, arguments[0] as i32)
            {
                world.by_tcp += bytes as u64;
            }
            if number == Sysno::rt_sigaction && arguments[1] != 0 {
                // SAFETY: a program passes a structure that begins with the handler.
                let given = unsafe { *(arguments[1] as *const usize) };
                world.threads[world.current].signals.given = given;
            }
            if matches!(outcome, Outcome::Sleep) {
                world.sleeps_again(number);
                let seen = world.kernel.changes();
                let current = world.current;
                world.threads[current].state = State::Asleep(seen);
            }
            outcome
        });
        match outcome {
            Outcome::Done(Ok(value)) => return value as isize,
            Outcome::Done(Err(errno)) => return -(errno.into_raw() as isize),
            Outcome::Sleep => {
                if let Some(ended) = interrupted() {
                    return ended;
                }
            }
        }
    }
}

/// The thread sleeps in a call, unless a signal has come for it: what the call ends with then, if
/// it does not begin anew.
fn interrupted() -> Option<isize> {
    let ended = with(|world| {
        if !world.is_signalled(world.current) {
            return None;
        }
        let current = world.current;
        world.threads[current].state = State::Ready;
        let (pid, tid) = (world.pid(), world.tid());
        let restarts = world.kernel.restarts(tid);
        let result = world.kernel.interrupt(tid);
        world.trace.note(world.kernel.now, pid, tid, format!("  is interrupted: {result:?}"));
        Some((result, restarts))
    });
    let Some((result, restarts)) = ended else {
        suspend();
        return None;
    };
    let again = deliver().unwrap_or(false);
    match result {
        Err(Errno::EINTR) if restarts && again => None,
        Ok(done) => Some(done as isize),
        Err(errno) => Some(-(errno.into_raw() as isize)),
    }
}

/// How the library finds libc's functions.
pub type Next = unsafe extern "C" fn(*const c_char) -> *const c_void;

/// The host that copies of the library get.
pub fn host(off: u32, next: Next) -> Host {
    Host {
        budget: with(|world| &raw mut world.budget),
        pause,
        spin,
        call: call_of_library,
        ticks,
        next,
        thread,
        off,
    }
}

unsafe extern "C" fn pause() {
    switch();
}

unsafe extern "C" fn spin() {
    let others = with(|world| {
        world.kernel.now += SPIN_NS;
        world.budget = world.budget.saturating_sub(8);
        world.budget == 0
    });
    if others {
        switch();
    }
}

unsafe extern "C" fn call_of_library(number: i32, arguments: *const [usize; 6]) -> isize {
    let Some(number) = Sysno::new(number as usize) else { return -(libc::ENOSYS as isize) };
    if number == Sysno::exit_group {
        loop {
            with(|world| {
                let current = world.current;
                world.threads[current].state = State::Asleep(u64::MAX);
            });
            switch();
        }
    }
    // SAFETY: the library passes its array.
    call(number, unsafe { &*arguments })
}

unsafe extern "C" fn ticks() -> u64 {
    with(|world| world.kernel.now + (world.granted - world.budget) * STEP_NS)
}

unsafe extern "C" fn thread() -> *mut u8 {
    with(|world| world.threads[world.current].own.as_ptr().cast_mut().cast())
}

/// Signals: when one comes, to which thread, and the handler, which runs on that thread's stack
/// wherever it is: at any step within a call of the library's, or in a call of the kernel's that
/// sleeps.
impl World {
    /// Installs a handler.
    pub fn handle(&mut self, handler: Handler) {
        self.handlers.retain(|other| other.pid != handler.pid);
        self.handlers.push(handler);
    }

    pub fn handler(&self, pid: Pid) -> Option<&Handler> {
        self.handlers.iter().find(|handler| handler.pid == pid)
    }

    /// Whether a handler of the thread's runs as soon as it gets its turn.
    pub fn is_signalled(&self, at: usize) -> bool {
        let thread = &self.threads[at];
        thread.signals.continued
            || thread.signals.pending
                && thread.signals.hears
                && !self.blocks(at)
                && self.handler(thread.pid).is_some()
    }

    /// Whether the thread blocks the signal, in the call that it sleeps in, if it does.
    fn blocks(&self, at: usize) -> bool {
        let thread = &self.threads[at];
        thread.signals.instead.unwrap_or_else(|| self.kernel.blocked(thread.tid)) & BIT != 0
    }

    /// The thread that runs goes to sleep: to the kernel a wait is one, which a handler ends
    /// whenever it runs.
    fn sleeps_again(&mut self, number: Sysno) {
        let (pid, now) = (self.pid(), self.kernel.now);
        let restarts = self.handler(pid).is_none_or(|handler| handler.restarts);
        let waits =
            matches!(number, Sysno::ppoll | Sysno::epoll_pwait | Sysno::epoll_pwait2 | Sysno::recvfrom);
        // A sleep with signals blocked is not the program's wait, as that for an answer of the
        // peer's library, on the way into a call.
        let waits = waits && !self.blocks(self.current);
        let signals = &mut self.threads[self.current].signals;
        if !signals.hears || signals.within != 0 || restarts || !waits {
            return;
        }
        let &mut (began, run) = signals.slept.get_or_insert((now, signals.run));
        if signals.run != run && now - began > MOMENT_NS {
            self.judge.fail(|| "a call sleeps on after a handler that ran between two sleeps".into());
        }
    }

    /// Whether a process is stopped.
    pub fn is_stopped(&self, pid: Pid) -> bool {
        self.stopped.iter().any(|&(other, _)| other == pid)
    }

    /// Stops a process whose time has come, and lets those go on that were stopped for long enough
    /// (SIGSTOP, SIGCONT).
    pub fn stop_and_go_on(&mut self) {
        if let Some(&(step, pid, nanos)) = self.stops.last()
            && self.steps >= step
        {
            self.stops.pop();
            self.stopped.push((pid, self.kernel.now + nanos));
            self.trace.note(self.kernel.now, pid, pid, "is stopped".into());
        }
        let now = self.kernel.now;
        while let Some(at) = self.stopped.iter().position(|&(_, until)| until <= now) {
            let (pid, _) = self.stopped.swap_remove(at);
            self.trace.note(now, pid, pid, "goes on".into());
            // A wait for several things ends by that, as by a handler (signal(7)).
            for thread in &mut self.threads {
                let waits =
                    matches!(self.kernel.sleeps(thread.tid), Some(Sysno::epoll_pwait | Sysno::epoll_pwait2));
                thread.signals.continued |= thread.pid == pid && waits;
            }
        }
    }

    /// Sends one to a thread that hears it; false if there is none.
    pub fn signal(&mut self) -> bool {
        let hears = |at: &usize| {
            let thread = &self.threads[*at];
            let may = thread.signals.hears && !thread.signals.pending && thread.state != State::Done;
            may && self.handler(thread.pid).is_some()
        };
        let all: Vec<usize> = (0..self.threads.len()).filter(hears).collect();
        if all.is_empty() {
            return false;
        }
        let at = all[self.below(all.len() as u64) as usize];
        self.threads[at].signals.pending = true;
        let thread = &self.threads[at];
        self.trace.note(self.kernel.now, thread.pid, thread.tid, "is sent a signal".into());
        true
    }
}

/// Runs the handler, if the thread that runs is to; whether calls begin anew after it.
pub fn deliver() -> Option<bool> {
    let (handler, tid, before) = with(|world| {
        let at = world.current;
        if std::mem::take(&mut world.threads[at].signals.continued) {
            world.threads[at].signals.handled += 1;
        }
        if !world.is_signalled(at) {
            return None;
        }
        let (pid, tid) = (world.threads[at].pid, world.threads[at].tid);
        world.threads[at].signals.pending = false;
        world.threads[at].signals.handled += 1;
        world.threads[at].signals.run += 1;
        world.threads[at].signals.within += 1;
        let before = world.kernel.blocked(tid);
        world.kernel.mask(tid, before | BIT);
        world.trace.note(world.kernel.now, pid, tid, "handler {".into());
        Some((world.handler(pid)?.clone(), tid, before))
    })?;
    // SAFETY: libc gives each thread a valid address; the handler keeps errno, as all should.
    unsafe {
        let errno = *libc::__errno_location();
        (handler.given)(SIGNAL);
        *libc::__errno_location() = errno;
    }
    with(|world| {
        let at = world.current;
        world.threads[at].signals.within -= 1;
        world.kernel.mask(tid, before);
        world.trace.note(world.kernel.now, world.pid(), tid, "}".into());
    });
    Some(handler.restarts)
}

/// Does something within which signals come to this thread; how many did.
pub fn hearing<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let hears = |hears| {
        with(|world| {
            let at = world.current;
            world.threads[at].signals.hears = hears;
            world.threads[at].signals.slept = None;
            world.threads[at].signals.handled
        })
    };
    let before = hears(true);
    let result = work();
    // SAFETY: as above.
    let errno = unsafe { *libc::__errno_location() };
    let after = hears(false);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    (result, after - before)
}
