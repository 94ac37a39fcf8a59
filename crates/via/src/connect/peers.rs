//! Peers: two ends that both request the connection.

use core::cmp::Ordering;
use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use fabric::sys;
use rustix::io::Errno;

use super::acceptor::Acceptor;
use super::handshake::{NOBODY_NS, answer, ask, lock, matches};
use super::hello::{Address, Hello, kind};
use super::line::{Line, name, place, wait_for};
use super::pending::{PENDING, Pending};
use crate::abi::{Return, ViAttributes};
use crate::until::Until;
use crate::vi::{self, Offer};

/// `VipConnectPeerRequest`: asks for a connection with the end that asks for one with the addresses
/// swapped, until `until`.
pub fn request_peer(handle: *mut c_void, from: &Address, to: &Address, until: Until) -> Result<(), Return> {
    let parts = |one: &Address, other: &Address| {
        place(b'p', &[one.host(), one.discriminator(), other.host(), other.discriminator()])
    };
    let (own, theirs) = (parts(from, to), parts(to, from));
    let offer = vi::begin(handle)?;
    let begun = (|| {
        // Two ends with the same name find out by it which of them listens.
        let open = |place: &[u8]| Acceptor::open(&name(place)).map_err(|_| Return::ErrorResource);
        let acceptor = if own == theirs { None } else { Some(open(&own)?) };
        let bell = fabric::bell::create().map_err(|_| Return::ErrorResource)?;
        let pending = Arc::new(Pending { result: Mutex::new(None), told: Condvar::new(), bell });
        let (from, to) = (*from, *to);
        let (address, kept) = (handle.addr(), pending.clone());
        std::thread::Builder::new()
            .name("via-peer".into())
            .stack_size(128 << 10)
            .spawn(move || {
                let handle = address as *mut c_void;
                let mut met = Handshake { acceptor, bell: kept.bell, own, theirs, from, to, until };
                let mut seen = false;
                let result = met.meet(handle, &offer, &mut seen);
                // A thread that gets the result may listen there again.
                drop(met);
                if result.is_err() {
                    vi::abandon(handle, seen);
                }
                *lock(&kept.result) = Some(result);
                kept.told.notify_all();
            })
            .map_err(|_| Return::ErrorResource)?;
        lock(&PENDING).get_or_insert_with(HashMap::new).insert(address, pending);
        Ok(())
    })();
    if begun.is_err() {
        vi::abandon(handle, false);
    }
    begun
}

/// Two ends that look for each other.
struct Handshake {
    /// Where this end listens; None if that is not decided yet.
    acceptor: Option<Acceptor>,
    bell: i32,
    /// The place where both listen.
    own: Vec<u8>,
    theirs: Vec<u8>,
    from: Address,
    to: Address,
    until: Until,
}

impl Handshake {
    fn meet(&mut self, handle: *mut c_void, offer: &Offer, seen: &mut bool) -> Result<ViAttributes, Return> {
        match self.own.cmp(&self.theirs) {
            Ordering::Less => self.connect(handle, offer, seen),
            Ordering::Greater => {
                match Line::connect(&self.to, &self.theirs, self.until) {
                    Err(Return::NotReachable) => return Err(Return::NotReachable),
                    called => drop(called),
                }
                self.listen(handle, offer, seen)
            }
            Ordering::Equal if !self.to.is_here() => Err(Return::NotReachable),
            Ordering::Equal => self.meet_namesake(handle, offer, seen),
        }
    }

    /// Both ask from the same address for the same address: the first one listens, the other one
    /// connects. Another pair may be about to do so.
    fn meet_namesake(
        &mut self,
        handle: *mut c_void,
        offer: &Offer,
        seen: &mut bool,
    ) -> Result<ViAttributes, Return> {
        loop {
            match Acceptor::open(&name(&self.own)) {
                Ok(acceptor) => {
                    self.acceptor = Some(acceptor);
                    return self.listen(handle, offer, seen);
                }
                Err(Errno::ADDRINUSE) => {}
                Err(_) => return Err(Return::ErrorResource),
            }
            match self.ask(handle, offer, seen) {
                Err(Return::NoMatch) => {}
                asked => return asked,
            }
            let nanos = self.until.left().ok_or(Return::Timeout)?;
            let mut poll = [libc::pollfd { fd: self.bell, events: libc::POLLIN, revents: 0 }];
            if sys::ppoll(&mut poll, Some(nanos.min(NOBODY_NS))).unwrap_or(0) > 0 {
                return Err(Return::InvalidState);
            }
        }
    }

