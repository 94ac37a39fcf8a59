//! Virtual Interfaces: one end of a connection, with its two work queues, and the state machine around them (specification, sections 2.2
//! and 3.1).
//!
//! Locks, in the order in which they are taken: a completion queue's, [`Vi::own`], the send queue's, the receive queue's. The state is changed
//! under all three of a Virtual Interface, and may be read under any. Nothing that may wait for a peer is done under a lock, but for a
//! transfer of the peer that is under way, which the kernel carries out.

use core::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric::sync::{AtomicU32, AtomicU64, Ordering};

use crate::abi::{Descriptor, ErrorCode, Return, State, ViAttributes, reliability, status};
use crate::cq::members::{self as cq, Bound};
use crate::descriptor::{Operation, Posted};
use crate::gate;
use crate::handlers::{self, Event};
use crate::handles::{Found, Kind, Place, Pool};
use crate::limits::{MAX_DESCRIPTORS, MAX_TRANSFER, MAX_VIS};
use crate::lock::{Guard, Lock};
use crate::memory::{Asker, Regions, Rights};
use crate::opened;
use crate::queue::{Done, Manner, Outcome, ReceiveQueue, SendQueue};
use crate::segment::{Segment, at, wake};
pub use crate::socket::End;
use crate::socket::{Message, Socket};
use crate::transfer::{self, Memory, Sent};
use crate::until::Until;

/// A Virtual Interface.
pub struct Vi {
    state: AtomicU32,
    connection: AtomicU64,
    own: Mutex<Own>,
    send: Lock<Queue<SendQueue>>,
    receive: Lock<Queue<ReceiveQueue>>,
}

/// What no transfer needs.
struct Own {
    nic: *mut c_void,
    attributes: Option<ViAttributes>,
    socket: Option<Arc<Socket>>,
}

// SAFETY: handles are numbers; the pointers in the attributes are handles, or the program's.
unsafe impl Send for Own {}

/// A work queue, and what its calls need.
struct Queue<Q> {
    list: Option<Q>,
    asker: Asker,
    bound: Option<Bound>,
    /// Where threads sleep that wait for it.
    segment: Option<Arc<Segment>>,
    level: u16,
    most: usize,
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
    /// Whether it is being connected, with this memory: the program may have given that up, and begun another connection.
    fn is_pending(&self, vi: &Vi, memory: &Memory) -> bool {
        vi.state() == State::ConnectPending
            && self.segment.as_ref().is_some_and(|segment| Arc::ptr_eq(segment, &memory.mine))
    }
}

mod work;
pub(crate) use work::serve;
pub use work::{
    Taken, Told, go_on_sending, post_receive, post_send, receive_done, receive_wait, send_done, send_wait,
    tell,
};
use work::{receive_done_now, send_done_now};

/// # Safety
/// As of [`Pool::begin_anew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe { VIS.begin_anew() };
}

static VIS: Pool<Vi> = Pool::new(Kind::Vi, &PLACES);
static PLACES: [Place<Vi>; MAX_VIS] = [const {
    Place::new(Vi {
        state: AtomicU32::new(0),
        connection: AtomicU64::new(0),
        own: Mutex::new(Own { nic: core::ptr::null_mut(), attributes: None, socket: None }),
        send: Lock::new(Queue::new()),
        receive: Lock::new(Queue::new()),
    })
}; MAX_VIS];

/// Bit of a reliability level: a send waits until the peer has posted a descriptor for it (CLAN's flow control extension; Giganet's
/// deferred flow control).
pub const DEFERRED: u16 = 1 << 15;
/// Bit of a reliability level: a message that is longer than the peer's descriptor goes on in the next one (CLAN's request splitting).
pub const SPLIT: u16 = 1 << 13;

/// The level without what goes beyond the standard.
fn standard(level: u16) -> u16 {
    level & !(DEFERRED | SPLIT)
}

fn manner(level: u16) -> Manner {
    Manner { patient: level & DEFERRED != 0, splits: level & SPLIT != 0 }
}

