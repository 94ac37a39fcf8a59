//! The TCP connection over which two Virtual Interfaces are connected.

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
use via::remote::{Line, Watch, Wire};
use via::segment::FAR_BYTES as BYTES;

use crate::handshake::{Handshake, words};
use crate::link::{End, Listener, PeerWire, no_link};
use crate::settings::settings;

/// The most time until a link is established, and until all that was put before a hello has come.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Nanoseconds between two checks on a handshake that takes its time.
const POLL: u64 = 500_000_000;

/// Why no more messages come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The time is over.
    Time,
    /// The connection is.
    End(channel::End),
}

/// Receives until the connection is in the state that `done` asks for.
pub fn listen_until<M: wire::Message>(
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
        let _ = sys::ppoll(&mut poll, Some(nanos.min(POLL)));
    }
    Ok(())
}

/// One end of it.
pub struct Call {
    talk: Mutex<Talk>,
    end: Arc<End>,
    /// Opened together with the link.
    listener: OnceLock<Arc<Listener>>,
    wire: OnceLock<Arc<PeerWire>>,
    /// The ticket that we have drawn, if we are the caller.
    invited: Option<Ticket>,
}

struct Talk {
    channel: Channel<Handshake>,
    heard: Vec<Handshake>,
    /// The peer's first message: where it is reached.
    peer: Option<Handshake>,
}

impl Call {
    /// To a program that waits.
    pub fn to(channel: Channel<Handshake>, listener: Arc<Listener>) -> Call {
        let ticket = (u128::from(sys::random()) << 64 | u128::from(sys::random())).to_le_bytes();
        let end = End::new();
        listener.invite(ticket, &end);
        Call::new(channel, OnceLock::from(listener), end, Some(ticket))
    }

    /// From a program that requests.
    pub fn from(channel: Channel<Handshake>) -> Call {
        Call::new(channel, OnceLock::new(), End::new(), None)
    }

    fn new(
        channel: Channel<Handshake>,
        listener: OnceLock<Arc<Listener>>,
        end: Arc<End>,
        invited: Option<Ticket>,
    ) -> Call {
        let talk = Mutex::new(Talk { channel, heard: Vec::new(), peer: None });
        Call { talk, end, listener, wire: OnceLock::new(), invited }
    }

    /// Waits until both have proved that they have the key.
    pub fn begin(&self, until: Until) -> Result<(), Over> {
        let Talk { channel, heard, .. } = &mut *lock(&self.talk);
        listen_until(channel, heard, until, |channel, _| channel.is_open())
    }

    /// The link: the caller is asked for it, the other end asks.
    fn link(&self) -> Result<PeerWire, String> {
        let talk = lock(&self.talk);
        let peer = talk.peer.as_ref().ok_or("it has sent nothing")?;
        let listener = match self.listener.get() {
            Some(listener) => listener,
            None => {
                let own = talk.channel.stream().local_addr().map_err(|error| error.to_string())?;
                let listener = Listener::at(own.ip(), settings().ok_or("there are no other hosts")?)?;
                self.listener.get_or_init(|| listener)
            }
        };
        if peer.provider != listener.provider {
            return Err(format!("its fabric is {}, and ours {}", peer.provider, listener.provider));
        }
        let asked = match &self.invited {
            Some(ticket) if *ticket != peer.ticket => {
                return Err("it answers a request that was not made".into());
            }
            Some(_) => None,
            None => {
                let owner: Arc<dyn Owner> = Arc::clone(&self.end) as _;
                let asked = listener.caller.connect(&peer.address, &words(&peer.ticket), BYTES, owner);
                Some(asked.map_err(|error| error.to_string())?)
            }
        };
        let told = self.invited.is_some();
        if !self.end.wait(HANDSHAKE_TIMEOUT, |state| state.ready && (state.told || !told)) {
            let late = || format!("its {} is not reached from here", peer.provider);
            return Err(self.end.why_over().unwrap_or_else(late));
        }
        let link = asked.or_else(|| listener.accepted(&self.end)).ok_or("it is over already")?;
        PeerWire::new(link, Arc::clone(&self.end), Arc::clone(listener))
            .ok_or_else(|| "its segment has an impossible size".into())
    }
}

impl Line for Call {
    fn send(&self, hello: &[u8]) -> bool {
        if let Some(wire) = self.wire.get() {
            wire.tell();
        }
        let mut talk = lock(&self.talk);
        let ticket = self.invited.or(talk.peer.as_ref().map(|peer| peer.ticket));
        let Some(ticket) = ticket else { return false };
        // An end that refuses has no link, and needs none.
        let (provider, address) = match self.listener.get() {
            Some(listener) => (listener.provider.clone(), listener.caller.address().to_vec()),
            None => ("none".into(), vec![0]),
        };
        talk.channel.say(Handshake { ticket, provider, address, hello: hello.to_vec() }).is_ok()
    }

    fn receive(&self, until: Until) -> Result<Option<Vec<u8>>, Return> {
        let handshake = {
            let Talk { channel, heard, peer } = &mut *lock(&self.talk);
            match listen_until(channel, heard, until, |_, heard| !heard.is_empty()) {
                Ok(()) => {}
                Err(Over::Time) => return Err(Return::Timeout),
                Err(Over::End(_)) => return Ok(None),
            }
            let handshake = heard.remove(0);
            peer.get_or_insert_with(|| handshake.clone());
            handshake
        };
        // All that the other end has put before is there. (The caller ensures that when it opens
        // the link.)
        let there = self.wire.get().is_none() || self.end.wait(HANDSHAKE_TIMEOUT, |state| state.told);
        Ok(there.then_some(handshake.hello))
    }

    fn is_over(&self) -> bool {
        let Talk { channel, heard, .. } = &mut *lock(&self.talk);
        channel.go_on(|said| heard.push(said)).is_err()
    }

    fn open(&self, watch: Watch) -> Option<Arc<dyn Wire>> {
        self.end.watch(watch);
        match self.link() {
            Ok(wire) => {
                let wire = Arc::new(wire);
                let _ = self.wire.set(Arc::clone(&wire));
                Some(wire)
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
        if let (Some(ticket), Some(listener)) = (&self.invited, self.listener.get()) {
            listener.disinvite(ticket);
        }
    }
}
