//! The library's two threads, begun with the first connection, or the first handler that a program registers. The *agent* listens to the
//! connections' sockets: for their end, for errors that fit no descriptor, for wake-ups on behalf of those who do not wait themselves. The
//! other one runs the program's handlers, which may call anything, and may take their time.

use core::ffi::c_void;
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};

use fabric::sync::Ordering;
use fabric::sys;

use crate::abi::{ErrorCode, Return};
use crate::handlers::{AGENT, Agent, Call, Registered, error, running};
pub use crate::handlers::{CqHandler, ErrorHandler, Event, ViHandler, Which};
use crate::process::PerProcess;
use crate::queue::Done;
use crate::segment::{at, wake};
use crate::socket::End;
pub use crate::socket::{Message, Socket};
use crate::vi::{self, Taken};
use crate::{cq, opened};

/// A child of fork() begins one of its own.
///
/// # Safety
/// As of [`PerProcess::renew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe { BEGINS.renew(Mutex::new(())) };
}

static BEGINS: PerProcess<Mutex<()>> = PerProcess::new(Mutex::new(()));

fn agent() -> Result<&'static Agent, Return> {
    if let Some(agent) = running() {
        return Ok(agent);
    }
    let _begins = BEGINS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(agent) = running() {
        return Ok(agent);
    }
    let epoll = sys::epoll_create().map_err(|_| Return::ErrorResource)?;
    let bell = fabric::bell::create().map_err(|_| Return::ErrorResource)?;
    let _ = sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell, libc::EPOLLIN as u32, 0);
    let (calls, to_call) = channel();
    let (calls, registered) = (Mutex::new(calls), Mutex::new(Registered::default()));
    let agent = Agent { epoll, bell, calls, registered, kicked: Mutex::new(Vec::new()), look_at };
    // Signals are the program's, for its own threads.
    let mask = sys::block_signals(u64::MAX);
    let began = std::thread::Builder::new().name("via-handlers".into()).spawn(move || {
        for call in to_call {
            carry_out(call);
        }
    });
    let began = began.and_then(|_| {
        std::thread::Builder::new().name("via-agent".into()).spawn(move || listen(epoll, bell))
    });
    sys::block_signals(mask);
    if began.is_err() {
        sys::close(epoll);
        sys::close(bell);
        return Err(Return::ErrorResource);
    }
    let agent = Box::leak(Box::new(agent));
    AGENT.store(agent, Ordering::Release);
    Ok(agent)
}

/// Begins to listen to a connection's socket. Before the program knows that there is a connection.
pub fn listen_to(vi: *mut c_void, socket: &Socket) -> Result<(), Return> {
    // Between hosts it tells of its end, once.
    let once = if socket.wire().is_some() { libc::EPOLLONESHOT } else { 0 };
    let events = (libc::EPOLLIN | libc::EPOLLRDHUP | once) as u32;
    sys::epoll_ctl(agent()?.epoll, libc::EPOLL_CTL_ADD, socket.descriptor(), events, vi as u64)
        .map_err(|_| Return::ErrorResource)
}

fn listen(epoll: i32, bell: i32) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    loop {
        let count = sys::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, -1).unwrap_or(0);
        for event in &events[..count] {
            if event.u64 == 0 {
                fabric::bell::silence(bell);
                look_at_kicked();
                look_at_all();
                continue;
            }
            let vi = event.u64 as *mut c_void;
            if let Some((socket, connection)) = vi::find(vi).ok().and_then(|found| found.socket()) {
                if let Some(wire) = socket.wire() {
                    wire.late();
                }
                hear(vi, &socket, connection);
            }
        }
    }
}

fn look_at_kicked() {
    let Some(agent) = running() else { return };
    let kicked = core::mem::take(&mut *agent.kicked());
    for handle in kicked {
        let handle = handle as *mut c_void;
        if let Some((socket, connection)) = vi::find(handle).ok().and_then(|found| found.socket()) {
            hear(handle, &socket, connection);
        }
        vi::serve(handle);
        vi::go_on_sending(handle);
        look_at(handle);
    }
}

/// Hears what the peer of a Virtual Interface has said by the socket of its connection.
fn hear(handle: *mut c_void, socket: &Socket, connection: u64) {
    loop {
        let said = socket.receive();
        match said {
            Ok(Some(said)) if said == Message::Kick as u32 => {
                vi::go_on_sending(handle);
                look_at(handle);
            }
            Ok(Some(said)) if said == Message::ReceiveQueueEmpty as u32 => {
                error(Event::of(vi::nic_of(handle), handle, ErrorCode::RecvqEmpty, core::ptr::null_mut()));
            }
            Ok(Some(said)) if said == Message::WriteForbidden as u32 => {
                error(Event::of(vi::nic_of(handle), handle, ErrorCode::RdmawProt, core::ptr::null_mut()));
            }
            Ok(Some(said)) if said == Message::ReadForbidden as u32 => {
                error(Event::of(vi::nic_of(handle), handle, ErrorCode::RdmarProt, core::ptr::null_mut()));
            }
            Err(sys::Errno::EAGAIN) => return,
            Err(sys::Errno::EINTR) => {}
            said => {
                // Its end, or something that cannot be.
                let left = said == Ok(Some(Message::Disconnect as u32));
                if let Ok(found) = vi::find(handle) {
                    vi::end(handle, &found, if left { End::Left } else { End::Lost }, Some(connection));
                }
                return;
            }
        }
    }
}

