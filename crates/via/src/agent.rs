//! The library's two threads, begun with the first connection, or the first handler that a program
//! registers. The *agent* listens to the connections' sockets: for their ends, for errors that fit
//! no descriptor, and for wake-ups when no thread of the program waits. The other thread runs the
//! program's handlers, which may call anything, and may take their time.

use core::ffi::c_void;
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};

use fabric::sync::Ordering;
use fabric::sys;

use crate::abi::{ErrorCode, Return};
use crate::cq::{self, Polled};
use crate::handlers::{AGENT, Agent, Call, Registered, error, running};
pub use crate::handlers::{CqHandler, ErrorHandler, Event, ViHandler, Which};
use crate::opened;
use crate::process::PerProcess;
use crate::queue::Done;
use crate::segment::{at, wake};
use crate::socket::End;
pub use crate::socket::{Message, Socket};
use crate::vi::{self, Breach, Taken};

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
    let (calls, polling, registered) = (Mutex::new(calls), Mutex::new(()), Mutex::new(Registered::default()));
    let agent = Agent { epoll, bell, calls, polling, registered, kicked: Mutex::new(Vec::new()), poll_vi };
    // Signals are for the program's own threads.
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

/// Begins to listen to a connection's socket. To be called before the program knows of the
/// connection.
pub fn listen_to(vi: *mut c_void, socket: &Socket) -> Result<(), Return> {
    // Between hosts it reports its end, once.
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
                poll_kicked();
                poll_all();
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

fn poll_kicked() {
    let Some(agent) = running() else { return };
    let kicked = core::mem::take(&mut *agent.kicked());
    for handle in kicked {
        let handle = handle as *mut c_void;
        if let Some((socket, connection)) = vi::find(handle).ok().and_then(|found| found.socket()) {
            hear(handle, &socket, connection);
        }
        vi::serve(handle);
        vi::go_on_sending(handle);
        poll_vi(handle);
    }
}

/// Handles messages of a Virtual Interface's peer from the socket of their connection.
fn hear(handle: *mut c_void, socket: &Socket, connection: u64) {
    loop {
        let said = socket.receive();
        match said {
            Ok(Some(said)) if said == Message::Kick as u32 => {
                vi::go_on_sending(handle);
                poll_vi(handle);
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
                // Its end, or a malformed message.
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

/// `VipSendNotify`, `VipRecvNotify`: calls `handler` with the next descriptor of a queue that is
/// done, and takes it back. Once.
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
    poll_vi(handle);
    Ok(())
}

/// `VipCQNotify`: calls `handler` with the next entry of a completion queue. Once.
pub fn notify_queue(handle: *mut c_void, context: *mut c_void, handler: CqHandler) -> Result<(), Return> {
    cq::check(handle)?;
    let mut registered = agent()?.registered();
    registered.queues.entry(handle.addr()).or_default().push_back((context.addr(), handler));
    drop(registered);
    poll_queues();
    Ok(())
}

/// Checks whether there is something for handlers of a Virtual Interface, and of the completion
/// queues. For callers without locks.
fn poll_vi(handle: *mut c_void) {
    let Some(agent) = running() else { return };
    for which in [Which::Send, Which::Receive] {
        while hand_over(agent, handle, which) {}
    }
    poll_queues();
}

/// Gives the next handler of a queue the next descriptor that is done. False if there is no handler
/// or no descriptor.
fn hand_over(agent: &Agent, handle: *mut c_void, which: Which) -> bool {
    let place = (handle.addr(), which);
    let polling = agent.polling();
    let first = agent.registered().descriptors.get(&place).and_then(|list| list.front().copied());
    let Some((context, handler)) = first else { return false };
    match take_or_arm(handle, which) {
        Some(Ok(done)) => {
            // Unless the program has destroyed the Virtual Interface meanwhile.
            let waits =
                agent.registered().descriptors.get_mut(&place).and_then(VecDeque::pop_front).is_some();
            if waits {
                let nic = vi::nic_of(handle);
                agent.call(Call::Descriptor(context as *mut c_void, handler, nic, handle, done.descriptor));
            }
            waits
        }
        Some(Err(breach)) => {
            drop(polling);
            breach.end(handle);
            true
        }
        None => false,
    }
}

/// The next descriptor of a queue that is done. If there is none, the agent is woken when there may
/// be one.
fn take_or_arm(handle: *mut c_void, which: Which) -> Option<Result<Done, Breach>> {
    let take = || {
        let taken = match which {
            Which::Send => vi::send_done(handle).map(Ok),
            Which::Receive => vi::poll_receive(handle),
        };
        match taken {
            Ok(Ok(Taken::Descriptor(done))) => Some(Ok(done)),
            Ok(Err(breach)) => Some(Err(breach)),
            _ => None,
        }
    };
    take().or_else(|| {
        let trip = if which == Which::Send { at::COOKIE_TRIP } else { at::TRIP };
        vi::arm(handle, trip, wake::AGENT);
        take()
    })
}

/// Checks whether there is something for any handler.
fn poll_all() {
    let Some(agent) = running() else { return };
    let vis: BTreeSet<usize> = agent.registered().descriptors.keys().map(|(vi, _)| *vi).collect();
    for vi in vis {
        poll_vi(vi as *mut c_void);
    }
    poll_queues();
}

/// Checks whether there is something for handlers of completion queues. For callers without locks.
fn poll_queues() {
    let Some(agent) = running() else { return };
    let queues: Vec<usize> = agent.registered().queues.keys().copied().collect();
    for handle in queues {
        while hand_over_queue(agent, handle as *mut c_void) {}
    }
}

/// As [`hand_over`], for a completion queue.
fn hand_over_queue(agent: &Agent, handle: *mut c_void) -> bool {
    let polling = agent.polling();
    let first = agent.registered().queues.get(&handle.addr()).and_then(|list| list.front().copied());
    let Some((context, handler)) = first else { return false };
    match cq::done_or_arm(handle) {
        Ok(Polled::Done(vi, receive)) => {
            let waits =
                agent.registered().queues.get_mut(&handle.addr()).and_then(VecDeque::pop_front).is_some();
            if waits {
                let nic = vi::nic_of(vi);
                agent.call(Call::Queue(context as *mut c_void, handler, nic, vi, receive));
            }
            waits
        }
        Ok(Polled::Broken(vi, breach)) => {
            drop(polling);
            breach.end(vi);
            true
        }
        Ok(Polled::Nothing) | Err(_) => false,
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
