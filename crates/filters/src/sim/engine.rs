//! The simulator's clock: a queue of events in the order of their times, and what each one changes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::outcome::{CopyTimes, Outcome, Step, UnitTimes, What};
use super::setup::{Pace, Setup, Unit};
use crate::flow::{Choice, Flow, Meta};
use crate::layout::CopyId;

/// Runs the setup until nothing happens any more, and calls `tell` for each step.
pub fn run(setup: &Setup, tell: &mut dyn FnMut(Step)) -> Outcome {
    let mut engine = Engine::new(setup, tell);
    for copy in 0..engine.copies.len() {
        engine.advance(copy);
    }
    while let Some(entry) = engine.queue.pop() {
        engine.now = entry.at;
        engine.happen(entry.event);
    }
    engine.outcome()
}

/// A message between two copies.
#[derive(Debug, Clone, Copy)]
enum Body {
    Buffer(Buffer),
    /// The end of a unit of work.
    Marker,
}

#[derive(Debug, Clone, Copy)]
struct Buffer {
    block: u64,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    stream: usize,
    /// Places in [`Engine::copies`].
    from: usize,
    to: usize,
    unit: usize,
    body: Body,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The first byte is at the receiver's interface.
    Comes(Message),
    /// The last byte is in its memory.
    Arrives(Message),
    /// A copy is done with its buffer.
    Done(usize),
    /// `by` has started on so many buffers of `to`'s.
    Acknowledgement { stream: usize, to: usize, by: usize, in_all: u64 },
    /// Another unit of work may begin.
    Begin,
}

struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    /// The earliest is the greatest, as [`BinaryHeap`] gives the greatest first.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// A buffer that waits at a copy, and the stream and producer that get the acknowledgement.
type Waiting = (Buffer, Option<(usize, usize)>);

struct Copy {
    id: CopyId,
    node: usize,
    /// Thousandths.
    slowness: u64,
    /// The unit of work that it is at.
    unit: usize,
    /// Buffers of each unit that have come, or are to be made.
    waiting: BTreeMap<usize, VecDeque<Waiting>>,
    markers: BTreeMap<usize, usize>,
    working: Option<Buffer>,
    /// Buffers that it has made and not sent yet: places in [`Copy::outputs`].
    made: VecDeque<(usize, Buffer)>,
    outputs: Vec<(usize, Flow)>,
    times: CopyTimes,
}

#[derive(Clone, Copy, Default)]
struct Interface {
    sends_until: u64,
    receives_until: u64,
}

/// One producer copy and one consumer copy of a stream.
#[derive(Clone, Copy, Default)]
struct Connection {
    /// When the last message came: later ones do not overtake it, however small they are.
    last: u64,
    started: u64,
}

struct Engine<'a> {
    setup: &'a Setup,
    tell: &'a mut dyn FnMut(Step),
    now: u64,
    number: u64,
    queue: BinaryHeap<Entry>,
    copies: Vec<Copy>,
    /// For each filter, where its copies begin in `copies`.
    first_of: Vec<usize>,
    interfaces: Vec<Interface>,
    connections: Vec<Connection>,
    /// For each stream, where its connections begin.
    first_connection: Vec<usize>,
    /// How many units of work may have begun.
    allowed: usize,
    units: Vec<UnitTimes>,
    /// For each unit, how many copies of filters without outputs are done with it.
    ended_at: Vec<usize>,
    sinks: usize,
}

