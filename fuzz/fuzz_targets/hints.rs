//! A hint bitmap that a hostile peer writes into (rule F2): whatever bits it sets, the slots that come out are in range, none comes
//! twice in one taking, taking ends, and hints that we set honestly all come out.
#![no_main]

use fabric::Local;
use fabric::hints::{self, SLOTS, WORDS};
use fabric::shm::Map;
use fabric::trip;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static MAP: LazyLock<Map> = LazyLock::new(|| Map::create(c"fuzz", 4096).expect("a memfd").0);

fuzz_target!(|input: &[u8]| {
    let map = *MAP;
    for word in 0..hints::BYTES / 8 {
        map.set_word(word * 8, 0);
    }
    let mut set = [false; SLOTS];
    let mut input = input.iter().copied();
    while let Some(op) = input.next() {
        let arg = (usize::from(input.next().unwrap_or(0)) | usize::from(op >> 3 & 3) << 8) % SLOTS;
        match op % 5 {
            0 => {
                let armed = map.word(8);
                let woken = hints::set(&map, 0, arg);
                assert_eq!(woken, if armed & trip::RX != 0 { armed } else { 0 });
                set[arg] = true;
            }
            1 => {
                let mut seen = [false; SLOTS];
                hints::take(&map, 0, |_| {}, |slot| assert!(!std::mem::replace(&mut seen[slot], true)));
                // Nothing but a scribble over it loses a hint, and those are marked.
                assert!((0..SLOTS).all(|slot| seen[slot] || !set[slot]));
                set = [false; SLOTS];
                assert!(!hints::any(&map, 0));
            }
            2 => {
                let asleep = hints::sleeps(&map, 0);
                assert_eq!(hints::arm_sleep(&map, 0, trip::BELL, arg as u8), asleep);
            }
            3 => {
                let first = hints::BITS / 8;
                let word = arg % (WORDS + first);
                let bits = u64::from(input.next().unwrap_or(0)) << (input.next().unwrap_or(0) % 64);
                map.set_word(word * 8, bits);
                if word == 0 {
                    set = [false; SLOTS]; // the summary was overwritten: its words may be hidden
                } else if word >= first {
                    set[(word - first) * 64..(word - first) * 64 + 64].fill(false);
                }
            }
            _ => hints::disarm_sleep(&map, 0),
        }
    }
});
