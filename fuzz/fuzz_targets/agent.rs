//! What processes and agents say to an agent: whatever bytes come, they are understood and said again as they were, or refused.
#![no_main]

use cluster::wire::{Between, FromAgent, MOST, Message as _, ToAgent};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(message) = ToAgent::parse(bytes) {
        assert_eq!(message.bytes(), bytes);
        assert!(bytes.len() <= MOST);
    }
    if let Some(message) = FromAgent::parse(bytes) {
        assert_eq!(message.bytes(), bytes);
    }
    if let Some(message) = Between::parse(bytes) {
        assert_eq!(message.bytes(), bytes);
        assert!(bytes.len() <= MOST);
    }
});
