//! What a peer of a filter group can write: entries in a queue, counts, frames, messages. Whatever it is, it is used as what it must be or refused.
#![no_main]

use filters::hostile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 4 {
        0 => hostile::read(rest),
        1 => hostile::write(rest),
        2 => hostile::receive(rest),
        _ => hostile::messages(rest),
    }
});
