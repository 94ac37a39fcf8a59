//! Models of the outbox: its work requests are carried out once, in each poster's order, also when
//! the ring of entries wraps; and its server, which sleeps when there is nothing, is woken. Run by
//! `make models`.
#![cfg(loom)]

use fabric::model::{ASLEEP, Bell, check, must_fail, sleep};
use fabric::outbox::{Doorbell, ENTRIES, Outbox, WorkRequest};
use loom::thread;
use std::sync::Arc;

fn request(who: u64, round: u64) -> WorkRequest {
    WorkRequest { what: who, at: round, value: who ^ round }
}

#[test]
fn what_is_posted_is_done_once_and_in_order() {
    check(Some(2), || {
        let outbox = Arc::new(Outbox::new());
        // It is full: posters now wait for room, and reuse entries.
        for round in 0..ENTRIES {
            assert!(outbox.post(request(0, round), || panic!("there is room")));
        }
        let server = {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || {
                (0..ENTRIES).map(|_| outbox.take().expect("they are there")).collect::<Vec<_>>()
            })
        };
        let poster = {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || {
                for round in 0..ENTRIES {
                    assert!(outbox.post(request(1, round), thread::yield_now));
                }
            })
        };
        let done = server.join().unwrap();
        assert_eq!(done, (0..ENTRIES).map(|round| request(0, round)).collect::<Vec<_>>());
        poster.join().unwrap();
        let rest: Vec<_> = std::iter::from_fn(|| outbox.take()).collect();
        assert_eq!(rest, (0..ENTRIES).map(|round| request(1, round)).collect::<Vec<_>>());
        assert_eq!(outbox.stuck(), None);
    });
}

#[test]
fn who_sleeps_is_woken() {
    check(Some(3), || sleeping(Doorbell::arm, Doorbell::must_ring));
}

#[test]
fn the_server_must_look_again_when_it_is_armed() {
    must_fail(Some(3), ASLEEP, || sleeping(|_| (), Doorbell::must_ring));
}

fn sleeping(arm: fn(&Doorbell), must_ring: fn(&Doorbell) -> bool) {
    let (outbox, doorbell) = (Arc::new(Outbox::new()), Arc::new(Doorbell::new()));
    let server = {
        let (outbox, doorbell) = (Arc::clone(&outbox), Arc::clone(&doorbell));
        thread::spawn(move || {
            let mut left = 2;
            while left > 0 {
                if outbox.take().is_some() {
                    left -= 1;
                    continue;
                }
                arm(&doorbell);
                match outbox.take() {
                    Some(_) => left -= 1,
                    None => sleep(),
                }
                doorbell.disarm();
            }
        })
    };
    let bell = Arc::new(Bell::of(&server));
    let posters = [1, 2].map(|who| {
        let (outbox, doorbell, bell) = (Arc::clone(&outbox), Arc::clone(&doorbell), Arc::clone(&bell));
        thread::spawn(move || {
            assert!(outbox.post(request(who, 0), thread::yield_now));
            if must_ring(&doorbell) {
                bell.ring();
            }
        })
    });
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    server.join().unwrap();
}
