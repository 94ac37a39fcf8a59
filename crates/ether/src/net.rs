//! The common part of both drivers: a net's TAP device, its peers, admitting frames and choosing
//! their destination. A net has three threads: one reads the TAP device and sends, one receives and
//! writes it, and a *keeper* watches the peers.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use fabric::sync::{AtomicBool, Ordering};
use fabric::sys;

use crate::dump::Readers;
use crate::frame::{Drop, EXTRA, Header};
use crate::learned::Learned;
use crate::link::Link;
use crate::mac::Mac;
use crate::peers::{Peers, Snapshot};
use crate::poll::Poller;
use crate::stats::{self, Count, Counters, NetReport, PeerReport};
use crate::sys::{Bell, wait};
use crate::table::{self, Carrier, Table};
use crate::tap::Tap;

/// A net of this host.
#[derive(Debug)]
pub struct Net {
    /// Its settings in the table.
    pub settings: table::Net,
    /// This host.
    pub me: u16,
    /// The interface.
    pub tap: Tap,
    /// The other hosts.
    pub peers: Peers,
    /// Addresses behind bridges.
    pub learned: Learned,
    /// Counters of events that belong to no peer.
    pub counters: Counters,
    /// Readers of the frames.
    pub readers: Readers,
    /// How often a thread was woken.
    pub wakes: Count,
    /// How often a thread found work by polling.
    pub polls: Count,
    /// Wakes the thread that sends.
    pub sender: Bell,
    /// Wakes the thread that receives.
    pub receiver: Bell,
    /// Wakes the keeper.
    pub keeper: Arc<Bell>,
    between: Mutex<Option<String>>,
    reloaded: AtomicBool,
    stop: AtomicBool,
    carrier: AtomicBool,
}

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To the peer at this place of the snapshot.
    One(usize),
    /// To all of them.
    All,
    /// To nobody: there is no such host.
    Nowhere,
}

impl Net {
    /// Makes the net's interface. It carries no frames yet.
    pub fn open(settings: table::Net, me: u16, table: &Table) -> io::Result<Net> {
        let tap = Tap::open(&settings.interface, Mac::of_host(me), settings.mtu, settings.offload)?;
        let net = Net {
            me,
            tap,
            peers: Peers::default(),
            learned: Learned::default(),
            counters: Counters::default(),
            readers: Readers::default(),
            wakes: Count::default(),
            polls: Count::default(),
            sender: Bell::new()?,
            receiver: Bell::new()?,
            keeper: Arc::new(Bell::new()?),
            between: Mutex::default(),
            reloaded: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            carrier: AtomicBool::new(true),
            settings,
        };
        net.set_table(table);
        net.follow_carrier()?;
        Ok(net)
    }

    /// Takes over the hosts of a new table.
    pub fn set_table(&self, table: &Table) {
        let others = table.members(&self.settings.name).filter(|(host, _)| host.id != self.me);
        self.peers.set_members(others.map(|(host, address)| (host.id, host.name.clone(), address)).collect());
        self.reloaded.store(true, Ordering::Release);
        self.wake_all();
    }

    /// The longest frame.
    pub fn most(&self) -> usize {
        self.settings.mtu as usize + EXTRA
    }

    /// Where a frame with this header goes.
    #[inline(always)]
    pub fn route(&self, peers: &Snapshot, header: &Header) -> Route {
        if header.to.is_group() {
            return Route::All;
        }
        match header.to.host() {
            Some(id) => peers.place(id).map_or(Route::Nowhere, Route::One),
            None if !self.settings.learn => Route::Nowhere,
            None => match self.learned.host(header.to).and_then(|id| peers.place(id)) {
                Some(place) => Route::One(place),
                None => Route::All,
            },
        }
    }

    /// Admits a frame of `len` bytes from the peer at `place`; at least its header is in `frame`.
    /// `most` is its greatest length.
    #[inline(always)]
    pub fn admit(
        &self,
        peers: &Snapshot,
        place: usize,
        frame: &[u8],
        len: usize,
        most: usize,
    ) -> Result<Header, Drop> {
        let peer = &peers.list[place];
        let sender = self.settings.source_check.then_some(peer.id);
        let header = Header::admit(frame, len, most, sender, self.me)?;
        if self.settings.learn && header.from.host().is_none() {
            self.learned.note(header.from, peer.id);
        }
        Ok(header)
    }

    /// Sets the carrier as the table asks, depending on whether peers are there.
    pub fn follow_carrier(&self) -> io::Result<()> {
        let on = match self.settings.carrier {
            Carrier::Always => true,
            Carrier::Peers => self.peers.current().list.iter().any(|peer| peer.is_up()),
        };
        if on != self.carrier.load(Ordering::Relaxed) {
            self.tap.set_carrier(on)?;
            self.carrier.store(on, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the table was read again since the last call.
    pub fn was_reloaded(&self) -> bool {
        self.reloaded.swap(false, Ordering::AcqRel)
    }

    /// ETHOM: notes how hosts of other machines are reached, or why they are not.
    pub fn set_between(&self, how: Option<String>) {
        *self.between.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    /// Whether the threads must end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps until one of the descriptors is readable, for a thread that has polled for work in
    /// vain. Returns which are.
    pub fn sleep(&self, poller: &mut Poller, fds: &[RawFd]) -> Vec<bool> {
        let start = sys::now();
        let woken = wait(fds, None);
        poller.slept(sys::now() - start);
        self.wakes.add(1);
        woken
    }

    /// [Sleeps](Net::sleep) until `fd` is readable, or the thread's bell rings. Returns whether it
    /// rang.
    pub fn sleep_at(&self, poller: &mut Poller, fd: RawFd, bell: &Bell) -> bool {
        let called = self.sleep(poller, &[fd, bell.fd()])[1];
        if called {
            bell.silence();
        }
        called
    }

    /// Ends the threads, after their present step.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_all();
    }

    fn wake_all(&self) {
        for bell in [&self.sender, &self.receiver, &*self.keeper] {
            bell.ring();
        }
    }

    /// The report on it.
    pub fn report(&self) -> NetReport {
        let peers = self.peers.current();
        let peer = |(peer, link): (&Arc<crate::peers::Peer>, &Option<Arc<Link>>)| {
            let address = peer.address.map(|address| address.to_string());
            let by = link
                .as_ref()
                .map(|link| link.remote_path().map_or("memory", |path| path.provider()).to_string());
            let report = PeerReport::new(peer.id, &peer.name, address, peer.is_up(), &peer.counters);
            PeerReport { by, trouble: peer.trouble(), ..report }
        };
        NetReport {
            net: self.settings.name.clone(),
            driver: self.settings.driver.name().to_string(),
            interface: self.tap.name().to_string(),
            mac: Mac::of_host(self.me).to_string(),
            mtu: self.settings.mtu,
            carrier: self.carrier.load(Ordering::Relaxed),
            learned: self.learned.len(),
            wakes: self.wakes.value(),
            polls: self.polls.value(),
            drops: stats::drops_of(&self.counters),
            dump_lost: self.readers.lost.value(),
            between_hosts: self.between.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            peers: peers.list.iter().zip(&peers.links).map(peer).collect(),
        }
    }
}
