//! The other hosts of a net, as the threads that carry frames see them: a snapshot that is replaced
//! whenever the table, or an ETHOM link, changes. Each thread has its own copy of the reference,
//! and reads one number to see whether there is a newer one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use fabric::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::link::Link;
use crate::stats::Counters;

/// A host other than this one.
#[derive(Debug)]
pub struct Peer {
    /// Its number.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its address: for ETHOS; for ETHOM, if hosts of other machines reach it.
    pub address: Option<SocketAddr>,
    /// Its counters.
    pub counters: Counters,
    trouble: Mutex<Option<String>>,
    up: AtomicBool,
    heard: AtomicU64,
    answered: AtomicU64,
    greeted: AtomicU64,
    refuses_segments: AtomicBool,
    room: AtomicUsize,
}

impl Peer {
    /// A host that has not been heard of yet.
    pub fn new(id: u16, name: String, address: Option<SocketAddr>) -> Peer {
        Peer {
            id,
            name,
            address,
            counters: Counters::default(),
            trouble: Mutex::default(),
            up: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            greeted: AtomicU64::new(0),
            refuses_segments: AtomicBool::new(false),
            room: AtomicUsize::new(0),
        }
    }

    /// Whether it is there.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Notes whether it is there.
    pub fn set_up(&self, up: bool) {
        if up && !self.up.swap(up, Ordering::Relaxed) {
            self.counters.connects.add(1);
        }
        self.up.store(up, Ordering::Relaxed);
    }

    /// ETHOM: why it is not linked, if that is known.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// ETHOM: notes why it is not linked; none when it is.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Notes that something came from it at `now` (nanoseconds).
    pub fn hear(&self, now: u64) {
        self.heard.store(now, Ordering::Relaxed);
    }

    /// When something last came from it; 0 if never.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// ETHOS: notes a hello at `now`, and whether that says that it takes super-frames.
    pub fn greet(&self, now: u64, takes_supers: bool) {
        self.greeted.store(if takes_supers { now } else { 0 }, Ordering::Relaxed);
    }

    /// ETHOS: when it last said that it takes super-frames; 0 if it did not, or does not any more.
    pub fn greeted(&self) -> u64 {
        self.greeted.load(Ordering::Relaxed)
    }

    /// ETHOS: whether the kernel refuses to cut up datagrams to it (UDP_SEGMENT).
    pub fn refuses_segments(&self) -> bool {
        self.refuses_segments.load(Ordering::Relaxed)
    }

    /// ETHOS: notes whether the kernel refuses to cut up datagrams to it.
    pub fn set_refuses_segments(&self, refuses: bool) {
        self.refuses_segments.store(refuses, Ordering::Relaxed);
    }

    /// ETHOS: the most bytes of a datagram that go to it in one piece.
    pub fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
    }

    /// ETHOS: notes the most bytes of a datagram that go to it in one piece.
    pub fn set_room(&self, room: usize) {
        self.room.store(room, Ordering::Relaxed);
    }

    /// Whether it may be answered at `now`: at most once in `interval`, however often it asks.
    pub fn may_answer(&self, now: u64, interval: u64) -> bool {
        let may = now >= self.answered.load(Ordering::Relaxed) + interval;
        if may {
            self.answered.store(now, Ordering::Relaxed);
        }
        may
    }
}

/// The peers at one time. `links[i]` belongs to `list[i]`.
#[derive(Debug, Default, Clone)]
pub struct Snapshot {
    /// The peers.
    pub list: Vec<Arc<Peer>>,
    /// ETHOM: the links to them, where there are any.
    pub links: Vec<Option<Arc<Link>>>,
    by_id: Vec<u16>,
    by_address: HashMap<SocketAddr, usize>,
}

const NONE: u16 = u16::MAX;

impl Snapshot {
    fn new(list: Vec<Arc<Peer>>, links: Vec<Option<Arc<Link>>>) -> Snapshot {
        let most = list.iter().map(|peer| usize::from(peer.id) + 1).max().unwrap_or(0);
        let mut by_id = vec![NONE; most];
        let mut by_address = HashMap::new();
        for (i, peer) in list.iter().enumerate() {
            by_id[usize::from(peer.id)] = i as u16; // there are fewer than 65,535
            by_address.extend(peer.address.map(|address| (address, i)));
        }
        Snapshot { list, links, by_id, by_address }
    }

    /// The place of the host with this number.
    #[inline(always)]
    pub fn place(&self, id: u16) -> Option<usize> {
        self.by_id.get(usize::from(id)).filter(|place| **place != NONE).map(|place| usize::from(*place))
    }

    /// The place of the host at this address.
    pub fn at(&self, address: &SocketAddr) -> Option<usize> {
        self.by_address.get(address).copied()
    }
}

/// The valid snapshot.
#[derive(Debug, Default)]
pub struct Peers {
    current: Mutex<Arc<Snapshot>>,
    version: AtomicU64,
}

impl Peers {
    /// The valid snapshot.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces `mine` if there is a newer one than `seen`; returns whether.
    #[inline(always)]
    pub fn refresh(&self, mine: &mut Arc<Snapshot>, seen: &mut u64) -> bool {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen {
            return false;
        }
        *seen = version;
        *mine = self.current();
        true
    }

    /// Takes over the hosts of a new table. Hosts that were there before keep their state.
    pub fn set_members(&self, members: Vec<(u16, String, Option<SocketAddr>)>) {
        self.change(|old| {
            let (mut list, mut links) = (Vec::new(), Vec::new());
            for (id, name, address) in members {
                let before =
                    old.place(id).filter(|&i| old.list[i].address == address && old.list[i].name == name);
                links.push(before.and_then(|i| old.links[i].clone()));
                list.push(
                    before.map_or_else(|| Arc::new(Peer::new(id, name, address)), |i| old.list[i].clone()),
                );
            }
            Snapshot::new(list, links)
        });
    }

    /// Sets a host's link, or removes it. False if there is no such host.
    pub fn set_link(&self, id: u16, link: Option<Arc<Link>>) -> bool {
        let mut known = false;
        self.change(|old| {
            let mut links = old.links.clone();
            if let Some(place) = old.place(id) {
                old.list[place].set_up(link.is_some());
                old.list[place].set_trouble(None);
                links[place] = link;
                known = true;
            }
            Snapshot::new(old.list.clone(), links)
        });
        known
    }

    fn change(&self, new: impl FnOnce(&Snapshot) -> Snapshot) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(new(&current));
        self.version.fetch_add(1, Ordering::Release);
    }
}
