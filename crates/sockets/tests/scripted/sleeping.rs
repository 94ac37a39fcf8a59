//! Calls that wait, each in a thread of its own: what they are armed for, and what ends them.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use fabric::trip::{BELL, KICK, MODE, QUEUE, RX, TX, WORD, id};
use libc::{EAGAIN, ECONNRESET, EPOLLIN, POLLIN, POLLOUT};
use sockets::layout::CALL_BELL;

use crate::end::{End, Reason, Set};
use crate::peer::Peer;
use crate::{on_rings, pair, until};

/// Runs `call`, which sleeps; when the library is armed for `interest`, `wake`.
fn asleep<T: Send>(
    peer: &mut Peer,
    interest: u64,
    call: impl FnOnce() -> T + Send,
    wake: impl FnOnce(&mut Peer, u64),
) -> T {
    asleep_by(peer, |armed| armed & interest != 0, call, wake)
}

/// The same, when it is armed in a certain way: who sleeps on the word sleeps otherwise soon.
fn asleep_by<T: Send>(
    peer: &mut Peer,
    how: impl Fn(u64) -> bool,
    call: impl FnOnce() -> T + Send,
    wake: impl FnOnce(&mut Peer, u64),
) -> T {
    thread::scope(|scope| {
        let caller = scope.spawn(call);
        until("it is armed", || how(peer.armed()));
        let armed = peer.armed();
        wake(peer, armed);
        caller.join().unwrap()
    })
}

#[test]
fn a_read_is_woken_by_a_kick_which_it_takes() {
    let (ours, mut peer) = on_rings();
    ours.has_no_bells();
    read_three_times(&ours, &mut peer, KICK);
    // The last one, too, if it came when the read was over.
    until("it is taken", || {
        ours.recv(1) == Err(EAGAIN) && fabric::sys::ioctl_int(ours.fd, libc::FIONREAD) == Ok(0)
    });
}

#[test]
fn a_read_is_woken_by_its_bell() {
    let (ours, mut peer) = on_rings();
    read_three_times(&ours, &mut peer, BELL);
}

fn read_three_times(ours: &End, peer: &mut Peer, mode: u64) {
    for _ in 0..3 {
        let got = asleep_by(
            peer,
            |armed| (armed & MODE, armed & (RX | TX)) == (mode, RX),
            || ours.recv_with(9, 0),
            |peer, _| {
                peer.write(b"ring");
                peer.fire();
            },
        );
        assert_eq!(got, Ok(b"ring".to_vec()));
    }
}

#[test]
fn who_begins_to_wait_sleeps_on_the_word() {
    let (ours, mut peer) = on_rings();
    for by_poll in [false, true] {
        let call = || if by_poll { ours.poll_for(POLLIN, None) != POLLIN } else { false };
        let got = asleep_by(
            &mut peer,
            |armed| armed & (MODE | WORD | RX | TX) == WORD | RX,
            || call() || ours.recv_with(9, 0) != Ok(b"ring".to_vec()),
            |peer, _| {
                peer.write(b"ring");
                peer.fire();
            },
        );
        assert!(!got && fabric::sys::ioctl_int(ours.fd, libc::FIONREAD) == Ok(0));
    }
}

#[test]
fn one_that_sleeps_on_the_word_and_one_beside_it_are_woken_together() {
    let (ours, mut peer) = on_rings();
    for _ in 0..50 {
        let got = asleep_by(
            &mut peer,
            |armed| armed & (WORD | RX) == WORD | RX,
            || {
                thread::scope(|scope| {
                    let other = scope.spawn(|| ours.recv_with(1, 0));
                    [ours.recv_with(1, 0).unwrap(), other.join().unwrap().unwrap()].concat()
                })
            },
            |peer, _| {
                peer.write(b"aa");
                peer.fire();
            },
        );
        assert_eq!(got, b"aa");
    }
}

#[test]
fn who_sleeps_on_the_word_is_told_that_the_peer_exits() {
    let (ours, mut peer) = on_rings();
    let got = asleep_by(
        &mut peer,
        |armed| armed & WORD != 0,
        || ours.recv_with(9, 0),
        |peer, _| {
            peer.tell(sockets::layout::note::ENDING);
            peer.fire();
            until("it asks the kernel", || peer.armed() & MODE == BELL);
            peer.die();
        },
    );
    assert_eq!(got, Ok(vec![]));
}

