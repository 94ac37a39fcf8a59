//! Everything that a peer can write, for the fuzzers: a consumer's memory holds any bytes, a
//! producer gets any counts, and any bytes come as frames, handshakes, messages.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use fabric::Mapped as _;
use fabric::sync::Ordering;

use crate::acceptor::Handshake;
use crate::flow::Policy;
use crate::input::{Found, Input, Source};
use crate::layout::StreamDef;
use crate::link::{Link, Wire};
use crate::listener::Frames;
use crate::memory::{NOTE_MOST, Segment};
use crate::messages::{self, FromWorker, Hello, ToWorker};
use crate::outlet::{Geometry, Outlet};
use crate::output::{Output, Target, Waiting, With};
use crate::ring;
use crate::running::{Flag, Running, Until};
use crate::sleeper::{Habit, Sleeper};
use crate::stats::{Got, Sent};
use crate::wake::Wake;

const SIZE: usize = 32;
const CREDITS: usize = 4;

fn stream(policy: Policy) -> StreamDef {
    StreamDef {
        name: "hostile".into(),
        from: 0,
        to: 1,
        policy,
        buffer_size: SIZE,
        credits: CREDITS,
        split: false,
        chooser: Vec::new(),
    }
}

fn made(consumers: usize, policy: Policy) -> (StreamDef, Arc<Outlet>, Wake) {
    let def = stream(policy);
    let outlet = Outlet::create(Geometry::new(&def, consumers)).expect("there is memory");
    let words = Arc::new(Segment::create(4096).expect("there is memory"));
    (def, outlet, Wake::new(&words, 0))
}

/// A consumer whose queue holds these bytes: every buffer that it accepts lies inside the pool.
pub fn read(bytes: &[u8]) {
    let (def, outlet, wake) = made(1, Policy::RoundRobin);
    let room = ring::bytes(outlet.geometry().capacity);
    let count = bytes.len().min(room);
    // SAFETY: so many bytes.
    unsafe { outlet.words().copy_in(outlet.geometry().queue(0), bytes.as_ptr(), count) };
    let channel = (Arc::clone(&outlet), Source::Memory(wake), Arc::new(Got::default()));
    let mut input = Input::new(0, 0, 0, &def, vec![channel]);
    input.begin(1);
    let mut kept = Vec::new();
    for _ in 0..2 * outlet.geometry().capacity {
        match input.poll(1, &mut 0) {
            Ok(Found::Buffer(buffer)) => {
                assert!(buffer.len() <= SIZE && buffer.note().len() <= NOTE_MOST);
                kept.push(buffer.bytes().iter().map(|&byte| u32::from(byte)).sum::<u32>());
            }
            Ok(_) | Err(_) => break,
        }
    }
    let _ = input.drain(1);
}

/// A producer whose consumers report these counts: it uses only credits that it has really got
/// back.
pub fn write(bytes: &[u8]) {
    let (def, outlet, wake) = made(2, Policy::DemandDriven);
    let counts: Vec<Arc<Sent>> = (0..2).map(|_| Arc::default()).collect();
    let targets = vec![Target::Memory(wake.clone()), Target::Memory(wake.clone())];
    let mut output = Output::new(0, &def, 0, Arc::clone(&outlet), targets, None, counts.clone());
    let mut habit = Habit::default();
    let running = Running::new(1, Vec::new(), Arc::new(Flag::default()));
    for piece in bytes.chunks(10) {
        let Some((&[choice, slot], told)) = piece.split_first_chunk() else { return };
        let mut word = [0; 8];
        word[..told.len()].copy_from_slice(told);
        let at = outlet.geometry().queue(usize::from(choice) % 2) + usize::from(choice / 2 % 2) * 8;
        outlet.words().atomic(at).store(u64::from_le_bytes(word), Ordering::Release);
        if choice & 128 != 0 {
            outlet.free(usize::from(slot) % outlet.geometry().shape.slots);
        }
        let meta = crate::flow::Meta { key: 0, len: 8, note: &[] };
        if output.would_wait(&meta) {
            continue;
        }
        let sleeper = Sleeper::new(wake.clone());
        let mut waiting = Waiting { sleeper: &sleeper, habit: &mut habit, until: Until::Cancelled(&running) };
        output.write(&[7; 8], With::default(), &mut waiting).expect("there is a credit");
        assert!(counts.iter().all(|count| count.most.value() <= CREDITS as u64));
    }
}

/// A wire on which these bytes come; bytes that are sent are dropped.
struct Bytes(Mutex<Vec<u8>>);

impl Wire for Bytes {
    fn send(&self, _parts: &mut [IoSlice]) -> io::Result<()> {
        Ok(())
    }
    fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        let mut bytes = self.0.lock().expect("nobody panics with it");
        let count = to.len().min(bytes.len());
        to[..count].copy_from_slice(&bytes[..count]);
        bytes.drain(..count);
        Ok(count)
    }
    fn read_now(&self, to: &mut [u8]) -> io::Result<usize> {
        self.read(to)
    }
    fn close(&self) {}
    fn way(&self) -> &'static str {
        "tcp"
    }
}

/// A process that receives these bytes by a link: they are delivered where they may be, or end the
/// link.
pub fn receive(bytes: &[u8]) {
    let (_, arriving, wake) = made(2, Policy::RoundRobin);
    let (_, departing, _) = made(2, Policy::RoundRobin);
    let link = Link::new(Arc::new(Bytes(Mutex::new(bytes.to_vec()))), 0);
    let mut frames = Frames::new(&link, Arc::new(Flag::default()));
    frames.arrive(0, 0, &arriving, vec![Some(wake.clone()), None]);
    frames.depart(1, 0, &departing, vec![true, false], wake);
    for _ in 0..1000 {
        if frames.next(true, false).is_err() {
            return;
        }
    }
}

/// Messages with these bytes: understood, or refused.
pub fn messages(bytes: &[u8]) {
    let framed = [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    let _ = messages::receive::<FromWorker>(&mut &framed[..]);
    let _ = messages::receive::<ToWorker>(&mut &framed[..]);
    let _ = messages::receive_most::<Hello>(&mut &framed[..], 4096);
    let _ = messages::receive_most::<Handshake>(&mut &framed[..], 512);
    let _ = messages::receive_most::<Handshake>(&mut &*bytes, 512);
}
