//! The byte ring on real memory: any sequence of writes, reads and changes of ring against a plain
//! queue; two threads; two processes that sleep on bells; and a writer killed at any moment, whose
//! reader must get all that it published and nothing else. Loom checks the orderings
//! (`loom_ring.rs`). Under Miri the first two run, over plain memory.
#![cfg(not(loom))]

#[path = "../../fabric/tests/plain/mod.rs"]
mod plain;

use fabric::{Local, Mapped, Remote};
use plain::Plain;
use proptest::prelude::*;
use std::collections::VecDeque;
use stream::ring::{Consumer, Producer};

/// Write position, read position, announcement (position + 1), a tripwire for each side, then two
/// rings.
const FRONT: usize = 0;
const BACK: usize = 8;
const ANNOUNCED: usize = 16;
const DATA: [usize; 2] = [64, 64 + RING];
const RING: usize = 4096;
const BYTES: usize = 64 + 2 * RING;

/// Each side's part in changing rings, the announcement included: a connection does that on top of
/// the ring.
struct Writer(Producer);
struct Reader(Consumer, Option<usize>);

impl Writer {
    fn write<M: Mapped>(&mut self, memory: &M, bytes: &[u8]) -> usize {
        let room = self.0.room(memory, BACK, bytes.len()).expect("a sane peer");
        let len = room.min(bytes.len());
        // SAFETY: `len` bytes are there.
        unsafe { self.0.put(memory, bytes.as_ptr(), len) };
        self.0.publish(memory, FRONT);
        self.0.claim(memory, len);
        len
    }
    fn move_on<M: Mapped>(&mut self, memory: &M, capacity: usize) {
        memory.put_word(ANNOUNCED, self.0.position() + 1);
        self.0.move_to(DATA[1], capacity);
    }
}

impl Reader {
    fn read<M: Mapped>(&mut self, memory: &M, into: &mut [u8]) -> usize {
        let announced = || memory.word(ANNOUNCED).wrapping_sub(1);
        if let Some(capacity) = self.1.take_if(|_| announced() == self.0.position()) {
            self.0.move_to(DATA[1], capacity);
        }
        let old = self.1.is_some();
        let until = || if old { announced() } else { u64::MAX };
        let len = self.0.ready(memory, FRONT, into.len(), until).expect("a sane peer").min(into.len());
        // SAFETY: `len` bytes fit.
        unsafe { self.0.peek(memory, 0, into.as_mut_ptr(), len) };
        self.0.consume(memory, BACK, len);
        len
    }
}

#[derive(Debug, Clone)]
enum Op {
    Write(usize),
    Read(usize),
    Move,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 500 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_ring_is_a_bounded_queue_of_bytes(
        first in 0..13u32,
        second in 0..13u32,
        ops in prop::collection::vec(
            prop_oneof![8 => (0..5000usize).prop_map(Op::Write), 8 => (0..5000usize).prop_map(Op::Read), 1 => Just(Op::Move)],
            1..if cfg!(miri) { 20 } else { 100 },
        ),
    ) {
        let memory = Plain::new(BYTES);
        let (first, second) = (1 << first, 1 << second);
        let mut writer = Writer(Producer::new(DATA[0], first));
        let mut reader = Reader(Consumer::new(DATA[0], first), Some(second));
        let mut model = VecDeque::new();
        let (mut moved, mut written) = (None, 0u64);
        for op in ops {
            match op {
                Op::Write(len) => {
                    let bytes: Vec<u8> = (written..).map(byte_at).take(len).collect();
                    let room = match moved {
                        None => first - model.len(),
                        Some(at) => second - (written - u64::max(at, written - model.len() as u64)) as usize,
                    };
                    let wrote = writer.write(&memory, &bytes);
                    prop_assert_eq!(wrote, room.min(len));
                    model.extend(&bytes[..wrote]);
                    written += wrote as u64;
                }
                Op::Read(len) => {
                    let mut bytes = vec![0; len];
                    let got = reader.read(&memory, &mut bytes);
                    reader.0.give_back(&memory, BACK);
                    // Over a change of rings a read may stop at the boundary.
                    prop_assert!(got == model.len().min(len) || (got < len && moved == Some(reader.0.position())));
                    let expected: Vec<u8> = model.drain(..got).collect();
                    prop_assert_eq!(&bytes[..got], &expected[..]);
                }
                Op::Move if moved.is_none() => {
                    writer.move_on(&memory, second);
                    moved = Some(written);
                }
                Op::Move => {}
            }
        }
    }
}

#[test]
fn bytes_pass_between_threads() {
    let memory = Plain::new(BYTES);
    let total = if cfg!(miri) { 600 } else { 20_000_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| produce(&memory, total, 64, std::thread::yield_now, || ()));
        consume(&memory, total, 64, std::thread::yield_now, || ());
    });
}

