//! The network between the hosts, and the cards in them: what is on its way, when it comes, in
//! which parts, and when a link dies.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use oorandom::Rand64;
use sim::kernel::{Pid, Tid};

use crate::abi;

/// What the provider of a run is like.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// Writes and messages come in the order in which they were made; else only behind a fence.
    pub ordered: bool,
    /// Bytes come into the target's memory, and messages to its buffers, while it reads its queue,
    /// as with the tcp provider; else by themselves.
    pub polled: bool,
    pub by_address: bool,
    pub own_keys: bool,
    pub inject: usize,
    /// So many operations may be under way.
    pub operations: usize,
    /// An operation finds no room once in so many times; never if 0.
    pub busy: u64,
    /// The longest time until something begins to come, and from then until its completion.
    pub delay: u64,
    pub late: u64,
    /// For so long one end of a dead link may know nothing of that.
    pub unaware: u64,
    /// A link dies when so much has come of what went by all links.
    pub dies_at: Option<u64>,
}

/// A queue of events or completions, and how its reader is woken.
pub struct Queue<T> {
    pub items: VecDeque<T>,
    /// The reader's descriptor, and the card's own for the same eventfd.
    pub fd: i32,
    pub bell: i32,
}

/// An event of a connection.
pub enum Happened {
    Event { kind: u32, end: usize, request: Option<usize>, words: Vec<u8> },
    Error { end: usize, error: i32 },
}

/// The end of an operation.
#[derive(Clone, Copy)]
pub enum Completed {
    Well { context: usize, flags: u64, len: usize },
    Badly { context: usize, error: i32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    New,
    Asking,
    Connected,
    Dead,
}

/// An endpoint.
pub struct End {
    pub pid: Pid,
    pub eq: usize,
    pub cq: usize,
    pub peer: Option<usize>,
    pub state: State,
    /// Buffers for messages: context, address, length.
    pub posted: VecDeque<(usize, usize, usize)>,
    /// What has not come to the peer yet.
    out: VecDeque<Operation>,
    /// Operations whose completion has not been made yet.
    pub busy: usize,
}

/// Where the bytes of an operation are.
pub enum From {
    Copy(Vec<u8>),
    Memory(usize, usize),
}

pub enum What {
    Message(From),
    /// From there to the target's segment (address or offset, key); what is left of it.
    Write {
        from: usize,
        to: u64,
        key: u64,
        left: Vec<Range<usize>>,
    },
}

struct Operation {
    due: u64,
    what: What,
    fence: bool,
    context: Option<usize>,
    flags: u64,
    /// Whether the peer's queue has been told that something has come ([`Traits::polled`]).
    told: bool,
}

/// Registered memory.
pub struct Region {
    pub pid: Pid,
    pub at: usize,
    pub len: usize,
    pub key: u64,
    pub remote: bool,
}

/// A request for a link that has come to a listener.
pub struct Request {
    pub from: usize,
    pub answered: bool,
}

pub struct Listener {
    pub pid: Pid,
    pub eq: usize,
    pub listens: bool,
}

/// What comes at a time.
enum Event {
    Happened(usize, Happened),
    Completed { end: usize, cq: usize, done: Completed },
    Dies(usize),
}

pub struct Network {
    pub traits: Traits,
    dice: Rand64,
    pub eqs: Vec<Option<Queue<Happened>>>,
    pub cqs: Vec<Option<Queue<Completed>>>,
    pub ends: Vec<End>,
    pub listeners: Vec<Listener>,
    pub requests: Vec<Request>,
    pub regions: BTreeMap<usize, Region>,
    pub made: usize,
    events: BTreeMap<(u64, u64), Event>,
    numbers: u64,
    /// How much has come.
    came: u64,
    /// The card's thread.
    pub card: Tid,
    /// Whether a link has died.
    pub died: bool,
    /// What nobody may do.
    pub wrong: Option<String>,
    /// For the trace.
    pub news: Vec<(Pid, String)>,
    pub shown: bool,
}

impl Network {
    pub fn new(seed: u64, traits: Traits, card: Tid, shown: bool) -> Network {
        Network {
            traits,
            dice: Rand64::new(seed.into()),
            eqs: Vec::new(),
            cqs: Vec::new(),
            ends: Vec::new(),
            listeners: Vec::new(),
            requests: Vec::new(),
            regions: BTreeMap::new(),
            made: 0,
            events: BTreeMap::new(),
            numbers: 0,
            came: 0,
            card,
            died: false,
            wrong: None,
            news: Vec::new(),
            shown,
        }
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.dice.rand_range(0..end.max(1))
    }

