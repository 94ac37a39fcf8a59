//! The Virtual Interfaces of this process: their parts, and their locks.

use core::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric::sync::{AtomicU32, AtomicU64, Ordering};

use crate::abi::{Descriptor, ErrorCode, Return, State, ViAttributes};
use crate::cq::members::Bound;
use crate::handlers::Event;
use crate::handles::{Found, Kind, Place, Pool};
use crate::limits::MAX_VIS;
use crate::lock::{Guard, Lock};
use crate::memory::Asker;
use crate::queue::{Manner, ReceiveQueue, SendQueue};
use crate::segment::Segment;
use crate::socket::{Message, Socket};
use crate::transfer::Memory;

/// A Virtual Interface.
pub struct Vi {
    pub(super) state: AtomicU32,
    pub(super) connection: AtomicU64,
    pub(super) own: Mutex<Own>,
    pub(super) send: Lock<Queue<SendQueue>>,
    pub(super) receive: Lock<Queue<ReceiveQueue>>,
}

/// The parts that transfers do not need.
pub(super) struct Own {
    pub(super) nic: *mut c_void,
    pub(super) attributes: Option<ViAttributes>,
    pub(super) socket: Option<Arc<Socket>>,
}

// SAFETY: handles are numbers; the pointers in the attributes are handles, or the program's.
unsafe impl Send for Own {}

/// A work queue, and the data that its calls need.
pub(super) struct Queue<Q> {
    pub(super) list: Option<Q>,
    pub(super) asker: Asker,
    pub(super) bound: Option<Bound>,
    /// The segment on which threads sleep that wait for it.
    pub(super) segment: Option<Arc<Segment>>,
    pub(super) level: u16,
    pub(super) most: usize,
}

// SAFETY: handles are numbers.
unsafe impl<Q: Send> Send for Queue<Q> {}

impl<Q> Queue<Q> {
    const fn new() -> Queue<Q> {
        let asker = Asker { nic: core::ptr::null_mut(), ptag: core::ptr::null_mut() };
        Queue { list: None, asker, bound: None, segment: None, level: 0, most: 0 }
    }
}

impl Queue<SendQueue> {
    /// Whether it is being connected, with this memory: the program may have given that up, and
    /// begun another connection.
    pub(super) fn is_pending(&self, vi: &Vi, memory: &Memory) -> bool {
        vi.state() == State::ConnectPending
            && self.segment.as_ref().is_some_and(|segment| Arc::ptr_eq(segment, &memory.mine))
    }
}

pub(super) static VIS: Pool<Vi> = Pool::new(Kind::Vi, &PLACES);

static PLACES: [Place<Vi>; MAX_VIS] = [const {
    Place::new(Vi {
        state: AtomicU32::new(0),
        connection: AtomicU64::new(0),
        own: Mutex::new(Own { nic: core::ptr::null_mut(), attributes: None, socket: None }),
        send: Lock::new(Queue::new()),
        receive: Lock::new(Queue::new()),
    })
}; MAX_VIS];

/// # Safety
/// As of [`Pool::begin_anew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe { VIS.begin_anew() };
}

/// Bit of a reliability level: a send waits until the peer has posted a descriptor for it (CLAN's
/// flow control extension; Giganet's deferred flow control).
pub const DEFERRED: u16 = 1 << 15;

/// Bit of a reliability level: a message that is longer than the peer's descriptor goes on in the
/// next one (CLAN's request splitting).
pub const SPLIT: u16 = 1 << 13;

/// The level without extensions.
pub(super) fn standard(level: u16) -> u16 {
    level & !(DEFERRED | SPLIT)
}

pub(super) fn manner(level: u16) -> Manner {
    Manner { patient: level & DEFERRED != 0, splits: level & SPLIT != 0 }
}

/// The NIC handle of a Virtual Interface; null if that is gone.
pub(crate) fn nic_of(vi: *mut c_void) -> *mut c_void {
    find(vi).and_then(|found| found.nic()).unwrap_or(core::ptr::null_mut())
}

/// An error of a Virtual Interface that fits no descriptor of its queues.
pub(super) fn event(handle: *mut c_void, code: ErrorCode, descriptor: *mut Descriptor) -> Event {
    Event::of(nic_of(handle), handle, code, descriptor)
}

pub(crate) fn find(handle: *mut c_void) -> Result<Found<Vi>, Return> {
    VIS.find(handle).ok_or(Return::InvalidParameter)
}

/// Its locks: `InvalidParameter` if its place belongs to another one by the time that a lock is
/// taken.
impl Found<Vi> {
    pub(super) fn own(&self) -> Result<MutexGuard<'_, Own>, Return> {
        self.standing(self.own.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline(always)]
    pub(super) fn send(&self) -> Result<Guard<'_, Queue<SendQueue>>, Return> {
        self.standing(self.send.lock())
    }

    #[inline(always)]
    pub(super) fn receive(&self) -> Result<Guard<'_, Queue<ReceiveQueue>>, Return> {
        self.standing(self.receive.lock())
    }

    #[allow(clippy::type_complexity)] // three locks
    pub(super) fn all(
        &self,
    ) -> Result<(MutexGuard<'_, Own>, Guard<'_, Queue<SendQueue>>, Guard<'_, Queue<ReceiveQueue>>), Return>
    {
        Ok((self.own()?, self.send()?, self.receive()?))
    }

    /// The NIC handle that it was made with.
    pub(crate) fn nic(&self) -> Result<*mut c_void, Return> {
        Ok(self.own()?.nic)
    }

    /// The socket of its connection, and the number of the connection.
    pub(crate) fn socket(&self) -> Option<(Arc<Socket>, u64)> {
        let own = self.own().ok()?;
        Some((own.socket.clone()?, self.connection()))
    }

    pub(super) fn kick(&self) {
        self.message(Message::Kick);
    }

    pub(super) fn message(&self, message: Message) {
        if let Some((socket, _)) = self.socket() {
            socket.send(message);
        }
    }
}

impl Vi {
    /// Where it is in the state machine.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Connected,
            2 => State::ConnectPending,
            3 => State::Error,
            _ => State::Idle,
        }
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// The number of its connections so far: to be read under any of its locks.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }
}