/// `VipErrorCallback`: sets the handler of a NIC handle, or none.
pub fn set_error_handler(
    nic: *mut c_void,
    context: *mut c_void,
    handler: Option<ErrorHandler>,
) -> Result<(), Return> {
    opened::check(nic)?;
    let mut registered = agent()?.registered();
    match handler {
        Some(handler) => registered.errors.insert(nic.addr(), (context.addr(), handler)),
        None => registered.errors.remove(&nic.addr()),
    };
    Ok(())
}

/// `VipSendNotify`, `VipRecvNotify`: calls `handler` with the next descriptor of a queue that is done, and takes it back. Once.
pub fn notify(
    handle: *mut c_void,
    which: Which,
    context: *mut c_void,
    handler: ViHandler,
) -> Result<(), Return> {
    vi::find(handle)?;
    let place = (handle.addr(), which);
    let mut registered = agent()?.registered();
    registered.descriptors.entry(place).or_default().push_back((context.addr(), handler));
    drop(registered);
    look_at(handle);
    Ok(())
}

/// `VipCQNotify`: calls `handler` with the next entry of a completion queue. Once.
pub fn notify_queue(handle: *mut c_void, context: *mut c_void, handler: CqHandler) -> Result<(), Return> {
    cq::check(handle)?;
    let mut registered = agent()?.registered();
    registered.queues.entry(handle.addr()).or_default().push_back((context.addr(), handler));
    drop(registered);
    look_at_queues();
    Ok(())
}

/// Looks whether there is something for handlers of a Virtual Interface, and of the completion queues.
fn look_at(handle: *mut c_void) {
    let Some(agent) = running() else { return };
    for which in [Which::Send, Which::Receive] {
        loop {
            // Under the lock, so that descriptors are handed over in order.
            let mut registered = agent.registered();
            let Some(list) = registered.descriptors.get_mut(&(handle.addr(), which)) else { break };
            let Some(&(context, handler)) = list.front() else { break };
            let Some(done) = take_or_arm(handle, which) else { break };
            list.pop_front();
            let nic = vi::nic_of(handle);
            agent.call(Call::Descriptor(context as *mut c_void, handler, nic, handle, done.descriptor));
        }
    }
    look_at_queues();
}

/// The next descriptor of a queue that is done; if there is none, the agent is woken when there may be one.
fn take_or_arm(handle: *mut c_void, which: Which) -> Option<Done> {
    let take = || {
        let taken = match which {
            Which::Send => vi::send_done(handle),
            Which::Receive => vi::receive_done(handle),
        };
        match taken {
            Ok(Taken::Descriptor(done)) => Some(done),
            _ => None,
        }
    };
    take().or_else(|| {
        let trip = if which == Which::Send { at::COOKIE_TRIP } else { at::TRIP };
        vi::arm(handle, trip, wake::AGENT);
        take()
    })
}

/// Looks whether there is something for any handler.
fn look_at_all() {
    let Some(agent) = running() else { return };
    let vis: BTreeSet<usize> = agent.registered().descriptors.keys().map(|(vi, _)| *vi).collect();
    for vi in vis {
        look_at(vi as *mut c_void);
    }
    look_at_queues();
}

/// Looks whether there is something for handlers of completion queues.
fn look_at_queues() {
    let Some(agent) = running() else { return };
    let mut registered = agent.registered();
    for (&handle, list) in &mut registered.queues {
        while let Some(&(context, handler)) = list.front() {
            let Ok((vi, receive)) = cq::done_or_arm(handle as *mut c_void) else { break };
            list.pop_front();
            let nic = vi::nic_of(vi);
            agent.call(Call::Queue(context as *mut c_void, handler, nic, vi, receive));
        }
    }
}

fn carry_out(call: Call) {
    match call {
        Call::Error(context, handler, mut described) => {
            // SAFETY: the program's handler, and its context.
            unsafe { handler(context, &raw mut described) };
        }
        Call::Descriptor(context, handler, nic, vi, descriptor) => {
            // SAFETY: as above.
            unsafe { handler(context, nic, vi, descriptor) };
        }
        Call::Queue(context, handler, nic, vi, receive) => {
            // SAFETY: as above.
            unsafe { handler(context, nic, vi, receive.into()) };
        }
    }
}