    fn note(&mut self, pid: Pid, text: impl FnOnce() -> String) {
        if self.shown {
            self.news.push((pid, text()));
        }
    }

    fn later(&mut self, now: u64, most: u64) -> u64 {
        now + self.below(most)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.numbers += 1;
        self.events.insert((time, self.numbers), event);
    }

    /// Something happens at the events of an endpoint or listener, soon.
    pub fn happens(&mut self, now: u64, eq: usize, what: Happened) {
        let time = self.later(now, self.traits.delay);
        self.at(time, Event::Happened(eq, what));
    }

    pub fn end(&mut self, pid: Pid) -> usize {
        self.ends.push(End {
            pid,
            eq: usize::MAX,
            cq: usize::MAX,
            peer: None,
            state: State::New,
            posted: VecDeque::new(),
            out: VecDeque::new(),
            busy: 0,
        });
        self.ends.len() - 1
    }

    /// Two ends are one link now.
    pub fn join(&mut self, now: u64, one: usize, other: usize) {
        for (end, peer) in [(one, other), (other, one)] {
            (self.ends[end].peer, self.ends[end].state) = (Some(peer), State::Connected);
            let (eq, kind) = (self.ends[end].eq, abi::EVENT_CONNECTED);
            self.happens(now, eq, Happened::Event { kind, end, request: None, words: Vec::new() });
        }
    }

    /// An operation of an end: 0, or an error below zero.
    pub fn operate(
        &mut self,
        now: u64,
        end: usize,
        (what, fence, flags): (What, bool, u64),
        context: Option<usize>,
    ) -> isize {
        let Traits { busy, operations, delay, .. } = self.traits;
        if self.ends[end].state == State::Dead {
            if self.below(2) == 0 || context.is_none() {
                return -(libc::ENOTCONN as isize);
            }
            let done = Completed::Badly { context: context.unwrap_or(0), error: libc::ECONNABORTED };
            self.completes(now, end, done);
            return 0;
        }
        if self.ends[end].busy >= operations || busy > 0 && self.below(busy) == 0 {
            return -(libc::EAGAIN as isize);
        }
        let due = self.later(now, delay);
        // Messages of one link do not pass each other on the way.
        let due = self.ends[end].out.back().map_or(due, |last| due.max(last.due));
        self.ends[end].busy += 1;
        self.ends[end].out.push_back(Operation { due, what, fence, context, flags, told: false });
        0
    }

    fn completes(&mut self, now: u64, end: usize, done: Completed) {
        let (time, cq) = (self.later(now, self.traits.late), self.ends[end].cq);
        self.at(time, Event::Completed { end, cq, done });
    }

    /// Which operation of an end may come on, if its peer can take it.
    fn next_of(&self, end: usize, now: u64, any: u64) -> Option<usize> {
        let from = &self.ends[end];
        let peer = &self.ends[from.peer?];
        if peer.state != State::Connected {
            return None;
        }
        let may = |operation: &Operation| {
            operation.due <= now && (!peer.posted.is_empty() || !matches!(operation.what, What::Message(_)))
        };
        let first = from.out.front().filter(|first| may(first)).map(|_| 0);
        if self.traits.ordered {
            return first;
        }
        let fence = from.out.iter().skip(1).position(|operation| operation.fence);
        let free = fence.map_or(from.out.len(), |at| at + 1);
        let candidates: Vec<usize> = (0..free).filter(|&at| may(&from.out[at])).collect();
        candidates.get(any as usize % candidates.len().max(1)).copied()
    }

    /// When something is to be done: by the card or, for those who poll, by itself.
    pub fn due(&self) -> Option<u64> {
        let events = self.events.keys().next().map(|&(time, _)| time);
        let operations = (0..self.ends.len()).filter_map(|end| self.due_of(end));
        operations.chain(events).min()
    }

    fn due_of(&self, end: usize) -> Option<u64> {
        let from = &self.ends[end];
        let peer = &self.ends[from.peer?];
        if peer.state != State::Connected {
            return None;
        }
        let first = from.out.front()?;
        if self.traits.polled && first.told
            || peer.posted.is_empty() && matches!(first.what, What::Message(_))
        {
            return None;
        }
        Some(first.due)
    }