/// `VipCreateVi`.
pub fn create(
    nic: *mut c_void,
    attributes: ViAttributes,
    send_cq: *mut c_void,
    receive_cq: *mut c_void,
) -> Result<*mut c_void, Return> {
    opened::check(nic)?;
    check(nic, &attributes)?;
    let segment = Arc::new(Segment::new().map_err(|_| Return::ErrorResource)?);
    let (handle, vi) = VIS.give_out().ok_or(Return::ErrorResource)?;
    let bind = |cq: *mut c_void| if cq.is_null() { Ok(None) } else { cq::join(cq, nic, handle).map(Some) };
    let bound = bind(send_cq).and_then(|send| {
        if receive_cq == send_cq {
            return Ok((send, send));
        }
        match bind(receive_cq) {
            Ok(receive) => Ok((send, receive)),
            Err(error) => {
                send.iter().for_each(cq::leave);
                Err(error)
            }
        }
    });
    let (send_bound, receive_bound) = bound.inspect_err(|_| {
        VIS.take_back(&vi);
    })?;
    let (mut own, mut send, mut receive) = vi.all()?;
    own.nic = nic;
    send.list = Some(SendQueue::default());
    receive.list = Some(ReceiveQueue::default());
    send.bound = send_bound;
    receive.bound = receive_bound;
    if let Some(list) = &mut send.list {
        list.finished.watched = true;
    }
    if let Some(list) = &mut receive.list {
        list.finished.watched = true;
    }
    set(&mut own, &mut send, &mut receive, attributes);
    send.segment = Some(segment.clone());
    receive.segment = Some(segment);
    vi.set_state(State::Idle);
    Ok(handle)
}

fn check(nic: *mut c_void, attributes: &ViAttributes) -> Result<(), Return> {
    let level = standard(attributes.reliability_level);
    if ![reliability::UNRELIABLE, reliability::DELIVERY, reliability::RECEPTION].contains(&level) {
        return Err(Return::InvalidReliabilityLevel);
    }
    if attributes.max_transfer_size == 0 || attributes.max_transfer_size as usize > MAX_TRANSFER {
        return Err(Return::InvalidMtu);
    }
    if !attributes.qos.is_null() {
        return Err(Return::InvalidQos);
    }
    opened::check_ptag(nic, attributes.ptag)?;
    if attributes.enable_rdma_read != 0 && level == reliability::UNRELIABLE {
        return Err(Return::InvalidRdmaRead);
    }
    Ok(())
}

fn set(
    own: &mut Own,
    send: &mut Queue<SendQueue>,
    receive: &mut Queue<ReceiveQueue>,
    attributes: ViAttributes,
) {
    let asker = Asker { nic: own.nic, ptag: attributes.ptag };
    own.attributes = Some(attributes);
    (send.asker, receive.asker) = (asker, asker);
    (send.level, receive.level) = (attributes.reliability_level, attributes.reliability_level);
    (send.most, receive.most) =
        (attributes.max_transfer_size as usize, attributes.max_transfer_size as usize);
}

/// `VipDestroyVi`. `InvalidState` unless it is Idle. Descriptors that were not taken back go with it: programs that end do not take them
/// back.
pub fn destroy(handle: *mut c_void) -> Result<(), Return> {
    let vi = find(handle)?;
    let (bounds, segment) = {
        let (_own, mut send, mut receive) = vi.all()?;
        if vi.state() != State::Idle {
            return Err(Return::InvalidState);
        }
        let regions = opened::regions()?;
        if let Some(list) = &mut receive.list {
            list.clear(regions);
        }
        VIS.take_back(&vi);
        (send.list, receive.list) = (None, None);
        let bounds = (send.bound.take(), receive.bound.take());
        receive.segment = None;
        (bounds, send.segment.take())
    };
    handlers::forget(handle);
    if let Some(segment) = segment {
        wake_own(&segment);
    }
    bounds.0.iter().for_each(cq::leave);
    if bounds.1.is_some_and(|bound| bounds.0.is_none_or(|other| other.handle != bound.handle)) {
        bounds.1.iter().for_each(cq::leave);
    }
    Ok(())
}

/// What `VipQueryVi` tells.
pub struct Query {
    /// Where it is in the state machine.
    pub state: State,
    /// What it was made with.
    pub attributes: ViAttributes,
    /// Whether nothing is posted, or done and not taken back, to be sent.
    pub send_empty: bool,
    /// As `send_empty`, to receive.
    pub receive_empty: bool,
}

