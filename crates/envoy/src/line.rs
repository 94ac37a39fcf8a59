//! A connection over which two Virtual Interfaces meet.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cluster::channel::{self, Channel};
use cluster::wire::{self, Ticket};
use fabric::sys;
use ofi::Owner;
use ofi::mutex::lock;
use via::abi::Return;
use via::cq::Until;
use via::far::{Line, Watch, Wire};
use via::segment::FAR_BYTES as BYTES;

use crate::link::{Door, End, Way, no_link};
use crate::means::means;
use crate::said::{Said, words};

/// How long it may take that a link stands, and that what was put before a hello has come.
const MANNERS: Duration = Duration::from_secs(5);
/// Between two looks at a handshake that takes its time, in nanoseconds.
const LOOK: u64 = 500_000_000;

/// Why nothing more is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The time is over.
    Time,
    /// The connection is.
    End(channel::End),
}

/// Goes on with a connection until it is as it is to be.
pub fn listen_until<M: wire::Said>(
    channel: &mut Channel<M>,
    heard: &mut Vec<M>,
    until: Until,
    done: impl Fn(&Channel<M>, &[M]) -> bool,
) -> Result<(), Over> {
    while !done(channel, heard) {
        let went_on = channel.go_on(|said| heard.push(said));
        if done(channel, heard) {
            break;
        }
        went_on.map_err(Over::End)?;
        let nanos = until.left().ok_or(Over::Time)?;
        let events = if channel.wants_to_write() { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        let mut poll = [libc::pollfd { fd: channel.as_raw_fd(), events, revents: 0 }];
        let _ = sys::ppoll(&mut poll, Some(nanos.min(LOOK)));
    }
    Ok(())
}

/// One end of it.
pub struct Call {
    talk: Mutex<Talk>,
    end: Arc<End>,
    /// Opened when the link is.
    door: OnceLock<Arc<Door>>,
    way: OnceLock<Arc<Way>>,
    /// The ticket that we have drawn, if we have called.
    invited: Option<Ticket>,
}

struct Talk {
    channel: Channel<Said>,
    heard: Vec<Said>,
    /// What the peer has said first: where it is to be reached.
    peer: Option<Said>,
}

impl Call {
    /// To one who waits.
    pub fn to(channel: Channel<Said>, door: Arc<Door>) -> Call {
        let ticket = (u128::from(sys::random()) << 64 | u128::from(sys::random())).to_le_bytes();
        let end = End::new();
        door.invite(ticket, &end);
        Call::new(channel, OnceLock::from(door), end, Some(ticket))
    }

    /// From one who asks.
    pub fn from(channel: Channel<Said>) -> Call {
        Call::new(channel, OnceLock::new(), End::new(), None)
    }

    fn new(
        channel: Channel<Said>,
        door: OnceLock<Arc<Door>>,
        end: Arc<End>,
        invited: Option<Ticket>,
    ) -> Call {
        let talk = Mutex::new(Talk { channel, heard: Vec::new(), peer: None });
        Call { talk, end, door, way: OnceLock::new(), invited }
    }

    /// Waits until both have proved that they have the key.
    pub fn begin(&self, until: Until) -> Result<(), Over> {
        let Talk { channel, heard, .. } = &mut *lock(&self.talk);
        listen_until(channel, heard, until, |channel, _| channel.is_open())
    }

    /// The link: who has called was asked for it, the other one asks for it.
    fn link(&self) -> Result<Way, String> {
        let talk = lock(&self.talk);
        let peer = talk.peer.as_ref().ok_or("it has said nothing")?;
        let door = match self.door.get() {
            Some(door) => door,
            None => {
                let own = talk.channel.stream().local_addr().map_err(|error| error.to_string())?;
                let door = Door::at(own.ip(), means().ok_or("there are no other hosts")?)?;
                self.door.get_or_init(|| door)
            }
        };
        if peer.provider != door.provider {
            return Err(format!("its fabric is {}, and ours {}", peer.provider, door.provider));
        }
        let asked = match &self.invited {
            Some(ticket) if *ticket != peer.ticket => return Err("it answers what nobody has asked".into()),
            Some(_) => None,
            None => {
                let owner: Arc<dyn Owner> = Arc::clone(&self.end) as _;
                let asked = door.caller.connect(&peer.address, &words(&peer.ticket), BYTES, owner);
                Some(asked.map_err(|error| error.to_string())?)
            }
        };
        let told = self.invited.is_some();
        if !self.end.wait(MANNERS, |state| state.ready && (state.told || !told)) {
            let late = || format!("its {} is not reached from here", peer.provider);
            return Err(self.end.why_over().unwrap_or_else(late));
        }
        let link = asked.or_else(|| door.accepted(&self.end)).ok_or("it is over already")?;
        Way::new(link, Arc::clone(&self.end), Arc::clone(door))
            .ok_or_else(|| "its memory has no size that can be".into())
    }
}

impl Line for Call {
    fn send(&self, hello: &[u8]) -> bool {
        if let Some(way) = self.way.get() {
            way.tell();
        }
        let mut talk = lock(&self.talk);
        let ticket = self.invited.or(talk.peer.as_ref().map(|peer| peer.ticket));
        let Some(ticket) = ticket else { return false };
        // Who refuses has none, and needs none.
        let (provider, address) = match self.door.get() {
            Some(door) => (door.provider.clone(), door.caller.address().to_vec()),
            None => ("none".into(), vec![0]),
        };
        talk.channel.say(Said { ticket, provider, address, hello: hello.to_vec() }).is_ok()
    }

    fn receive(&self, until: Until) -> Result<Option<Vec<u8>>, Return> {
        let said = {
            let Talk { channel, heard, peer } = &mut *lock(&self.talk);
            match listen_until(channel, heard, until, |_, heard| !heard.is_empty()) {
                Ok(()) => {}
                Err(Over::Time) => return Err(Return::Timeout),
                Err(Over::End(_)) => return Ok(None),
            }
            let said = heard.remove(0);
            peer.get_or_insert_with(|| said.clone());
            said
        };
        // What the other end had put before is there. (Who has called sees to that when it opens the link.)
        let there = self.way.get().is_none() || self.end.wait(MANNERS, |state| state.told);
        Ok(there.then_some(said.hello))
    }

    fn is_over(&self) -> bool {
        let Talk { channel, heard, .. } = &mut *lock(&self.talk);
        channel.go_on(|said| heard.push(said)).is_err()
    }

    fn open(&self, watch: Watch) -> Option<Arc<dyn Wire>> {
        self.end.watch(watch);
        match self.link() {
            Ok(way) => {
                let way = Arc::new(way);
                let _ = self.way.set(Arc::clone(&way));
                Some(way)
            }
            Err(why) => {
                no_link(lock(&self.talk).channel.ip, &why);
                None
            }
        }
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        let copy: TcpStream = lock(&self.talk).channel.stream().try_clone().ok()?;
        Some(copy.into())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let (Some(ticket), Some(door)) = (&self.invited, self.door.get()) {
            door.disinvite(ticket);
        }
    }
}
