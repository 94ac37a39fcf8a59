//! A stream over Virtual Interfaces whose peer is hostile (rule F2): it scribbles over everything that it maps, between any two of our calls.
//! Whatever it does, our two ends must not panic, reach outside their memory, nor claim more bytes than a window holds; they may say
//! Broken. Before its first scribble the peer is honest, and then the bytes must be right.
#![no_main]

use fabric::Local;
use fabric::shm::Map;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use stream::sovia::{BYTES, Exchange, MOST, MTU, Manner, Receiver, Sender, at, wipe};
use stream::transport::Ends;

/// What each end maps: write position, read position; a guard; the queues and buffers; a guard.
static MAPS: LazyLock<[Map; 2]> =
    LazyLock::new(|| [0, 1].map(|_| Map::create(c"fuzz", AREA + BYTES + PAGE).expect("a memfd").0));
const PAGE: usize = 4096;
const AREA: usize = PAGE;
const FRONT: usize = 0;
const BACK: usize = 64;
const GUARD: u8 = 0xa5;

fuzz_target!(|input: &[u8]| {
    let maps = *MAPS;
    let memory = maps.map(|map| {
        // SAFETY: the mapping is so long and this process's only user of it is this thread.
        unsafe { std::slice::from_raw_parts_mut(map.base(), AREA + BYTES + PAGE) }
    });
    for (memory, map) in memory.into_iter().zip(&maps) {
        memory[..128].fill(0);
        memory[128..AREA].fill(GUARD);
        memory[AREA + BYTES..].fill(GUARD);
        wipe(map, AREA);
    }
    let mut input = input.iter().copied();
    let mut next = || input.next();
    let manner = Manner::of(u32::from_ne_bytes([0; 4].map(|_: u8| next().unwrap_or(0))));
    // Bytes go from the first to the second; both are ours, and nobody's memory is safe.
    let (sending, receiving) = (Exchange::default(), Exchange::default());
    let [mine, theirs] = maps;
    let out = Ends { mine, theirs, exchange: &sending, front: FRONT, back: BACK };
    let inward = Ends { mine: theirs, theirs: mine, exchange: &receiving, front: FRONT, back: BACK };
    let mut sender = Sender::new(&theirs, AREA, manner);
    let mut receiver = Receiver::new(&mine, AREA, manner);
    let (mut honest, mut buffer) = (true, vec![0u8; 40_000]);
    while let Some(op) = next() {
        let arg = usize::from(next().unwrap_or(0));
        let want = if op & 8 == 0 { arg } else { arg * 150 };
        match op % 8 {
            0 | 1 => {
                sender.combine(op & 16 != 0);
                let Ok(room) = sender.room(&out, want) else {
                    assert!(!honest, "a sane peer is not broken");
                    break;
                };
                assert!(room as u64 <= sender.capacity());
                let len = room.min(want);
                for (i, byte) in buffer[..len].iter_mut().enumerate() {
                    *byte = byte_at(sender.position() + i as u64);
                }
                // SAFETY: `len` bytes of the buffer.
                unsafe { sender.put(&out, buffer.as_ptr(), len) };
                sender.publish(&out);
            }
            2 | 3 => {
                let Ok(ready) = receiver.ready(&inward, want, || u64::MAX) else {
                    assert!(!honest, "a sane peer is not broken");
                    break;
                };
                assert!(ready <= MOST * MTU);
                let len = ready.min(want);
                let skip = if len > 0 { arg % len } else { 0 };
                // SAFETY: `skip + len - skip` is what is ready, and fits the buffer.
                unsafe { receiver.peek(&theirs, skip, buffer.as_mut_ptr(), len - skip) };
                if honest {
                    for (i, byte) in buffer[..len - skip].iter().enumerate() {
                        assert_eq!(*byte, byte_at(receiver.position() + (skip + i) as u64));
                    }
                }
                receiver.consume(&inward, len);
            }
            4 => receiver.give_back(&inward),
            5 => {
                let position = sender.position().saturating_sub(arg as u64 * 1000);
                // SAFETY: the buffer is longer.
                unsafe { sender.recover(&theirs, position, buffer.as_mut_ptr(), 4096) };
            }
            _ => {
                // One word, near to what it was or anything.
                honest = false;
                let map = maps[arg & 1];
                let word = match arg >> 1 & 3 {
                    0 => FRONT,
                    1 => BACK,
                    _ => AREA + 8 * (usize::from(next().unwrap_or(0)) * 7 + (arg >> 3)) % at::BUFFERS / 8 * 8,
                };
                let delta = u64::from(next().unwrap_or(0)) << (next().unwrap_or(0) % 64);
                map.set_word(word, map.word(word).wrapping_add(delta));
            }
        }
    }
    for map in maps {
        // SAFETY: as above.
        let memory = unsafe { std::slice::from_raw_parts(map.base(), AREA + BYTES + PAGE) };
        assert!(memory[128..AREA].iter().chain(&memory[AREA + BYTES..]).all(|byte| *byte == GUARD));
    }
});

fn byte_at(position: u64) -> u8 {
    (position * 31 + (position >> 8)) as u8
}