/// `VipQueryVi`.
pub fn query(handle: *mut c_void) -> Result<Query, Return> {
    let vi = find(handle)?;
    let (own, send, receive) = vi.all()?;
    match (own.attributes, &send.list, &receive.list) {
        (Some(attributes), Some(send), Some(receive)) => Ok(Query {
            state: vi.state(),
            attributes,
            send_empty: send.is_empty(),
            receive_empty: receive.is_empty(),
        }),
        _ => Err(Return::InvalidParameter),
    }
}

/// `VipSetViAttributes`. `InvalidState` unless it is Idle.
pub fn set_attributes(handle: *mut c_void, attributes: ViAttributes) -> Result<(), Return> {
    let vi = find(handle)?;
    let (mut own, mut send, mut receive) = vi.all()?;
    if vi.state() != State::Idle {
        return Err(Return::InvalidState);
    }
    check(own.nic, &attributes)?;
    set(&mut own, &mut send, &mut receive, attributes);
    Ok(())
}

/// `VipDisconnect`. Everything that is posted is done, flushed, when this returns. On an Idle one it does nothing.
pub fn disconnect(handle: *mut c_void) -> Result<(), Return> {
    let vi = find(handle)?;
    end(handle, &vi, End::Disconnected, None);
    crate::connect::cancel(handle);
    Ok(())
}

/// The connection of a Virtual Interface is over: the one that it has, or, if that is still the one, the [`Vi::connection`] that was found to be over before the locks were let go.
pub(crate) fn end(handle: *mut c_void, vi: &Found<Vi>, how: End, connection: Option<u64>) {
    let Ok(regions) = opened::regions() else { return };
    let (socket, lost) = {
        let Ok((mut own, mut send, mut receive)) = vi.all() else { return };
        if connection.is_some_and(|connection| connection != vi.connection()) {
            return;
        }
        let before = vi.state();
        let connected = before == State::Connected;
        if !connected && (how != End::Disconnected || before == State::Idle) {
            return;
        }
        if connected {
            flush(regions, &mut send, &mut receive);
        } else if let Some(list) = &mut receive.list {
            list.forget_cookies();
        }
        vi.set_state(if how == End::Disconnected { State::Idle } else { State::Error });
        send_done_now(&mut send);
        receive_done_now(&mut receive);
        new_segment(&mut send, &mut receive);
        (own.socket.take(), connected && matches!(how, End::Left | End::Lost))
    };
    if let Some(socket) = socket {
        socket.close(how);
    }
    handlers::flushed(handle);
    if lost {
        let lost = event(handle, ErrorCode::ConnLost, core::ptr::null_mut());
        handlers::error(if how == End::Left { lost.expected() } else { lost });
    }
}

/// The peer has no way to our buffers any more; what it has sent is received, and the rest done.
fn flush(regions: &Regions, send: &mut Queue<SendQueue>, receive: &mut Queue<ReceiveQueue>) {
    if let Some(list) = &mut receive.list {
        if let Some(memory) = list.memory.clone()
            && memory.theirs.wire().is_none()
        {
            gate::shut(&memory.theirs, at::SHUT);
            memory.await_transfers();
        }
        // SAFETY: the buffers lie in registered memory.
        unsafe { list.flush(regions) };
    }
    if let Some(list) = &mut send.list {
        list.flush(regions);
    }
}

/// Another segment for the next connection: peers of this one may still have it.
fn new_segment(send: &mut Queue<SendQueue>, receive: &mut Queue<ReceiveQueue>) {
    let segment = Segment::new().ok().map(Arc::new);
    receive.segment = segment.clone();
    if let Some(old) = core::mem::replace(&mut send.segment, segment) {
        wake_own(&old);
    }
}

/// Wakes those who sleep for either queue of a segment that is not used any more; who else was to be woken.
fn wake_own(segment: &Segment) -> u64 {
    segment.fire(at::TRIP) | segment.fire(at::COOKIE_TRIP)
}

/// Between hosts the peer writes into the link's segment: it takes the place of the one that was offered. False if it is not pending any more.
pub(crate) fn exchange(handle: *mut c_void, offer: &Offer, segment: &Arc<Segment>) -> bool {
    let Ok(vi) = find(handle) else { return false };
    let Ok((_own, mut send, mut receive)) = vi.all() else { return false };
    let same = send.segment.as_ref().is_some_and(|segment| Arc::ptr_eq(segment, &offer.segment));
    if vi.state() != State::ConnectPending || !same {
        return false;
    }
    (send.segment, receive.segment) = (Some(segment.clone()), Some(segment.clone()));
    // Who waits for it looks again, and waits at the new one.
    if wake_own(&offer.segment) & wake::AGENT != 0 {
        handlers::look_later();
    }
    true
}

