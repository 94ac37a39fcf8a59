//! The life of a connection between two processes, as ARCHITECTURE.md tells it ("A connection's
//! life", "Sleeping and waking"): promote, demote and recall of both directions, kicks on the
//! companion, and either process dying between any two steps. Every state is visited. Part of
//! `make models`:
//!
//!     MODELS=full cargo test --release -p model paths -- --nocapture --test-threads=1
//!
//! With MODELS=full the two that visit every state of the whole protocol visit millions; else they
//! take fewer bytes.
//!
//! The mutations are the same protocol with one rule left out; each must be found by the property
//! named, which shows both that the model can see and that the rule is needed. Read
//! `paths/protocol.rs` first; every step there is one access to shared memory or one system call of
//! the real thing.

mod protocol;

use super::sound;
use crate::library::rules;
use protocol::{Protocol, Rule};

/// No byte lost, doubled, reordered; no kick taken for data nor data for a kick; nobody asleep
/// while what they wait for is there.
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
    caught(Rule::Of(rules::Rule::WakeBeforeAnnounce), "nobody sleeps for ever");
}

#[test]
fn demoting_tells_before_it_wakes() {
    caught(Rule::Of(rules::Rule::TellBeforeWake), "nobody sleeps for ever");
}

#[test]
fn demoting_asks_the_peer_to_do_the_same() {
    caught(Rule::Of(rules::Rule::AskToo), "nobody sleeps for ever");
}

#[test]
fn who_waits_beside_a_recall_only_naps() {
    stopping(rules::Rule::NapBesideRecall, "nobody sleeps for ever");
}

#[test]
fn what_a_dead_writer_did_not_send_of_a_recall_is_read_in_the_ring() {
    stopping(rules::Rule::RestOfTheDead, "the end comes after all bytes");
}

#[test]
fn a_recall_that_crosses_an_announcement_is_void() {
    stopping(rules::Rule::CrossedIsVoid, "no");
}

#[test]
fn a_sleeper_looks_again_after_it_armed() {
    caught(Rule::LookAfterArm, "nobody sleeps for ever");
}

#[test]
fn kicking_implies_switching() {
    caught(Rule::Of(rules::Rule::SwitchBeforeKick), "no byte wrong");
}

#[test]
fn only_counted_kicks_are_eaten() {
    caught(Rule::Of(rules::Rule::CountedKicks), "no byte wrong");
}

#[test]
fn a_reader_goes_on_by_tcp_only_behind_the_last_kick() {
    caught(Rule::Of(rules::Rule::KicksFirst), "no byte wrong");
}

#[test]
fn a_reader_on_tcp_looks_at_the_announcement_between_peek_and_take() {
    caught(Rule::LookAfterPeek, "no byte wrong");
}

#[test]
fn the_rings_are_looked_at_again_after_the_kernel_said_end() {
    caught(Rule::Of(rules::Rule::LookAfterEnd), "the end comes after all bytes");
}

/// Not a rule but an assumption: if the companion can be too full for a kick, somebody sleeps for
/// ever.
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
    let broken = Some(Rule::Of(rules::Rule::UnsentOfTheDead));
    find(
        Protocol { bytes: [3, 1], ring: 2, stop: true, broken, ..Protocol::FULL },
        "the end comes after all bytes",
    );
}

fn full() -> bool {
    std::env::var_os("MODELS").is_some_and(|form| form == "full")
}

fn caught(rule: Rule, property: &str) {
    find(Protocol { broken: Some(rule), bytes: [3, 2], ring: 1, ..Protocol::FULL }, property);
}

/// As [`caught`], where readers recall by stopping.
fn stopping(rule: rules::Rule, property: &str) {
    let broken = Some(Rule::Of(rule));
    find(Protocol { bytes: [2, 0], ring: 2, stop: true, broken, ..Protocol::FULL }, property);
}

fn find(protocol: Protocol, property: &str) {
    super::caught(protocol.broken, protocol, property);
}