impl<'a> Engine<'a> {
    fn new(setup: &'a Setup, tell: &'a mut dyn FnMut(Step)) -> Engine<'a> {
        let (plan, layout) = (&setup.plan, &setup.plan.layout);
        assert_eq!(setup.costs.len(), layout.filters.len(), "there is a cost for each filter");
        let mut hosts: Vec<&str> = plan.workers.iter().map(|worker| worker.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let copies: Vec<Copy> = plan
            .all()
            .map(|id| {
                let host = plan.host_of(plan.worker_of(id));
                let outputs = layout.outputs(id.filter).map(|stream| {
                    let of = &layout.streams[stream];
                    (stream, Flow::new(of.policy.clone(), of.credits as u64, plan.count(of.to), id.rank))
                });
                Copy {
                    id,
                    node: hosts.binary_search(&host).expect("it is a worker's host"),
                    slowness: setup.slowness.get(host).copied().unwrap_or(1000),
                    unit: 0,
                    waiting: made_by(setup, id),
                    markers: BTreeMap::new(),
                    working: None,
                    made: VecDeque::new(),
                    outputs: outputs.collect(),
                    times: CopyTimes::default(),
                }
            })
            .collect();
        let counts = (0..layout.filters.len()).map(|filter| plan.count(filter));
        let pairs = layout.streams.iter().map(|stream| plan.count(stream.from) * plan.count(stream.to));
        let connections = vec![Connection::default(); pairs.clone().sum()];
        Engine {
            setup,
            tell,
            now: 0,
            number: 0,
            queue: BinaryHeap::new(),
            sinks: copies.iter().filter(|copy| copy.outputs.is_empty()).count(),
            copies,
            first_of: sums(counts),
            interfaces: vec![Interface::default(); hosts.len()],
            connections,
            first_connection: sums(pairs),
            allowed: if setup.pace == Pace::OneByOne { 1 } else { setup.units.len() },
            units: vec![UnitTimes { began: u64::MAX, ..UnitTimes::default() }; setup.units.len()],
            ended_at: vec![0; setup.units.len()],
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Comes(message) => {
                let (_, gap) = self.takes(message.body);
                let interface = &mut self.interfaces[self.copies[message.to].node];
                interface.receives_until = interface.receives_until.max(self.now) + gap;
                let at = interface.receives_until;
                self.at(at, Event::Arrives(message));
            }
            Event::Arrives(message) => self.arrive(message),
            Event::Done(copy) => {
                let of = &mut self.copies[copy];
                let buffer = of.working.take().expect("it works on a buffer");
                of.times.spans.last_mut().expect("it has started on it").1 = self.now;
                of.made.extend((0..of.outputs.len()).map(|output| (output, buffer)));
                if of.outputs.is_empty() {
                    self.units[of.unit].answered = self.now;
                }
                self.step(copy, What::Done(buffer.block));
                self.advance(copy);
            }
            Event::Acknowledgement { stream, to, by, in_all } => {
                let consumer = self.copies[by].id;
                let (_, flow) = self.copies[to]
                    .outputs
                    .iter_mut()
                    .find(|(output, _)| *output == stream)
                    .expect("it writes the stream");
                flow.acknowledged(consumer.rank, in_all);
                self.step(to, What::Acknowledged(consumer, in_all));
                self.advance(to);
            }
            Event::Begin => {
                self.allowed += 1;
                for copy in 0..self.copies.len() {
                    self.advance(copy);
                }
            }
        }
    }

    fn arrive(&mut self, message: Message) {
        let copy = &mut self.copies[message.to];
        match message.body {
            Body::Buffer(buffer) => {
                let tell = Some((message.stream, message.from));
                copy.waiting.entry(message.unit).or_default().push_back((buffer, tell));
                let (id, at) = (copy.id, self.now);
                (self.tell)(Step { at, copy: id, unit: message.unit, what: What::Arrived(buffer.block) });
            }
            Body::Marker => *copy.markers.entry(message.unit).or_default() += 1,
        }
        self.advance(message.to);
    }

    /// Does everything that the copy can do now.
    fn advance(&mut self, copy: usize) {
        loop {
            if !self.send_made(copy) || self.copies[copy].working.is_some() {
                return;
            }
            let unit = self.copies[copy].unit;
            if unit >= self.setup.units.len() || self.is_source(copy) && unit >= self.allowed {
                return;
            }
            let next = self.copies[copy].waiting.get_mut(&unit).and_then(VecDeque::pop_front);
            if self.is_source(copy) {
                self.units[unit].began = self.units[unit].began.min(self.now);
            }
            match next {
                Some((buffer, producer)) => return self.start(copy, buffer, producer),
                None if self.expects(copy) == self.copies[copy].markers.get(&unit).copied().unwrap_or(0) => {
                    self.end_unit(copy);
                }
                None => return,
            }
        }
    }

    /// Sends what was made; returns whether nothing is left to send.
    fn send_made(&mut self, copy: usize) -> bool {
        while let Some(&(output, buffer)) = self.copies[copy].made.front() {
            let of = &mut self.copies[copy];
            let (stream, flow) = &mut of.outputs[output];
            let meta = Meta { key: buffer.block, len: buffer.bytes as usize, note: &[] };
            let wanted = buffer.block as usize % flow.accounts().len();
            let Choice::Send(rank) = flow.choose(&meta, Some(wanted)) else { return false };
            flow.sent(rank);
            let most = flow.accounts()[rank].most;
            of.times.most_unacknowledged = of.times.most_unacknowledged.max(most);
            of.made.pop_front();
            let (stream, unit) = (*stream, of.unit);
            let filter = self.setup.plan.layout.streams[stream].to;
            let to = self.first_of[filter] + rank;
            self.step(copy, What::Sent(buffer.block, self.copies[to].id));
            self.post(Message { stream, from: copy, to, unit, body: Body::Buffer(buffer) });
        }
        true
    }