/// What a Virtual Interface that is to be connected brings with it.
pub(crate) struct Offer {
    pub nic: *mut c_void,
    pub attributes: ViAttributes,
    pub segment: Arc<Segment>,
    /// Its completion queues: of the receive queue, of the send queue.
    pub queues: [Option<Bound>; 2],
}

// SAFETY: handles are numbers; the attributes' pointers are handles, or null.
unsafe impl Send for Offer {}

/// Begins a connection: Idle, and Connect Pending from now on. `InvalidState` if it is not Idle.
pub(crate) fn begin(handle: *mut c_void) -> Result<Offer, Return> {
    let vi = find(handle)?;
    let (own, send, receive) = vi.all()?;
    if vi.state() != State::Idle {
        return Err(Return::InvalidState);
    }
    let attributes = own.attributes.ok_or(Return::InvalidParameter)?;
    let segment = send.segment.clone().ok_or(Return::ErrorResource)?;
    vi.set_state(State::ConnectPending);
    let queues = [receive.bound, send.bound];
    Ok(Offer { nic: own.nic, attributes, segment, queues })
}

/// Undoes [`begin`]: the connection was not made. `seen`: the peer has had the segment, so there must be another one.
pub(crate) fn abandon(handle: *mut c_void, seen: bool) {
    let Ok(vi) = find(handle) else { return };
    let Ok((_own, mut send, mut receive)) = vi.all() else { return };
    if vi.state() != State::ConnectPending {
        return;
    }
    vi.set_state(State::Idle);
    if seen {
        if let Some(list) = &mut receive.list {
            list.forget_cookies();
        }
        new_segment(&mut send, &mut receive);
    }
}

/// Tells the peer of all descriptors that are posted, before it knows that there is a connection. False if it is not pending any more.
pub(crate) fn prepare(handle: *mut c_void, memory: &Arc<Memory>) -> bool {
    let Ok(vi) = find(handle) else { return false };
    let Ok((_own, send, mut receive)) = vi.all() else { return false };
    if !send.is_pending(&vi, memory) {
        return false;
    }
    if let Some(list) = &mut receive.list {
        list.connect(memory.clone());
    }
    true
}

/// Connected, after [`prepare`]. False if it is not pending any more.
pub(crate) fn established(handle: *mut c_void, memory: Arc<Memory>, socket: Arc<Socket>) -> bool {
    let Ok(vi) = find(handle) else { return false };
    let Ok((mut own, mut send, mut receive)) = vi.all() else { return false };
    if !send.is_pending(&vi, &memory) {
        return false;
    }
    if let Some(list) = &mut send.list {
        list.memory = Some(memory);
    }
    own.socket = Some(socket);
    vi.connection.fetch_add(1, Ordering::Release);
    vi.set_state(State::Connected);
    send_done_now(&mut send);
    receive_done_now(&mut receive);
    true
}

/// Arms the tripwire of a queue for `whom`.
pub(crate) fn arm(handle: *mut c_void, trip: usize, whom: u64) {
    if let Ok(vi) = find(handle)
        && let Ok(send) = vi.send()
        && let Some(segment) = &send.segment
    {
        segment.arm(trip, whom);
    }
}

/// Everything of a NIC handle that is being closed.
pub(crate) fn close(nic: *mut c_void) {
    for (handle, vi) in VIS.all() {
        if vi.own().is_ok_and(|own| own.nic == nic) {
            let _ = disconnect(handle);
            let _ = destroy(handle);
        }
    }
}

/// Waits until no peer writes to, or reads from, memory of this process that it found registered before.
pub(crate) fn await_transfers() {
    for (_, vi) in VIS.all() {
        let Ok(receive) = vi.receive() else { continue };
        let memory = receive.list.as_ref().and_then(|list| list.memory.clone());
        drop(receive);
        if let Some(memory) = memory {
            memory.await_transfers();
        }
    }
}

/// The NIC handle of a Virtual Interface; null if that is no more.
pub(crate) fn nic_of(vi: *mut c_void) -> *mut c_void {
    find(vi).and_then(|found| found.nic()).unwrap_or(core::ptr::null_mut())
}