    /// Makes one step of what is due; the bell that is to be rung then.
    pub fn step(&mut self, now: u64) -> Option<i32> {
        let ends: Vec<usize> =
            (0..self.ends.len()).filter(|&end| self.due_of(end).is_some_and(|due| due <= now)).collect();
        let event = self.events.keys().next().copied().filter(|&(time, _)| time <= now);
        let choices = ends.len() as u64 + u64::from(event.is_some());
        let choice = self.below(choices) as usize;
        match ends.get(choice) {
            Some(&end) if self.traits.polled => {
                self.ends[end].out[0].told = true;
                let cq = self.ends[self.ends[end].peer?].cq;
                self.cqs[cq].as_ref().map(|queue| queue.bell)
            }
            Some(&end) => self.come(end, now),
            None => {
                let event = self.events.remove(&event?)?;
                self.carry_out(event, now)
            }
        }
    }

    fn carry_out(&mut self, event: Event, now: u64) -> Option<i32> {
        match event {
            Event::Happened(eq, what) => {
                let queue = self.eqs.get_mut(eq)?.as_mut()?;
                queue.items.push_back(what);
                Some(queue.bell)
            }
            Event::Completed { end, cq, done } => {
                self.ends[end].busy = self.ends[end].busy.saturating_sub(1);
                let queue = self.cqs.get_mut(cq)?.as_mut()?;
                queue.items.push_back(done);
                Some(queue.bell)
            }
            Event::Dies(end) => {
                self.die(end, now);
                None
            }
        }
    }

    /// What has come for those who poll comes in while they do; whether something did.
    pub fn poll(&mut self, cq: usize, now: u64) -> bool {
        let senders = |network: &Network| {
            (0..network.ends.len()).find(|&end| {
                let at = network.ends[end].peer.map(|peer| network.ends[peer].cq);
                at == Some(cq) && network.next_of(end, now, 0).is_some()
            })
        };
        let mut did = false;
        if self.traits.polled {
            for _ in 0..1 + self.below(4) {
                let Some(end) = senders(self) else { break };
                self.come(end, now);
                did = true;
            }
        }
        did
    }

    /// Whether something would come in.
    pub fn waits(&self, cq: usize, now: u64) -> bool {
        self.traits.polled
            && (0..self.ends.len()).any(|end| {
                let at = self.ends[end].peer.map(|peer| self.ends[peer].cq);
                at == Some(cq) && self.next_of(end, now, 0).is_some()
            })
    }

    /// A part of what an end has sent comes to the other.
    fn come(&mut self, end: usize, now: u64) -> Option<i32> {
        let any = self.below(1 << 20);
        let at = self.next_of(end, now, any)?;
        let peer = self.ends[end].peer?;
        let (pid, to) = (self.ends[end].pid, self.ends[peer].pid);
        self.came += 1;
        let mut bell = None;
        let dice = self.below(u64::MAX);
        let done = match &mut self.ends[end].out[at].what {
            What::Write { from, to: place, key, left } => {
                let (from, place, key) = (*from, *place, *key);
                let part = part_of(left, dice);
                let done = left.is_empty();
                let len = part.len();
                self.write(pid, to, (from + part.start, part.len()), (place + part.start as u64, key));
                self.note(to, || {
                    format!("    {len} bytes come at {:#x}{}", place, if done { ", the last" } else { "" })
                });
                done
            }
            What::Message(_) => {
                let (context, buffer, room) = self.ends[peer].posted.pop_front()?;
                let What::Message(message) = &self.ends[end].out[at].what else { return None };
                let (from, len) = match message {
                    From::Copy(bytes) => (bytes.as_ptr(), bytes.len()),
                    From::Memory(at, len) => (*at as *const u8, *len),
                };
                // SAFETY: both are buffers of processes that live, registered for this.
                unsafe { std::ptr::copy_nonoverlapping(from, buffer as *mut u8, len.min(room)) };
                let done = Completed::Well { context, flags: abi::RECV | abi::MSG, len };
                let cq = self.ends[peer].cq;
                if let Some(queue) = self.cqs[cq].as_mut() {
                    queue.items.push_back(done);
                    bell = Some(queue.bell);
                }
                self.note(to, || format!("    a message of {len} bytes comes"));
                true
            }
        };
        if done && let Some(operation) = self.ends[end].out.remove(at) {
            match operation.context {
                Some(context) => {
                    self.completes(now, end, Completed::Well { context, flags: operation.flags, len: 0 })
                }
                None => self.ends[end].busy -= 1,
            }
        }
        if self.traits.dies_at.is_some_and(|at| self.came >= at) {
            self.traits.dies_at = if self.below(3) == 0 { Some(self.came + self.below(300)) } else { None };
            let dying = [end, peer][self.below(2) as usize];
            self.note(self.ends[dying].pid, || "    the link dies".into());
            self.died = true;
            self.die(dying, now);
        }
        bell
    }

