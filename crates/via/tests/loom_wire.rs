//! Models of the transfer queue and the cookie queue together: a sender and a receiver who has room for fewer messages than are sent.
//! Each has mutations that must fail; `crates/fabric/tests/loom_trip.rs` tells how models are run.
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

/// Three messages of two bytes through queues of two entries: the third one needs a slot and a cookie that were used before.
fn scenario<S: Local + Remote + Send + 'static>(open: fn(&Segment) -> S) {
    // The receiver's segment has the transfer queue, the sender's has the cookie queue.
    let receiver = Segment::new(3 * SLOTS as usize, INLINE * SLOTS as usize);
    let sender = Segment::new(2 * SLOTS as usize, 0);
    let (remote, local) = (open(&receiver), open(&sender));
    let thread = thread::spawn(move || {
        let (mut transfers, mut cookies) = (TransferWriter::default(), CookieReader::default());
        for i in 0..3u8 {
            while cookies.look(&local, 0) != Some(Cookie { room: 2, scattered: false, place: u64::from(i) }) {
                thread::yield_now();
            }
            cookies.advance();
            let transfer = Transfer { kind: Kind::Inline, length: 2, immediate: Some(i.into()), place: 0 };
            // SAFETY: two bytes.
            unsafe { transfers.put(&remote, 0, &transfer, [i, i + 10].as_ptr()) };
        }
    });
    let (local, remote) = (open(&receiver), open(&sender));
    let (mut transfers, mut cookies) = (TransferReader::default(), CookieWriter::default());
    for i in 0..SLOTS {
        cookies.put(&remote, 0, &Cookie { room: 2, scattered: false, place: i });
    }
    for i in 0..3u8 {
        let transfer = loop {
            match transfers.look(&local, 0).unwrap() {
                Some(transfer) => break transfer,
                None => thread::yield_now(),
            }
        };
        assert_eq!(transfer, Transfer { kind: Kind::Inline, length: 2, immediate: Some(i.into()), place: 0 });
        let mut bytes = [0; 2];
        // SAFETY: two bytes.
        unsafe { transfers.copy(&local, 0, 0, bytes.as_mut_ptr(), 2) };
        assert_eq!(bytes, [i, i + 10]);
        transfers.advance();
        if i == 0 {
            cookies.put(&remote, 0, &Cookie { room: 2, scattered: false, place: SLOTS });
        }
    }
    thread.join().unwrap();
}
