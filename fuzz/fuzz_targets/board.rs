//! What anybody may have written on the board: no bytes may make reading it panic, what is taken for a post must be one, and a post
//! that stands in the middle of rubbish must be found.
#![no_main]

use fabric::Plain;
use libfuzzer_sys::fuzz_target;
use sockets::board::{Post, find};

fuzz_target!(|input: &[u8]| {
    if let Some(post) = Post::parse(input) {
        // The last words of an entry are for later versions.
        let bytes = post.bytes();
        assert_eq!(bytes[..44], input[..44]);
        assert_eq!(find(input, post.key).map(|found| found.key), Some(post.key));
    }
    let word =
        |at: usize| u64::from_le_bytes(std::array::from_fn(|i| input.get(at + i).copied().unwrap_or(0)));
    let post = Post::new(word(0), word(8), word(16), word(24) as u32);
    let entry = post.bytes();
    assert_eq!(Post::parse(entry), Some(post));
    let mut bucket = input[..input.len() / entry.len() * entry.len()].to_vec();
    bucket.extend_from_slice(entry);
    assert_eq!(find(&bucket, post.key).map(|found| found.key), Some(post.key));
    // A damaged byte of what counts is noticed.
    let mut damaged = entry.to_vec();
    let at = word(24) as usize % 44;
    damaged[at] ^= 1 + (word(16) % 255) as u8;
    assert_eq!(Post::parse(&damaged), None);
});