    /// Writes into a region of the target, or notes that this may not be.
    fn write(&mut self, pid: Pid, to: Pid, (from, len): (usize, usize), (place, key): (u64, u64)) {
        let by_address = self.traits.by_address;
        let found =
            self.regions.values().find(|region| region.pid == to && region.key == key && region.remote);
        let inside = found.and_then(|region| {
            let at = if by_address { (place as usize).checked_sub(region.at)? } else { place as usize };
            (at.checked_add(len)? <= region.len).then_some(region.at + at)
        });
        let Some(at) = inside else {
            self.wrong = Some(format!(
                "{pid} writes {len} bytes at {place:#x}, where {to} has no segment of key {key}"
            ));
            return;
        };
        // SAFETY: inside the memory that the target, which lives, has registered for this; the
        // source is the sender's, who lives, as long as the operation is there.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, at as *mut u8, len) };
    }

    /// An end is cut off: nothing comes to it any more, of what it has sent only the beginning may,
    /// and it hears of that. The other end hears of it later.
    pub fn die(&mut self, end: usize, now: u64) {
        if !matches!(self.ends[end].state, State::Connected | State::Asking) {
            return;
        }
        let connected = self.ends[end].state == State::Connected;
        self.ends[end].state = State::Dead;
        let kept = self.below(self.ends[end].out.len() as u64 + 1) as usize;
        self.drop_from(end, kept, now);
        let (eq, time) = (self.ends[end].eq, self.later(now, self.traits.delay + self.traits.late));
        let what = if connected && self.below(2) == 0 {
            Happened::Event { kind: abi::EVENT_SHUTDOWN, end, request: None, words: Vec::new() }
        } else {
            Happened::Error { end, error: libc::ECONNRESET }
        };
        self.at(time, Event::Happened(eq, what));
        if let Some(peer) = self.ends[end].peer {
            let time = self.later(now, self.traits.unaware);
            self.at(time, Event::Dies(peer));
        }
    }

    /// Operations from a certain one on never come.
    fn drop_from(&mut self, end: usize, kept: usize, now: u64) {
        while self.ends[end].out.len() > kept {
            let Some(operation) = self.ends[end].out.pop_back() else { break };
            match operation.context {
                Some(context) => {
                    self.completes(now, end, Completed::Badly { context, error: libc::ECONNABORTED })
                }
                None => self.ends[end].busy -= 1,
            }
        }
    }

    /// The endpoint is closed: what it has sent from memory does not come any more.
    pub fn close(&mut self, end: usize, now: u64) {
        self.die(end, now);
        self.ends[end].state = State::Dead;
        let kept = self.ends[end]
            .out
            .iter()
            .position(|operation| !matches!(operation.what, What::Message(From::Copy(_))));
        if let Some(kept) = kept {
            self.drop_from(end, kept, now);
        }
        self.ends[end].posted.clear();
        let (cq, eq) = (self.ends[end].cq, self.ends[end].eq);
        self.events.retain(|_, event| match event {
            Event::Completed { end: of, .. } => *of != end,
            Event::Happened(_, Happened::Event { end: of, .. } | Happened::Error { end: of, .. }) => {
                *of != end
            }
            Event::Dies(_) => true,
        });
        if let Some(Some(queue)) = self.eqs.get_mut(eq) {
            queue.items.retain(|item| match item {
                Happened::Event { end: of, request: None, .. } | Happened::Error { end: of, .. } => {
                    *of != end
                }
                Happened::Event { .. } => true,
            });
        }
        if let Some(Some(queue)) = self.cqs.get_mut(cq) {
            queue.items.clear();
        }
    }

    /// A process has ended, or has another image.
    pub fn ended(&mut self, pid: Pid, now: u64) {
        for end in 0..self.ends.len() {
            if self.ends[end].pid == pid {
                self.close(end, now);
            }
        }
        self.regions.retain(|_, region| region.pid != pid);
        for listener in self.listeners.iter_mut().filter(|listener| listener.pid == pid) {
            listener.listens = false;
        }
    }
}

/// Takes a part of what is left of a write: any, in any order.
fn part_of(left: &mut Vec<Range<usize>>, dice: u64) -> Range<usize> {
    let at = (dice >> 40) as usize % left.len();
    let whole = left.swap_remove(at);
    if dice.is_multiple_of(3) || whole.len() < 2 {
        return whole;
    }
    let middle = whole.start + 1 + (dice >> 8) as usize % (whole.len() - 1);
    let (first, second) = (whole.start..middle, middle..whole.end);
    if dice & 4 == 0 {
        left.push(second);
        first
    } else {
        left.push(first);
        second
    }
}
