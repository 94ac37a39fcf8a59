//! What a peer tells by messages of a link between hosts: whatever they are, only the own segment is written, and only whole words of it.
#![no_main]

use fabric::Local;
use fabric::shm::Map;
use libfuzzer_sys::fuzz_target;
use ofi::wire::{Heard, SHORT, hear};

const LEN: usize = 4096;
/// What lies before and behind the segment.
const GUARD: u64 = 0x5a5a_5a5a_5a5a_5a5a;

fuzz_target!(|input: &[u8]| {
    let mut memory = vec![GUARD; LEN / 8 + 2];
    // SAFETY: the words between the guards, which live until the end.
    let mine = unsafe { Map::of(memory.as_mut_ptr().add(1).cast(), LEN) };
    for word in (0..LEN).step_by(8) {
        mine.set_word(word, 0);
    }
    let mut input = input;
    // Each with its length in front.
    while let Some((&len, rest)) = input.split_first() {
        let (message, rest) = rest.split_at(rest.len().min(usize::from(len) % (SHORT + 8)));
        input = rest;
        let mut wrong = false;
        hear(&mine, message, |heard| {
            assert!(!wrong, "nothing is done behind what cannot be");
            match heard {
                Heard::Fired(_, held) => assert!(held != 0),
                Heard::Wrong => wrong = true,
                Heard::Hello { .. } | Heard::Call { .. } => {}
            }
        });
        if wrong {
            break;
        }
        assert!(!message.is_empty() && message.len().is_multiple_of(8));
    }
    assert_eq!([memory[0], memory[LEN / 8 + 1]], [GUARD; 2]);
});
