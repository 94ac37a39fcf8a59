//! What a process gives up before it becomes a lesser one (another user, fewer rights, a namespace of its own). It may be taken over later, and
//! must not be able then to write what those read who are more: a child of fork() shares the home and the links of its parent. So what
//! is shared is changed for private memory at the same addresses (threads may still be looking there), and our descriptors are closed, as each leads back to
//! something shared.

use fabric::sync::{AtomicU32, Ordering};

use crate::table::{self, Entry};
use crate::{board, descriptors, far, home, link, process, rendezvous};

/// Whether the process has, or shares, anything of ours.
pub fn has_anything() -> bool {
    home::any() || link::any() || rendezvous::own_token() != 0
}

/// Whether the program has nothing that is followed: then it may begin anew as whom it becomes.
pub fn nothing_is_followed() -> bool {
    let followed = AtomicU32::new(0);
    table::for_each(|_, entry| {
        if matches!(entry, Entry::Conn(_) | Entry::Set(_)) {
            followed.store(1, Ordering::Relaxed);
        }
    });
    followed.load(Ordering::Relaxed) == 0
}

/// Gives all of it up. Its connections are on tcp by now; with none that is followed, it begins anew.
pub fn everything() {
    far::stop();
    rendezvous::renounce();
    link::renounce();
    home::renounce();
    process::renounce();
    board::renounce();
    descriptors::close_own();
}
