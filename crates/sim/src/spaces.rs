//! Two network namespaces of one host: the processes are in containers, say, and have the folder in
//! common where the library's ends meet (`sockets/src/rendezvous/meeting.rs`). Connections prove
//! themselves by how their writes are cut, which takes some hundred turns: so each begins with
//! short requests and answers, of a write each.
//!
//! In the kernel's model abstract names and sock_diag are of a namespace each; what they share is
//! the file system, memory that is passed on, and the TCP connections between them.

use std::ffi::CString;

use crate::plan::Turn;
use crate::world::World;

const FOLDER: &str = "/run/meeting";
/// So many turns mostly suffice for a proof and a link.
const TURNS: usize = 400;

/// This run is one with two namespaces.
pub fn begin(world: &mut World) {
    world.addresses = [0x0a00_0101, 0x0a00_0201];
    world.kernel.make_folder(FOLDER);
    world.spaces = true;
    if !world.once_in(8) {
        // A kernel that cuts segments as it likes lets no proof succeed.
        world.kernel.limits.partial = false;
        world.kernel.limits.delay = 0;
    }
}

pub fn environment() -> Vec<CString> {
    let folder = format!("SHUNT_MEETING={FOLDER}");
    ["SHUNT_PROMOTE_AFTER=2", "SHUNT_PROMOTE_RATE=0", "SHUNT_BOARD=/dev/shm/board", "SHUNT_LOG=none", &folder]
        .map(|text| CString::new(text).expect("no NUL inside"))
        .to_vec()
}

/// The turns that a connection begins with.
pub fn first_turns(world: &mut World) -> Vec<Turn> {
    let turn = |number: usize| Turn {
        writer: number % 2,
        len: 2 + world.below(60),
        whole: true,
        // Letters and links come between two turns.
        pauses: [i32::from(world.once_in(20)), 0],
        exchange: false,
        leaves: None,
    };
    (0..TURNS).map(turn).collect()
}
