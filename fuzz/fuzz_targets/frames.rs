//! A queue of frames whose other end writes whatever it likes into what both map, at any time (rule F2): the consumer finds frames that lie in
//! the queue, or that it is broken, and comes to an end; the producer never writes outside it.
#![no_main]

use std::cell::Cell;

use fabric::frames::{Consumer, DATA, Next, Producer, bytes};
use fabric::{Local, Remote};
use libfuzzer_sys::fuzz_target;

const SIZE: usize = 4096;
const BASE: usize = 128;
const END: usize = BASE + bytes(SIZE);

/// A segment of which nothing stays as it was: words and bytes come from the fuzzer's input, one after the other.
struct Scribbled<'a> {
    input: &'a [u8],
    at: Cell<usize>,
}

impl Scribbled<'_> {
    fn byte(&self) -> u8 {
        let at = self.at.replace(self.at.get() + 1);
        self.input.get(at).copied().unwrap_or(0)
    }

    /// Mostly what an honest peer might have written.
    fn next(&self) -> u64 {
        let (kind, a, b) = (self.byte(), u64::from(self.byte()), u64::from(self.byte()));
        match kind % 4 {
            0 => (a | b << 8) * 64,
            1 => a | b << 8,
            2 => u64::MAX - a,
            _ => a << (b % 64),
        }
    }
}

impl Local for Scribbled<'_> {
    fn word(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= END);
        self.next()
    }
    fn set_word(&self, _: usize, _: u64) {}
    fn swap_word(&self, offset: usize, _: u64) -> u64 {
        self.word(offset)
    }
    fn replace_word(&self, offset: usize, old: u64, _: u64) -> Result<(), u64> {
        let held = self.word(offset);
        if held == old { Ok(()) } else { Err(held) }
    }
    unsafe fn get(&self, offset: usize, to: *mut u8, len: usize) {
        assert!(offset >= BASE + DATA && len <= END - offset, "{len} bytes at {offset}");
        assert_eq!(len, 8, "only heads are read");
        // SAFETY: the caller vouches for eight bytes.
        unsafe { to.copy_from_nonoverlapping(self.next().to_le_bytes().as_ptr(), 8) };
    }
}

impl Remote for Scribbled<'_> {
    unsafe fn put(&self, offset: usize, _: *const u8, len: usize) {
        assert!(offset >= BASE + DATA && offset <= END && len <= END - offset, "{len} bytes put at {offset}");
    }
    fn put_word(&self, offset: usize, _: u64) {
        assert!(offset == BASE || offset == 0);
    }
    fn stimulate(&self, offset: usize, _: u64) -> u64 {
        self.word(offset)
    }
    fn armed(&self, offset: usize, interest: u64) -> bool {
        self.word(offset) & interest != 0
    }
    fn or_word(&self, offset: usize, _: u64) -> u64 {
        self.word(offset)
    }
}

fuzz_target!(|input: &[u8]| {
    let segment = Scribbled { input, at: Cell::new(0) };
    let (mut producer, mut consumer) = (Producer::new(SIZE), Consumer::new(SIZE));
    while segment.at.get() < input.len() {
        if segment.byte().is_multiple_of(2) {
            let len = usize::from(segment.byte()) * 10;
            producer.put(&segment, BASE, &segment, 0, &[&[0; 2550][..len]]);
            assert!(producer.waiting() <= SIZE);
            producer.publish(&segment, BASE);
        } else {
            match consumer.next(&segment, BASE) {
                Next::Empty => {}
                Next::Frame { offset, len } => {
                    assert!(offset >= BASE + DATA && len <= END - offset);
                    consumer.done(&segment, 0, len);
                }
                Next::Broken => return,
            }
        }
    }
});
