//! Connections: how two Virtual Interfaces find each other and exchange memory (specification,
//! section 3.1).
//!
//! An address at which a server waits is a listening UNIX socket whose abstract name is made of the
//! discriminator. So the kernel is the registry, there is one for each network namespace, and
//! nothing is left of a process that dies. The client sends a `Hello` and its memory's
//! descriptors, the server sends its own when it accepts, and the client confirms. Each has
//! announced its posted descriptors before that, so either may send as soon as its call returns.
//! The socket stays: its end is the connection's.
//!
//! With an address of another host the messages are the same, over the connection that
//! [`crate::remote`] makes, without descriptors: the segments are a link's.
//!
//! Two peers that both request do the same: the owner of the smaller address connects; the other
//! one calls it if it comes later.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fabric::sys;

use crate::abi::{Return, ViAttributes};
use crate::handles::{Found, Kind, Place, Pool};
use crate::opened;
use crate::process::PerProcess;
use crate::until::Until;
use crate::vi;

mod acceptor;
mod handshake;
mod hello;
mod line;
mod peers;
pub(crate) mod pending;

use acceptor::{Acceptor, Came};
use handshake::{NOBODY_NS, answer, ask, lock, matches};
pub use hello::{Address, understood};
use hello::{Hello, kind};
use line::{Heard, Line, name, place, wait_for};
pub use peers::{peer_done, peer_wait, request_peer};

/// A listening socket at an address, for all threads that wait there.
struct Listener {
    acceptor: Acceptor,
    users: usize,
}

/// By name.
type Listeners = HashMap<Vec<u8>, Arc<Mutex<Listener>>>;
static LISTENERS: PerProcess<Mutex<Option<Listeners>>> = PerProcess::new(Mutex::new(None));

/// # Safety
/// As of [`PerProcess::renew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe {
        LISTENERS.renew(Mutex::new(None));
        REQUESTS.begin_anew();
        pending::in_child();
    }
    hello::in_child();
}

/// A request that a server has not answered yet.
struct Request {
    asked: Mutex<Option<(Line, Option<Heard>, *mut c_void)>>,
}

// SAFETY: the pointer is a handle, a number.
unsafe impl Sync for Request {}

const MAX_REQUESTS: usize = 4096;
static REQUESTS: Pool<Request> = Pool::new(Kind::Request, &REQUEST_PLACES);
static REQUEST_PLACES: [Place<Request>; MAX_REQUESTS] =
    [const { Place::new(Request { asked: Mutex::new(None) }) }; MAX_REQUESTS];

/// A client's request as the server gets it: a handle to answer with, the client's address and
/// attributes.
pub struct Asked {
    /// For [`accept`] or [`reject`].
    pub handle: *mut c_void,
    /// The client's address.
    pub from: Address,
    /// Of the client's Virtual Interface.
    pub attributes: ViAttributes,
}

/// `VipConnectWait`: waits at an address for a client. `ErrorResource` if another process waits
/// there.
pub fn wait(nic: *mut c_void, at: &Address, until: Until) -> Result<Asked, Return> {
    opened::check(nic)?;
    let name = name(&place(b'd', &[at.discriminator()]));
    let listener = listen_at(&name)?;
    let asked = (|| loop {
        let fds = lock(&listener).acceptor.descriptors();
        wait_for(&fds, until)?;
        // Another thread may have been faster.
        let Some(came) = next(&listener) else { continue };
        let Ok(Some((line, heard))) = Line::accept(came) else { continue };
        if heard.hello.kind != kind::REQUEST {
            continue;
        }
        let hello = heard.hello;
        let (handle, request) = REQUESTS.give_out().ok_or(Return::ErrorResource)?;
        *lock(&request.asked) = Some((line, Some(heard), nic));
        return Ok(Asked { handle, from: hello.from, attributes: hello.attributes() });
    })();
    leave(&name, &listener);
    asked
}