#[test]
fn who_looks_whether_a_wake_up_is_owed_sees_that_the_peer_is_killed_before_it() {
    let (ours, mut peer) = on_rings();
    let _checks = ours.check_sleepers();
    let mut killed = None;
    let got = asleep_by(
        &mut peer,
        |armed| armed & WORD != 0,
        || (ours.recv_with(9, 0), Instant::now()),
        |peer, _| {
            peer.write(b"ring");
            // Longer than one sleeps on the word, less than the peer has for the wake-up.
            thread::sleep(Duration::from_millis(100));
            killed = Some(Instant::now());
            peer.die();
        },
    );
    assert_eq!(got.0, Ok(b"ring".to_vec()));
    assert!(got.1 - killed.unwrap() < Duration::from_secs(1), "it waited for who is not there any more");
}

#[test]
fn who_arms_a_slot_that_is_anothers_by_now_leaves_its_sleeper_awake() {
    let (ours, mut peer) = on_rings();
    let (late, _tcp) = ours.beside();
    let set = Set::of(&ours, EPOLLIN);
    let got = asleep_by(
        &mut peer,
        |armed| armed & MODE == QUEUE,
        || set.wait(Some(5_000_000_000)),
        |peer, _| {
            late.waits_on_the_slot_of(&ours);
            peer.write(b"ring");
            peer.fire();
        },
    );
    assert_eq!(got, EPOLLIN);
}

#[test]
fn a_read_sleeps_on_where_it_is_woken_for_nothing() {
    let (ours, mut peer) = on_rings();
    let got = asleep(
        &mut peer,
        RX,
        || ours.recv_with(9, 0),
        |peer, _| {
            peer.fire();
            until("it is armed again", || peer.armed() != 0);
            peer.write(b"ring");
            peer.fire();
        },
    );
    assert_eq!(got, Ok(b"ring".to_vec()));
}

#[test]
fn a_read_that_sleeps_on_tcp_finds_the_ring() {
    let (ours, mut peer) = pair();
    let got = asleep(
        &mut peer,
        RX,
        || ours.recv_with(9, 0),
        |peer, _| {
            peer.announce();
            peer.write(b"ring");
            peer.fire();
        },
    );
    assert_eq!(got, Ok(b"ring".to_vec()));
}

#[test]
fn a_read_that_sleeps_beside_the_ring_goes_on_by_tcp() {
    let (ours, mut peer) = on_rings();
    let got = asleep(
        &mut peer,
        RX,
        || ours.recv_with(9, 0),
        |peer, _| {
            peer.fire();
            peer.leave();
            peer.by_tcp(b"tcp");
        },
    );
    assert_eq!(got, Ok(b"tcp".to_vec()));
}

#[test]
fn a_read_that_sleeps_is_told_of_the_end() {
    let (ours, mut peer) = on_rings();
    assert_eq!(asleep(&mut peer, RX, || ours.recv_with(9, 0), |peer, _| peer.die()), Ok(vec![]));
}

#[test]
fn a_read_that_sleeps_is_told_of_a_reset() {
    let (ours, mut peer) = on_rings();
    let got = asleep(
        &mut peer,
        RX,
        || ours.recv_with(9, 0),
        |peer, _| {
            peer.tell(sockets::layout::note::CLOSED);
            peer.reset();
        },
    );
    assert_eq!(got, Err(ECONNRESET));
}

#[test]
fn a_read_that_wants_all_waits_for_all() {
    let (ours, mut peer) = on_rings();
    peer.write(b"first, ");
    let got = asleep(
        &mut peer,
        RX,
        || ours.recv_with(11, libc::MSG_WAITALL),
        |peer, _| {
            peer.write(b"last");
            peer.fire();
        },
    );
    assert_eq!(got, Ok(b"first, last".to_vec()));
}

#[test]
fn a_write_that_finds_no_room_is_woken_when_there_is_some() {
    let (ours, mut peer) = on_rings();
    while ours.send(&[1; 1000]).is_ok_and(|count| count == 1000) {}
    let sent = asleep(
        &mut peer,
        TX,
        || ours.send_with(b"more", libc::MSG_NOSIGNAL),
        |peer, _| {
            peer.read();
            peer.fire();
        },
    );
    assert_eq!(sent, Ok(4));
    // After 20 ms it goes on by tcp: that may be before this thread has a processor.
    match ours.is_because(Reason::Stalled) {
        false => assert_eq!(peer.read(), b"more"),
        true => peer.take_tcp(b"more"),
    }
}

#[test]
fn a_write_to_a_reader_that_does_not_read_goes_on_by_tcp() {
    let (ours, mut peer) = on_rings();
    let mut all = 0;
    while let Ok(count) = ours.send(&[1; 1000]) {
        all += count;
    }
    assert_eq!(ours.send_with(b"more", libc::MSG_NOSIGNAL), Ok(4));
    assert!(ours.is_because(Reason::Stalled) && peer.read().len() == all);
    peer.take_tcp(b"more");
}