    fn start(&mut self, copy: usize, buffer: Buffer, producer: Option<(usize, usize)>) {
        self.step(copy, What::Started(buffer.block));
        if let Some((stream, from)) = producer {
            let connection = self.connection(stream, from, copy);
            self.connections[connection].started += 1;
            let in_all = self.connections[connection].started;
            let near = self.copies[from].node == self.copies[copy].node;
            let way = if near { 0 } else { self.setup.transport.alone(0) };
            let event = Event::Acknowledgement { stream, to: from, by: copy, in_all };
            self.at(self.now + way, event);
        }
        let of = &mut self.copies[copy];
        let cost = self.setup.costs[of.id.filter];
        let time = (cost.fixed + cost.per_byte * buffer.bytes) * of.slowness / 1000;
        of.working = Some(buffer);
        of.times.spans.push((self.now, self.now));
        self.at(self.now + time, Event::Done(copy));
    }

    /// Sends the end of the unit after all else, and goes on to the next.
    fn end_unit(&mut self, copy: usize) {
        self.step(copy, What::Ended);
        let (setup, unit) = (self.setup, self.copies[copy].unit);
        let of = &mut self.copies[copy];
        of.unit += 1;
        of.waiting.remove(&unit);
        of.markers.remove(&unit);
        for stream in setup.plan.layout.outputs(of.id.filter) {
            let filter = setup.plan.layout.streams[stream].to;
            for rank in 0..setup.plan.count(filter) {
                let to = self.first_of[filter] + rank;
                self.post(Message { stream, from: copy, to, unit, body: Body::Marker });
            }
        }
        if !self.copies[copy].outputs.is_empty() {
            return;
        }
        self.ended_at[unit] += 1;
        if self.ended_at[unit] == self.sinks {
            self.units[unit].ended = self.now;
            if setup.pace == Pace::OneByOne {
                self.at(self.now, Event::Begin);
            }
        }
    }

    /// Gives a message to the interface of its sender.
    fn post(&mut self, message: Message) {
        let (from, to) = (self.copies[message.from].node, self.copies[message.to].node);
        if from == to {
            return self.at(self.now, Event::Arrives(message));
        }
        let (wire, gap) = self.takes(message.body);
        let interface = &mut self.interfaces[from];
        let begins = interface.sends_until.max(self.now);
        interface.sends_until = begins + gap;
        let place = self.connection(message.stream, message.from, message.to);
        let connection = &mut self.connections[place];
        connection.last = connection.last.max(begins + wire);
        let comes = connection.last;
        self.at(comes, Event::Comes(message));
    }

    /// How long a message is on the wire, and for how long it keeps each of the two interfaces.
    fn takes(&self, body: Body) -> (u64, u64) {
        let transport = &self.setup.transport;
        match body {
            Body::Buffer(buffer) => (transport.wire(buffer.bytes), transport.gap(buffer.bytes)),
            Body::Marker => (transport.alone(0), 0),
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.queue.push(Entry { at, number: self.number, event });
    }

    fn step(&mut self, copy: usize, what: What) {
        let of = &self.copies[copy];
        (self.tell)(Step { at: self.now, copy: of.id, unit: of.unit, what });
    }

    fn is_source(&self, copy: usize) -> bool {
        self.setup.plan.layout.inputs(self.copies[copy].id.filter).next().is_none()
    }

    /// How many ends of a unit it must have.
    fn expects(&self, copy: usize) -> usize {
        let plan = &self.setup.plan;
        let inputs = plan.layout.inputs(self.copies[copy].id.filter);
        inputs.map(|stream| plan.count(plan.layout.streams[stream].from)).sum()
    }

    fn connection(&self, stream: usize, from: usize, to: usize) -> usize {
        let consumers = self.setup.plan.count(self.setup.plan.layout.streams[stream].to);
        let (from, to) = (self.copies[from].id.rank, self.copies[to].id.rank);
        self.first_connection[stream] + from * consumers + to
    }

    fn outcome(self) -> Outcome {
        let mut copies = vec![Vec::new(); self.first_of.len()];
        for copy in self.copies {
            copies[copy.id.filter].push(copy.times);
        }
        Outcome { units: self.units, copies, ended: self.now }
    }
}

/// Where each of these begins, if they lie one after the other.
fn sums(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut sum = 0;
    lengths
        .map(|length| {
            let begin = sum;
            sum += length;
            begin
        })
        .collect()
}

/// The buffers that a copy without inputs makes of each unit of work.
fn made_by(setup: &Setup, id: CopyId) -> BTreeMap<usize, VecDeque<Waiting>> {
    if setup.plan.layout.inputs(id.filter).next().is_some() {
        return BTreeMap::new();
    }
    let copies = setup.plan.count(id.filter);
    let of_unit = |unit: &Unit| {
        let blocks = unit.blocks.iter().enumerate();
        let own = blocks.filter(|(block, _)| (unit.first + block) % copies == id.rank);
        own.map(|(block, &bytes)| (Buffer { block: block as u64, bytes }, None)).collect()
    };
    setup.units.iter().map(of_unit).enumerate().collect()
}
