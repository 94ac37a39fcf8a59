//! Models of the transfer queue and the cookie queue together: a sender and a receiver that has
//! room for fewer messages than are sent. Each has mutations that must fail;
//! `crates/fabric/tests/loom_trip.rs` says how models are run.
#![cfg(loom)]

use fabric::model::{Flaw, Flawed, RACE, Segment, check, must_fail};
use fabric::{Local, Remote};
use loom::thread;
use via::wire::*;

#[test]
fn messages_arrive_whole_and_in_order() {
    check(None, || scenario(|s| s.clone()));
}

#[test]
fn messages_need_the_senders_release() {
    must_fail(Some(3), RACE, || scenario(|s| Flawed(s.clone(), Flaw::PutRelaxed)));
}

#[test]
fn messages_need_the_acquires() {
    must_fail(Some(3), RACE, || scenario(|s| Flawed(s.clone(), Flaw::ReadRelaxed)));
}

/// Three messages of two bytes through queues of two entries: the second cookie needs more than the
/// first place, and the third message the slot of the first.
fn scenario<S: Local + Remote + Send + 'static>(open: fn(&Segment) -> S) {
    // The receiver's segment has the transfer queue, the sender's has the cookie queue.
    let receiver = Segment::new(3 * SLOTS, INLINE * SLOTS);
    let sender = Segment::new(2 * (1 + FEW + SLOTS), 0);
    let cookie = |i: u8| Cookie { room: 2, slot: u16::from(i % 2), scattered: i == 1, place: u64::from(i) };
    let transfer = |i: u8| {
        let immediate = Some(i.into());
        Transfer { kind: Kind::Inline, length: 2, immediate, continues: i == 1, place: 0 }
    };
    let (remote, local) = (open(&receiver), open(&sender));
    let thread = thread::spawn(move || {
        let (mut transfers, mut cookies) = (TransferWriter::default(), CookieReader::default());
        for i in 0..3u8 {
            let found = loop {
                match cookies.peek(&local, 0) {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(found, cookie(i));
            cookies.advance();
            // SAFETY: two bytes.
            unsafe { transfers.put(&remote, 0, found.slot, &transfer(i), [i, i + 10].as_ptr()) };
        }
    });
    let (local, remote) = (open(&receiver), open(&sender));
    let (mut transfers, mut cookies) = (TransferReader::default(), CookieWriter::default());
    for i in 0..2u8 {
        cookies.put(&remote, 0, &cookie(i), i.into());
    }
    for i in 0..3u8 {
        let slot = cookie(i).slot;
        let found = loop {
            match transfers.peek(&local, 0, slot).unwrap() {
                Some(found) => break found,
                None => thread::yield_now(),
            }
        };
        assert_eq!(found, transfer(i));
        let mut bytes = [0; 2];
        // SAFETY: two bytes.
        unsafe { transfers.copy(&local, 0, slot, 0, bytes.as_mut_ptr(), 2) };
        assert_eq!(bytes, [i, i + 10]);
        transfers.advance();
        if i == 0 {
            cookies.put(&remote, 0, &cookie(2), 1);
        }
    }
    thread.join().unwrap();
}
