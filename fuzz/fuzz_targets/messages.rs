//! Hints and message queues read from a segment whose peer scribbles: every read of a word gives something else (rule F2).
//! A finding is a panic, or a read outside the segment.
#![no_main]

use std::cell::Cell;

use fabric::{Local, Remote, hints, queue};
use libfuzzer_sys::fuzz_target;

const SEGMENT: usize = 64 * 1024;

/// A segment of which nothing stays as it was: words come from the fuzzer's input, one after the other.
struct Scribbled<'a> {
    words: &'a [u8],
    at: Cell<usize>,
}

impl Scribbled<'_> {
    fn next(&self) -> u64 {
        let mut word = [0; 8];
        for byte in &mut word {
            *byte = self.words.get(self.at.get()).copied().unwrap_or(0);
            self.at.set(self.at.get() + 1);
        }
        u64::from_le_bytes(word)
    }
}

impl Local for Scribbled<'_> {
    fn word(&self, offset: usize) -> u64 {
        assert!(offset % 8 == 0 && offset + 8 <= SEGMENT, "word at {offset}");
        self.next()
    }

    fn set_word(&self, offset: usize, _: u64) {
        assert!(offset % 8 == 0 && offset + 8 <= SEGMENT, "set_word at {offset}");
    }

    fn swap_word(&self, offset: usize, _: u64) -> u64 {
        self.word(offset)
    }

    fn replace_word(&self, offset: usize, old: u64, _: u64) -> Result<(), u64> {
        let held = self.word(offset);
        if held == old { Ok(()) } else { Err(held) }
    }

    unsafe fn get(&self, offset: usize, _: *mut u8, len: usize) {
        assert!(offset <= SEGMENT && len <= SEGMENT - offset, "{len} bytes at {offset}");
    }
}

impl Remote for Scribbled<'_> {
    unsafe fn put(&self, offset: usize, _: *const u8, len: usize) {
        assert!(offset <= SEGMENT && len <= SEGMENT - offset, "{len} bytes put at {offset}");
    }

    fn put_word(&self, offset: usize, value: u64) {
        self.set_word(offset, value);
    }

    fn stimulate(&self, offset: usize, _: u64) -> u64 {
        self.word(offset)
    }

    fn armed(&self, _: usize, interest: u64) -> bool {
        self.next() & interest != 0
    }
    fn or_word(&self, offset: usize, _: u64) -> u64 {
        self.word(offset)
    }
}

fuzz_target!(|input: &[u8]| {
    let memory = Scribbled { words: input, at: Cell::new(0) };
    let mut consumer = queue::Consumer::default();
    let mut producer = queue::Producer::default();
    while memory.at.get() < input.len() {
        if consumer.ready(&memory, 0) {
            consumer.pop(&memory, 0, &memory, 0);
        }
        producer.push(&memory, 0, &memory, 0, &[0; queue::MESSAGE]);
        hints::take(
            &memory,
            queue::BYTES,
            |_| {},
            |slot| {
                assert!(slot < hints::SLOTS, "slot {slot}");
                hints::set(&memory, queue::BYTES, slot);
            },
        );
    }
});
