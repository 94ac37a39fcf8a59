//! A slot that a connection has done with, and leaves once it has another one or is free.

use fabric::shm::Map;

use super::entry::Link;
use crate::conn::{Conn, Held, Rx, Tx, flag};
use crate::layout::{self, note};
use crate::{peering, report};

/// A slot that a connection has done with.
pub(crate) struct Former {
    link: &'static Link,
    slot: usize,
    mine: Map,
    discard: bool,
    /// The big ring that it has read from, if it has.
    big: Option<usize>,
    via: bool,
    moved: (u64, u64),
}

impl Former {
    /// The one that it has: under the locks of both directions.
    pub(crate) fn of(conn: &Conn, tx: &Held<'_, Tx>, rx: &Held<'_, Rx>) -> Former {
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
            moved: (tx.ring.position(), rx.ring.position()),
        }
    }

    /// Leaves it, for good: when the connection has another one, or is free.
    pub(crate) fn leave(self) {
        report::add(report::at::RING_OUT, self.moved.0);
        report::add(report::at::RING_IN, self.moved.1);
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
