//! The stream over Virtual Interfaces against a model: two ends in one process, random writes and
//! reads both ways, every byte checked, with all ways of acknowledging, and with lock holders that
//! die.
#![cfg(not(loom))]

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fabric::shm::Map;
use fabric::{Local, Mapped};
use proptest::prelude::*;
use stream::sovia::{BYTES, Exchange, MOST, MTU, Manner, Receiver, Sender, at};
use stream::transport::Ends;

const AREA: usize = 4096;
const READ: usize = 64;
const WRITTEN: usize = 128;

/// One end: its own memory, both directions.
struct End {
    mine: Map,
    theirs: Map,
    exchange: Exchange,
    sender: Sender,
    receiver: Receiver,
    /// Bytes that the other end has sent and this one has not read.
    model: VecDeque<u8>,
    serial: u8,
}

fn ends(manner: Manner) -> [End; 2] {
    let maps = [0, 1].map(|_| {
        let (map, fd) = Map::create(c"test", AREA + BYTES).unwrap();
        fabric::sys::close(fd);
        map
    });
    let mut ends = [(0, 1), (1, 0)].map(|(own, other)| End {
        mine: maps[own],
        theirs: maps[other],
        exchange: Exchange::default(),
        sender: Sender::default(),
        receiver: Receiver::default(),
        model: VecDeque::new(),
        serial: own as u8 * 100,
    });
    for end in &mut ends {
        end.sender = Sender::new(&end.theirs, AREA, manner);
        end.receiver = Receiver::new(&end.theirs, AREA, manner);
    }
    ends
}

impl End {
    fn ends<'a>(mine: &Map, theirs: &Map, exchange: &'a Exchange) -> Ends<'a, Map> {
        Ends { mine: *mine, theirs: *theirs, exchange, front: WRITTEN, back: READ }
    }

    /// Sends up to `len` bytes, in pieces that may be joined. Returns the bytes that were sent.
    fn send(&mut self, len: usize, pieces: usize) -> Vec<u8> {
        self.send_by(len, pieces, false)
    }

    fn send_by(&mut self, len: usize, pieces: usize, join: bool) -> Vec<u8> {
        let ends = End::ends(&self.mine, &self.theirs, &self.exchange);
        self.sender.combine(join);
        let mut room = self.sender.room(&ends, len).unwrap();
        if room == 0 {
            // Acknowledgements may be in data that nobody has read.
            self.receiver.ready(&ends, usize::MAX / 2, || u64::MAX).unwrap();
            room = self.sender.room(&ends, len).unwrap();
        }
        let bytes: Vec<u8> = (0..len.min(room))
            .map(|_| {
                self.serial = self.serial.wrapping_mul(5).wrapping_add(7);
                self.serial
            })
            .collect();
        for piece in bytes.chunks(bytes.len().div_ceil(pieces).max(1)) {
            // SAFETY: a slice.
            unsafe { self.sender.put(&ends, piece.as_ptr(), piece.len()) };
            if pieces == 3 {
                self.sender.show(&ends);
            }
        }
        self.sender.publish(&ends);
        bytes
    }

    /// Reads up to `len` bytes, and checks them.
    fn receive(&mut self, len: usize) -> usize {
        let ends = End::ends(&self.mine, &self.theirs, &self.exchange);
        let ready = self.receiver.ready(&ends, len, || u64::MAX).unwrap();
        assert_eq!(ready.min(len), self.model.len().min(len), "all that was sent is there");
        let count = ready.min(len);
        let mut bytes = vec![0; count];
        let half = count / 2;
        // SAFETY: slices.
        unsafe {
            self.receiver.peek(&self.mine, half, bytes[half..].as_mut_ptr(), count - half);
            self.receiver.peek(&self.mine, 0, bytes.as_mut_ptr(), half);
        }
        assert_eq!(bytes, self.model.drain(..count).collect::<Vec<_>>());
        let mut copy = self.receiver;
        copy.skip(count);
        self.receiver.consume(&ends, count);
        assert_eq!((copy.position(), copy.known()), (self.receiver.position(), self.receiver.known()));
        count
    }
}

