"""The mends of the library that tests/taken_out.py takes out, one after the other: what was wrong once, the commit that mended it, how it was
found if that is known, a place of the source, and what stood there before, or is as wrong as that.

Each was a race, a lost wake-up, or an order that hardly ever occurs. The simulator finds each within some 10,000 seeds, a minute on one processor;
where it does not, `test` names a test that does.
Rules of the path machine have no entry: scripts/sim.sh switches them off by name (`rules`).

Whoever moves or changes such a place changes its entry: scripts/check-habits.sh looks whether each is found.
"""

from typing import NamedTuple


class Mend(NamedTuple):
    #: What was wrong.
    wrong: str
    #: The commit that mended it.
    commit: str
    #: How it was found; empty if the commit does not say so.
    found: str
    #: Below crates/.
    file: str
    #: What stands there, once.
    old: str
    #: What stands there with the mend taken out.
    new: str
    #: It shows only between two hosts, or in two network namespaces.
    hosts: bool = False
    spaces: bool = False
    #: A test of the crate that fails without, where no seed does: what it takes is too rare.
    test: str = ""


MENDS = {
    "ask_again": Mend(
        "poll() slept where another thread was taking the answer to an offer", "86e0993",
        "the soak: with three others, 1 of 7,000 connections hung", "sockets/src/poll.rs",
        "Some(ready::AGAIN) => sys::yield_now(),",
        "Some(ready::AGAIN) => return Some(0),"),
    "wish_while_offered": Mend(
        "a connection that was promoted just now did not go back to tcp", "b205ceb",
        "the soak stood still after 20,000 connections; then make perturb after 3,000 and 6,000", "sockets/src/rendezvous/agreement.rs",
        "if agreed(conn) { return false; } stop(conn, reason);",
        "if conn.state() == state::PROMOTED { return false; } stop(conn, reason);"),
    "once_in_call": Mend(
        "a call told of an edge-triggered member twice, which the program had freed by then", "9668350",
        "the soak with threads held up (make perturb)", "sockets/src/epoll/candidates.rs",
        "if call.is_some_and(|call| member.told >= call) {",
        "if call.is_some_and(|call| member.told > call) {"),
    "short_reads": Mend(
        "a read was short where the path changes, although there was more, and who polls for edges slept", "ab2022f",
        "HAProxy's own tests: 129 of 300 runs", "sockets/src/io/recv.rs",
        "if self.rest.skip == self.want || !self.wants_all() && !turns {",
        "if self.rest.skip == self.want || !self.wants_all() {"),
    "recalled_awaited": Mend(
        "what was readable before one of two numbers was closed was not readable for a moment after it", "ca9f532",
        "random programs for sets, seed 8944, once in a full run of CI", "sockets/src/handover.rs",
        "if matches!(handed, Handed::Whole) { await_recalled(conn, fd);",
        "if matches!(handed, Handed::Whole) { let _ = await_recalled;"),
    "known_number": Mend(
        "a set was given a member anew whose number had been closed and taken again, which it still had", "30bce0a",
        "random programs for sets", "sockets/src/epoll/control.rs",
        "sys::epoll_ctl(set, op, fd, 0, data)?; let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);",
        ""),
    "states_tried": Mend(
        "who had the lock of an epoll set waited for the lock on states, whose holder waited for the set's", "d6a5306",
        "", "sockets/src/rendezvous/agreement.rs",
        "let Some(_states) = States::try_lock() else {",
        "let Some(_states) = Some(States::lock()) else {"),
    "looked_before": Mend(
        "what came by tcp behind the announcement of a ring was taken for bytes before it", "911b9e9",
        "", "sockets/src/io/companion.rs",
        "if conn.word(SMALL_AT) != 0 { return Early::Announced; } if waiting > 0 {",
        "if waiting > 0 {"),
    "poll_before": Mend(
        "poll() slept beside what came while it looked", "06dc2e6",
        "", "sockets/src/poll.rs",
        "let seen = fingerprint(fds); let found = survey(fds, scratch.polls());",
        "let found = survey(fds, scratch.polls()); let seen = fingerprint(fds);"),
    "level_again": Mend(
        "a set slept beside what came between its look at a member and its arming", "06dc2e6",
        "", "sockets/src/epoll/candidates.rs",
        "Some(0) => { arm_member(conn, interest); ready::events(conn, fd, want) }",
        "Some(0) => { arm_member(conn, interest); Some(0) }"),
    "edges_armed": Mend(
        "the same of an edge-triggered member", "93caec4",
        "", "sockets/src/epoll/candidates.rs",
        "arm_member(conn, if room { trip::RX | trip::TX } else { trip::RX }); let seen = conn.word(W); let got = match ready::events(conn, fd, want) {",
        "let seen = conn.word(W); let looked = ready::events(conn, fd, want); "
        "arm_member(conn, if room { trip::RX | trip::TX } else { trip::RX }); let got = match looked {"),
    "adopt_first": Mend(
        "a peer used the ring before the epoll set of the connection knew of it", "1de0203",
        "", "sockets/src/rendezvous/pairing.rs",
        "epoll::adopt(conn); if conn.state() != state::OFFERED {",
        "if conn.state() != state::OFFERED {"),
    "in_kernel": Mend(
        "a connection moved to memory while a thread slept on it in the kernel's poll()", "1de0203",
        "", "sockets/src/poll.rs",
        "polled.entered[polled.count].write(entered); polled.count += 1;",
        "drop(entered);"),
    "path_advanced": Mend(
        "readiness was asked of the path that a reader had come to the end of", "0d176fe",
        "", "sockets/src/ready.rs",
        "reader::progress(conn, fd, &mut rx); self.ring = path::is_ring",
        "self.ring = path::is_ring"),
    "sent_on": Mend(
        "recalled bytes were not sent on by a program that waited for something to read", "c4fc3c3",
        "the simulator", "sockets/src/wait.rs",
        "if conn.tx.path() == path::RESEND && !peering::facts(conn).uses_records { return beside_unsent(conn, number, seen); }",
        "let _ = beside_unsent;",
        test="recalling::one_that_waits_to_read_sends_what_found_no_room"),
    "untold_at_death": Mend(
        "between hosts the end came to one that still read by tcp, whose killed peer had changed over", "68199d2",
        "the simulator", "sockets/src/io/companion.rs",
        "Some(told(conn, rx, got)) } /// What can be read",
        "Some(Attempt::of(got)) } /// What can be read", hosts=True),
    "edge_at_cut": Mend(
        "a set did not tell again of an end whose reason was known only when the link was found over", "0143bd3",
        "the simulator", "sockets/src/epoll/candidates.rs",
        "& (ends | flag::CUT)",
        "& ends",
        test="readiness::a_set_tells_again_of_an_end_whose_link_is_over"),
    "told_moved": Mend(
        "epoll_wait() told twice of a member that another thread moved to memory meanwhile", "48ca82d",
        "the simulator", "sockets/src/epoll/members.rs",
        "place.told = self.calls.load(Ordering::Relaxed);",
        ""),
    "agreement_echoed": Mend(
        "between hosts one that had offered wrote to the ring before its peer knew of that, and was killed", "da90942",
        "the simulator", "sockets/src/peering/remote.rs",
        "has_agreed(wire, conn) && wire.has_echoed(conn.agreement.load(Ordering::Acquire))",
        "has_agreed(wire, conn)", hosts=True),
    "what_has_come": Mend(
        "bytes that had been told to be readable were not any more when the link between hosts died", "a2c4b9e",
        "the simulator", "sockets/src/path/claim.rs",
        "if sleeps || recalled { read } else { come }",
        "{ let _ = (come, sleeps, recalled); read }",
        test="what_has_come_before_a_link_ended_stays_readable_unless_somebody_sleeps"),
    "kicks_known": Mend(
        "between hosts kicks were sent of which the peer never heard, as the link died", "b92b6a0",
        "the simulator", "sockets/src/wake/fire.rs",
        "let unknown = tx.kicks_sent.saturating_sub(known);",
        "let unknown = 0; let _ = known;",
        test="no_kick_is_sent_of_which_the_peer_does_not_know"),
    "last_record": Mend(
        "between hosts a reset was told where an END came to a peer that was closing", "223f796",
        "the simulator", "sockets/src/close.rs",
        "peering::settle(conn); last_record(conn, fd, &mut tx, &mut rx, sys::now());",
        "peering::settle(conn); let _ = last_record;", hosts=True),
    "handlers_counted": Mend(
        "a handler that ran between the end of a short sleep and the next did not end the call", "4f8e45c",
        "an example of the tests on a busy machine, which then stood still in one of two runs", "sockets/src/signals.rs",
        "if handlers_run().0 != self.run { return Err(Errno::EINTR); }",
        "let _ = self.run;"),
    "past_progress": Mend(
        "between hosts the end of a process was a reset where its progress thread was just at work", "9b4e43f",
        "CI, once: an example that exits in the middle of moves", "sockets/src/peering/wire.rs",
        "let may_come = holder == 0 || is_progress(holder);",
        "let may_come = false; let _ = holder;", hosts=True),
    "kicks_at_exit": Mend(
        "the end of a process that had left a kick unread was a reset", "9b4e43f",
        "the simulator, when its programs ended without close()", "sockets/src/fork.rs",
        "close::all_kicks_at_exit();",
        "let _ = close::all_kicks_at_exit;"),
    "room_for_recalled": Mend(
        "what was recalled and did not fit into the send buffer was sent by the writer's next call, or never", "d45266b",
        "the simulator, seed 285103", "sockets/src/small_buffers.rs",
        "self.room = Room::make(self.fd, self.left);",
        "let _ = Room::make;",
        test="recalling::it_is_sent_at_once_whatever_the_send_buffer_is"),
    "stand_in_goes": Mend(
        "a member of an epoll set whose number stood for it again was told of twice", "1bbfbb6",
        "the simulator, seed 110032", "sockets/src/epoll/control.rs",
        "standin::drop_stand_in(conn, set, fd);",
        "let _ = standin::drop_stand_in;",
        test="readiness::a_member_whose_number_stands_for_it_again_is_told_of_once"),
    "reset_left": Mend(
        "a reset that came behind bytes of a read was lost", "2855c81",
        "the simulator", "sockets/src/io/recv.rs",
        "conn.clear(flag::RESET_TOLD);",
        "",
        test="ending::a_read_that_waits_for_all_leaves_the_reset_to_the_next"),
    "record_held": Mend(
        "between hosts the beginning of a record was read as bytes of the stream, where a byte like its first had been held before", "06d5d9d",
        "the simulator", "sockets/src/peering/records.rs",
        "if held.0 != place {",
        "if held.0 == 0 {",
        test="a_byte_that_was_held_says_nothing_of_the_next"),
    "read_twice": Mend(
        "between hosts a link that died under a half closed end was a reset, or held up a close() for seconds", "90678b7",
        "the simulator, seeds 303422 and 277653", "sockets/src/peering/records.rs",
        "conn.again.store(again, Ordering::Relaxed);",
        "", hosts=True),
    "kick_behind_ring": Mend(
        "a close() was a reset where the kick that woke its reader by tcp came with the ring's announcement", "a333075",
        "the simulator, seed 839 between hosts", "sockets/src/path/closing.rs",
        "Reads::Ring | Reads::Tcp => End::TakeKicks,\n            Reads::Last => End::ByKernel,",
        "Reads::Ring => End::TakeKicks,\n            Reads::Tcp | Reads::Last => End::ByKernel,",
        test="unread_bytes_reset_and_nothing_else_does"),
    "wait_without_slot": Mend(
        "a write that the kernel took in part ended the program while the ends of its connection proved themselves", "48e1ac7",
        "the simulator, seed 1 in two network namespaces", "sockets/src/wait.rs",
        "return kernel_writable(conn, fd, sleeps); } let seen = Seen::now(conn);",
        "let _ = Seen::now(conn); return kernel_writable(conn, fd, sleeps); } let seen = Seen::now(conn);", spaces=True),
    "idle_writer": Mend(
        "between hosts what a dead link had lost did not come as long as its writer's program was idle", "391d738",
        "a review", "sockets/src/peering/progress.rs",
        "path::SMALL | path::BIG if cut => demote::leave_what_is_over(conn, &mut tx),",
        "", hosts=True),
}
