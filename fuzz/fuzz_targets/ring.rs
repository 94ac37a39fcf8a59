//! A ring whose peer is hostile (rule F2): it scribbles over everything that it maps, between any two of our calls. Whatever it
//! does, our two ends must not panic, reach outside their rings, nor claim more bytes than a ring holds; they may say Broken.
//! Before its first scribble the peer is honest, and then the bytes must be right.
#![no_main]

use fabric::Local;
use fabric::shm::Map;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use stream::ring::{Consumer, Producer};

/// Words 0..64: write position, read position, announcement; a guard; two rings of at most 256 bytes; a guard.
static MAP: LazyLock<Map> = LazyLock::new(|| Map::create(c"fuzz", 4096).expect("a memfd").0);
const FRONT: usize = 0;
const BACK: usize = 8;
const ANNOUNCED: usize = 16;
const DATA: [usize; 2] = [1024, 2048];
const GUARD: u8 = 0xa5;

fuzz_target!(|input: &[u8]| {
    let map = *MAP;
    // SAFETY: the mapping is 4096 bytes and this process's only user of it is this thread.
    let memory = unsafe { std::slice::from_raw_parts_mut(map.base(), 4096) };
    memory.fill(GUARD);
    memory[..64].fill(0);
    let mut input = input.iter().copied();
    let mut next = || input.next();
    let capacity = 1usize << (next().unwrap_or(0) % 9);
    let mut producer = Producer::new(DATA[0], capacity);
    let mut consumer = Consumer::new(DATA[0], capacity);
    let (mut rings, mut honest) = ([capacity, 0], true);
    let mut moved_at = None;
    let mut consumer_moved = false;
    let mut buffer = [0u8; 600];
    while let Some(op) = next() {
        let arg = usize::from(next().unwrap_or(0));
        match op % 8 {
            0 | 1 => {
                let Ok(room) = producer.room(&map, BACK, arg) else {
                    assert!(!honest, "a sane peer is not broken");
                    break;
                };
                assert!(room as u64 <= producer.capacity());
                let len = room.min(arg);
                for (i, byte) in buffer[..len].iter_mut().enumerate() {
                    *byte = byte_at(producer.position() + i as u64);
                }
                // SAFETY: `len` is at most 255, inside the buffer.
                unsafe { producer.put(&map, buffer.as_ptr(), len) };
                producer.publish(&map, FRONT);
                producer.claim(&map, len);
            }
            2 | 3 => {
                let announced = || map.word(ANNOUNCED).wrapping_sub(1);
                if !consumer_moved && announced() == consumer.position() {
                    consumer_moved = true;
                    if rings[1] == 0 {
                        break; // announced by the hostile one: the link's table has no such ring
                    }
                    consumer.move_to(DATA[1], rings[1]);
                }
                let until = || if consumer_moved { u64::MAX } else { announced() };
                let Ok(ready) = consumer.ready(&map, FRONT, arg, until) else {
                    assert!(!honest, "a sane peer is not broken");
                    break;
                };
                assert!(ready <= rings[usize::from(consumer_moved)]);
                let len = ready.min(arg);
                let skip = if len > 0 { arg % len } else { 0 };
                // SAFETY: `skip + len - skip` is what is ready, and fits the buffer.
                unsafe { consumer.peek(&map, skip, buffer.as_mut_ptr(), len - skip) };
                if honest {
                    for (i, byte) in buffer[..len - skip].iter().enumerate() {
                        assert_eq!(*byte, byte_at(consumer.position() + (skip + i) as u64));
                    }
                }
                consumer.consume(&map, BACK, len);
            }
            4 if moved_at.is_none() => {
                rings[1] = 1 << (arg % 9);
                moved_at = Some(producer.position());
                map.set_word(ANNOUNCED, producer.position() + 1);
                producer.move_to(DATA[1], rings[1]);
            }
            5 => {
                let _ = producer.unread(&map, BACK);
            }
            6 => {
                // One word, near to what it was or anything.
                honest = false;
                let word = 8 * (arg % 3);
                let delta = u64::from(next().unwrap_or(0)) << (next().unwrap_or(0) % 64);
                map.set_word(word, map.word(word).wrapping_add(delta));
            }
            7 => {
                honest = false;
                let ring = DATA[arg % 2];
                let bytes = rings[arg % 2];
                memory[ring..ring + bytes].fill(arg as u8);
            }
            _ => {}
        }
    }
    let outside = [(64, DATA[0]), (DATA[0] + rings[0], DATA[1]), (DATA[1] + rings[1], 4096)];
    assert!(outside.into_iter().all(|(from, to)| memory[from..to] == [GUARD; 4096][from..to]));
});

fn byte_at(position: u64) -> u8 {
    (position * 31 + (position >> 8)) as u8
}
