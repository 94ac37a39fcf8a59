//! The life of a connection between two processes, as ARCHITECTURE.md tells it ("A connection", "Sleeping and waking"): promote,
//! demote and recall of both directions, kicks on the companion, and either process dying between any two steps. Every state is
//! visited. Part of `make models`:
//!
//!     MODELS=full cargo test --release -p model -- --nocapture --test-threads=1
//!
//! With MODELS=full the two that visit every state of the whole protocol visit millions; else they take fewer bytes.
//!
//! The mutations are the same protocol with one rule left out; each must be found by the property named, which shows both that
//! the model can see and that the rule is needed. Read `paths/protocol.rs` first; every step there is one access to shared memory
//! or one system call of the real thing.

#[path = "paths/protocol.rs"]
mod protocol;

use protocol::{Protocol, Rule};
use stateright::{Checker, Model};

/// No byte lost, doubled, reordered; no kick taken for data nor data for a kick; nobody asleep while what they wait for is there.
#[test]
fn promote_and_demote_keep_every_byte_and_wake_every_sleeper() {
    if !full() {
        return sound(Protocol { bytes: [1, 1], ring: 1, ..Protocol::FULL });
    }
    sound(Protocol { bytes: [2, 2], ring: 1, ..Protocol::FULL });
    sound(Protocol { bytes: [3, 1], ring: 2, ..Protocol::FULL });
}

/// The other way to recall: the reader stops, and the writer sends what was not read again by tcp.
#[test]
fn a_recall_that_stops_the_reader_keeps_every_byte() {
    let bytes = if full() { [3, 1] } else { [2, 0] };
    sound(Protocol { bytes, ring: 2, stop: true, ..Protocol::FULL });
}

#[test]
fn demoting_wakes_before_it_announces() {
    caught(Rule::WakeBeforeAnnounce, "no byte wrong");
}

#[test]
fn demoting_recalls_before_it_wakes() {
    caught(Rule::RecallBeforeWake, "nobody sleeps for ever");
}

#[test]
fn demoting_recalls_the_other_direction() {
    caught(Rule::DemoteBoth, "nobody sleeps for ever");
}

#[test]
fn a_sleeper_looks_again_after_it_armed() {
    caught(Rule::LookAfterArm, "nobody sleeps for ever");
}

#[test]
fn kicking_implies_switching() {
    caught(Rule::SwitchBeforeKick, "no byte wrong");
}

#[test]
fn only_counted_kicks_are_eaten() {
    caught(Rule::EatCounted, "no byte wrong");
}

#[test]
fn a_reader_on_tcp_looks_at_the_announcement_between_peek_and_take() {
    caught(Rule::LookAfterPeek, "no byte wrong");
}

#[test]
fn the_rings_are_looked_at_again_after_the_kernel_said_end() {
    caught(Rule::LookAfterEnd, "the end comes after all bytes");
}

/// Not a rule but an assumption: if the companion can be too full for a kick, somebody sleeps for ever.
#[test]
fn the_companion_has_room_for_kicks() {
    caught(Rule::RoomForKicks, "nobody sleeps for ever");
}

#[test]
fn each_announcement_has_a_place_of_its_own() {
    caught(Rule::TwoAnnouncements, "no");
}

#[test]
fn what_a_dead_writer_did_not_send_again_is_taken_from_the_ring() {
    let broken =
        Protocol { bytes: [3, 1], ring: 2, stop: true, broken: Some(Rule::TakeUnsent), ..Protocol::FULL };
    find(broken, "the end comes after all bytes");
}

fn full() -> bool {
    std::env::var_os("MODELS").is_some_and(|form| form == "full")
}

fn sound(protocol: Protocol) {
    let began = std::time::Instant::now();
    let checker = protocol.clone().checker().threads(2).spawn_bfs().join();
    println!("{protocol:?}: {} states, {:?}", checker.unique_state_count(), began.elapsed());
    checker.assert_properties();
}

fn caught(rule: Rule, property: &str) {
    find(Protocol { broken: Some(rule), bytes: [3, 2], ring: 1, ..Protocol::FULL }, property);
}

fn find(protocol: Protocol, property: &str) {
    let rule = protocol.broken;
    let until = stateright::HasDiscoveries::AnyFailures;
    let checker = protocol.checker().threads(2).finish_when(until).spawn_bfs().join();
    let failed: Vec<_> =
        checker.discoveries().into_keys().filter(|name| !name.starts_with("reached")).collect();
    assert!(failed.iter().any(|name| name.starts_with(property)), "without {rule:?}: {failed:?}");
}