    /// Connects to the other end. `NoMatch` if it is not there, or has given up just now.
    fn ask(&self, handle: *mut c_void, offer: &Offer, seen: &mut bool) -> Result<ViAttributes, Return> {
        let line = Line::connect(&self.to, &self.theirs, self.until)?;
        *seen = true;
        let hello = Hello::new(kind::PEER, Some(offer), &self.from, &self.to);
        ask(handle, &line, offer, &hello, self.until)
    }

    /// Connects as soon as the other end is there.
    fn connect(
        &mut self,
        handle: *mut c_void,
        offer: &Offer,
        seen: &mut bool,
    ) -> Result<ViAttributes, Return> {
        loop {
            match self.ask(handle, offer, seen) {
                // Another one may come.
                Err(Return::NoMatch) => {}
                asked => return asked,
            }
            // A call from the other end, or the end of the program's timeout.
            self.wait()?.turn_away();
        }
    }

    /// Waits for the other end, after a call to it, in case that it was there before.
    fn listen(
        &mut self,
        handle: *mut c_void,
        offer: &Offer,
        seen: &mut bool,
    ) -> Result<ViAttributes, Return> {
        loop {
            let Some(came) = self.wait()?.next() else { continue };
            let Ok(Some((line, heard))) = Line::accept(came) else { continue };
            let hello = heard.hello;
            if hello.kind != kind::PEER {
                continue;
            }
            if let Err(error) = matches(&hello, &offer.attributes) {
                let mut told = Hello::new(kind::MISMATCH, None, &hello.to, &hello.from);
                told.level = error as u32;
                line.send(&told, None);
                return Err(error);
            }
            *seen = true;
            let memory = line.open(heard, handle, offer).ok_or(Return::ErrorResource)?;
            answer(handle, &line, offer, &hello, memory)?;
            return Ok(hello.attributes());
        }
    }

    /// Waits until a client comes, or one that has come sends something.
    fn wait(&mut self) -> Result<&mut Acceptor, Return> {
        let acceptor = self.acceptor.as_mut().ok_or(Return::ErrorResource)?;
        let mut fds = acceptor.descriptors();
        fds.push(self.bell);
        wait_for(&fds, self.until)?;
        if sys::readable(self.bell) { Err(Return::InvalidState) } else { Ok(acceptor) }
    }
}

/// `VipConnectPeerDone`: the result of the request. `NotDone` if there is none yet, `InvalidState`
/// if there is no request.
pub fn peer_done(handle: *mut c_void) -> Result<ViAttributes, Return> {
    vi::find(handle)?;
    let mut all = lock(&PENDING);
    let pending = all.as_mut().ok_or(Return::InvalidState)?;
    let waiting = pending.get(&handle.addr()).ok_or(Return::InvalidState)?;
    let result = lock(&waiting.result).take().ok_or(Return::NotDone)?;
    pending.remove(&handle.addr());
    result
}

/// `VipConnectPeerWait`: as [`peer_done`], and waits for the end of the request.
pub fn peer_wait(handle: *mut c_void) -> Result<ViAttributes, Return> {
    vi::find(handle)?;
    let pending = lock(&PENDING).as_ref().and_then(|all| all.get(&handle.addr()).cloned());
    let pending = pending.ok_or(Return::InvalidState)?;
    let mut result = lock(&pending.result);
    while result.is_none() {
        result = pending.told.wait(result).unwrap_or_else(PoisonError::into_inner);
    }
    drop(result);
    peer_done(handle)
}