fn manners() -> impl Strategy<Value = Manner> {
    (1..=MOST as u32, 0..MOST as u32, any::<bool>(), any::<bool>())
        .prop_map(|(window, delayed, piggyback, combine)| Manner { window, delayed, piggyback, combine })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_in_order(
        manner in manners(),
        steps in proptest::collection::vec((0..2usize, 0..4u8, 1..40_000usize, 1..5usize, any::<bool>()), 1..300),
    ) {
        let mut ends = ends(manner);
        for (who, what, len, pieces, join) in steps {
            let len = if what % 2 == 0 { len } else { len % 200 + 1 };
            if what < 2 {
                let bytes = ends[who].send_by(len, pieces, join);
                ends[1 - who].model.extend(bytes);
            } else {
                ends[who].receive(len);
            }
        }
        // However they acknowledge, neither is stuck: all that waits can be read, and then much can
        // be sent.
        for who in [0, 1] {
            while ends[who].receive(100_000) > 0 {}
            let bytes = ends[1 - who].send(10, 1);
            prop_assert_eq!(bytes.len(), 10);
            ends[who].model.extend(bytes);
            prop_assert_eq!(ends[who].receive(10), 10);
        }
    }
}

#[test]
fn a_window_is_a_bound() {
    for window in [1, 2, MOST as u32] {
        let mut ends = ends(Manner { window, delayed: window / 2, piggyback: false, combine: false });
        let mut sent = 0;
        for _ in 0..MOST {
            let bytes = ends[0].send(1, 1);
            sent += bytes.len();
            ends[1].model.extend(bytes);
        }
        assert_eq!(sent, window as usize);
        assert_eq!(ends[1].receive(MOST), sent);
        let end = &mut ends[1];
        end.receiver.give_back(&End::ends(&end.mine, &end.theirs, &end.exchange));
        assert_eq!(ends[0].send(MTU * MOST, 3).len(), MTU * window as usize);
    }
}

#[test]
fn data_acknowledges_what_came_the_other_way() {
    let mut ends = ends(Manner { window: 4, delayed: 3, piggyback: true, combine: false });
    for _ in 0..50 {
        for who in [0, 1] {
            let bytes = ends[who].send(5, 1);
            assert_eq!(bytes.len(), 5);
            ends[1 - who].model.extend(bytes);
            assert_eq!(ends[1 - who].receive(5), 5);
        }
    }
    // No acknowledgement was a message of its own.
    for end in &ends {
        assert_eq!(end.mine.word(AREA + at::ACKNOWLEDGEMENTS), 0);
    }
}

#[test]
fn what_was_not_read_can_be_had_back() {
    let mut ends = ends(Manner { window: 32, delayed: 16, piggyback: true, combine: true });
    let mut all = Vec::new();
    for (len, pieces) in [(10, 1), (112, 1), (113, 2), (9000, 1), (1, 1), (8192, 3), (30_000, 2)] {
        all.extend(ends[0].send_by(len, pieces, len % 2 == 0));
    }
    // As many as possible.
    while all.len() < 200_000 {
        let more = ends[0].send(20_000, 1);
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    assert_eq!(ends[0].sender.room(&End::ends(&ends[0].mine, &ends[0].theirs, &ends[0].exchange), 1), Ok(0));
    for from in [0usize, 5, 9, 10, 121, 122, 235, 9000, 20_000, all.len() - 1] {
        let mut back = Vec::new();
        while from + back.len() < all.len() {
            let mut bytes = [0; 5000];
            let position = (from + back.len()) as u64;
            let (sender, theirs) = (&ends[0].sender, &ends[0].theirs);
            // SAFETY: a slice.
            let count = unsafe { sender.recover(theirs, position, bytes.as_mut_ptr(), bytes.len()) };
            assert!(count > 0, "{position}");
            back.extend_from_slice(&bytes[..count]);
        }
        assert_eq!(back, all[from..], "{from}");
    }
}

#[test]
fn nonsense_breaks_the_connection_only() {
    use fabric::Remote;
    // An acknowledgement of messages that were never sent, a message of no bytes, one that is too
    // long, one of an unknown kind.
    for (base, second, first) in [
        (at::ACKNOWLEDGEMENTS, (2 | 5 << 16) << 32, 1 | 3 << 32 | 1 << 40),
        (at::MESSAGES, 1u64 << 32, 1 | 1 << 32 | 1 << 40),
        (at::MESSAGES, 1 << 32 | 113, 1 | 1 << 32 | 1 << 40),
        (at::MESSAGES, 1 << 32 | (MTU as u64 + 1), 1 | 3 << 32 | 1 << 40),
        (at::MESSAGES, 9 << 32 | 1, 1 | 3 << 32 | 1 << 40),
        (at::MESSAGES, 1 << 32 | 1, 1 | 7 << 32 | 1 << 40),
    ] {
        let manner = Manner { window: 1, delayed: 0, piggyback: true, combine: false };
        let mut ends = ends(manner);
        ends[0].send(1, 1);
        ends[0].mine.put_word(AREA + base + 8, second);
        ends[0].mine.put_word(AREA + base, first);
        ends[0].mine.put_word(WRITTEN, 1);
        let end = &mut ends[0];
        let all = End::ends(&end.mine, &end.theirs, &end.exchange);
        let broken = if base == at::MESSAGES {
            end.receiver.ready(&all, 1, || u64::MAX).is_err()
        } else {
            end.sender.room(&all, 1).is_err()
        };
        assert!(broken, "{base} {second:x} {first:x}");
    }
    // More bytes announced than a message holds; fewer than before.
    for written in [MTU as u64 + 1, 4] {
        let mut ends = ends(Manner::of(32));
        let bytes = ends[1].send(5, 1);
        ends[0].model.extend(bytes);
        ends[0].receive(1);
        ends[0].mine.put_word(WRITTEN, if written == 4 { 4 } else { 5 + written });
        let end = &mut ends[0];
        let all = End::ends(&end.mine, &end.theirs, &end.exchange);
        assert!(end.receiver.ready(&all, 100_000, || u64::MAX).is_err(), "{written}");
    }
}

/// Memory whose user dies at one of its next accesses.
#[derive(Clone, Copy)]
struct Deadly<'a>(Map, &'a Cell<u32>);