/// Writes `total` bytes in pieces of all sizes, changing rings half-way.
fn produce<M: Mapped>(memory: &M, total: u64, first: usize, mut wait: impl FnMut(), mut wrote: impl FnMut()) {
    let mut writer = Writer(Producer::new(DATA[0], first));
    let (mut random, mut moved) = (1u64, false);
    let mut piece = [0; 3000];
    while writer.0.position() < total {
        if !moved && writer.0.position() > total / 2 {
            writer.move_on(memory, RING);
            moved = true;
        }
        let at = writer.0.position();
        let len = (size(&mut random) as u64).min(total - at) as usize;
        for (i, byte) in piece[..len].iter_mut().enumerate() {
            *byte = byte_at(at + i as u64);
        }
        if writer.write(memory, &piece[..len]) == 0 { wait() } else { wrote() }
    }
}

/// Reads until `total` bytes have come and checks each.
fn consume<M: Mapped>(memory: &M, total: u64, first: usize, mut wait: impl FnMut(), mut read: impl FnMut()) {
    let mut reader = Reader(Consumer::new(DATA[0], first), Some(RING));
    let (mut random, mut piece) = (2u64, [0; 3000]);
    while reader.0.position() < total {
        let at = reader.0.position();
        let len = size(&mut random);
        let got = reader.read(memory, &mut piece[..len]);
        for (i, byte) in piece[..got].iter().enumerate() {
            assert_eq!(*byte, byte_at(at + i as u64), "at {}", at + i as u64);
        }
        if got == 0 { wait() } else { read() }
    }
}

/// 1 to 3000, small ones more often.
fn size(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let most = [16, 100, 3000][(*random % 3) as usize];
    (*random >> 8) as usize % most + 1
}

fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[cfg(not(miri))]
mod processes {
    use super::*;
    use fabric::shm::Map;
    use fabric::{bell, sys, trip};

    const READER: usize = 24;
    const WRITER: usize = 32;

    /// Arms, checks again, sleeps on the bell; five seconds count as for ever.
    fn sleep(map: &Map, at: usize, interest: u64, bell: i32, there: impl Fn() -> bool) {
        trip::arm(map, at, |_| trip::armed(interest, trip::BELL, 0));
        if !there() {
            let mut fds = [libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 }];
            assert_eq!(sys::ppoll(&mut fds, Some(5_000_000_000)), Ok(1), "slept for ever");
            bell::silence(bell);
        }
    }

    fn stimulate(map: &Map, at: usize, interest: u64, bell: i32) {
        if map.stimulate(at, interest) != 0 {
            bell::ring(bell);
        }
    }

    /// Runs the writer in a child process; it ends itself with 0 if all went well.
    fn spawn_writer(map: Map, total: u64, first: usize, bells: [i32; 2]) -> i32 {
        // SAFETY: the child allocates nothing, takes no lock and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child != 0 {
            return child;
        }
        let seen = |at: usize| map.word(at);
        let wait = || {
            let before = seen(BACK);
            // Room may have come since the writer checked: then `BACK` has what the next check will
            // find, or has moved on.
            sleep(&map, WRITER, trip::TX, bells[1], || seen(BACK) != before || seen(BACK) == seen(FRONT));
        };
        produce(&map, total, first, wait, || stimulate(&map, READER, trip::RX, bells[0]));
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    }

    #[test]
    fn bytes_pass_between_processes_that_sleep() {
        let (map, fd) = Map::create(c"test", BYTES).unwrap();
        let bells = [bell::create().unwrap(), bell::create().unwrap()];
        let total = 3_000_000;
        let child = spawn_writer(map, total, 64, bells);
        let at = std::cell::Cell::new(0);
        let wait = || {
            at.set(map.word(BACK));
            sleep(&map, READER, trip::RX, bells[0], || map.word(FRONT) != at.get());
        };
        consume(&map, total, 64, wait, || stimulate(&map, WRITER, trip::TX, bells[1]));
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        for fd in [fd, bells[0], bells[1]] {
            sys::close(fd);
        }
        // SAFETY: not used below.
        unsafe { map.unmap() };
    }

    #[test]
    fn a_killed_writer_leaves_what_it_published() {
        for round in 0..200u64 {
            let (map, fd) = Map::create(c"test", BYTES).unwrap();
            let bells = [bell::create().unwrap(), bell::create().unwrap()];
            let child = spawn_writer(map, u64::MAX, 1024, bells);
            let mut reader = Reader(Consumer::new(DATA[0], 1024), Some(RING));
            let mut piece = [0; 3000];
            let (began, mut dead) = (std::time::Instant::now(), false);
            loop {
                if !dead && began.elapsed() > std::time::Duration::from_micros(200 + round * 7) {
                    // SAFETY: our own child.
                    unsafe {
                        libc::kill(child, libc::SIGKILL);
                        libc::waitpid(child, std::ptr::null_mut(), 0);
                    }
                    dead = true;
                }
                let at = reader.0.position();
                let got = reader.read(&map, &mut piece);
                assert!((0..got).all(|i| piece[i] == byte_at(at + i as u64)));
                stimulate(&map, WRITER, trip::TX, bells[1]);
                if got == 0 && dead {
                    break;
                }
            }
            assert_eq!(reader.0.position(), map.word(FRONT));
            for fd in [fd, bells[0], bells[1]] {
                sys::close(fd);
            }
            // SAFETY: not used below.
            unsafe { map.unmap() };
        }
    }
}
