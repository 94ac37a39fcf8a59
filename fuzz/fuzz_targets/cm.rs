//! What Virtual Interfaces of different hosts say to each other when they meet: whatever bytes come, they are understood and said again as they were, or refused.
#![no_main]

use cluster::wire::{MOST, Message as _};
use cm::Handshake;
use libfuzzer_sys::fuzz_target;
use via::connect::understood;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = understood(bytes) {
        assert_eq!(hello, bytes);
    }
    if let Some(handshake) = Handshake::parse(bytes) {
        assert_eq!(handshake.bytes(), bytes);
        assert!(bytes.len() <= MOST);
        if let Some(hello) = understood(&handshake.hello) {
            assert_eq!(hello, handshake.hello);
        }
    }
});
