//! The state machine around a Virtual Interface's connection: how one begins, is made, given up,
//! and ends.

use core::ffi::c_void;
use std::sync::Arc;

use fabric::sync::Ordering;

use crate::abi::{ErrorCode, Return, State, ViAttributes};
use crate::cq::members::Bound;
use crate::gate;
use crate::handlers;
use crate::handles::Found;
use crate::memory::Regions;
use crate::opened;
use crate::queue::{ReceiveQueue, SendQueue};
use crate::segment::{Segment, at, wake};
use crate::socket::{End, Socket};
use crate::transfer::Memory;
use crate::vi::places::{Queue, Vi, event, find};
use crate::vi::waking::{receive_done_now, send_done_now};

/// The peer breaks the rules, as a poll of a queue has found. A caller that has no lock any more
/// must end the connection.
#[must_use]
pub struct Breach(pub(super) u64);

impl Breach {
    /// Ends it, if the Virtual Interface still has it.
    pub(crate) fn end(self, handle: *mut c_void) {
        if let Ok(vi) = find(handle) {
            end(handle, &vi, End::Broken, Some(self.0));
        }
    }
}

/// Ends the connection of a Virtual Interface: the present one; or, if that is still the one, the
/// [`Vi::connection`] that was found to be over before the locks were released. For callers without
/// locks: it takes all of the Virtual Interface's, and may wait for the peer.
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
    handlers::flushed();
    if lost {
        let lost = event(handle, ErrorCode::ConnLost, core::ptr::null_mut());
        handlers::error(if how == End::Left { lost.expected() } else { lost });
    }
}

/// The peer cannot reach our buffers any more: receives the messages that it has sent, and ends the
/// rest.
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

/// Wakes the threads that sleep for either queue of a segment that is not used any more; returns
/// who else must be woken.
pub(super) fn wake_own(segment: &Segment) -> u64 {
    segment.fire(at::TRIP) | segment.fire(at::COOKIE_TRIP)
}

/// Between hosts the peer writes into the link's segment, which takes the place of the one that was
/// offered. False if the connection is not pending any more.
pub(crate) fn exchange(handle: *mut c_void, offer: &Offer, segment: &Arc<Segment>) -> bool {
    let Ok(vi) = find(handle) else { return false };
    let Ok((_own, mut send, mut receive)) = vi.all() else { return false };
    let same = send.segment.as_ref().is_some_and(|segment| Arc::ptr_eq(segment, &offer.segment));
    if vi.state() != State::ConnectPending || !same {
        return false;
    }
    (send.segment, receive.segment) = (Some(segment.clone()), Some(segment.clone()));
    // Threads that wait for it check again, and wait at the new one.
    if wake_own(&offer.segment) & wake::AGENT != 0 {
        handlers::poll_later();
    }
    true
}

/// The parts of a Virtual Interface that a connection needs.
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

/// Undoes [`begin`]: the connection was not made. `seen`: the peer has had the segment, so it is
/// replaced.
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

/// Announces all posted descriptors to the peer, before it knows that the connection exists. False
/// if it is not pending any more.
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
