//! A slot that a connection has done with, and leaves once it has another one or is free.

use fabric::shm::Map;

use super::entry::Link;
use crate::conn::{Conn, Held, Rx, Tx, flag};
use crate::layout::{self, note};
use crate::peering;

/// A slot that a connection has done with.
pub(crate) struct Former {
    link: &'static Link,
    slot: usize,
    mine: Map,
    discard: bool,
    /// The big ring that it has read from, if it has.
    big: Option<usize>,
    via: bool,
}

impl Former {
    /// The one that it has: under the locks of both directions.
    pub(crate) fn of(conn: &Conn, _tx: &Held<'_, Tx>, _rx: &Held<'_, Rx>) -> Former {
        conn.count_moved();
        conn.counters.forget_moved();
        // The peer sends what we have recalled from where it lies, in our segment: perhaps it has
        // not done so yet.
        let wanted = conn.has(flag::RECALLED) && conn.notes() & note::CLOSED == 0;
        let grew = conn.word(layout::BIG_AT) != 0;
        Former {
            link: conn.link(),
            slot: conn.slot(),
            mine: conn.mine(),
            // What is registered with a network stays where it is.
            discard: grew && !wanted && peering::facts(conn).shares_memory,
            via: conn.is_via(),
            big: grew.then(|| conn.big_ring()),
        }
    }

    /// Leaves it, for good: when the connection has another one, or is free.
    pub(crate) fn leave(self) {
        if self.discard {
            self.mine.discard(layout::small(self.slot), layout::SMALL);
            if self.via {
                self.mine.discard(layout::via(self.slot), layout::VIA);
            }
            if let Some(big) = self.big {
                self.mine.discard(big, layout::BIG);
            }
        }
        self.link.leave_slot(self.slot);
    }
}
