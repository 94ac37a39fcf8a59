//! Waking when a peer on another host fires a tripwire.

use core::ffi::c_void;

use fabric::shm::Map;

use crate::cq::members::Bound;
use crate::handlers;
use crate::segment::{self, at, wake};

/// Everything that the tripwires of a connection wake, when a peer on another host fires them.
pub struct Watch {
    vi: usize,
    queues: [Option<Bound>; 2],
}

impl Watch {
    pub(crate) fn of(vi: *mut c_void, queues: [Option<Bound>; 2]) -> Watch {
        Watch { vi: vi.addr(), queues }
    }

    /// The tripwire at `offset` of `mine` was fired; it held `held`. Called under any lock.
    pub fn fired(&self, mine: &Map, offset: usize, held: u64) {
        let queue = match offset {
            at::TRIP => 0,
            at::COOKIE_TRIP => 1,
            // Nobody waits elsewhere.
            _ => return,
        };
        if held & wake::SLEEPERS != 0 {
            segment::wake_sleepers(mine, offset);
        }
        if held & wake::QUEUE != 0
            && let Some(bound) = &self.queues[queue]
            && bound.hint()
        {
            handlers::poll_later();
        }
        if held & wake::AGENT != 0 {
            self.kick();
        }
    }

    /// Has the library's thread check the Virtual Interface, and the messages of its peer.
    pub fn kick(&self) {
        handlers::kick(self.vi as *mut c_void);
    }
}