fn listen_at(name: &[u8]) -> Result<Arc<Mutex<Listener>>, Return> {
    let mut listeners = lock(&LISTENERS);
    let listeners = listeners.get_or_insert_with(HashMap::new);
    if let Some(listener) = listeners.get(name) {
        lock(listener).users += 1;
        return Ok(listener.clone());
    }
    let acceptor = Acceptor::open(name).map_err(|_| Return::ErrorResource)?;
    let listener = Arc::new(Mutex::new(Listener { acceptor, users: 1 }));
    listeners.insert(name.to_vec(), listener.clone());
    Ok(listener)
}

fn next(listener: &Mutex<Listener>) -> Option<Came> {
    lock(listener).acceptor.next()
}

fn leave(name: &[u8], listener: &Arc<Mutex<Listener>>) {
    let mut listeners = lock(&LISTENERS);
    let mut listener = lock(listener);
    listener.users -= 1;
    if listener.users == 0
        && let Some(listeners) = listeners.as_mut()
    {
        listeners.remove(name);
    }
}

/// `VipConnectAccept`. If attributes do not match, the request stays as it is, and can be accepted
/// again or rejected. Likewise with `Timeout`, when the client has given up.
pub fn accept(request: *mut c_void, handle: *mut c_void) -> Result<(), Return> {
    let found = find(request)?;
    let mut asked = found.standing(lock(&found.asked))?;
    let Some((line, heard, nic)) = asked.as_mut() else { return Err(Return::InvalidParameter) };
    if vi::find(handle)?.nic()? != *nic {
        return Err(Return::InvalidParameter);
    }
    let Some(hello) = heard.as_ref().map(|heard| heard.hello) else { return Err(Return::Timeout) };
    let offer = vi::begin(handle)?;
    let accepted = (|| {
        matches(&hello, &offer.attributes)?;
        if line.is_over() {
            return Err(Return::Timeout);
        }
        let taken = heard.take().ok_or(Return::Timeout)?;
        let memory = line.open(taken, handle, &offer).ok_or(Return::ErrorResource)?;
        answer(handle, line, &offer, &hello, memory)
    })();
    if let Err(error) = accepted {
        vi::abandon(handle, heard.is_none());
        return Err(error);
    }
    let Some((line, ..)) = asked.take() else { return Err(Return::InvalidParameter) };
    REQUESTS.take_back(&found);
    drop(asked);
    let _ = line;
    Ok(())
}

/// `VipConnectReject`.
pub fn reject(request: *mut c_void) -> Result<(), Return> {
    let found = find(request)?;
    let mut asked = found.standing(lock(&found.asked))?;
    let Some((line, heard, _)) = asked.take() else { return Err(Return::InvalidParameter) };
    if let Some(heard) = heard {
        line.send(&Hello::new(kind::REJECT, None, &heard.hello.to, &heard.hello.from), None);
    }
    REQUESTS.take_back(&found);
    Ok(())
}

/// `VipConnectRequest`: asks the process that waits at `to`, and waits for the answer. Returns the
/// attributes of the Virtual Interface there. `NoMatch` if none waits, `NotReachable` if it is an
/// address of another host that cannot be reached.
pub fn request(
    handle: *mut c_void,
    from: &Address,
    to: &Address,
    until: Until,
) -> Result<ViAttributes, Return> {
    let offer = vi::begin(handle)?;
    let mut seen = false;
    let asked = (|| {
        let line = Line::connect(to, &place(b'd', &[to.discriminator()]), until).inspect_err(|error| {
            if *error == Return::NoMatch {
                let _ = sys::ppoll(&mut [], Some(NOBODY_NS));
            }
        })?;
        seen = true;
        ask(handle, &line, &offer, &Hello::new(kind::REQUEST, Some(&offer), from, to), until)
    })();
    if asked.is_err() {
        vi::abandon(handle, seen);
    }
    asked
}

fn find(handle: *mut c_void) -> Result<Found<Request>, Return> {
    REQUESTS.find(handle).ok_or(Return::InvalidParameter)
}