#[test]
fn a_poll_is_woken_by_the_bell_of_calls() {
    let (ours, mut peer) = on_rings();
    let told = asleep_by(
        &mut peer,
        |armed| (armed & MODE, usize::from(id(armed))) == (BELL, CALL_BELL),
        || ours.poll_for(POLLIN, None),
        |peer, _| {
            peer.write(b"ring");
            peer.fire();
        },
    );
    assert_eq!((told, fabric::sys::ioctl_int(ours.fd, libc::FIONREAD)), (POLLIN, Ok(0)));
}

#[test]
fn a_poll_for_room_is_armed_for_that_too() {
    for room in [POLLOUT, libc::POLLWRNORM] {
        let (ours, mut peer) = on_rings();
        while ours.send(&[1; 1000]).is_ok_and(|count| count == 1000) {}
        let told = asleep(
            &mut peer,
            TX,
            || ours.poll_for(POLLIN | room, None),
            |peer, armed| {
                assert_eq!(armed & (RX | TX), RX | TX);
                peer.read();
                peer.fire();
            },
        );
        assert_eq!(told, room);
    }
}

#[test]
fn a_poll_is_told_of_the_end_by_the_kernel() {
    let (ours, mut peer) = on_rings();
    let told = asleep(&mut peer, RX, || ours.poll_for(POLLIN, None), |peer, _| peer.die());
    assert_eq!(told, POLLIN);
}

#[test]
fn a_set_is_woken_by_a_hint_and_its_queues_bell() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN);
    for _ in 0..2 {
        let told = asleep(
            &mut peer,
            RX,
            || set.wait(None),
            |peer, armed| {
                assert_eq!((armed & MODE, id(armed)), (QUEUE, 0));
                peer.write(b"ring");
                peer.fire();
            },
        );
        assert_eq!((told, ours.recv(9)), (EPOLLIN, Ok(b"ring".to_vec())));
    }
}

#[test]
fn what_came_by_tcp_first_is_told_first_even_after_a_bell_that_was_late() {
    let (ours, mut peer) = on_rings();
    let (on_tcp, tcp) = ours.beside();
    // On a busy machine the bell may be so late that it is not waited for.
    let in_time = (0..20).any(|_| {
        let set = Set::of(&ours, EPOLLIN);
        set.control(libc::EPOLL_CTL_ADD, &on_tcp, EPOLLIN);
        assert_eq!(set.told(), 0);
        // The peer is held up between the hint, which is seen at once, and the bell.
        let begin = Instant::now();
        peer.write(b"1");
        let how = peer.claim();
        assert_eq!(how & MODE, BELL);
        let bell = thread::scope(|scope| {
            let late = scope.spawn(|| {
                thread::sleep(Duration::from_millis(2));
                peer.carry_out(how);
                begin.elapsed()
            });
            assert_eq!(set.all(Some(0)), [(ours.fd, EPOLLIN)]);
            assert_eq!((ours.recv(9), set.told()), (Ok(b"1".to_vec()), 0));
            late.join().unwrap()
        });
        (&tcp).write_all(b"2").unwrap();
        until("it is there", || on_tcp.poll(POLLIN) == POLLIN);
        peer.write(b"3");
        peer.fire();
        let told = set.all(Some(0));
        assert_eq!((on_tcp.recv(9), ours.recv(9)), (Ok(b"2".to_vec()), Ok(b"3".to_vec())));
        if bell > Duration::from_millis(8) {
            return false;
        }
        assert_eq!(told, [(on_tcp.fd, EPOLLIN), (ours.fd, EPOLLIN)]);
        true
    });
    assert!(in_time);
}

#[test]
fn two_that_sleep_are_woken_by_one_kick() {
    let (ours, mut peer) = on_rings();
    let (first, second) = asleep(
        &mut peer,
        RX,
        || {
            thread::scope(|scope| {
                let other = scope.spawn(|| ours.recv_with(1, 0));
                (ours.recv_with(1, 0), other.join().unwrap())
            })
        },
        |peer, _| {
            until("both sleep", || ours.sleepers() == 2);
            peer.write(b"ab");
            peer.fire();
        },
    );
    let mut got = [first.unwrap(), second.unwrap()].concat();
    got.sort();
    assert_eq!((got, ours.recv(9)), (b"ab".to_vec(), Err(libc::EAGAIN)));
}