/// An error of a Virtual Interface that fits no descriptor of its queues.
fn event(handle: *mut c_void, code: ErrorCode, descriptor: *mut Descriptor) -> Event {
    Event::of(nic_of(handle), handle, code, descriptor)
}

pub(crate) fn find(handle: *mut c_void) -> Result<Found<Vi>, Return> {
    VIS.find(handle).ok_or(Return::InvalidParameter)
}

/// Its locks: `InvalidParameter` if its place is not its own any more by the time that one is had.
impl Found<Vi> {
    fn own(&self) -> Result<MutexGuard<'_, Own>, Return> {
        self.standing(self.own.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline(always)]
    fn send(&self) -> Result<Guard<'_, Queue<SendQueue>>, Return> {
        self.standing(self.send.lock())
    }

    #[inline(always)]
    fn receive(&self) -> Result<Guard<'_, Queue<ReceiveQueue>>, Return> {
        self.standing(self.receive.lock())
    }

    #[allow(clippy::type_complexity)] // three locks
    fn all(
        &self,
    ) -> Result<(MutexGuard<'_, Own>, Guard<'_, Queue<SendQueue>>, Guard<'_, Queue<ReceiveQueue>>), Return>
    {
        Ok((self.own()?, self.send()?, self.receive()?))
    }

    /// The NIC handle that it was made with.
    pub(crate) fn nic(&self) -> Result<*mut c_void, Return> {
        Ok(self.own()?.nic)
    }

    /// The socket of its connection, and which connection that is.
    pub(crate) fn socket(&self) -> Option<(Arc<Socket>, u64)> {
        let own = self.own().ok()?;
        Some((own.socket.clone()?, self.connection()))
    }

    fn kick(&self) {
        self.message(Message::Kick);
    }

    fn message(&self, message: Message) {
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

    fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// How many connections it has had: to be read under any of its locks.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic;

    fn attributes(ptag: *mut c_void) -> ViAttributes {
        let (reliability_level, max_transfer_size) = (reliability::DELIVERY, 100);
        let qos = core::ptr::null_mut();
        ViAttributes {
            reliability_level,
            max_transfer_size,
            qos,
            ptag,
            enable_rdma_write: 0,
            enable_rdma_read: 0,
        }
    }

    #[test]
    fn who_found_one_that_is_destroyed_has_nothing_of_the_next_in_its_place() {
        let nic = nic::open(b"nic0").unwrap();
        let ptag = nic::create_ptag(nic).unwrap();
        let attributes = attributes(ptag);
        let make = || create(nic, attributes, core::ptr::null_mut(), core::ptr::null_mut()).unwrap();
        // Other tests make some, too, and may have taken the place.
        for _ in 0..100 {
            let first = make();
            let found = find(first).unwrap();
            assert!(found.all().is_ok() && found.nic() == Ok(nic));
            destroy(first).unwrap();
            let second = make();
            let next = find(second).unwrap();
            if !core::ptr::eq::<Vi>(&*found, &*next) {
                continue;
            }
            assert!(next.all().is_ok());
            for refused in [
                found.own().err(),
                found.send().err(),
                found.receive().err(),
                found.all().err(),
                found.nic().err(),
            ] {
                assert_eq!(refused, Some(Return::InvalidParameter));
            }
            assert!(found.socket().is_none());
            end(first, &found, End::Disconnected, None);
            assert!(query(second).is_ok() && query(first).is_err());
            return nic::close(nic).unwrap();
        }
        panic!("never the same place");
    }

    #[test]
    fn an_end_that_was_found_before_does_not_end_the_next_connection() {
        let nic = nic::open(b"nic0").unwrap();
        let ptag = nic::create_ptag(nic).unwrap();
        let attributes = attributes(ptag);
        let handle = create(nic, attributes, core::ptr::null_mut(), core::ptr::null_mut()).unwrap();
        let vi = find(handle).unwrap();
        let before = vi.connection();
        // As `established` does.
        vi.connection.fetch_add(1, Ordering::Release);
        vi.set_state(State::Connected);
        end(handle, &vi, End::Left, Some(before));
        assert_eq!(vi.state(), State::Connected);
        end(handle, &vi, End::Left, Some(vi.connection()));
        assert_eq!(vi.state(), State::Error);
        nic::close(nic).unwrap();
    }
}
