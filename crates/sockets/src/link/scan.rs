//! Looking through all links for what event queues are told of.

use fabric::Local;
use fabric::hints;
use fabric::shm::Map;
use fabric::sync::Ordering;

use super::entry::Link;
use super::registry::{Scan, each as links, link};
use crate::conn::Conn;
use crate::layout::{self, SLOTS};
use crate::peering;

impl Scan {
    /// Takes the hints of event queue `queue` from all links and gives each connection to `each`,
    /// with when its hint was set.
    pub fn take(&self, queue: usize, mut each: impl FnMut(&'static Conn, u64)) {
        self.each_link(queue, |link, mine, base| {
            let header = |slot| mine.foresee(layout::slot(slot));
            hints::take(&mine, base, header, |slot| {
                if let Some(conn) = link.conn(slot) {
                    each(conn, mine.word(layout::slot(slot) + layout::HINTED));
                }
            });
        });
    }

    /// Whether any link has a hint for event queue `queue`.
    pub fn any(&self, queue: usize) -> bool {
        let mut any = false;
        self.each_link(queue, |_, mine, base| any |= hints::any(&mine, base));
        any
    }

    /// Calls `each` for the connections on one link between processes of this host, if the link is
    /// this process's.
    pub fn each_conn(&self, index: u32, mut each: impl FnMut(&'static Conn)) {
        let link = link(index);
        if link.serves() && link.is_used() && peering::facts(link).shares_memory {
            (0..SLOTS).filter_map(|slot| link.conn(slot)).for_each(&mut each);
        }
    }

    /// Arms the sleep words of event queue `queue`; says how many peers have disarmed them since,
    /// and ring or have rung.
    pub fn arm_sleep(&self, queue: usize, mode: u64, id: u8) -> u32 {
        let mut disarmed = 0;
        self.each_link(queue, |link, mine, base| {
            let before = link.armed.fetch_or(1 << queue, Ordering::Relaxed);
            disarmed += u32::from(!hints::arm_sleep(&mine, base, mode, id) && before & 1 << queue != 0);
        });
        disarmed
    }

    /// Whether a peer has disarmed a sleep word of event queue `queue`.
    pub fn disarmed(&self, queue: usize) -> bool {
        let mut any = false;
        self.each_link(queue, |link, mine, base| {
            any |= !hints::sleeps(&mine, base) && link.armed.load(Ordering::Relaxed) & 1 << queue != 0;
        });
        any
    }

    #[inline]
    fn each_link(&self, queue: usize, mut each: impl FnMut(&Link, Map, usize)) {
        for link in links().filter(|link| link.serves() && link.is_used()) {
            each(link, link.mine(), layout::HINTS + queue * hints::BYTES);
        }
    }
}