impl Deadly<'_> {
    fn step(&self) {
        let left = self.1.get();
        self.1.set(left.wrapping_sub(1));
        if left == 0 {
            std::panic::resume_unwind(Box::new(()));
        }
    }
}

impl Mapped for Deadly<'_> {
    fn atomic(&self, offset: usize) -> &fabric::sync::AtomicU64 {
        self.step();
        self.0.atomic(offset)
    }
    unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize) {
        self.step();
        // SAFETY: as the caller's.
        unsafe { self.0.copy_out(offset, to, len) }
    }
    unsafe fn copy_in(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: as the caller's, of a half.
        unsafe { self.0.copy_in(offset, from, len / 2) };
        self.step();
        // SAFETY: as the caller's.
        unsafe { self.0.copy_in(offset, from, len) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The next holder of a lock goes on where a holder was killed: the bytes that one has put
    /// arrive, those that it has read are gone, and no others.
    #[test]
    fn a_holder_may_die_at_any_step(
        manner in manners(),
        steps in proptest::collection::vec((0..2usize, 0..4u8, 1..30_000usize, 0..60u32, any::<bool>()), 1..200),
    ) {
        let mut ends = ends(manner);
        for (who, what, len, lives, join) in steps {
            let len = if what % 2 == 0 { len } else { len % 200 + 1 };
            let lives = Cell::new(lives);
            let end = &mut ends[who];
            let (mine, theirs) = (Deadly(end.mine, &lives), Deadly(end.theirs, &lives));
            let mortal = Ends { mine, theirs, exchange: &end.exchange, front: WRITTEN, back: READ };
            if what < 2 {
                let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_add(end.serial)).collect();
                end.serial = end.serial.wrapping_add(77);
                let before = end.sender.position();
                let sender = &mut end.sender;
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    sender.combine(join);
                    let room = sender.room(&mortal, len).unwrap();
                    // SAFETY: a slice.
                    unsafe { sender.put(&mortal, bytes.as_ptr(), len.min(room)) };
                    sender.publish(&mortal);
                }));
                let all = End::ends(&end.mine, &end.theirs, &end.exchange);
                prop_assert!(end.sender.room(&all, 1).is_ok());
                end.sender.publish(&all);
                let put = (end.sender.position() - before) as usize;
                ends[1 - who].model.extend(&bytes[..put]);
            } else {
                let (before, receiver) = (end.receiver.position(), &mut end.receiver);
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let count = receiver.ready(&mortal, len, || u64::MAX).unwrap().min(len);
                    receiver.consume(&mortal, count);
                }));
                let read = (end.receiver.position() - before) as usize;
                end.model.drain(..read);
                end.receive(len / 2);
            }
        }
        for who in [0, 1] {
            while ends[who].receive(100_000) > 0 {}
            let end = &mut ends[who];
            end.receiver.give_back(&End::ends(&end.mine, &end.theirs, &end.exchange));
            let bytes = ends[1 - who].send(10, 1);
            prop_assert_eq!(bytes.len(), 10);
            ends[who].model.extend(bytes);
            prop_assert_eq!(ends[who].receive(10), 10);
        }
    }
}
