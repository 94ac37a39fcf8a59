//! A message queue whose peer is hostile (rule F2): indices and messages change between our calls. Neither end may panic, reach
//! outside its slots or say that a message is ready which it then does not give; until the first scribble all messages arrive whole
//! and in order.
#![no_main]

use fabric::Local;
use fabric::queue::{BYTES, Consumer, MESSAGE, Producer};
use fabric::shm::Map;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use std::sync::LazyLock;

static MAP: LazyLock<Map> = LazyLock::new(|| Map::create(c"fuzz", LEN).expect("a memfd").0);
const BASE: usize = 64;
const BACK: usize = BASE + BYTES;
const LEN: usize = 20480;
const GUARD: u8 = 0xa5;

fuzz_target!(|input: &[u8]| {
    let map = *MAP;
    // SAFETY: the mapping has LEN bytes and this process's only user of it is this thread.
    let memory = unsafe { std::slice::from_raw_parts_mut(map.base(), LEN) };
    memory.fill(GUARD);
    map.set_word(BASE, 0);
    map.set_word(BACK, 0);
    let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
    let mut sent = VecDeque::new();
    let mut honest = true;
    let mut input = input.iter().copied();
    while let Some(op) = input.next() {
        let arg = input.next().unwrap_or(0);
        match op % 4 {
            0 => {
                for i in 0..=arg {
                    let message = [arg ^ i; MESSAGE];
                    if producer.push(&map, BASE, &map, BACK, &message) {
                        sent.push_back(message);
                    }
                }
            }
            1 => {
                for _ in 0..=arg {
                    let ready = consumer.ready(&map, BASE);
                    let message = consumer.pop(&map, BASE, &map, BACK);
                    assert_eq!(ready, message.is_some());
                    let expected = sent.pop_front();
                    assert!(!honest || message == expected);
                }
            }
            2 => {
                honest = false;
                let word = if arg & 1 == 0 { BASE } else { BACK };
                let delta = u64::from(arg) << (input.next().unwrap_or(0) % 64);
                map.set_word(word, map.word(word).wrapping_add(delta));
            }
            _ => {
                honest = false;
                memory[BASE + 64..BACK].fill(arg);
            }
        }
    }
    assert!(memory[..BASE] == [GUARD; BASE] && memory[BACK + 8..] == [GUARD; LEN - BACK - 8]);
});
