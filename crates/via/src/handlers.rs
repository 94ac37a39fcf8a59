//! The program's handlers, for errors and for descriptors that are done, and how the agent
//! ([`crate::agent`]) learns that there may be something for one. For modules below the agent,
//! which may hold locks.

use core::ffi::c_void;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabric::sync::{AtomicPtr, Ordering};

use crate::abi::{Descriptor, ErrorCode, ErrorDescriptor, ResourceCode};

/// An error that fits no descriptor (`VIP_ERROR_DESCRIPTOR`).
#[derive(Clone, Copy)]
pub struct Event {
    nic: *mut c_void,
    vi: *mut c_void,
    code: ErrorCode,
    descriptor: *mut Descriptor,
    expected: bool,
}

impl Event {
    /// An error of a Virtual Interface that was made with this NIC handle, or with null if that is
    /// gone.
    pub fn of(nic: *mut c_void, vi: *mut c_void, code: ErrorCode, descriptor: *mut Descriptor) -> Event {
        Event { nic, vi, code, descriptor, expected: false }
    }

    /// An error that is not written to standard error if the program has no handler: every
    /// connection ends.
    pub fn expected(self) -> Event {
        Event { expected: true, ..self }
    }
}

/// `VipErrorCallback`'s handler.
pub type ErrorHandler = unsafe extern "C" fn(*mut c_void, *mut ErrorDescriptor);

/// `VipSendNotify`'s and `VipRecvNotify`'s handler: context, NIC, Virtual Interface, descriptor.
pub type ViHandler = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut Descriptor);

/// `VipCQNotify`'s handler: context, NIC, Virtual Interface, whether it is the receive queue.
pub type CqHandler = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, i32);

/// Which of a Virtual Interface's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Which {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// The event that a handler waits for, with the program's context.
pub(crate) enum Call {
    Error(*mut c_void, ErrorHandler, ErrorDescriptor),
    Descriptor(*mut c_void, ViHandler, *mut c_void, *mut c_void, *mut Descriptor),
    Queue(*mut c_void, CqHandler, *mut c_void, *mut c_void, bool),
}

// SAFETY: contexts are the program's, which knows that its handlers run in a thread of the library.
unsafe impl Send for Call {}

pub(crate) struct Agent {
    pub(crate) epoll: i32,
    /// Rung to make the agent check for all handlers.
    pub(crate) bell: i32,
    pub(crate) calls: Mutex<Sender<Call>>,
    /// Held while checking for handlers, so that descriptors are handed over in order.
    pub(crate) polling: Mutex<()>,
    /// Held just long enough to read or change it.
    pub(crate) registered: Mutex<Registered>,
    /// Virtual Interfaces whose peers on other hosts have sent a message.
    pub(crate) kicked: Mutex<Vec<usize>>,
    /// Checks whether there is something for handlers of a Virtual Interface, and of the completion
    /// queues.
    pub(crate) poll_vi: fn(*mut c_void),
}

#[derive(Default)]
pub(crate) struct Registered {
    pub(crate) errors: HashMap<usize, (usize, ErrorHandler)>,
    pub(crate) descriptors: HashMap<(usize, Which), VecDeque<(usize, ViHandler)>>,
    pub(crate) queues: HashMap<usize, VecDeque<(usize, CqHandler)>>,
}

/// Set once it runs; it never ends.
pub(crate) static AGENT: AtomicPtr<Agent> = AtomicPtr::new(core::ptr::null_mut());

/// The agent, if there is one.
pub(crate) fn running() -> Option<&'static Agent> {
    // SAFETY: what is there was leaked by `agent`.
    unsafe { AGENT.load(Ordering::Acquire).as_ref() }
}

impl Agent {
    pub(crate) fn polling(&self) -> MutexGuard<'_, ()> {
        self.polling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registered(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kicked(&self) -> MutexGuard<'_, Vec<usize>> {
        self.kicked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_waited_for(&self) -> bool {
        let registered = self.registered();
        !registered.descriptors.is_empty() || !registered.queues.is_empty()
    }

    pub(crate) fn call(&self, call: Call) {
        let _ = self.calls.lock().unwrap_or_else(PoisonError::into_inner).send(call);
    }
}

/// Has the agent check a Virtual Interface whose peer is on another host. For callers with locks.
pub fn kick(handle: *mut c_void) {
    let Some(agent) = running() else { return };
    let mut kicked = agent.kicked();
    if !kicked.contains(&handle.addr()) {
        kicked.push(handle.addr());
    }
    drop(kicked);
    fabric::bell::ring(agent.bell);
}

/// Reports an error to the program, by the handler of the NIC handle, or, if it has none, on
/// standard error.
pub fn error(event: Event) {
    let nic = event.nic;
    let described = ErrorDescriptor {
        nic_handle: nic,
        vi_handle: event.vi,
        cq_handle: core::ptr::null_mut(),
        descriptor: event.descriptor,
        op_code: 0,
        resource_code: if event.descriptor.is_null() { ResourceCode::Vi } else { ResourceCode::Descriptor },
        error_code: event.code,
    };
    // Without an agent there is no handler.
    let agent = running();
    let handler = agent.and_then(|agent| agent.registered().errors.get(&nic.addr()).copied());
    match agent.zip(handler) {
        Some((agent, (context, handler))) => {
            agent.call(Call::Error(context as *mut c_void, handler, described));
        }
        None if event.expected => {}
        None => eprintln!("vipl: Virtual Interface {:p}: {:?}", event.vi, event.code),
    }
}

/// Has the agent check for all handlers. For callers with locks.
pub fn poll_later() {
    if let Some(agent) = running() {
        fabric::bell::ring(agent.bell);
    }
}

/// Descriptors have been flushed: handlers may have something. The agent checks later, as the
/// caller may be checking just now.
pub fn flushed() {
    if running().is_some_and(Agent::is_waited_for) {
        poll_later();
    }
}

/// Checks now whether handlers of a Virtual Interface have something. For callers without locks.
pub fn poll_now(handle: *mut c_void) {
    if let Some(agent) = running().filter(|agent| agent.is_waited_for()) {
        (agent.poll_vi)(handle);
    }
}

/// A Virtual Interface, or a completion queue, is gone: drops its handlers.
pub fn forget(handle: *mut c_void) {
    if let Some(agent) = running() {
        let mut registered = agent.registered();
        registered.descriptors.retain(|(vi, _), _| *vi != handle.addr());
        registered.queues.remove(&handle.addr());
    }
}

/// A NIC handle is gone: drops its handlers.
pub fn forget_nic(nic: *mut c_void) {
    if let Some(agent) = running() {
        agent.registered().errors.remove(&nic.addr());
    }
}

/// A child of fork() has none of its parent's threads.
pub(crate) fn in_child() {
    AGENT.store(core::ptr::null_mut(), Ordering::Release);
}
